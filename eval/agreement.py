"""Does a judge agree with people? Measures per dimension, the human ceiling, and bootstrap intervals.

Reported per dimension (SC: does the result follow, PQ: is it a good picture, O = √(SC·PQ)):

* `spearman_per_model_fisher`: Spearman's ρ within every model, averaged on Fisher's z scale; blind to which model is
  better on the whole. `spearman_pooled`, `kendall_pooled` (τ-b): over all samples at once, so that differences between
  models count as well.
* `exact`, `within_one`, `kappa_quadratic`: on the judge's whole numbers from 0 to 10. The people's mean is multiplied
  by 10; both are rounded, halves up. `levels_exact`, `levels_kappa_quadratic`: on the raters' own levels 0, 0.5 and 1,
  to which the mean and the judge's score (divided by 10) are rounded; fairer, as raters had no finer scale.
* `pairwise_accuracy`, `…_ties`, `…_calibrated`: pairs of models within a case; `RULES` states how ties count.

Intervals are percentile bootstraps over cases, each with the results of all its models (Efron 1979; clustered, since
one picture is under all editors). What is not defined is None with its reason under `undefined`, never 0 and never NaN.

The ceiling compares people with people: `pairwise`, one rater with one other, and `leave_one_out`, one rater with the
mean of the others. `judge` there is the judge against those same means, and `judge_minus_rater` the difference: the
judge is as good as one more rater where its interval is not below 0. (Against the mean of all raters, which is less
noisy, the judge is compared with a better target than any rater could be.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from editfoundry.core.errors import UsageError
from editfoundry.eval.comparison import Comparison, Floats, fisher_mean
from editfoundry.eval.ratings import DECIMALS, JUDGE_TOP, Ratings

DIMENSIONS = ("SC", "PQ", "O")
CORRELATIONS = ("spearman_per_model_fisher", "spearman_per_model", "spearman_pooled", "kendall_pooled")
OF_PEOPLE = (
    "spearman_per_model_fisher", "spearman_pooled", "kendall_pooled", "levels_exact", "levels_kappa_quadratic",
    "pairwise_accuracy", "pairwise_accuracy_ties",
)  # fmt: skip
CONFIDENCE = 0.95
MOST_UNDEFINED = 0.05
FEW_CASES = 20
MOST_CASES = 4000
AT_ONCE = 250
RULES = {
    "scores": "people: mean over raters of sc, of pq, and of the root of sc·pq; judge: SC and PQ the least of their "
    "lists, O the root of SC·PQ",
    "pairs": "results of two models for one case",
    "pairwise_accuracy": "pairs that people tie are left out; a tie by the judge counts half",
    "pairwise_accuracy_ties": "all pairs; a tie by the judge is right exactly where people tie (Deutsch et al. 2023)",
    "pairwise_accuracy_calibrated": "as pairwise_accuracy_ties, the judge's scores counting as a tie up to "
    "ties.threshold apart, the distance that fits these samples best",
    "exact": "the people's mean times 10 and the judge's score, both rounded to whole numbers, halves up; within_one: "
    "at most 1 apart; levels_exact: both rounded to 0, 0.5 or 1",
    "intervals": "percentile bootstrap over cases, each with the results of all its models",
}

Advance = Callable[[int], None]
Replicates = dict[str, Floats]


def agreement(
    ratings: Ratings,
    dimensions: Sequence[str] = DIMENSIONS,
    replicates: int = 1000,
    seed: int = 0,
    advance: Advance = lambda _: None,
) -> dict[str, Any]:
    """The report as plain data: one key per dimension and `about`. `advance` is called once per `comparisons`."""
    cases = len(ratings.cases)
    if cases > MOST_CASES:
        raise UsageError(f"{cases} cases are more than the {MOST_CASES} that all pairs are compared of; take a sample")
    drawn = np.random.default_rng(seed).multinomial(cases, np.full(cases, 1 / cases), size=replicates)
    weights = np.concatenate([np.ones((1, cases)), drawn])
    report: dict[str, Any] = {
        name: _dimension(ratings, name, weights, advance) for name in DIMENSIONS if name in dimensions
    }
    return {**report, "about": _about(ratings, replicates, seed)}


def comparisons(raters: int, dimensions: int) -> int:
    """How many comparisons a report makes."""
    return dimensions * (1 if raters == 1 else 1 + raters * (raters - 1) // 2 + 2 * raters)


def _dimension(ratings: Ratings, dimension: str, weights: Floats, advance: Advance) -> dict[str, Any]:
    raters, judge = ratings.raters[dimension], ratings.judge[dimension]
    people = _mean(raters)
    comparison = Comparison(people, judge)
    results = _measured(comparison, weights, advance)
    pairs, threshold = comparison.pairs, comparison.pairs.threshold()
    return {
        "n": int(comparison.there.sum()),
        "cases": len(ratings.cases),
        **_by_measure(results, ratings.models, _value),
        "ties": {
            "pairs": pairs.pairs,
            "tied_by_people": pairs.tied_by_people,
            "tied_by_judge": pairs.tied_by_judge,
            "threshold": None if threshold is None else round(threshold * JUDGE_TOP, 6),
        },
        "intervals": _by_measure(results, ratings.models, _interval),
        "undefined": _reasons(comparison, results, ratings.models),
        "undefined_replicates": _undefined_replicates(results),
        "model_means": {
            model: {"people": round(float(np.nanmean(people[row])), 4),
                    "judge": round(float(np.nanmean(judge[row])) * JUDGE_TOP, 4)}
            for row, model in enumerate(ratings.models)
        },
        "human_human": _ceiling(raters, judge, weights, advance),
    }  # fmt: skip


def _measured(comparison: Comparison, weights: Floats, advance: Advance) -> Replicates:
    """All measures: the first row by the samples as they are, the others by the replicates."""
    parts = [comparison.measures(weights[start : start + AT_ONCE]) for start in range(0, len(weights), AT_ONCE)]
    advance(1)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _ceiling(raters: Floats, judge: Floats, weights: Floats, advance: Advance) -> dict[str, Any]:
    """How well raters agree with each other, and the judge with the same people."""
    count = len(raters)
    if count == 1:
        return {"raters": 1, "reason": "one rater; give the files of two or more to compare people with people"}
    others = [_mean(np.delete(raters, rater, axis=0)) for rater in range(count)]
    groups: dict[str, Iterator[Comparison]] = {
        "pairwise": (Comparison(raters[first], raters[second]) for first, second in combinations(range(count), 2)),
        "leave_one_out": (Comparison(rest, rater) for rest, rater in zip(others, raters, strict=True)),
        "judge": (Comparison(rest, judge) for rest in others),
    }
    averaged = {
        name: _average([_measured(comparison, weights, advance) for comparison in group])
        for name, group in groups.items()
    }
    averaged["judge_minus_rater"] = {
        name: averaged["judge"][name] - averaged["leave_one_out"][name] for name in OF_PEOPLE
    }
    return {
        "raters": count,
        **{group: _by_measure(results, (), _value) for group, results in averaged.items()},
        "intervals": {group: _by_measure(results, (), _interval) for group, results in averaged.items()},
        "undefined": {
            f"{group}.{name}": "for a rater or a pair of raters, one side is constant or tells no pair apart"
            for group, results in averaged.items()
            for name, values in results.items()
            if np.isnan(values[0])
        },
    }


def _average(all_results: Sequence[Replicates]) -> Replicates:
    """The mean over raters or pairs of them; of correlations, on Fisher's z scale."""
    stacked = {name: np.stack([results[name] for results in all_results]) for name in OF_PEOPLE}
    return {name: fisher_mean(values, axis=0) if name in CORRELATIONS else values.mean(axis=0)
            for name, values in stacked.items()}  # fmt: skip


def _mean(raters: Floats) -> Floats:
    """The mean over raters, rounded so that the same ratings in another order are the same mean."""
    mean: Floats = raters.mean(axis=0).round(DECIMALS)
    return mean


def _by_measure(
    results: Mapping[str, Floats], models: Sequence[str], describe: Callable[[Floats], Any]
) -> dict[str, Any]:
    """What `describe` says of the values [1 + replicates] of every measure, and of every model where it is by model."""
    return {
        name: describe(values)
        if values.ndim == 1
        else {model: describe(values[:, place]) for place, model in enumerate(models)}
        for name, values in results.items()
    }


def _value(values: Floats) -> float | None:
    return None if np.isnan(values[0]) else round(float(values[0]), 6)


def _interval(values: Floats) -> list[float] | None:
    """The percentile interval; None where the measure is not defined, or too many of its replicates are not."""
    replicates = values[1:]
    if np.isnan(values[0]) or not len(replicates) or np.isnan(replicates).mean() > MOST_UNDEFINED:
        return None
    tail = (1 - CONFIDENCE) / 2
    return [round(float(end), 6) for end in np.nanquantile(replicates, (tail, 1 - tail))]


def _undefined_replicates(results: Mapping[str, Floats]) -> dict[str, int]:
    """How many replicates a measure is not defined for, where there are any; its interval is of the others."""
    undefined = {name: np.isnan(values[1:]) for name, values in results.items()}
    counts = {name: int(of.any(axis=tuple(range(1, of.ndim))).sum()) for name, of in undefined.items()}
    return {name: count for name, count in counts.items() if count}


def _reasons(comparison: Comparison, results: Mapping[str, Floats], models: Sequence[str]) -> dict[str, str]:
    """Why a measure is not defined, for those that are not."""
    reasons = {
        f"spearman_per_model.{model}": _constant(comparison.people[row], comparison.judge[row])
        for row, model in enumerate(models)
        if np.isnan(results["spearman_per_model"][0, row])
    }
    missing = [name for name, values in results.items() if values.ndim == 1 and np.isnan(values[0])]
    for name in missing:
        if name == "spearman_per_model_fisher":
            reasons[name] = f"it is not defined for {', '.join(key.partition('.')[2] for key in reasons)}"
        elif name.startswith("pairwise"):
            reasons[name] = "no case has results of two models that people tell apart"
        else:
            reasons[name] = _constant(comparison.people, comparison.judge)
    return reasons


def _constant(people: Floats, judge: Floats) -> str:
    if np.isfinite(people).sum() == 1:
        return "there is only one sample"
    for who, scores in (("people", people), ("the judge", judge)):
        given = np.unique(scores[~np.isnan(scores)])
        if len(given) == 1:
            return f"{who} gave every sample the same score"
    return "people and the judge gave the same whole numbers to every sample"


def _about(ratings: Ratings, replicates: int, seed: int) -> dict[str, Any]:
    digests = [file.digest for file in ratings.files]
    notes = [f"{file.name} holds the same bytes as a file before it and counts as a rater of its own"
             for place, file in enumerate(ratings.files) if file.digest in digests[:place]]  # fmt: skip
    if len(ratings.cases) < FEW_CASES:
        notes.append(f"{len(ratings.cases)} cases: a bootstrap over fewer than {FEW_CASES} gives intervals too narrow")
    left_out = sum(ratings.counts[side] for side in ("rated_but_not_scored", "scored_but_not_rated_by_all"))
    if left_out or ratings.counts["rated_by_some"]:
        notes.append("samples that not everybody scored are left out; `samples` counts them")
    return {
        "human": [{"file": file.name, "sha256": file.digest} for file in ratings.files],
        "model": {"file": ratings.scores.name, "sha256": ratings.scores.digest},
        "raters": len(ratings.files),
        "models": list(ratings.models),
        "samples": dict(ratings.counts),
        "bootstrap": {"replicates": replicates, "seed": seed, "confidence": CONFIDENCE},
        "rules": RULES,
        "notes": notes,
    }
