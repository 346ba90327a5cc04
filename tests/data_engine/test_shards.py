import io
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.hashing import sha256, sha256_file
from editfoundry.data_engine.records import Reject
from editfoundry.data_engine.shards import (
    REJECT_SCHEMA,
    ROW_SCHEMA,
    DamagedFile,
    RejectRow,
    Row,
    TableWriter,
    TarWriter,
    check_names,
    read_member,
    read_rejects,
    read_rows,
    reject_entry,
    row_entry,
    tar_header,
)


def write_tar(path: Path, members: dict[str, bytes]) -> tuple[dict[str, tuple[int, int]], TarWriter]:
    tar = TarWriter(path)
    spans = {name: tar.add(name, data) for name, data in members.items()}
    tar.close()
    return spans, tar


@given(st.dictionaries(st.from_regex(r"[0-9a-z_]{1,20}\.jpg", fullmatch=True), st.binary(max_size=1500), max_size=5))
def test_tar_reads_back_by_offset_and_by_tarfile(tmp_path_factory: pytest.TempPathFactory,
                                                 members: dict[str, bytes]) -> None:
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    spans, tar = write_tar(path, members)
    assert {name: read_member(path, span) for name, span in spans.items()} == members
    assert (tar.size, tar.sha256) == (path.stat().st_size, sha256_file(path))
    with tarfile.open(path) as archive:
        infos = archive.getmembers()
        assert {info.name: archive.extractfile(info).read() for info in infos} == members  # type: ignore[union-attr]
        assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in infos} <= {(0, 0, 0, "", 0o644)}


def test_equal_members_give_equal_bytes(tmp_path: Path) -> None:
    members = {"a.source.jpg": b"x" * 700, "a.json": b"{}"}
    for name in ("1.tar", "2.tar"):
        write_tar(tmp_path / name, members)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_header_is_plain_ustar() -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_header("a.json", 0) + bytes(1024))) as archive:
        info = archive.getmembers()[0]
    assert (info.name, info.type, info.mode) == ("a.json", tarfile.REGTYPE, 0o644)
    with pytest.raises(ValueError, match="name is too long"):
        tar_header("x" * 101, 1)


def test_member_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    spans, _ = write_tar(tmp_path / "a.tar", {"a.jpg": b"abc"})
    path = tmp_path / "cut.tar"
    path.write_bytes((tmp_path / "a.tar").read_bytes()[:514])
    with pytest.raises(DamagedFile, match="ends inside a member at byte 512"):
        read_member(path, spans["a.jpg"])


def test_rows_and_rejects_round_trip(tmp_path: Path) -> None:
    rows = [Row(f"r{i}", i // 2, f'{{"n":{i},"ü":"☃"}}', "train", {"a.jpg": (512 * i, i)}) for i in range(2500)]
    rejects = [RejectRow(3, True, Reject(stage="s", id="x", reason="odd", score=0.5)),
               RejectRow(4, False, Reject(stage="s", id="r1", reason="tiny", unit="region"))]
    table = TableWriter(tmp_path / "rows.parquet", ROW_SCHEMA)
    for row in rows:
        table.add(row_entry(row))
    table.close()
    other = TableWriter(tmp_path / "rejects.parquet", REJECT_SCHEMA)
    for reject in rejects:
        other.add(reject_entry(reject))
    other.close()
    assert list(read_rows(tmp_path / "rows.parquet")) == rows
    assert list(read_rejects(tmp_path / "rejects.parquet")) == rejects
    assert pq.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 3


def test_parquet_bytes_depend_on_rows_only(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        table = TableWriter(tmp_path / name, ROW_SCHEMA)
        for i in range(10):
            table.add(row_entry(Row(f"r{i}", i, "{}")))
        table.close()
        digests.add(sha256((tmp_path / name).read_bytes()))
    assert len(digests) == 1


@pytest.mark.parametrize(("record_id", "member"), [("a.b", "x.jpg"), ("../a", "x.jpg"), ("A", "x.jpg"), ("", "x.jpg"),
                                                   ("a", "../x.jpg"), ("a", "x..jpg"), ("a", "X.jpg")])
def test_names_that_break_webdataset_are_refused(record_id: str, member: str) -> None:
    with pytest.raises(RuntimeError, match="must match"):
        check_names("emit", record_id, [member])


def test_good_names_pass() -> None:
    check_names("emit", "s_0a_t1", ["source.jpg", "json"])
