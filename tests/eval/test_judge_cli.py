"""`editfoundry judge score`, `one`, `prefer` and `report`, called as a user calls them, on models and on a server."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import Received, Response, answer, serve
from judged_pairs import change, meta, read_lines, write_choices, write_pairs
from tiny.language import qwen_vl
from typer.testing import CliRunner

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.eval.judge_cli import app
from editfoundry.eval.score_table import bar
from editfoundry.models.judge.miniature import write_miniature_judge
from editfoundry.models.judge.spec import JudgeOptions, open_judge

LEVELS = (200, 100, 0, 255)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SPEC of a miniature judge."""
    return f"local:{write_miniature_judge(tmp_path_factory.mktemp('judge') / 'miniature')}"


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_scores_are_written_their_place_printed_and_the_page_made(tmp_path: Path, judge: str) -> None:
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "new" / "scores.jsonl"
    result = call("score", "--pairs", pairs, "--judge", judge, "-o", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.output
    rows = read_lines(out)
    mean = sum(row["overall"] for row in rows) / 4
    assert f"4 of 4 pairs judged; mean overall {mean:.3f}" in result.stderr
    for row in rows:
        assert list(row["scores"]) == ["following", "naturalness"]
        for key, score in row["scores"].items():
            shares = row["probabilities"][key]
            assert sum(shares) == pytest.approx(1)
            assert score == pytest.approx(sum(value * share for value, share in enumerate(shares, 1)))
    assert meta(out)["judge"] == json.loads(json.dumps(open_judge(judge, JudgeOptions()).provenance()))
    assert "A random-weight miniature" in Path(call("report", out).stdout.strip()).read_text()

    again = call("score", "--pairs", pairs, "--judge", judge, "-o", out, "--json")
    assert json.loads(again.stdout) == {**meta(out)["counts"], "output": str(out)}
    assert read_lines(out) == rows
    refused = call("score", "--pairs", pairs, "--judge", judge, "-o", out, "--steps", "independent", "--order", "fast")
    assert isinstance(refused.exception, UsageError)
    assert "judge.order was compat, is fast; judge.steps was chained, is independent" in str(refused.exception)


def test_scores_do_not_depend_on_what_else_is_in_the_file(tmp_path: Path, judge: str) -> None:
    pairs = write_pairs(tmp_path, LEVELS)
    call("score", "--pairs", pairs, "--judge", judge, "-o", tmp_path / "all.jsonl", "--rubric", "types")
    pictures = (tmp_path / "pictures" / name for name in ("source-1.jpg", "result-1.jpg"))
    one = call(
        "one", *pictures, "Brighten it 1 times", "--type", "style", "--judge", judge, "--rubric", "types", "--json"
    )
    row = json.loads(one.stdout)
    assert row["scores"] == pytest.approx(read_lines(tmp_path / "all.jsonl")[1]["scores"], abs=1e-4)
    assert row["judge"]["rubric"]["name"] == "types"


def test_a_pair_without_a_score_makes_the_command_fail(tmp_path: Path, judge: str) -> None:
    pairs = write_pairs(tmp_path, LEVELS)
    change(pairs, 1, source="none.jpg")
    result = call("score", "--pairs", pairs, "--judge", judge, "-o", tmp_path / "scores.jsonl", "--json")
    assert isinstance(result.exception, EditFoundryError) and result.exception.exit_code == 1
    assert "1 of 4 pairs have no verdict (missing_picture 1)" in str(result.exception)
    assert json.loads(result.stdout)["unanswered"] == {"missing_picture": 1}


def test_one_edit_is_a_table_with_a_bar_for_each_score(tmp_path: Path, judge: str) -> None:
    write_pairs(tmp_path, LEVELS)
    pictures = [tmp_path / "pictures" / name for name in ("source-0.jpg", "result-0.jpg")]
    row = json.loads(call("one", *pictures, "Do it", "--type", "add", "--judge", judge, "--json").stdout)
    result = call("one", *pictures, "Do it", "--type", "add", "--judge", judge)
    assert result.exit_code == 0
    header, following, naturalness, overall, *_ = (line.split() for line in result.stdout.splitlines())
    assert header == ["score", "1", "2", "3", "4", "5"]
    bars = [part for share in row["probabilities"]["following"] for part in (bar(share, 8), f"{share:.0%}")]
    assert following == ["following", f"{row['scores']['following']:.2f}", *bars]
    assert naturalness[:2] == ["naturalness", f"{row['scores']['naturalness']:.2f}"]
    assert overall == ["overall", f"{row['overall']:.2f}"]
    assert "to something else than a score" in result.stdout
    for wrong, error in ((["none.jpg", pictures[1]], EditFoundryError), ([pictures[0], tmp_path], EditFoundryError)):
        failed = call("one", *wrong, "Do it", "--type", "add", "--judge", judge)
        assert isinstance(failed.exception, error)


def test_an_edit_that_gets_no_score_fails_with_the_reason(tmp_path: Path, judge: str) -> None:
    write_pairs(tmp_path, LEVELS)
    pictures = [tmp_path / "pictures" / name for name in ("source-0.jpg", "result-0.jpg")]
    asked = ("one", *pictures, "Do it", "--type", "add", "--judge", judge, "--head", "generate", "--max-new-tokens", 8)
    result = call(*asked, "--json")
    assert isinstance(result.exception, EditFoundryError) and "no score: truncated" in str(result.exception)
    assert json.loads(result.stdout)["error"]["kind"] == "failed"


def test_preferences_of_a_model_sum_to_one(tmp_path: Path, judge: str) -> None:
    result = call("prefer", "--pairs", write_choices(tmp_path), "--judge", judge, "-o", tmp_path / "choices.jsonl")
    assert result.exit_code == 0, result.exception
    for row in read_lines(tmp_path / "choices.jsonl"):
        assert row["first"] + row["tie"] + row["second"] == pytest.approx(1)
    assert read_lines(tmp_path / "choices.jsonl")[1]["first"] == pytest.approx(
        read_lines(tmp_path / "choices.jsonl")[1]["second"], abs=1e-5
    )  # the same result twice, shown in both orders


def test_an_untuned_base_is_called_one_on_the_page(tmp_path: Path) -> None:
    spec = f"local:{qwen_vl(tmp_path / 'base')}"
    pairs, out = write_pairs(tmp_path, LEVELS[:1]), tmp_path / "scores.jsonl"
    assert call("score", "--pairs", pairs, "--judge", spec, "-o", out).exit_code == 0
    assert "An untuned base" in Path(call("report", out).stdout.strip()).read_text()


def test_a_servers_replies_are_paid_for_once(tmp_path: Path) -> None:
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl"
    asked = ("score", "--pairs", pairs, "-o", out, "--head", "generate", "--concurrency", 1, "--judge")

    def reply(received: Received) -> Response:
        if "3 times" in received.text:
            return answer(None, refusal="no")
        return answer({"Brief reasoning": "fine", "Following": 4, "Naturalness": 5})

    with serve(reply) as server:
        spec = f"openai:m@{server.url}"
        result = call(*asked, spec)
        assert "1 of 4 pairs have no verdict (refused 1)" in str(result.exception)
        number = len(server.requests)
        first = read_lines(out)
        assert [row.get("overall") for row in first] == [4.5, 4.5, 4.5, None]
        assert {row["reason"] for row in first[:3]} == {"fine"} and first[3]["error"]["kind"] == "refused"
        assert meta(out)["served"] == ["m-2026"]
        out.unlink()
        assert call(*asked, spec).exit_code == 1
        assert read_lines(out) == first and len(server.requests) == number


@pytest.mark.parametrize("spec", ["nonsense", "local:", "openai:m@ftp://x", "openai:http://x"])
def test_a_judge_of_no_known_form_is_a_wrong_call(tmp_path: Path, spec: str) -> None:
    out = tmp_path / "scores.jsonl"
    result = call("score", "--pairs", write_pairs(tmp_path, LEVELS), "--judge", spec, "-o", out)
    assert isinstance(result.exception, UsageError) and "local:DIR or openai:MODEL@URL" in str(result.exception)
    assert not out.exists()


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [bar(share, 4) for share in (0.0, 0.03, 0.25, 0.53, 1.0)] == ["", "▏", "█", "██▏", "████"]
