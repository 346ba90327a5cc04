"""Agreement of a judge with people: against scipy, a published kappa, and pairs worked out by hand."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from editfoundry.eval.agreement import agreement, comparisons
from editfoundry.eval.comparison import Comparison, fisher_mean, spearman, steps_of, weighted_ranks
from editfoundry.eval.ratings import Ratings, lay_side_by_side, read_raters, read_scores
from editfoundry.eval.variadic import repeat_options

MODELS, CASES, RATERS = 3, 30, 3


def scored(seed: int = 0, judge_noise: float = 3.0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Three raters and a judge of the same hidden quality, which differs between models: cells, and a score file."""
    rng = np.random.default_rng(seed)
    quality = rng.normal(size=(MODELS, CASES)) + np.arange(MODELS)[:, None]
    raters = [
        {(f"m{m}", f"c{c}"): [float(rng.choice([0, 0.5, 1], p=_odds(quality[m, c]))) for _ in range(2)]
         for m in range(MODELS) for c in range(CASES)} for _ in range(RATERS)
    ]  # fmt: skip

    def two(m: int, c: int) -> list[int]:
        return [int(score) for score in np.clip(5 + 2 * quality[m, c] + judge_noise * rng.normal(size=2), 0, 10)]

    judge = {f"m{m}": {f"c{c}": {"SC": two(m, c), "PQ": two(m, c)} for c in range(CASES)} for m in range(MODELS)}
    return raters, judge


def _odds(quality: float) -> list[float]:
    high, low = 1 / (1 + np.exp(2 - quality)), 1 / (1 + np.exp(quality))
    return [low, 1 - low - high, high] if low + high <= 1 else [low / (low + high), 0, high / (low + high)]


def files(folder: Path, raters: Sequence[dict[str, Any]], judge: dict[str, Any]) -> tuple[list[Path], Path]:
    humans = []
    for place, cells in enumerate(raters):
        models = sorted({model for model, _ in cells})
        lines = ["\t".join(["uid", *models])]
        for uid in dict.fromkeys(uid for _, uid in cells):
            lines.append("\t".join([uid, *(json.dumps(cells[model, uid]) for model in models)]))
        humans.append(folder / f"rater{place}.tsv")
        humans[-1].write_text("\r\n".join(lines))
    (folder / "scores.json").write_text(json.dumps(judge))
    return humans, folder / "scores.json"


def read(folder: Path, raters: Sequence[dict[str, Any]], judge: dict[str, Any]) -> Ratings:
    humans, model = files(folder, raters, judge)
    return lay_side_by_side([read_raters(path) for path in humans], read_scores(model))


def arrays(raters: Sequence[dict[str, Any]], judge: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """O of every rater [raters, models, cases] and of the judge, computed here."""
    models, cases = sorted(judge), sorted(judge["m0"])
    people = [[[np.sqrt(np.prod(cells[m, c])) for c in cases] for m in models] for cells in raters]
    scores = [[np.sqrt(min(judge[m][c]["SC"]) * min(judge[m][c]["PQ"])) for c in cases] for m in models]
    return np.array(people), np.array(scores)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return agreement(read(tmp_path_factory.mktemp("ratings"), *scored()), replicates=300)


def test_correlations_are_those_of_scipy(report: dict[str, Any]) -> None:
    people, judge = arrays(*scored())
    mean, of = people.mean(axis=0).round(9), report["O"]
    each = [stats.spearmanr(mean[m], judge[m]).statistic for m in range(MODELS)]
    assert of["n"] == MODELS * CASES
    assert list(of["spearman_per_model"].values()) == pytest.approx(each, abs=1e-6)
    assert of["spearman_per_model_fisher"] == pytest.approx(np.tanh(np.mean(np.arctanh(each))), abs=1e-6)
    assert of["spearman_pooled"] == pytest.approx(stats.spearmanr(mean.ravel(), judge.ravel()).statistic, abs=1e-6)
    assert of["kendall_pooled"] == pytest.approx(stats.kendalltau(mean.ravel(), judge.ravel()).statistic, abs=1e-6)


def test_people_are_compared_with_people_pair_by_pair_and_left_out_one_by_one(report: dict[str, Any]) -> None:
    people, judge = arrays(*scored())
    of = report["O"]["human_human"]
    pairs = [stats.kendalltau(people[a].ravel(), people[b].ravel()).statistic for a, b in ((0, 1), (0, 2), (1, 2))]
    assert of["pairwise"]["kendall_pooled"] == pytest.approx(np.tanh(np.mean(np.arctanh(pairs))), abs=1e-6)
    rest = [(people.sum(axis=0) - people[r]).round(9) / 2 for r in range(RATERS)]
    for name, other in (("leave_one_out", people), ("judge", [judge] * RATERS)):
        each = [stats.spearmanr(rest[r][m], other[r][m]).statistic for r in range(RATERS) for m in range(MODELS)]
        expected = np.tanh(np.mean(np.arctanh(each)))
        assert of[name]["spearman_per_model_fisher"] == pytest.approx(expected, abs=1e-6)
    difference = of["judge"]["spearman_pooled"] - of["leave_one_out"]["spearman_pooled"]
    assert of["judge_minus_rater"]["spearman_pooled"] == pytest.approx(difference, abs=2e-6)
    low, high = of["intervals"]["judge_minus_rater"]["spearman_pooled"]
    assert low < difference < high


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_weights_are_what_drawing_cases_again_gives(seed: int) -> None:
    """Every measure of a row of weights equals the plain computation on the samples written out."""
    rng = np.random.default_rng(seed)
    people, judge = rng.integers(0, 3, (2, 8)) / 2, rng.integers(0, 11, (2, 8)) / 10
    judge[rng.random((2, 8)) < 0.2] = np.nan
    drawn = rng.integers(0, 8, 8)
    measures = Comparison(people, judge).measures(np.bincount(drawn, minlength=8)[None].astype(float))
    again = Comparison(people[:, drawn], judge[:, drawn]).measures(np.ones((1, 8)))
    for name, values in measures.items():
        if name != "pairwise_accuracy_calibrated":  # its distances are those of the samples that are there
            np.testing.assert_allclose(values, again[name], atol=1e-12, err_msg=name)
    there = ~np.isnan(judge[:, drawn])
    x, y = people[:, drawn][there], judge[:, drawn][there]
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert measures["spearman_pooled"][0] == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)
        assert measures["kendall_pooled"][0] == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-9)
    else:
        assert np.isnan(measures["spearman_pooled"][0])
        assert np.isnan(measures["kendall_pooled"][0])


def test_ranks_of_weighted_samples_are_those_of_the_samples_written_out() -> None:
    values, weights = np.array([3.0, 1.0, 3.0, 2.0]), np.array([[1, 1, 1, 1], [2, 0, 1, 3]], float)
    assert weighted_ranks(values, weights)[0].tolist() == [3.5, 1, 3.5, 2]
    written = stats.rankdata([3, 3, 3, 2, 2, 2])
    assert weighted_ranks(values, weights)[1, [0, 2, 3]].tolist() == [written[0], written[2], written[3]]


def test_quadratic_kappa_is_the_published_one() -> None:
    """Data `anxiety` of R's irr, raters 2 and 3, squared weights: 0.2520325 (as recorded in statsmodels' tests of
    `cohens_kappa`). irr numbers the categories that occur, so 6 is the fifth."""
    second = [3, 5, 4, 5, 2, 4, 2, 4, 3, 3, 2, 3, 3, 3, 2, 2, 1, 3, 3, 4]
    third = [2, 1, 4, 4, 3, 2, 1, 5, 1, 1, 1, 2, 3, 3, 1, 1, 3, 3, 2, 2]
    measures = Comparison(np.array([second]) / 10, np.array([third]) / 10).measures(np.ones((1, 20)))
    assert measures["kappa_quadratic"][0] == pytest.approx(0.2520325, abs=5e-8)
    assert measures["exact"][0] == 4 / 20
    assert measures["within_one"][0] == 14 / 20


def test_scores_are_rounded_to_the_grid_with_halves_up() -> None:
    scores = np.array([0.0, 0.04, 0.05, 0.3, 0.35, 1 / 3, 0.25, 0.75, 1.0])
    assert steps_of(scores, 10).tolist() == [0, 0, 1, 3, 4, 3, 3, 8, 10]
    assert steps_of(scores, 2).tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_pairs_and_their_ties_worked_out_by_hand() -> None:
    """Three models, two cases. Case 1: people 1 > 0.5 > 0, judge 9, 4, 4: two pairs right, one tied by the judge.
    Case 2: people 0.5, 0.5, 1 (one tie), judge 6, 5, 2: both decided pairs wrong, and people's tie is 1 apart for it.
    """
    people = np.array([[1, 0.5], [0.5, 0.5], [0, 1]])
    judge = np.array([[0.9, 0.6], [0.4, 0.5], [0.4, 0.2]])
    comparison = Comparison(people, judge)
    measures = comparison.measures(np.ones((1, 2)))
    assert measures["pairwise_accuracy"][0] == (1 + 1 + 0.5 + 0 + 0) / 5
    assert measures["pairwise_accuracy_ties"][0] == 2 / 6
    assert measures["pairwise_accuracy_calibrated"][0] == 3 / 6
    assert comparison.pairs.threshold() == pytest.approx(0.1)
    pairs = comparison.pairs
    assert (pairs.pairs, pairs.tied_by_people, pairs.tied_by_judge) == (6, 1, 1)


def test_fisher_bounds_perfect_correlations_and_keeps_what_is_not_defined() -> None:
    assert fisher_mean(np.array([0.9, 0.1]), 0) == pytest.approx(np.tanh((np.arctanh(0.9) + np.arctanh(0.1)) / 2))
    assert fisher_mean(np.array([1.0, 1.0]), 0) == pytest.approx(1, abs=1e-6)
    assert np.isnan(fisher_mean(np.array([0.5, np.nan]), 0))
    assert np.isnan(spearman(np.array([1.0, 1.0]), np.array([1.0, 2.0]), np.ones((1, 2)))[0])


def test_intervals_hold_the_values_and_depend_on_the_seed_alone(tmp_path: Path, report: dict[str, Any]) -> None:
    ratings = read(tmp_path, *scored())
    again = agreement(ratings, replicates=300)
    other = agreement(ratings, ["O"], replicates=300, seed=1)
    assert {name: again[name] for name in ("SC", "PQ", "O")} == {name: report[name] for name in ("SC", "PQ", "O")}
    assert set(other) == {"O", "about"}
    assert other["O"]["intervals"] != again["O"]["intervals"]
    assert other["O"]["spearman_pooled"] == again["O"]["spearman_pooled"]
    for name in ("spearman_per_model_fisher", "spearman_pooled", "kendall_pooled", "exact", "pairwise_accuracy"):
        low, high = report["O"]["intervals"][name]
        assert low < report["O"][name] < high
    low, high = report["SC"]["intervals"]["spearman_per_model"]["m1"]
    assert low < report["SC"]["spearman_per_model"]["m1"] < high


def test_cases_are_drawn_with_all_their_models(tmp_path: Path) -> None:
    """Five copies of a model are no new cases: intervals must not shrink as for five times the samples."""
    raters, judge = scored()
    one = ({k: v for k, v in cells.items() if k[0] == "m0"} for cells in raters)
    copies = [{(f"m{m}", uid): cell for (_, uid), cell in cells.items() for m in range(5)} for cells in one]
    many = agreement(read(tmp_path, copies, {f"m{m}": judge["m0"] for m in range(5)}), ["SC"], replicates=300)
    single = [{k: v for k, v in cells.items() if k[0] == "m0"} for cells in raters]
    alone = agreement(read(tmp_path, single, {"m0": judge["m0"]}), ["SC"], replicates=300)
    width = np.diff(alone["SC"]["intervals"]["spearman_pooled"])[0]
    assert np.diff(many["SC"]["intervals"]["spearman_pooled"])[0] == pytest.approx(width, rel=0.02)
    assert many["SC"]["n"] == 5 * alone["SC"]["n"]


def test_pooled_counts_what_models_differ_in_and_per_model_does_not(tmp_path: Path) -> None:
    """Within each of two models the judge is inverted; between them it is right: the two must have opposite signs."""
    values = [0, 0.5, 1, 0.5, 0, 1, 0.5, 0, 0.5, 1]
    cells = {
        (m, f"c{c}"): [(v + 1) / 2 if m == "high" else v / 4, 1] for m in ("low", "high") for c, v in enumerate(values)
    }
    judge = {
        m: {f"c{c}": {"SC": [(9 if m == "high" else 2) - 2 * v], "PQ": [5]} for c, v in enumerate(values)}
        for m in ("low", "high")
    }
    of = agreement(read(tmp_path, [cells], judge), ["SC"], replicates=50)["SC"]
    assert of["spearman_per_model"] == {"high": -1, "low": -1}
    assert of["spearman_per_model_fisher"] == pytest.approx(-1, abs=1e-6)
    assert of["spearman_pooled"] > 0
    assert of["model_means"]["high"] == {"people": 0.75, "judge": 8.0}


def test_what_is_not_defined_is_null_with_a_reason(tmp_path: Path) -> None:
    cells = {(m, f"c{c}"): [c % 2, 0.5] for m in ("m0", "m1") for c in range(4)}
    judge = {"m0": {f"c{c}": {"SC": [c], "PQ": [4]} for c in range(4)},
             "m1": {f"c{c}": {"SC": [7], "PQ": [4]} for c in range(4)}}  # fmt: skip
    report = agreement(read(tmp_path, [cells, cells], judge), replicates=50)
    semantic = report["SC"]
    assert semantic["spearman_per_model"]["m1"] is None
    assert semantic["spearman_per_model_fisher"] is None
    assert semantic["spearman_pooled"] is not None
    assert semantic["intervals"]["spearman_per_model_fisher"] is None
    assert semantic["undefined"] == {
        "spearman_per_model.m1": "the judge gave every sample the same score",
        "spearman_per_model_fisher": "it is not defined for m1",
        "pairwise_accuracy": "no case has results of two models that people tell apart",
    }
    assert report["PQ"]["undefined"]["kendall_pooled"] == "people gave every sample the same score"
    assert report["PQ"]["kappa_quadratic"] == 0
    assert report["PQ"]["human_human"]["undefined"]["pairwise.spearman_pooled"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert len(report["about"]["notes"]) == 2  # the same bytes twice, and few cases


def test_the_order_of_raters_does_not_break_ties(tmp_path: Path) -> None:
    """0 + √½ + 1 and 1 + √½ + 0 differ in the last bit, and are the same mean."""
    cells = [{("m0", f"c{c}"): v[(c + r) % 3] for c in range(3)} for r in range(3)
             for v in [([0, 0], [1, 0.5], [1, 1])]]  # fmt: skip
    judge = {"m0": {f"c{c}": {"SC": [c + 1], "PQ": [c + 1]} for c in range(3)}}
    assert agreement(read(tmp_path, cells, judge), ["O"], replicates=50)["O"]["undefined"]["spearman_pooled"] == (
        "people gave every sample the same score"
    )


def test_progress_counts_every_comparison(tmp_path: Path) -> None:
    ratings = read(tmp_path, *scored())
    done: list[int] = []
    agreement(ratings, replicates=10, advance=done.append)
    assert sum(done) == comparisons(RATERS, 3) == 30
    assert comparisons(1, 3) == 3


@pytest.mark.parametrize(
    ("given_arguments", "read_as"),
    [
        (["--human", "a", "b", "--model", "m", "x"], ["--human", "a", "--human", "b", "--model", "m", "x"]),
        (["--human", "a", "--human", "b", "c"], ["--human", "a", "--human", "b", "--human", "c"]),
        (["--human=a", "b", "--json"], ["--human=a", "--human", "b", "--json"]),
        (["--model", "m", "--human"], ["--model", "m", "--human"]),
        (["--human", "a", "--", "b"], ["--human", "a", "--", "b"]),
        ([], []),
    ],
)
def test_a_variadic_option_takes_values_up_to_the_next(given_arguments: list[str], read_as: list[str]) -> None:
    assert list(repeat_options(given_arguments, frozenset({"--human"}))) == read_as


def call(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "editfoundry", "judge", "agreement", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def test_the_command_takes_both_forms_and_prints_json_or_a_table(tmp_path: Path) -> None:
    (a, b, c), model = files(tmp_path, *scored())
    together = call("--human", a, b, c, "--model", model, "--bootstrap", "50", "--json", cwd=tmp_path)
    assert together.returncode == 0, together.stderr
    report = json.loads(together.stdout)
    assert set(report) == {"SC", "PQ", "O", "about"}
    assert [file["file"] for file in report["about"]["human"]] == [str(a), str(b), str(c)]
    options = ("--bootstrap", "50", "--dimension", "PQ")
    apart = call("--model", model, "--human", a, "--human", b, "--human", c, "--json", *options, cwd=tmp_path)
    assert json.loads(apart.stdout)["PQ"] == report["PQ"]
    shown = call("--human", a, b, "--model", model, *options, cwd=tmp_path)
    assert f"{MODELS * CASES} samples of {CASES} cases" in shown.stdout
    assert "judge − rater" in shown.stdout


def test_the_command_tells_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    (a, *_), model = files(tmp_path, *scored())
    (tmp_path / "bad.tsv").write_bytes(b"uid\tm0\nx\t[2,0]\n")
    for arguments, told in (
        (("--human", a, "bad.tsv", "--model", model), "bad.tsv: line 2, column m0"),
        (("--human", a, "--model", "none.json"), "none.json: No such file"),
        (("--human", a), "Missing option '--model'"),
        (("--model", model, "--human"), "requires an argument"),
        (("--human", a, "--model", model, a), "unexpected extra argument"),
    ):
        answer = call(*arguments, cwd=tmp_path)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert told in answer.stderr
        assert "Traceback" not in answer.stderr
