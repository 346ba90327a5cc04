import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy_engine as toy
import webdataset as wds

from editfoundry.core.hashing import sha256, sha256_file
from editfoundry.data_engine.records import Edge, Sample, Source, Turn
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_member
from editfoundry.data_engine.stages.emit import BrokenGraph, check_graph


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished toy run of 14 sources in 5 shards, one of them without any sample."""
    base = tmp_path_factory.mktemp("dataset")
    sources = toy.write_sources(base / "src", 14, {3: "odd 1", 4: "odd 2", 5: "odd 3", 9: "bad"})
    toy.run_here(sources, base / "run")
    return base / "run"


def index(run: Path) -> list[dict[str, Any]]:
    return pq.read_table(run / "dataset" / "index.parquet").to_pylist()


def test_index_has_the_columns_of_the_contract(finished: Path) -> None:
    names = pq.read_schema(finished / "dataset" / "index.parquet").names
    members = ("source", "result", "mask", "reference", "json")
    assert names == [
        "key", "shard", *(f"{what}_{member}" for member in members for what in ("offset", "length")), "type",
        "instruction", "source_sha256", "result_sha256", "photograph_sha256", "parent_key", "conversation_id",
        "conversation_kind", "turn", "width", "height", "mask_area", "outside_max", "outside_mean", "gate_detected",
        "gate_iou", "gate_note", "gate_outside_max", "origin", "donors", "stack", "licence", "source_url"]
    schema = pq.read_schema(finished / "dataset" / "index.parquet")
    assert [schema.field(f"gate_{name}").type for name in ("detected", "iou")] == [pa.bool_(), pa.float64()]


def test_index_points_into_the_tars(finished: Path) -> None:
    rows = index(finished)
    assert len(rows) == 40
    assert len({row["key"] for row in rows}) == 40
    for row in rows:
        path = finished / "dataset" / row["shard"]
        image = {member: read_member(path, (row[f"offset_{member}"], row[f"length_{member}"]))
                 for member in ("source", "result", "mask", "json")}
        assert (sha256(image["source"]), sha256(image["result"])) == (row["source_sha256"], row["result_sha256"])
        assert image["result"].endswith(row["instruction"].encode())
        described = json.loads(image["json"])
        assert (described["key"], described["instruction"]) == (row["key"], row["instruction"])
        assert described["conversation"]["parent_key"] == row["parent_key"]
        assert described["parent"]["sha256"] == row["source_sha256"]
        assert described["target"]["box"] == [0, 0, 8, 8]
        assert row["offset_reference"] is None


def test_conversations_start_from_their_parents_results(finished: Path) -> None:
    rows = {row["key"]: row for row in index(finished)}
    children = [row for row in rows.values() if row["parent_key"]]
    assert len(children) == 20
    for row in children:
        assert row["source_sha256"] == rows[row["parent_key"]]["result_sha256"]
        assert row["parent_key"] == f"{row['conversation_id']}_t1"
    singles = [row for row in rows.values() if row["conversation_kind"] == "single"]
    assert all(row["key"] == row["conversation_id"] for row in singles)


def test_rows_lie_in_the_order_of_the_tars(finished: Path) -> None:
    rows = index(finished)
    places = [(row["shard"], row["offset_json"]) for row in rows]
    assert places == sorted(places)


def test_members_of_a_sample_are_adjacent_and_shards_are_not_empty(finished: Path) -> None:
    tars = sorted((finished / "dataset").glob("*.tar"))
    for split in ("train", "val"):
        mine = [path.name for path in tars if path.name.startswith(split)]
        assert mine == [f"{split}-{number:06d}.tar" for number in range(len(mine))]
    for path in tars:
        with tarfile.open(path) as archive:
            names = archive.getnames()
        keys = [name.partition(".")[0] for name in names]
        assert names
        assert len(list(dict.fromkeys(keys))) == sum(a != b for a, b in zip(keys, ["", *keys], strict=False))


def test_manifest_names_every_file_and_no_time(finished: Path) -> None:
    folder = finished / "dataset"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert set(manifest) == {"files", "format", "rows"}
    assert set(manifest["files"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    for name, entry in manifest["files"].items():
        assert set(entry) == {"bytes", "rows", "sha256"}
        assert entry["sha256"] == sha256_file(folder / name)
    assert manifest["rows"] == sum(entry["rows"] for name, entry in manifest["files"].items() if name.endswith(".tar"))


def test_webdataset_reads_the_shards(finished: Path) -> None:
    urls = sorted(str(path) for path in (finished / "dataset").glob("*.tar"))
    samples = list(wds.WebDataset(urls, shardshuffle=False, empty_check=False))
    assert len(samples) == 40
    assert {frozenset(name for name in sample if not name.startswith("__")) for sample in samples} == {
        frozenset({"source.jpg", "result.jpg", "mask.png", "json"})}


def test_tars_are_links_to_the_artifacts(finished: Path) -> None:
    assert all(path.stat().st_nlink == 2 for path in (finished / "dataset").glob("*.tar"))
    assert not (finished / "dataset.building").exists()


def test_an_interrupted_publication_is_published_whole(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 3)
    toy.run_here(sources, tmp_path / "run")
    before = toy.tree(tmp_path / "run/dataset")
    (tmp_path / "run/dataset.building").mkdir()
    (tmp_path / "run/dataset.building/train-000000.tar").write_bytes(b"half")
    (tmp_path / "run/dataset/manifest.json").unlink()
    assert toy.run_here(sources, tmp_path / "run") == []
    assert toy.tree(tmp_path / "run/dataset") == before
    assert not (RunDir(tmp_path / "run").path / "dataset.building").exists()


def graph(**changes: Any) -> tuple[Sample, dict[str, bytes]]:
    """A conversation 0 → 1 → 2, and 3 from 1, with the given fields of its third edge or turn changed."""
    blobs = {f"n{i}.jpg": b"%d" % i for i in range(4)}
    parents = [0, 1, changes.pop("parent", 1)]
    turns = tuple(Turn(index=i, type="add", parent=p, instruction="x") for i, p in enumerate(parents, 1))
    edges = [Edge(turn=i, source_node=f"n{p}.jpg", result_node=f"n{i}.jpg", source_sha256=sha256(blobs[f"n{p}.jpg"]),
                  result_sha256=sha256(blobs[f"n{i}.jpg"])) for i, p in ((1, 0), (2, 1), (3, 1))]
    edges[2] = edges[2].model_copy(update=changes)
    return Sample(id="s", kind="version_backtracking", source=Source(id="p", sha256="0", uri="u"), turns=turns,
                  edges=tuple(edges)), blobs


def test_a_sound_graph_passes() -> None:
    check_graph(*graph())


@pytest.mark.parametrize(("changes", "message"), [
    ({"parent": 2}, "turn 3 does not start from the result of its parent, node 2"),
    ({"parent": 3}, "turn 3 starts from node 3, which does not exist yet"),
    ({"parent": 0}, "turn 3 does not start from the result of its parent, node 0"),
    ({"turn": 2}, r"turns \[1, 2, 3\] do not match edges \[1, 2, 2\]"),
    ({"source_sha256": "0"}, "turn 3 does not start from the result of its parent, node 1"),
    ({"result_sha256": "0"}, r"node 3: the stored bytes of n3\.jpg"),
    ({"mask": "m.png"}, r"turn 3: m\.png was not stored"),
])
def test_broken_graphs_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BrokenGraph, match=message):
        check_graph(*graph(**changes))
