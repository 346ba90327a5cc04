"""Files of pairs: what is read, and what strangers may hand in."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judged_pairs import flat

from editfoundry.core.errors import ImageError, UsageError
from editfoundry.core.hashing import sha256
from editfoundry.eval.pairs import (
    LONGEST_INSTRUCTION,
    LONGEST_LINE,
    Listed,
    Pictures,
    Unusable,
    UnusablePicture,
    content,
    overview,
    read_pairs,
    read_picture,
)

SLOTS = ("source", "result")
GOOD: dict[str, Any] = {"id": "a", "source": "s.jpg", "result": "r.jpg", "instruction": "Do it", "type": "add"}


def lines(path: Path, *contents: bytes) -> list[Listed | Unusable]:
    file = path / "pairs.jsonl"
    file.write_bytes(b"\n".join(contents))
    return list(read_pairs(file, SLOTS))


def one(path: Path, **changed: Any) -> Listed | Unusable:
    [entry] = lines(path, json.dumps({**GOOD, **changed}).encode())
    return entry


def test_a_pair_has_paths_beside_the_file_and_keeps_its_line(tmp_path: Path) -> None:
    rows = [{**GOOD, "more": [1]}, {**GOOD, "id": "b", "source": "/elsewhere/s.jpg"}]
    first, second = lines(tmp_path, b"\xef\xbb\xbf" + json.dumps(rows[0]).encode(), b"  ", json.dumps(rows[1]).encode())
    assert first == Listed(1, "a", "add", "Do it", {"source": tmp_path / "s.jpg", "result": tmp_path / "r.jpg"})
    assert isinstance(second, Listed) and (second.line, second.pictures["source"]) == (3, Path("/elsewhere/s.jpg"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"id": 7}, "bad_id"),
        ({"id": ""}, "bad_id"),
        ({"id": "x" * 201}, "bad_id"),
        ({"id": "\ud800"}, "bad_id"),
        ({"instruction": None}, "bad_instruction"),
        ({"instruction": ["x"]}, "bad_instruction"),
        ({"instruction": " \n"}, "bad_instruction"),
        ({"instruction": "x" * (LONGEST_INSTRUCTION + 1)}, "bad_instruction"),
        ({"type": 3}, "bad_type"),
        ({"source": ""}, "bad_path"),
        ({"source": 5}, "bad_path"),
        ({"result": "a\0b"}, "bad_path"),
        ({"result": "\ud800.jpg"}, "bad_path"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    entry = one(tmp_path, **changed)
    assert isinstance(entry, Unusable) and entry.reason == reason
    assert entry.id == (None if "id" in changed else "a")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not_json"),
        (b"[1]", "not_json"),
        (b'{"id": NaN}', "not_json"),
        (b'{"id": "a", "id": "b"}', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"id": ' + b"1" * 5000 + b"}", "not_json"),
        (b'{"id": "\xff"}', "not_utf8"),
        (b'{"id": "' + b"x" * LONGEST_LINE + b'"}', "too_long"),
        (b'{"source": "s"}', "bad_id"),
    ],
)
def test_a_broken_line_is_one_error_and_the_next_is_read(tmp_path: Path, line: bytes, reason: str) -> None:
    broken, good = lines(tmp_path, line, json.dumps(GOOD).encode())
    assert isinstance(broken, Unusable) and broken.reason == reason and broken.line == 1
    assert isinstance(good, Listed) and good.line == 2


def test_an_id_may_be_there_once(tmp_path: Path) -> None:
    row = json.dumps(GOOD).encode()
    first, again = lines(tmp_path, row, row)
    assert isinstance(first, Listed)
    assert isinstance(again, Unusable) and (again.id, again.reason) == ("a", "duplicate_id")


def test_the_overview_counts_lines_and_ids(tmp_path: Path) -> None:
    lines(tmp_path, json.dumps(GOOD).encode(), b"", b"x", json.dumps({**GOOD, "id": "b"}).encode())
    held = overview(tmp_path / "pairs.jsonl", SLOTS)
    assert (held.lines, held.ids) == (3, ("a", "b"))
    assert held.sha256 == sha256((tmp_path / "pairs.jsonl").read_bytes())


@pytest.mark.parametrize(("data", "said"), [(b"\n\n", "it is empty"), (flat(9), "line 1: byte 1 of the line is not")])
def test_a_file_without_any_pair_is_a_wrong_call(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "pairs.jsonl").write_bytes(data)
    with pytest.raises(UsageError, match=said):
        overview(tmp_path / "pairs.jsonl", SLOTS)
    with pytest.raises(UsageError, match="no such file"):
        overview(tmp_path, SLOTS)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_whatever_bytes_it_holds_every_line_is_accounted_for(tmp_path: Path, contents: list[bytes]) -> None:
    data = b"\n".join([*contents, json.dumps(GOOD).encode()])
    entries = lines(tmp_path, data)
    assert len(entries) == sum(bool(line.strip()) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    assert isinstance(entries[-1], Listed)


def test_a_name_that_is_not_utf8_is_found(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")).write_bytes(flat(3))
    entry = one(tmp_path, source="\udcff.jpg")
    assert isinstance(entry, Listed)
    digest, data = read_picture(entry.pictures["source"])
    assert (digest, data) == (sha256(flat(3)), flat(3))


def test_pictures_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "none.jpg", "missing_picture"),
        (tmp_path, "not_a_file"),
        (tmp_path / "pipe", "not_a_file"),
        (tmp_path / ("x" * 300), "unreadable_picture"),
    ):
        with pytest.raises(UnusablePicture) as caught:
            read_picture(path)
        assert caught.value.reason == reason


def test_a_picture_in_two_files_is_decoded_once() -> None:
    pictures = Pictures()
    first = pictures.decoded(sha256(flat(8)), flat(8))
    assert pictures.decoded(sha256(flat(8)), flat(8)) is first
    assert (first.shape, pictures.bytes) == ((32, 48, 3), 32 * 48 * 3)
    with pytest.raises(ImageError):
        pictures.decoded("x", b"no picture")


def test_the_name_of_a_content_depends_on_all_that_is_judged(tmp_path: Path) -> None:
    pair = one(tmp_path)
    assert isinstance(pair, Listed)
    digests = {"source": "1", "result": "2"}
    names = {content(pair, digests), content(pair, {**digests, "result": "3"})}
    for changed in ({"instruction": "Other"}, {"type": "style"}):
        other = one(tmp_path, **changed)
        assert isinstance(other, Listed)
        names.add(content(other, digests))
    assert len(names) == 4
    renamed = one(tmp_path, id="z")
    assert isinstance(renamed, Listed) and content(renamed, digests) in names
