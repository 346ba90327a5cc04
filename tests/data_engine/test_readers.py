"""Tars, tables and JSON where they lie: whole, split, remote, and hostile."""

import errno
import io
import json
import math
import os
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.core.errors import UsageError
from editfoundry.data_engine.readers import records, storage, tables, tars
from editfoundry.data_engine.readers.storage import ContainerError
from editfoundry.data_engine.readers.tars import Member

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def entry(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def write_tar(path: Path, *entries: tuple[tarfile.TarInfo, bytes], format: int = tarfile.USTAR_FORMAT) -> str:
    with tarfile.open(path, "w", format=format) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def outcome(parts: list[str]) -> tuple[list[Member], str]:
    """The members before the end, and the reason the reading ended with, "" for none."""
    found = []
    try:
        for member in tars.members(parts):
            found.append(member)
    except ContainerError as error:
        return found, error.reason
    return found, ""


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("name", ["a/b.jpg", "é" * 40 + ".jpg", "long/" * 17 + "x.jpg"])
def test_members_and_bytes_are_those_of_the_tar(tmp_path: Path, format: int, name: str) -> None:
    contents = {name: b"one" * 500, "empty.txt": b"", "last.png": os.urandom(1024)}
    tar = write_tar(tmp_path / "a.tar", *(entry(*pair) for pair in contents.items()), format=format)
    found = list(tars.members([tar]))
    assert {member.name: tars.read([tar], member) for member in found} == contents
    assert [member.problem for member in found] == [""] * 3


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=1500), min_size=1, max_size=6), st.integers(200, 12_000))
def test_a_split_tar_reads_as_the_whole_one(contents: list[bytes], part: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number, data in enumerate(contents):
            tar.addfile(*(lambda pair: (pair[0], io.BytesIO(pair[1])))(entry(f"{number}.jpg", data)))
    raw = buffer.getvalue()
    files = MemoryFileSystem()
    files.rm("/split", recursive=True) if files.exists("/split") else None
    files.pipe({f"/split/x.tar.split.{at // part:05d}": raw[at : at + part] for at in range(0, len(raw), part)})
    (parts,) = tars.split_parts(storage.expand("memory://split/x.tar.split.*"))
    assert [tars.read(parts, member) for member in tars.members(parts)] == contents
    if len(parts) > 1:
        with pytest.raises(ContainerError, match="part 0 of the split tar is missing"):
            tars.split_parts(parts[1:])


def test_parts_are_ordered_by_number_and_grouped_by_archive() -> None:
    urls = [f"b.tar.split.{n}" for n in (10, 2, *range(2), *range(3, 10))] + ["a.tar", "c.tar.0"]
    assert tars.split_parts(urls) == [["a.tar"], [f"b.tar.split.{n}" for n in range(11)], ["c.tar.0"]]


HOSTILE = {
    "absolute": (entry("/etc/x.jpg", b"x"), "absolute"),
    "leaves": (entry("a/../../x.jpg", b"x"), "leaves its folder"),
    "newline": (entry("a\nb.jpg", b"x"), "unprintable"),
    "symlink": (entry("x.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "symbolic link"),
    "hardlink": (entry("x.jpg", type=tarfile.LNKTYPE, linkname="ok.jpg"), "hard link"),
    "device": (entry("x.jpg", type=tarfile.CHRTYPE, devmajor=1, devminor=5), "device"),
    "pipe": (entry("x.jpg", type=tarfile.FIFOTYPE), "pipe"),
    "unknown": (entry("x.jpg", b"data", type=b"Q"), "unknown type"),
}


@pytest.mark.parametrize(("hostile", "problem"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_members_are_named_and_never_read(
    tmp_path: Path, hostile: tuple[tarfile.TarInfo, bytes], problem: str
) -> None:
    tar = write_tar(tmp_path / "a.tar", entry("ok.jpg", b"ok"), hostile, entry("too.jpg", b"too"))
    first, bad, last = tars.members([tar])
    assert problem in bad.problem
    with pytest.raises(ContainerError) as refused:
        tars.read([tar], bad)
    assert refused.value.reason == "unsafe_member"
    assert [tars.read([tar], member) for member in (first, last)] == [b"ok", b"too"]


def test_sparse_files_are_refused_without_growing(tmp_path: Path) -> None:
    header, _ = entry("bomb.jpg", type=tarfile.GNUTYPE_SPARSE)
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"00000001000\0"
    block[386:410] = b"77777777777\0" + b"00000001000\0"
    block[482] = 1
    block[483:495] = b"77777777777\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    tail, data = entry("after.jpg", b"after")
    raw = bytes(block) + bytes(512) + bytes(512) + tail.tobuf() + data.ljust(512, b"\0") + bytes(1024)
    (tmp_path / "a.tar").write_bytes(raw)
    sparse, after = tars.members([str(tmp_path / "a.tar")])
    assert (sparse.problem, sparse.size) == ("a sparse file, not a file", 512)
    assert tars.read([str(tmp_path / "a.tar")], after) == b"after"
    pax, data = entry("b.jpg", b"1\n0\n", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": "9" * 15})
    (only,) = tars.members([write_tar(tmp_path / "b.tar", (pax, data), format=tarfile.PAX_FORMAT)])
    assert "sparse" in only.problem


@pytest.mark.parametrize(
    ("cut", "members", "reason"),
    [(0, 0, "truncated_tar"), (300, 0, "truncated_tar"), (1000, 0, "truncated_tar"), (1536, 1, "truncated_tar"),
     (2200, 1, "truncated_tar"), (3072, 2, "truncated_tar"), (3584, 2, "")],
)  # fmt: skip
def test_a_tar_that_ends_early_keeps_what_is_whole(tmp_path: Path, cut: int, members: int, reason: str) -> None:
    tar = write_tar(tmp_path / "a.tar", entry("a.jpg", b"a" * 1000), entry("b.jpg", b"b" * 1000))
    (tmp_path / "cut.tar").write_bytes(Path(tar).read_bytes()[:cut])
    found, why = outcome([str(tmp_path / "cut.tar")])
    assert (len(found), why) == (members, reason)


def test_damaged_and_compressed_tars_say_so(tmp_path: Path) -> None:
    raw = bytearray(Path(write_tar(tmp_path / "a.tar", entry("a.jpg", b"a"), entry("b.jpg", b"b"))).read_bytes())
    raw[1024 + 10] ^= 0xFF
    (tmp_path / "bad.tar").write_bytes(raw)
    assert [len(outcome([str(tmp_path / "bad.tar")])[0]), outcome([str(tmp_path / "bad.tar")])[1]] == [1, "damaged_tar"]
    with tarfile.open(tmp_path / "z.tar", "w:gz") as tar:
        tar.addfile(*entry("a.jpg")[:1])
    assert outcome([str(tmp_path / "z.tar")]) == ([], "compressed_tar")
    assert outcome([str(tmp_path / "none.tar")]) == ([], "missing_file")


def test_headers_that_claim_too_much_are_damage(tmp_path: Path) -> None:
    huge, _ = entry("x", type=b"L")
    huge.size = 1 << 40
    (tmp_path / "long.tar").write_bytes(huge.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    assert outcome([str(tmp_path / "long.tar")]) == ([], "damaged_tar")
    member, _ = entry("x.jpg")
    member.size = 1 << 40
    (tmp_path / "size.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    assert outcome([str(tmp_path / "size.tar")]) == ([], "truncated_tar")
    for payload in (b"99 path=x\n", b"x path=y\n", b"12 path=abc", b"-5 a=b\n", b"11 size=-1\n", b"12 size=1e9\n"):
        pax, _ = entry("h", type=b"x")
        pax.size = len(payload)
        body = payload.ljust(512, b"\0")
        (tmp_path / "pax.tar").write_bytes(pax.tobuf() + body + entry("y.jpg")[0].tobuf() + bytes(1024))
        assert outcome([str(tmp_path / "pax.tar")]) == ([], "damaged_tar"), payload


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_bytes_make_the_reader_fail_otherwise(data: st.DataObject) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=data.draw(st.sampled_from(list(FORMATS.values())))) as tar:
        for name in ("a.jpg", "é.json", "n" * 120):
            info, body = entry(name, b"x" * 600)
            tar.addfile(info, io.BytesIO(body)) if len(name) < 100 or tar.format != tarfile.USTAR_FORMAT else None
    raw = bytearray(buffer.getvalue()[:6000])
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    MemoryFileSystem().pipe("/fuzz.tar", bytes(raw))
    for member in outcome(["memory://fuzz.tar"])[0]:
        assert member.offset + member.size <= len(raw)


def table(path: Path, rows: int = 1000, group: int = 300) -> str:
    content = pa.table({"number": list(range(rows)), "blob": [bytes([n % 251]) * 50 for n in range(rows)]})
    pq.write_table(content, path, row_group_size=group)
    return str(path)


def test_rows_are_streamed_and_found_by_position(tmp_path: Path) -> None:
    url = table(tmp_path / "t.parquet")
    assert tables.columns(url) == ["number", "blob"]
    assert tables.count(url) == 1000
    assert [row["number"] for row in tables.rows(url, ["number"])] == list(range(1000))
    assert tables.row(url, 899) == {"number": 899, "blob": bytes([899 % 251]) * 50}
    with tables.Table(url) as opened:
        assert [opened.row(at, ["number"]) for at in (0, 299, 300, 999, 1)] == [
            {"number": n} for n in (0, 299, 300, 999, 1)
        ]
    for index in (-1, 1000):
        with pytest.raises(ContainerError, match="there is no row"):
            tables.row(url, index)
    with pytest.raises(ContainerError, match="no column 'nothing'; there are: number, blob"):
        list(tables.rows(url, ["nothing"]))


def test_one_row_group_is_held_at_a_time(tmp_path: Path) -> None:
    content = pa.table({"blob": [os.urandom(100_000) for _ in range(60)]})
    pq.write_table(content, tmp_path / "big.parquet", row_group_size=5, use_dictionary=False)
    del content
    before = pa.total_allocated_bytes()
    with tables.Table(str(tmp_path / "big.parquet")) as opened:
        peak = 0
        for index in range(60):
            opened.row(index)
            peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 3 * 5 * 100_000


@pytest.mark.parametrize("damage", ["footer", "page", "empty", "text", "missing"])
def test_damaged_tables_say_so(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "t.parquet"
    raw = bytearray(Path(table(path)).read_bytes())
    if damage == "footer":
        raw = raw[:-40]
    elif damage == "page":
        raw[100:900] = b"\xff" * 800
    path.write_bytes({"empty": b"", "text": b"hello"}.get(damage, bytes(raw)))
    if damage == "missing":
        path.unlink()
    with pytest.raises(ContainerError, match=r"t\.parquet") as refused:
        list(tables.rows(str(path)))
    assert refused.value.reason == ("missing_file" if damage == "missing" else "damaged_table")


class Broken(MemoryFileSystem):
    """A store whose files open and then fail."""

    protocol = "broken"

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        class File(io.BytesIO):
            def read(self, *_: Any) -> bytes:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        return File(b"x" * 4096)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": 4096, "type": "file"}


class Odd(MemoryFileSystem):
    """A store that raises what is no OSError."""

    protocol = "odd"

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        raise LookupError("the bucket said no")


def test_what_a_store_raises_names_the_address() -> None:
    fsspec.register_implementation("broken", Broken, clobber=True)
    fsspec.register_implementation("odd", Odd, clobber=True)
    for read in (lambda url: tables.count(url), lambda url: list(tars.members([url]))):
        with pytest.raises(ContainerError, match="broken://x: Input/output error") as refused:
            read("broken://x")
        assert refused.value.reason == "unreadable"
    with pytest.raises(ContainerError, match=r"odd://x: LookupError: the bucket said no"):
        storage.open_input("odd://x")
    with pytest.raises(UsageError, match=r"nosuch://x: nothing installed reads nosuch://"):
        storage.open_input("nosuch://x")


def test_patterns_expand_in_byte_order(tmp_path: Path) -> None:
    for name in ("0{1}.tar", "000.tar", "001.tar", "010.tar", "é.tar"):
        (tmp_path / name).write_bytes(b"x")
    base = str(tmp_path)
    assert storage.expand(f"{base}/{{000..001}}.tar") == [f"{base}/000.tar", f"{base}/001.tar"]
    assert storage.expand(f"{base}/0{{1}}.tar") == [f"{base}/0{{1}}.tar"]
    assert storage.expand(f"{base}/0*.tar") == [f"{base}/{n}.tar" for n in ("000", "001", "010", "0{1}")]
    assert storage.expand(f"{base}/{{é,0*}}.tar")[-1] == f"{base}/é.tar"
    with pytest.raises(UsageError, match=r"002\.tar: no such file or folder"):
        storage.expand(f"{base}/{{000..002}}.tar")
    with pytest.raises(UsageError, match=r"\*\.parquet: no file matches"):
        storage.expand(f"{base}/*.parquet")


def test_identity_follows_the_file_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"one")
    files = MemoryFileSystem()
    files.pipe("/identity/a.bin", b"one")
    before = storage.identity(str(path)), storage.identity("memory://identity/a.bin")
    assert before == (storage.identity(f"file://{path}"), storage.identity("memory://identity/a.bin"))
    path.write_bytes(b"four")
    files.pipe("/identity/a.bin", b"two")
    after = storage.identity(str(path)), storage.identity("memory://identity/a.bin")
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert storage.identity(str(tmp_path / "none")) == f"errno {errno.ENOENT}"


RECORDS = [{"path": "a.jpg", "note": 'a "quoted" \\ ] } {'}, {"path": "é.jpg", "deep": [{"x": [1, {"path": 2}]}]},
           {"path": "c.jpg", "counts": "abc\\o"}]  # fmt: skip
LAYOUTS = {
    "array": json.dumps(RECORDS, indent=2),
    "lines": "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS),
    "mapping": json.dumps({f"key {n}": record for n, record in enumerate(RECORDS)}),
    "mappings": "\n".join(json.dumps({"path of none": record}) for record in RECORDS),
}


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_records_are_found_in_every_arrangement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, chunk: int
) -> None:
    monkeypatch.setattr(records, "CHUNK", chunk)
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8")
    raw = path.read_bytes()
    found = [records.parse(raw[at : at + size], "r") for at, size in records.spans(str(path), "path")]
    assert found == RECORDS


def test_one_record_is_a_record(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(RECORDS[1]))
    ((offset, size),) = records.spans(str(tmp_path / "r.json"), "path")
    assert (offset, size) == (0, (tmp_path / "r.json").stat().st_size)


@pytest.mark.parametrize(
    ("text", "whole"), [('[{"path": "a"}, {"path": "b', 1), ('[{"path": "a"}', 1), ('{"path": ["a"', 0), ("[1, 2]", 0),
                        ("true", 0), ('[{"path": "a"}, 5]', 1)]
)  # fmt: skip
def test_a_file_that_stops_being_json_keeps_the_records_before(tmp_path: Path, text: str, whole: int) -> None:
    (tmp_path / "r.json").write_text(text)
    found = []
    with pytest.raises(ContainerError) as refused:
        for span in records.spans(str(tmp_path / "r.json"), "path"):
            found.append(span)
    assert (len(found), refused.value.reason) == (whole, "bad_record")


def test_records_without_end_are_refused_before_memory_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD", 1 << 16)
    monkeypatch.setattr(records, "CHUNK", 1 << 12)
    for name, text in (
        ("text", '[{"path": "' + "a" * (1 << 18)),
        ("array", '[{"path": "a", "b": [' + "1," * (1 << 17)),
    ):
        (tmp_path / f"{name}.json").write_text(text)
        with pytest.raises(ContainerError, match="more than 65536 bytes"):
            list(records.spans(str(tmp_path / f"{name}.json"), "path"))


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", "[" * 100_000, "\xff", '{"a": -Infinity}'])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ContainerError) as refused:
        records.parse(text.encode("latin-1"), "here")
    assert refused.value.reason == "bad_record"


def test_numbers_beyond_floats_are_left_to_the_reader_of_the_record() -> None:
    assert math.isinf(records.parse(b"1e999", "here"))
