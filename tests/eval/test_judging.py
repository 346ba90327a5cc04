"""Judging a file of pairs: every pair has a line, in order, whatever is wrong with it and whenever the work stops."""

import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from judged_pairs import (
    EVIL,
    PixelJudge,
    change,
    flat,
    meta,
    read_lines,
    unseen,
    write_choices,
    write_lines,
    write_pairs,
)

from editfoundry.core.errors import EditFoundryError, ImageError, UsageError
from editfoundry.core.progress import Advance
from editfoundry.eval import judging
from editfoundry.eval.judging import PREFER, SCORE, judge_one, judge_pairs, summary
from editfoundry.eval.pairs import UnusablePicture, listed
from editfoundry.eval.verdicts import read_meta

LEVELS = (200, 100, 0, 255, 50)


def score(pairs: Path, out: Path, judge: PixelJudge | None = None) -> tuple[list[dict[str, Any]], PixelJudge]:
    judge = judge or PixelJudge()
    judge_pairs(SCORE, judge, pairs, out, unseen)
    return read_lines(out), judge


def test_every_pair_has_its_scores_in_the_order_of_the_file(tmp_path: Path) -> None:
    rows, judge = score(write_pairs(tmp_path, LEVELS), tmp_path / "out" / "scores.jsonl")
    assert [row["id"] for row in rows] == [f"pair {number}" for number in range(5)]
    assert [row["overall"] for row in rows] == pytest.approx([1 + 4 * level / 255 for level in LEVELS], abs=0.02)
    assert list(rows[0]) == [
        "id", "type", "pair", "scores", "overall", "above_first", "reason", "probabilities", "uncovered",
    ]  # fmt: skip
    assert list(rows[0]["scores"]) == ["following", "naturalness"]
    assert sum(rows[0]["probabilities"]["following"]) == pytest.approx(1) and rows[0]["uncovered"] == 0.25
    said = meta(tmp_path / "out" / "scores.jsonl")
    assert (said["finished"], said["kind"], said["scale"]) == (True, "score", [1, 5])
    assert said["judge"] == judge.provenance() and said["served"] == ["pixels-2"]
    assert said["counts"]["attempted"] == said["counts"]["judged"] == said["pairs"]["lines"] == 5
    assert said["counts"]["means"]["overall"] == pytest.approx(sum(row["overall"] for row in rows) / 5)


def test_pairs_of_one_type_and_source_are_asked_side_by_side_and_pictures_decoded_once(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, [10] * 12, sources=3)
    for number in range(12):
        (tmp_path / "pictures" / f"result-{number}.jpg").write_bytes(flat(100 + number % 2))
    rows, judge = score(pairs, tmp_path / "scores.jsonl")
    [asked] = judge.calls
    assert [int(id.split()[1]) % 3 for id in asked[:6]] == [0, 0, 1, 1, 2, 2]
    assert [int(id.split()[1]) % 2 for id in asked] == [0] * 6 + [1] * 6
    assert len(judge.pictures[0]) == 3 + 2
    assert [row["id"] for row in rows] == [f"pair {number}" for number in range(12)]


def test_chunks_are_closed_by_pairs_and_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = write_pairs(tmp_path, range(0, 200, 10))
    monkeypatch.setattr(judging, "CHUNK", 8)
    rows, judge = score(pairs, tmp_path / "a.jsonl")
    assert [len(call) for call in judge.calls] == [8, 8, 4]
    monkeypatch.setattr(judging, "CHUNK_BYTES", 48 * 32 * 3 * 4)
    again, judge = score(pairs, tmp_path / "b.jsonl")
    assert [len(call) for call in judge.calls] == [2] * 10
    assert again == rows


def test_what_is_there_is_kept_and_not_asked_again(tmp_path: Path) -> None:
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl"
    score(pairs, out)
    before = out.read_bytes()
    assert score(pairs, out)[1].calls == []
    assert out.read_bytes() == before and meta(out)["finished"]


def test_only_what_changed_is_judged_again(tmp_path: Path) -> None:
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl"
    first, _ = score(pairs, out)
    (tmp_path / "pictures" / "result-1.jpg").write_bytes(flat(255))
    change(pairs, 3, instruction="Something else")
    rows, judge = score(pairs, out)
    assert sorted(judge.calls[0]) == ["pair 1", "pair 3"]
    assert rows[1]["overall"] == pytest.approx(5) and first[1]["overall"] < 3
    assert [rows[number] for number in (0, 2, 4)] == [first[number] for number in (0, 2, 4)]
    assert [row["id"] for row in rows] == [row["id"] for row in first]
    write_lines(pairs, read_lines(pairs)[::-1][:3])
    rows, judge = score(pairs, out)
    assert judge.calls == [] and [row["id"] for row in rows] == ["pair 4", "pair 3", "pair 2"]


def test_what_cannot_be_judged_is_a_line_that_says_why(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, [80] * 9)
    change(pairs, 1, source="pictures/none.jpg")
    change(pairs, 2, instruction="refuse")
    change(pairs, 3, instruction="broken")
    change(pairs, 4, id="pair 0")
    change(pairs, 5, instruction=7)
    (tmp_path / "pictures" / "result-6.jpg").write_bytes(flat(80)[:400])
    (tmp_path / "pictures" / "result-7.jpg").write_bytes(b"<svg>")
    with pairs.open("ab") as file:
        file.write(b"\xff\n")
    rows, judge = score(pairs, tmp_path / "scores.jsonl")
    assert len(rows) == 10
    assert [(row["error"]["kind"], row["error"]["reason"]) for row in rows if "error" in row] == [
        ("unusable", "missing_picture"), ("refused", "declined"), ("failed", "not_finite"),
        ("unusable", "duplicate_id"), ("unusable", "bad_instruction"), ("unusable", "truncated_image"),
        ("unusable", "unsupported_format"), ("unusable", "not_utf8"),
    ]  # fmt: skip
    assert rows[2]["error"]["detail"] == "not this one" and "scores" not in rows[2]
    assert (rows[9]["id"], rows[9]["line"]) == (None, 10)
    counts = meta(tmp_path / "scores.jsonl")["counts"]
    assert (counts["attempted"], counts["judged"]) == (10, 2)
    assert counts["unanswered"]["missing_picture"] == 1
    sound = [json.loads(line) for line in pairs.read_bytes().split(b"\n") if line.startswith(b"{")]
    sound[1]["source"] = "pictures/source-1.jpg"
    write_lines(pairs, sound)
    rows, judge = score(pairs, tmp_path / "scores.jsonl")
    assert sorted(judge.calls[0]) == ["pair 1", "pair 2", "pair 3"]
    assert "scores" in rows[1] and "scores" in rows[0] and len(rows) == 9


def test_a_type_that_the_rubric_lacks_is_that_pairs_error(tmp_path: Path, repository: Path) -> None:
    rubric = tmp_path / "mine.yaml"
    text = (repository / "models/judge/rubrics/edit.yaml").read_text()
    rubric.write_text(text[: text.index("  other:")])
    pairs = write_pairs(tmp_path, LEVELS)
    change(pairs, 1, type="\x1b[31mteleport")
    rows, _ = score(pairs, tmp_path / "scores.jsonl", PixelJudge(str(rubric)))
    assert rows[1]["error"]["reason"] == "unknown_type" and "\x1b" not in rows[1]["error"]["detail"]
    assert sum("scores" in row for row in rows) == 4


def test_a_one_pixel_picture_a_long_instruction_and_odd_ids_are_judged(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, LEVELS)
    (tmp_path / "pictures" / "result-0.jpg").write_bytes(flat(255, 1, 1))
    change(pairs, 0, id=EVIL, instruction="word " * 2000)
    change(pairs, 1, id="../../etc/\n\0\x1b[2J", type="an unknown type")
    rows, _ = score(pairs, tmp_path / "scores.jsonl")
    assert [row["id"] for row in rows[:2]] == [EVIL, "../../etc/\n\0\x1b[2J"]
    assert rows[0]["overall"] == 5 and "scores" in rows[1]


def test_scores_above_the_first_are_named_and_counted_as_it(tmp_path: Path) -> None:
    class Higher(PixelJudge):
        def score(self, cases: Any) -> list[Any]:
            return [judging.Scored(dict(zip(("compliance", "naturalness", "coherence"), (2.0, 5.0, 1.0), strict=True)))
                    for case in cases]  # fmt: skip

    rows, _ = score(write_pairs(tmp_path, [9], type="add"), tmp_path / "scores.jsonl", Higher("types"))
    assert rows[0]["above_first"] == ["naturalness"]
    assert rows[0]["overall"] == pytest.approx((2 + 2 + 1) / 3)


def test_another_judge_is_refused_naming_what_differs(tmp_path: Path) -> None:
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl"
    score(pairs, out)
    before = out.read_bytes()
    with pytest.raises(UsageError, match=r"judge\.model was pixels, is others\); give another -o"):
        score(pairs, out, PixelJudge(name="others"))
    with pytest.raises(UsageError, match=r"judge\.rubric\.name was edit, is types"):
        score(pairs, out, PixelJudge("types"))
    with pytest.raises(UsageError, match="kind was score, is prefer"):
        judge_pairs(PREFER, PixelJudge(), write_choices(tmp_path), out, unseen)
    assert out.read_bytes() == before


def test_a_path_that_is_no_file_of_verdicts_is_refused_and_left_alone(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, LEVELS)
    before = pairs.read_bytes()
    with pytest.raises(UsageError, match="no file of verdicts; give another -o"):
        score(pairs, pairs)
    with pytest.raises(UsageError, match="not a file"):
        score(pairs, tmp_path)
    assert pairs.read_bytes() == before


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"id": 1, "pair": 2}\n', b'{"error": 1}\n', b"\xff\n"])
def test_a_damaged_file_of_verdicts_is_named(tmp_path: Path, line: bytes) -> None:
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl"
    score(pairs, out)
    out.write_bytes(out.read_bytes() + line)
    with pytest.raises(EditFoundryError, match="line 6: damaged"):
        score(pairs, out)
    Path(f"{out}.meta.json").write_bytes(line)
    with pytest.raises(EditFoundryError, match=r"meta\.json: damaged"):
        read_meta(out)


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl"
    with out.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process is writing it"):
            score(pairs, out)
    assert len(score(pairs, out)[0]) == 5


KILLED = """
import os, signal, sys
from pathlib import Path
from editfoundry.eval import judging
from editfoundry.eval.judging import SCORE, judge_pairs
from judged_pairs import PixelJudge, unseen
judging.CHUNK = 4
kill = lambda call: os.kill(os.getpid(), signal.SIGKILL) if call == 2 else None
judge_pairs(SCORE, PixelJudge(before=kill), Path(sys.argv[1]), Path(sys.argv[2]), unseen)
"""


def test_what_a_killed_process_wrote_is_kept(tmp_path: Path) -> None:
    pairs, out = write_pairs(tmp_path, range(0, 140, 10)), tmp_path / "scores.jsonl"
    whole, _ = score(pairs, tmp_path / "whole.jsonl")
    support = str(Path(__file__).parents[1] / "support")
    child = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {support!r})" + KILLED, pairs, out],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(read_lines(out)) == 8 and not meta(out)["finished"]
    with out.open("ab") as file:
        file.write(b'{"id":"pair 8","type":"ad')
    rows, judge = score(pairs, out)
    assert rows == whole and meta(out)["finished"]
    assert sorted(id for call in judge.calls for id in call) == sorted(f"pair {number}" for number in range(8, 14))
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_an_error_of_the_judge_leaves_the_chunks_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(call: int) -> None:
        if call == 1:
            raise EditFoundryError("the server is gone")

    monkeypatch.setattr(judging, "CHUNK", 2)
    pairs, out = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl"
    with pytest.raises(EditFoundryError, match="the server is gone"):
        score(pairs, out, PixelJudge(before=fail))
    assert len(read_lines(out)) == 2 and not meta(out)["finished"]
    rows, judge = score(pairs, out)
    assert len(rows) == 5 and sum(map(len, judge.calls)) == 3


def test_preferences_have_shares_and_means(tmp_path: Path) -> None:
    counts = judge_pairs(PREFER, PixelJudge(), write_choices(tmp_path), tmp_path / "choices.jsonl", unseen)
    rows = read_lines(tmp_path / "choices.jsonl")
    shares = {"first": 0.2, "tie": 0.1, "second": 0.7}
    assert [{key: row[key] for key in shares} for row in rows] == [shares] * 2
    assert not any(row["consistent"] for row in rows)
    assert counts["means"] == pytest.approx(shares)


def test_one_pair_is_judged_or_its_error_raised(tmp_path: Path) -> None:
    write_pairs(tmp_path, [255])
    source, result = tmp_path / "pictures" / "source-0.jpg", tmp_path / "pictures" / "result-0.jpg"
    assert judge_one(PixelJudge(), listed(source, result, "Do it", "add"))["overall"] == pytest.approx(5)
    assert judge_one(PixelJudge(), listed(source, result, "refuse", "add"))["error"]["reason"] == "declined"
    with pytest.raises(UnusablePicture, match="no such file"):
        judge_one(PixelJudge(), listed(tmp_path / "none", result, "Do it", "add"))
    result.write_bytes(b"no picture")
    with pytest.raises(ImageError):
        judge_one(PixelJudge(), listed(source, result, "Do it", "add"))
    with pytest.raises(UsageError, match="the instruction is empty"):
        listed(source, result, " ", "add")


def test_the_summary_of_nothing_has_no_mean() -> None:
    assert summary(SCORE, []) == {"attempted": 0, "judged": 0, "unanswered": {}, "means": {}}


def test_progress_counts_what_is_left(tmp_path: Path) -> None:
    pairs, out, seen = write_pairs(tmp_path, LEVELS), tmp_path / "scores.jsonl", list[int]()

    @contextmanager
    def noted(total: int) -> Iterator[Advance]:
        seen.append(total)
        yield seen.append

    score(pairs, out)
    (tmp_path / "pictures" / "result-1.jpg").write_bytes(flat(1))
    rows = read_lines(pairs)
    write_lines(pairs, [*rows, {**rows[0], "id": "new"}])
    judge_pairs(SCORE, PixelJudge(), pairs, out, noted)
    assert seen == [1, 1]
