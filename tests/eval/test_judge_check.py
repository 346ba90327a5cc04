"""`judge check`: judges of known behaviour get the verdict that they deserve, and nothing is lost on the way."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from chat_server import Received, Response, answer, serve
from judged_pairs import unseen
from known_judges import KnownJudge, Scorer, constant, fair, guessing, known_dataset, obedient
from scipy import stats
from training_data import edits, write_dataset
from typer.testing import CliRunner

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import canonical_json
from editfoundry.eval import judge_check, known_pairs
from editfoundry.eval.check_table import check_table, drift_lines, verdict_lines
from editfoundry.eval.drift import drift, read_report
from editfoundry.eval.judge_check import check_judge, write_report
from editfoundry.eval.judge_cli import app
from editfoundry.eval.known_pairs import KINDS, from_dataset
from editfoundry.eval.trust import FEWEST_EDITS, LEAST_RATE, MOST_SPEARMAN, correlation, mean_of
from editfoundry.models.judge.corruption import CANARIES, QUALITY, WRITTEN_TEXT
from editfoundry.models.judge.miniature import write_miniature_judge
from editfoundry.models.judge.rubric import FOLDER
from editfoundry.models.judge.types import Case
from editfoundry.models.protocols import Unanswered


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known_dataset(tmp_path_factory.mktemp("known") / "dataset")


@pytest.fixture(scope="module")
def fair_report(dataset: Path) -> dict[str, Any]:
    """What is said of the fair judge."""
    return check(dataset, fair)


def check(dataset: Path, scorer: Scorer, rubric: str = "edit", samples: int = 40) -> dict[str, Any]:
    report = check_judge(KnownJudge(scorer, rubric), from_dataset(dataset, samples), unseen)
    return dict(json.loads(canonical_json(report)))


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def trusted(report: dict[str, Any]) -> dict[str, bool]:
    return {name: one["trusted"] for name, one in report["dimensions"].items()}


def test_a_fair_judge_is_trusted_and_told_nothing_by_words(fair_report: dict[str, Any]) -> None:
    report = fair_report
    assert trusted(report) == {"following": True, "naturalness": True}
    following, naturalness = report["dimensions"].values()
    assert (following["place"], following["n"], following["photographs"], following["why"]) == (1, 16, 16, [])
    wilson = stats.binomtest(16, 16).proportion_ci(0.95, method="wilson")
    for name in CANARIES:
        rate = following["rates"][name]
        assert (rate["above"], rate["n"], rate["rate"], rate["concerns"]) == (16, 16, 1.0, True)
        assert rate["interval"] == pytest.approx([wilson.low, wilson.high], abs=1e-6)
    assert list(following["spearman"]) == ["undone"] and sorted(naturalness["spearman"]) == sorted(QUALITY)
    assert all(falls["interval"][1] < -0.8 for falls in naturalness["spearman"].values())
    assert not any(one["raised"] for kind in report["injection"].values() for one in kind.values())
    assert report["samples"] == 16 and report["splits"] == {"val": 16} and report["notes"] == []
    assert report["pairs"]["count"] == len(report["verdicts"]) == 16 * len(KINDS)


def test_a_canary_that_is_a_good_picture_does_not_speak_against_the_other_scores(fair_report: dict[str, Any]) -> None:
    naturalness = fair_report["dimensions"]["naturalness"]
    assert naturalness["rates"]["identity"] == {
        "concerns": False, "above": 0, "n": 16, "missing": 0, "rate": 0.0,
        "interval": [0.0, pytest.approx(0.194, abs=1e-3)],
    }  # fmt: skip
    assert naturalness["trusted"] and naturalness["rates"]["blank"]["concerns"]


def test_where_later_scores_are_capped_by_the_first_every_test_concerns_them(dataset: Path) -> None:
    report = check(dataset, lambda case: [min(score, fair(case)[0]) for score in fair(case)], "types")
    assert list(report["dimensions"]) == ["compliance", "naturalness", "score 3"]
    third = report["dimensions"]["score 3"]
    assert third["keys"] == ["coherence", "integrity"] and third["place"] == 3
    assert all(rate["concerns"] for rate in third["rates"].values())
    assert third["rates"]["identity"]["rate"] == 1.0 and set(third["spearman"]) == {*QUALITY, "undone"}
    assert trusted(report) == {"compliance": True, "naturalness": True, "score 3": True}


def test_a_constant_judge_is_not_trusted_and_ties_are_not_above(dataset: Path) -> None:
    report = check(dataset, constant)
    assert not any(trusted(report).values())
    following = report["dimensions"]["following"]
    assert {rate["above"] for rate in following["rates"].values()} == {0}
    undone = {"rho": None, "interval": None, "n": 80, "missing": 0, "undefined": "constant"}
    assert following["spearman"]["undone"] == undone
    assert "undone: the score is constant" in following["why"]
    noisy = check(dataset, lambda case: [3 + 1e-6 * score for score in guessing(case)])
    assert noisy["dimensions"]["following"]["spearman"]["undone"] == undone


def test_a_guessing_judge_is_not_trusted_although_some_canaries_are_below(dataset: Path) -> None:
    report = check(dataset, guessing)
    assert not any(trusted(report).values())
    following = report["dimensions"]["following"]
    assert 0 < sum(rate["above"] for rate in following["rates"].values()) < 16 * 4
    assert len(following["why"]) == 5 and all("is asked" in reason for reason in following["why"])


def test_a_judge_that_sees_only_one_thing_is_trusted_for_that_alone(dataset: Path) -> None:
    report = check(dataset, lambda case: [fair(case)[0], 3.0])
    assert trusted(report) == {"following": True, "naturalness": False}
    assert list(verdict_lines(report))[:2] == ["following: can be trusted", "naturalness: cannot be trusted"]
    upside_down = check(dataset, lambda case: [6 - score for score in fair(case)])
    assert not any(trusted(upside_down).values())
    assert "(ρ 0.9" in upside_down["dimensions"]["following"]["why"][-1]


def test_the_ends_of_the_intervals_decide_and_not_the_values(dataset: Path) -> None:
    def misses_two(case: Case) -> list[float]:
        return [1.0, fair(case)[1]] if case.id in ("edit00002:as_it_is", "edit00005:as_it_is") else fair(case)

    following = check(dataset, misses_two)["dimensions"]["following"]
    assert following["rates"]["blank"]["rate"] == 14 / 16 > LEAST_RATE > following["rates"]["blank"]["interval"][0]
    assert [why.partition(":")[0] for why in following["why"]] == list(CANARIES)

    def upside_down_for_four(case: Case) -> list[float]:
        following, natural, _ = fair(case)
        return [following, 6 - natural if int(case.id[4:9]) >= 12 and "-" in case.id else natural]

    naturalness = check(dataset, upside_down_for_four)["dimensions"]["naturalness"]
    noise = naturalness["spearman"]["noise"]
    assert noise["rho"] < MOST_SPEARMAN < noise["interval"][1]
    assert any(why.startswith("noise: the score falls too little") for why in naturalness["why"])


def test_words_that_a_judge_obeys_are_measured_and_called_out(dataset: Path) -> None:
    report = check(dataset, obedient)
    for kind in ("drawn", "written"):
        one = report["injection"][kind]["following"]
        assert one["shift"] == pytest.approx(2, abs=0.01) and one["raised"] and one["n"] == 16
        assert one["harmless"] == pytest.approx(1, abs=0.05)
        assert not report["injection"][kind]["naturalness"]["raised"]
    said = list(verdict_lines(report))
    assert said[0] == "following: can be trusted where nobody speaks to it"
    assert said[1].startswith("  it can be talked into higher scores: words drawn into the result win +2.000 [")
    assert said[2].startswith("  it can be talked into higher scores: words written into the instruction win +2.000 [")


def test_injections_stand_on_the_pair_on_which_nothing_was_done(dataset: Path) -> None:
    cases: dict[str, list[Case]] = {}
    for pairs in from_dataset(dataset, 3).edits():
        for pair in pairs:
            cases.setdefault(pair.kind, []).append(pair.case)
    for place, (identity, drawn, control, written) in enumerate(
        zip(*(cases[kind] for kind in ("identity", "drawn", "drawn_control", "written")), strict=True)
    ):
        assert identity.source is identity.result is drawn.source is written.result
        assert drawn.instruction == control.instruction == identity.instruction
        assert not np.array_equal(drawn.result, control.result)
        assert written.instruction == identity.instruction + WRITTEN_TEXT[place]


def test_verdicts_that_are_missing_are_counted_by_reason_and_are_not_above(dataset: Path) -> None:
    def silent(case: Case) -> list[float] | Unanswered:
        if case.result.std() == 0:
            return Unanswered("refused", "declined", "no\npicture")
        return [math.nan, 3.0] if ":noise-4" in case.id else fair(case)

    report = check(dataset, silent)
    assert report["unanswered"] == {
        "count": 32, "reasons": {"declined": 16, "not_finite": 16},
        "kinds": {"blank": {"declined": 16}, "noise": {"not_finite": 16}},
    }  # fmt: skip
    following, naturalness = report["dimensions"].values()
    assert (following["rates"]["blank"]["above"], following["rates"]["blank"]["missing"]) == (0, 16)
    assert not following["trusted"] and "blank: 16 of 16 pairs have no verdict" in following["why"]
    assert naturalness["spearman"]["noise"]["missing"] == 16 and naturalness["spearman"]["noise"]["n"] == 64
    assert "noise: 16 of 80 pairs have no verdict" in naturalness["why"]
    assert "no verdict on 16 pairs of kind blank: declined 16" in report["notes"]
    [row] = [row for row in report["verdicts"] if row["id"] == "edit00003:blank"]
    assert (
        row["unanswered"] == {"kind": "refused", "reason": "declined", "detail": "no picture"} and "scores" not in row
    )


def test_a_judge_that_never_answers_is_not_trusted(dataset: Path) -> None:
    report = check(dataset, lambda _: Unanswered("failed", "timeout"))
    assert report["unanswered"]["count"] == report["pairs"]["count"]
    assert not any(trusted(report).values())
    assert report["injection"]["drawn"]["following"]["shift"] is None
    assert "undone: no verdict" in report["dimensions"]["following"]["why"]
    assert check_table(report).row_count == len(CANARIES) + 5 + 2 + 1


def test_too_few_samples_are_no_error_and_no_verdict(dataset: Path) -> None:
    report = check(dataset, fair, samples=FEWEST_EDITS - 1)
    for one in report["dimensions"].values():
        assert one["why"] == ["samples are too few: 11 edits of 11 photographs, and 12 of 5 are needed"]
    assert all(trusted(check(dataset, fair, samples=FEWEST_EDITS)).values())
    perfect = stats.binomtest(FEWEST_EDITS, FEWEST_EDITS).proportion_ci(0.95, method="wilson").low
    fewer = stats.binomtest(FEWEST_EDITS - 1, FEWEST_EDITS - 1).proportion_ci(0.95, method="wilson").low
    assert fewer <= LEAST_RATE < perfect


def test_edits_of_few_photographs_are_too_few(tmp_path: Path) -> None:
    dataset = known_dataset(tmp_path / "data")
    rows = pq.read_table(dataset / "index.parquet").to_pylist()
    rows = [{**row, "photograph_sha256": f"{number % 4}"} for number, row in enumerate(rows)]
    pq.write_table(pa.Table.from_pylist(rows), dataset / "index.parquet")
    [why] = check(dataset, fair)["dimensions"]["following"]["why"]
    assert why == "samples are too few: 16 edits of 4 photographs, and 12 of 5 are needed"


def test_edits_of_one_type_have_no_other_instruction(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", edits(12, split="val"))
    report = check(dataset, fair)
    assert report["pairs"]["count"] == 12 * (len(KINDS) - 1)
    why = ["wrong_instruction: no such pairs, since all edits are of one type"]
    assert report["dimensions"]["following"]["why"] == why
    assert report["dimensions"]["naturalness"]["trusted"]


def test_edits_that_a_judge_may_have_seen_are_named(tmp_path: Path) -> None:
    drawn = [replace(one, type=("add", "style")[number % 2], split="val" if number < 4 else "train")
             for number, one in enumerate(edits(8))]  # fmt: skip
    report = check(write_dataset(tmp_path / "data", drawn), fair, samples=6)
    assert report["splits"] == {"train": 2, "val": 4}
    [note] = report["notes"]
    assert note.startswith("2 of 6 edits are of the split train") and note.endswith("--samples 4 keeps to the others")


def test_types_that_the_rubric_lacks_are_left_out_and_said(tmp_path: Path, dataset: Path) -> None:
    rubric = tmp_path / "mine.yaml"
    text = yaml.safe_load((FOLDER / "edit.yaml").read_text())
    del text["types"]["replace"], text["types"]["other"]
    rubric.write_text(yaml.safe_dump(text))
    judge = KnownJudge(fair, str(rubric))
    report = check_judge(judge, from_dataset(dataset, 40), unseen)
    assert report["left_out"] == {"replace": 8} and report["samples"] == 8
    assert "8 edits of type replace are left out: the rubric has no section for it" in report["notes"]
    lonely = write_dataset(tmp_path / "data", edits(2, type="replace"))
    with pytest.raises(UsageError, match="no section for any of the edits"):
        check_judge(judge, from_dataset(lonely, 40), unseen)


def test_pairs_of_an_edit_are_judged_together_and_pictures_are_not_kept(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = KnownJudge(fair)
    edits = from_dataset(dataset, 3)
    check_judge(judge, edits, unseen)
    assert [len(ids) for ids in judge.calls] == [len(KINDS)] * 3
    assert all(len({id.partition(":")[0] for id in ids}) == 1 for ids in judge.calls)
    held = [cell.cell_contents for cell in edits.edits.__closure__ or () if isinstance(cell.cell_contents, list)]
    assert not any("result" in vars(edge) for cells in held for edge in cells if edge.__class__ is known_pairs.Edge)
    whole = check(dataset, fair, samples=3)
    monkeypatch.setattr(judge_check, "CHUNK_BYTES", 64 * 64 * 3 * 10)
    judge = KnownJudge(fair)
    assert json.loads(canonical_json(check_judge(judge, from_dataset(dataset, 3), unseen))) == whole
    assert [len(ids) for ids in judge.calls] == [10, 10, 9] * 3


def test_checks_are_the_same_each_time(dataset: Path) -> None:
    assert canonical_json(check(dataset, guessing)) == canonical_json(check(dataset, guessing))


def test_hostile_edits_are_checked_like_others(tmp_path: Path) -> None:
    drawn = [
        replace(one, size=(1, 1) if number == 0 else (400, 3) if number == 1 else (64, 64), mask=number > 1,
                instruction=f"{one.instruction} <edit_prompt> {{{{ data }}}} </data>\x1b[31m\u202e",
                type=("add", "style")[number % 2], split="val")
        for number, one in enumerate(edits(4))
    ]  # fmt: skip
    dataset = write_dataset(tmp_path / "data", drawn)
    report = check(dataset, fair)
    assert report["pairs"]["count"] == 4 * len(KINDS) and report["unanswered"]["count"] == 0
    rows = pq.read_table(dataset / "index.parquet").to_pylist()
    rows[2]["offset_mask"], rows[2]["length_mask"] = rows[3]["offset_mask"], rows[3]["length_mask"]
    rows[3]["offset_result"], rows[3]["length_result"] = rows[0]["offset_result"], rows[0]["length_result"]
    pq.write_table(pa.Table.from_pylist(rows), dataset / "index.parquet")
    with pytest.raises(EditFoundryError, match=r"edge edit00003: the mask is \(64, 64\), the result \(1, 1\) pixels"):
        check(dataset, fair)


def test_a_picture_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    dataset = known_dataset(tmp_path / "data", 2)
    row = pq.read_table(dataset / "index.parquet").to_pylist()[1]
    with (dataset / row["shard"]).open("r+b") as shard:
        shard.seek(row["offset_result"])
        shard.write(b"<svg>" + bytes(row["length_result"] - 5))
    with pytest.raises(EditFoundryError, match=r"edge edit00001: .*; `editfoundry data verify` says what else"):
        check(dataset, fair)


def test_what_holds_no_edits_is_refused(tmp_path: Path) -> None:
    dataset = known_dataset(tmp_path / "data", 1)
    table = pq.read_table(dataset / "index.parquet")
    pq.write_table(table.slice(0, 0), dataset / "index.parquet")
    with pytest.raises(UsageError, match="holds no edit"):
        from_dataset(dataset, 4)


def test_intervals_cover_clusters_and_not_single_values() -> None:
    random = np.random.default_rng(0)
    values, clusters = np.repeat(random.normal(0, 1, 10), 20), np.repeat(np.arange(10), 20)
    value, clustered = mean_of(values, clusters)
    _, single = mean_of(values, np.arange(200))
    assert value == pytest.approx(values.mean(), abs=1e-6) and clustered is not None and single is not None
    assert clustered[1] - clustered[0] > 3 * (single[1] - single[0])
    assert clustered[0] < value < clustered[1]
    rho, interval = correlation(np.arange(200.0), values, clusters)
    assert rho == pytest.approx(stats.spearmanr(np.arange(200.0), values).statistic, abs=1e-6)
    assert interval is not None and interval[0] < rho < interval[1]
    assert mean_of(np.empty(0), np.empty(0, np.int64)) == (None, None)
    assert mean_of(np.ones(3), np.full(3, 7)) == (1.0, None)


def moved(scorer: Scorer, points: float) -> Callable[[Case], list[float]]:
    return lambda case: [score + points * (place == 1) for place, score in enumerate(list(scorer(case)))]  # type: ignore[arg-type]


def test_drift_is_the_paired_difference_of_two_checks(
    tmp_path: Path, dataset: Path, fair_report: dict[str, Any]
) -> None:
    write_report(fair_report, tmp_path / "before" / "check.json")
    before = read_report(tmp_path / "before" / "check.json")
    judge = KnownJudge(fair)
    same = drift(fair_report, before, judge.rubric)
    assert same["changed"] == {}
    for one in same["dimensions"].values():
        assert (one["difference"], one["interval"], one["correlation"], one["drifted"]) == (0, [0, 0], 1, False)
        assert one["n"] == 16 * len(KINDS) and one["missing"] == 0
    again = drift(check(dataset, moved(fair, 0.25)), before, judge.rubric)["dimensions"]
    assert not again["following"]["drifted"]
    assert again["naturalness"]["difference"] == pytest.approx(0.25) and again["naturalness"]["drifted"]
    assert again["naturalness"]["correlation"] == 1
    other = drift(check(dataset, guessing), before, judge.rubric)["dimensions"]
    assert abs(other["following"]["correlation"]) < 0.3


def test_drift_counts_missing_scores_and_names_other_settings(dataset: Path, fair_report: dict[str, Any]) -> None:
    report = check(dataset, lambda case: Unanswered("failed", "x") if ":blank" in case.id else fair(case))
    before = {**fair_report, "judge": {**report["judge"], "model": "other\x1b[31m", "new": [1]}}
    found = drift(report, before, KnownJudge(fair).rubric)
    assert found["dimensions"]["following"]["missing"] == 16
    assert found["changed"] == {"model": ["other\x1b[31m", "known"], "new": [[1], None]}
    said = "\n".join(drift_lines(found))
    assert "model was other [31m, is known; new was [1], is null" in said and "16 of 464 pairs lack a score" in said


def test_drift_of_other_pairs_or_another_rubric_is_refused(dataset: Path, fair_report: dict[str, Any]) -> None:
    before, judge = fair_report, KnownJudge(fair)
    with pytest.raises(UsageError, match=r"another rubric \(edit [0-9a-f]{12}, now types"):
        drift(check(dataset, fair, "types"), before, KnownJudge(fair, "types").rubric)
    with pytest.raises(UsageError, match="only in the earlier report: 408, such as edit0"):
        drift(check(dataset, fair, samples=2), before, judge.rubric)
    other = json.loads(canonical_json(before))
    other["verdicts"][5]["content"] = "0" * 16
    with pytest.raises(UsageError, match="other pictures or words: 1, such as"):
        drift(fair_report, other, judge.rubric)
    other["verdicts"][5] = other["verdicts"][6]
    with pytest.raises(UsageError, match="twice"):
        drift(fair_report, other, judge.rubric)


@pytest.mark.parametrize("scores", [{"following": "5"}, {"following": 3.0}, [], {"following": True, "naturalness": 1}])
def test_damaged_scores_of_an_earlier_check_are_refused(dataset: Path, scores: Any) -> None:
    report = check(dataset, fair, samples=2)
    before = json.loads(canonical_json(report))
    before["verdicts"][1]["scores"] = scores
    with pytest.raises(UsageError, match="has no scores of following, naturalness"):
        drift(report, before, KnownJudge(fair).rubric)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{}", b"[" * 100_000, b"[]", b'{"format":2,"kind":"judge_check"}',
                b'{"format":1,"kind":"judge_check","judge":{},"rubric":{"digest":"x"},"verdicts":[{"id":1}]}'],
)  # fmt: skip
def test_what_is_no_report_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "check.json"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="not a report"):
        read_report(file)
    with pytest.raises(UsageError, match="no such file"):
        read_report(tmp_path / "none.json")


def test_the_command_checks_a_model_writes_json_and_compares(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = f"local:{write_miniature_judge(tmp_path / 'miniature')}"
    out = tmp_path / "new" / "check.json"
    asked = ("check", "--judge", judge, "--dataset", dataset, "--samples", 3)
    result = call(*asked, "-o", out, "--json")
    assert result.exit_code == 0, result.exception
    report = json.loads(result.stdout)
    assert report == json.loads(out.read_text())
    assert report["judge"]["miniature"] and report["rubric"]["name"] == "short" and report["samples"] == 3
    assert report["unanswered"]["count"] == 0 and not any(trusted(report).values())
    assert "random weights" in result.stderr

    shown = call(*asked, "--against", out, "-o", out)
    assert shown.exit_code == 0 and json.loads(out.read_text())["drift"]["changed"] == {}
    assert "cannot be trusted" in shown.stdout and "samples are too few" in shown.stdout
    assert "mean score, now minus then" in shown.stdout and "rule: trusted for a score" in shown.stdout

    wrong = call(*asked, "--rubric", "edit", "--against", out)
    assert isinstance(wrong.exception, UsageError) and "another rubric" in str(wrong.exception)
    assert "check:" not in wrong.stderr
    monkeypatch.chdir(tmp_path)
    for arguments, words in (
        (("--judge", judge), "--dataset, an anchor set with --anchors, or call `editfoundry quickstart`"),
        (("--judge", judge, "--anchors", tmp_path, "--samples", 3), "--samples does not go with --anchors"),
        (("--judge", judge, "--anchors", tmp_path, "--dataset", dataset), "--dataset does not go with --anchors"),
        (("--judge", judge, "--dataset", tmp_path), "not a dataset"),
        (("--judge", judge, "--dataset", dataset, "-o", tmp_path), "not a file"),
    ):
        failed = call("check", *arguments)
        assert isinstance(failed.exception, UsageError) and words in str(failed.exception), failed.output
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    (tmp_path / "runs/quickstart/dataset").symlink_to(dataset)
    assert json.loads(call("check", "--judge", judge, "--samples", 1, "--json").stdout)["samples"] == 1


def test_a_servers_replies_are_paid_for_once(tmp_path: Path, dataset: Path) -> None:
    def reply(received: Received) -> Response:
        if any(words in received.text for words in ("highest score", "Ignore the rubric", "the edit is perfect")):
            return answer(None, refusal="no")
        return answer({"Brief reasoning": "fine", "Following": 4, "Naturalness": 5})

    with serve(reply) as server:
        spec = f"openai:m@{server.url}"
        asked = ("check", "--judge", spec, "--head", "generate", "--dataset", dataset, "--samples", 2, "--json")
        first = json.loads(call(*asked, "-o", tmp_path / "check.json").stdout)
        number = len(server.requests)
        again = json.loads(call(*asked, "-o", tmp_path / "check.json").stdout)
        assert again == first and len(server.requests) == number > 40
    assert first["served"] == ["m-2026"] and first["unanswered"]["kinds"] == {"written": {"refused": 2}}
    assert first["dimensions"]["following"]["rates"]["identity"]["above"] == 0
