"""How far two sets of scores of the same samples agree, for many reweightings of the cases at once.

A bootstrap replicate that resamples cases is a row of weights: how often it drew each case. A case drawn twice counts
twice, with all its models, and its copies tie with each other, exactly as if the samples were written out. Everything
here is a sum over samples or pairs, so all replicates are computed together and nothing is sorted again.
"""

from collections.abc import Mapping
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
JUDGE_STEPS = 10
LEVEL_STEPS = 2
THRESHOLDS = 101
DECIMALS = 9


class Comparison:
    """Scores of people and of a judge for the same samples, both float64 [models, cases] between 0 and 1.

    A sample counts where neither is NaN. `people` may as well be the mean of other raters, and `judge` one rater.
    """

    def __init__(self, people: Floats, judge: Floats) -> None:
        there = ~(np.isnan(people) | np.isnan(judge))
        self.people = np.where(there, people, np.nan)
        self.judge = np.where(there, judge, np.nan)
        self.there = there
        self._concordance, self._untied_people, self._untied_judge = _sample_pairs(self.people, self.judge)
        self._grids = {steps: _grid_sums(self.people, self.judge, steps) for steps in (JUDGE_STEPS, LEVEL_STEPS)}
        self.pairs = CasePairs(self.people, self.judge)

    def measures(self, weights: Floats) -> dict[str, Floats]:
        """Every measure for weights float64 [replicates, cases]; NaN where it is not defined.

        All are [replicates], but `spearman_per_model` is [replicates, models].
        """
        models, cases = self.people.shape
        each = [spearman(self.people[row, there], self.judge[row, there], weights[:, there])
                for row, there in enumerate(self.there)]  # fmt: skip
        per_model = np.stack(each, axis=1)
        place = np.broadcast_to(np.arange(cases), (models, cases))[self.there]
        shown = self._grids[JUDGE_STEPS]
        levels = self._grids[LEVEL_STEPS]
        return {
            "spearman_per_model_fisher": fisher_mean(per_model, axis=1),
            "spearman_per_model": per_model,
            "spearman_pooled": spearman(self.people[self.there], self.judge[self.there], weights[:, place]),
            "kendall_pooled": self._kendall(weights),
            "exact": _ratio(weights @ shown["equal"], weights @ shown["count"]),
            "within_one": _ratio(weights @ shown["near"], weights @ shown["count"]),
            "kappa_quadratic": _kappa(weights, shown),
            "levels_exact": _ratio(weights @ levels["equal"], weights @ levels["count"]),
            "levels_kappa_quadratic": _kappa(weights, levels),
            **self.pairs.accuracies(weights),
        }

    def _kendall(self, weights: Floats) -> Floats:
        """Kendall's τ-b: concordant minus discordant pairs, over the geometric mean of those not tied on each side."""

        def over_pairs(matrix: Floats) -> Floats:
            total: Floats = ((weights @ matrix) * weights).sum(axis=1)
            return total

        untied = over_pairs(self._untied_people) * over_pairs(self._untied_judge)
        return _ratio(over_pairs(self._concordance), np.sqrt(untied))


class CasePairs:
    """The pairs of results that two models gave for one case: which one is better, or are they tied?"""

    def __init__(self, people: Floats, judge: Floats) -> None:
        rows = list(combinations(range(len(people)), 2))
        first, second = [row for row, _ in rows], [row for _, row in rows]
        people_apart = (people[first] - people[second]).round(DECIMALS)
        judge_apart = (judge[first] - judge[second]).round(DECIMALS)
        there = ~np.isnan(judge_apart)
        self._count = there.sum(axis=0).astype(np.float64)
        self._decided = (there & (people_apart != 0)).sum(axis=0).astype(np.float64)
        agree = np.sign(people_apart) == np.sign(judge_apart)
        halves = np.where(judge_apart == 0, 0.5, agree)
        self._credit = np.where(there & (people_apart != 0), halves, 0.0).sum(axis=0)
        distances = np.abs(judge_apart)
        self.thresholds = _thresholds(distances[there])
        self._right = np.stack([(there & np.where(distances <= threshold, people_apart == 0, agree)).sum(axis=0)
                                for threshold in self.thresholds], axis=1).astype(np.float64)  # fmt: skip
        self.pairs = int(self._count.sum())
        self.tied_by_people = int((there & (people_apart == 0)).sum())
        self.tied_by_judge = int((there & (judge_apart == 0)).sum())

    def accuracies(self, weights: Floats) -> dict[str, Floats]:
        """Accuracy by three rules for ties.

        pairwise_accuracy: of the pairs people tell apart, a tie by the judge counting half. pairwise_accuracy_ties: of
        all pairs, where a tie is right if people tie too (Deutsch et al. 2023, "Ties Matter", arXiv 2305.14324).
        pairwise_accuracy_calibrated: the same, with the judge's scores tied up to the distance that fits best
        (their tie calibration, over at most 101 distances); chosen on these very samples, so a little optimistic.
        """
        shares = _ratio(weights @ self._right, (weights @ self._count)[:, None])
        return {
            "pairwise_accuracy": _ratio(weights @ self._credit, weights @ self._decided),
            "pairwise_accuracy_ties": shares[:, 0],
            "pairwise_accuracy_calibrated": shares.max(axis=1),
        }

    def threshold(self) -> float | None:
        """The distance up to which the judge's scores are best called a tie, on the scale from 0 to 1."""
        return float(self.thresholds[self._right.sum(axis=0).argmax()]) if self.pairs else None


def spearman(people: Floats, judge: Floats, weights: Floats) -> Floats:
    """Spearman's ρ of [samples] against [samples] for weights [replicates, samples]; NaN if either side is constant."""
    ranks, others = weighted_ranks(people, weights), weighted_ranks(judge, weights)
    total = weights.sum(axis=1, keepdims=True)
    ranks = ranks - _ratio((weights * ranks).sum(axis=1, keepdims=True), total)
    others = others - _ratio((weights * others).sum(axis=1, keepdims=True), total)
    spread = (weights * ranks**2).sum(axis=1) * (weights * others**2).sum(axis=1)
    return np.clip(_ratio((weights * ranks * others).sum(axis=1), np.sqrt(spread)), -1, 1)


def weighted_ranks(values: Floats, weights: Floats) -> Floats:
    """Mid-ranks [replicates, samples] of samples [samples] that are each there as often as their weight says."""
    levels, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    last = np.searchsorted(place[order], np.arange(len(levels)), side="right") - 1
    ends = np.cumsum(weights[:, order], axis=1)[:, last]
    starts = np.concatenate([np.zeros((len(weights), 1)), ends[:, :-1]], axis=1)
    ranks: Floats = ((starts + ends + 1) / 2)[:, place]
    return ranks


def fisher_mean(correlations: Floats, axis: int) -> Floats:
    """The mean of correlations on Fisher's z scale, tanh(mean(arctanh r)); |r| = 1 is taken as 1 − 1e-7.

    NaN if any of them is: a correlation that is not defined is neither 0 nor left out.
    """
    bounded = np.clip(correlations, -1 + 1e-7, 1 - 1e-7)
    mean: Floats = np.tanh(np.arctanh(bounded).mean(axis=axis))
    return mean


def steps_of(scores: Floats, steps: int) -> Floats:
    """Scores from 0 to 1 as whole numbers from 0 to `steps`, halves rounded up."""
    whole: Floats = np.floor(np.round(scores * steps, DECIMALS) + 0.5)
    return whole


def _grid_sums(people: Floats, judge: Floats, steps: int) -> Mapping[str, Floats]:
    """What exact agreement and kappa need of every case, summed over its models."""
    first, second = steps_of(people, steps), steps_of(judge, steps)
    there = ~np.isnan(first)
    first, second = np.where(there, first, 0), np.where(there, second, 0)
    apart = np.abs(first - second)
    sums = {"count": there, "equal": there & (apart == 0), "near": there & (apart <= 1), "apart": apart**2,
            "first": first, "second": second, "squares": first**2 + second**2}  # fmt: skip
    return {name: values.sum(axis=0).astype(np.float64) for name, values in sums.items()}


def _kappa(weights: Floats, sums: Mapping[str, Floats]) -> Floats:
    """Cohen's kappa with quadratic weights (Cohen 1968), from moments.

    Expected disagreement is the mean of (x − y)² over all x with all y: E x² + E y² − 2 E x E y.
    """
    count, first, second = weights @ sums["count"], weights @ sums["first"], weights @ sums["second"]
    expected = count * (weights @ sums["squares"]) - 2 * first * second
    return 1 - _ratio(count * (weights @ sums["apart"]), expected)


def _sample_pairs(people: Floats, judge: Floats) -> tuple[Floats, Floats, Floats]:
    """Per pair of cases [cases, cases], over all their models: concordance, and pairs not tied by people, by judge."""
    cases = people.shape[1]
    concordance, untied_people, untied_judge = (np.zeros((cases, cases)) for _ in range(3))
    for first, second in product(range(len(people)), repeat=2):
        ours = _signs(people[first], people[second])
        theirs = _signs(judge[first], judge[second])
        concordance += ours * theirs
        untied_people += np.abs(ours)
        untied_judge += np.abs(theirs)
    return concordance, untied_people, untied_judge


def _signs(first: Floats, second: Floats) -> Floats:
    signs: Floats = np.nan_to_num(np.sign(first[:, None] - second[None, :]))
    return signs


def _thresholds(distances: Floats) -> Floats:
    """0 and distances of pairs, evenly spaced by rank."""
    if not len(distances):
        return np.zeros(1)
    quantiles = np.quantile(distances, np.linspace(0, 1, THRESHOLDS), method="inverted_cdf")
    return np.unique(np.concatenate([[0.0], quantiles]))


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """The quotient, NaN where the denominator is 0."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    quotient: Floats = np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator != 0)
    return quotient
