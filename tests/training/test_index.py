"""The shard index: what its rows say, when it is built again, and what it refuses."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from index_data import Many, hollow_dataset, rewrite
from report_run import build, scene
from training_data import DrawnEdit, members, write_dataset

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import sha256_file
from editfoundry.data_engine.shards import DamagedFile
from editfoundry.training.config import DatasetSpec
from editfoundry.training.data.index import ROW, NoSamples, build_index, open_index

EDITS = (
    DrawnEdit("a", "add a square", seed=1),
    DrawnEdit("b", "now a style é", type="style", size=(96, 64), seed=2, mask=False, parent="a", turn=2),
    DrawnEdit("c", "as in the picture", type="visual", seed=3, reference=True),
    DrawnEdit("d", "remove it", type="remove", seed=4),
    DrawnEdit("e", "and again", type="replace", seed=5, parent="d", turn=2),
    DrawnEdit("f", "from the first", type="adjust", seed=6, parent="d", turn=3),
    DrawnEdit("g", "kept out", seed=7, split="val"),
)
TRAIN = EDITS[:6]
Rows = list[dict[str, Any]]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "dataset", EDITS, per_shard=3)


def spec(*paths: Path) -> list[DatasetSpec]:
    return [DatasetSpec(path=str(path)) for path in paths]


def test_rows_say_where_everything_lies(dataset: Path, tmp_path: Path) -> None:
    index = build_index(spec(dataset), "train", tmp_path / "index")
    assert len(index) == 6 and index.rows.dtype == ROW and index.split == "train"
    assert [index.types[kind] for kind in index.rows["type"]] == [edit.type for edit in TRAIN]
    assert [tuple(map(int, size)) for size in index.rows[["width", "height"]]] == [edit.size for edit in TRAIN]
    assert index.rows["caption"].tolist() == [12, 13, 17, 9, 9, 14]
    assert index.rows["parent"].tolist() == [-1, 0, -1, -1, 3, 3]
    assert index.rows["shard"].tolist() == [0, 0, 0, 1, 1, 1]
    assert [shard.path for shard in index.shards] == [dataset / "train-000000.tar", dataset / "train-000001.tar"]
    for row, edit in zip(index.rows, TRAIN, strict=True):
        content = index.shard_path(int(row["shard"])).read_bytes()
        blobs = {name.split(".")[0]: data for name, data in members(edit).items()}
        for member in ("source", "result", "mask", "reference", "json"):
            start, length = int(row[f"{member}_offset"]), int(row[f"{member}_length"])
            assert content[start : start + length] == blobs.get(member, b"")
            assert (start == 0) == (member not in blobs)


def test_what_the_engine_publishes_is_indexed(tmp_path: Path) -> None:
    dataset = build(tmp_path / "run", [scene(number) for number in range(3)]) / "dataset"
    table = pq.read_table(dataset / "index.parquet").to_pylist()
    index = build_index(spec(dataset), "val", tmp_path / "index")
    published = [row for row in table if row["shard"].startswith("val")]
    keys = [row["key"] for row in published]
    assert len(index) == len(published) > 3
    for row, entry in zip(index.rows, published, strict=True):
        with index.shard_path(int(row["shard"])).open("rb") as file:
            file.seek(int(row["json_offset"]))
            assert json.loads(file.read(int(row["json_length"])))["key"] == entry["key"]
        assert int(row["parent"]) == (keys.index(entry["parent_key"]) if entry["parent_key"] else -1)
    assert (index.rows["parent"] >= 0).sum() == 2


def test_datasets_and_shards_are_counted_through(dataset: Path, tmp_path: Path) -> None:
    other = hollow_dataset(tmp_path / "other", [Many(5, "style", "wide", reference=True)], per_shard=2)
    index = build_index(spec(other, dataset), "train", tmp_path / "index")
    assert index.rows["dataset"].tolist() == [0] * 5 + [1] * 6
    assert index.rows["shard"].tolist() == [0, 0, 1, 1, 2, 3, 3, 3, 4, 4, 4]
    assert [(shard.path.parent, shard.dataset) for shard in index.shards] == [(other, 0)] * 3 + [(dataset, 1)] * 2
    assert index.rows["parent"].tolist()[5:] == [-1, 5, -1, -1, 8, 8]
    assert index.datasets == (other, dataset)


def test_an_index_of_the_same_content_is_taken_as_it_is(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    first = build_index(spec(dataset), "train", out)
    inode = (out / "rows.bin").stat().st_ino
    assert build_index(spec(dataset), "train", out).digest == first.digest
    moved = dataset.rename(tmp_path / "moved")
    again = build_index(spec(moved), "train", out)
    assert (again.digest, again.datasets) == (first.digest, (moved,))
    assert open_index(out).shard_path(1) == moved / "train-000001.tar"
    assert (out / "rows.bin").stat().st_ino == inode
    assert build_index(spec(moved), "train", tmp_path / "elsewhere").digest == first.digest
    assert build_index(spec(moved), "val", tmp_path / "val").digest != first.digest


def test_what_a_killed_build_left_does_not_matter(dataset: Path, tmp_path: Path) -> None:
    left = tmp_path / ".index.building"
    left.mkdir()
    (left / "rows.bin").write_bytes(b"half")
    assert len(build_index(spec(dataset), "train", tmp_path / "index")) == 6
    assert not left.exists()


def test_workers_get_the_folder_and_not_the_rows(dataset: Path, tmp_path: Path) -> None:
    index = build_index(spec(dataset), "train", tmp_path / "index")
    packed = pickle.dumps(index)
    assert len(packed) < 500
    assert np.array_equal(pickle.loads(packed).rows, index.rows)  # noqa: S301


def test_an_index_of_other_data_is_refused(dataset: Path, tmp_path: Path) -> None:
    build_index(spec(dataset), "train", tmp_path / "index")
    other = hollow_dataset(tmp_path / "other", [Many(3)])
    with pytest.raises(EditFoundryError, match=f"index: the run's index is of other data .{other} changed.; go on"):
        build_index(spec(dataset, other), "train", tmp_path / "index")
    with pytest.raises(EditFoundryError, match="other datasets, order of datasets, or split"):
        build_index(spec(dataset), "val", tmp_path / "index")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}'])
def test_a_damaged_index_is_refused(dataset: Path, tmp_path: Path, content: str) -> None:
    out = tmp_path / "index"
    build_index(spec(dataset), "train", out)
    (out / "index.json").write_text(content)
    with pytest.raises(EditFoundryError, match=f"{out}/index.json: not .*; delete {out} to have it built again"):
        open_index(out)


def test_cut_rows_and_no_index_are_refused(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_index(spec(dataset), "train", out)
    (out / "rows.bin").write_bytes((out / "rows.bin").read_bytes()[:-1])
    with pytest.raises(EditFoundryError, match=r"rows.bin: not the 6 rows"):
        open_index(out)
    with pytest.raises(EditFoundryError, match="no index"):
        open_index(tmp_path / "nowhere")


def test_a_path_that_is_no_dataset_is_refused(dataset: Path, tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "nowhere", dataset / "manifest.json"):
        with pytest.raises(UsageError, match=r"manifest.json: cannot be read .* `dataset` folder of a finished"):
            build_index(spec(wrong), "train", tmp_path / "index")
    with pytest.raises(UsageError, match="named twice"):
        build_index(spec(dataset, dataset), "train", tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_split_without_samples_is_refused(tmp_path: Path) -> None:
    other = hollow_dataset(tmp_path / "other", [Many(3)])
    with pytest.raises(NoSamples, match=f"no sample of the split `val` in {other}; add a dataset"):
        build_index(spec(other), "val", tmp_path / "index")
    assert not list(tmp_path.glob("*index*"))


def refused(dataset: Path, tmp_path: Path, match: str) -> None:
    """The dataset is refused with that message, which also names the remedy, on one line; no index is left."""
    with pytest.raises(DamagedFile, match=match) as caught:
        build_index(spec(dataset), "train", tmp_path / "index")
    assert "`editfoundry data repair` mends it" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "index").exists()


def test_a_missing_shard_is_named(dataset: Path, tmp_path: Path) -> None:
    (dataset / "train-000001.tar").unlink()
    refused(dataset, tmp_path, f"{dataset}/train-000001.tar: damaged .No such file or directory, but manifest.json")


def test_a_shard_of_another_size_is_named(dataset: Path, tmp_path: Path) -> None:
    with (dataset / "train-000001.tar").open("ab") as file:
        file.write(b"x")
    refused(dataset, tmp_path, r"train-000001.tar: damaged \(it has \d+ bytes, manifest.json says \d+")


def test_a_table_that_is_not_the_manifest_s_is_named(dataset: Path, tmp_path: Path) -> None:
    path = dataset / "index.parquet"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    refused(dataset, tmp_path, f"{path}: damaged .its sha256 is not the one in manifest.json")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.update(format=2), "format: "),
        (lambda m: m.update(rows=-1), "rows: "),
        (lambda m: m.update(rows=9), "index.parquet: damaged .7 rows, manifest.json says 9"),
        (lambda m: m["files"]["train-000001.tar"].update(rows=2), "3 rows of train-000001.tar, manifest.json says 2"),
        (lambda m: m["files"].update({"../../etc/passwd": m["files"]["index.parquet"]}), "not the name of a shard"),
        (lambda m: m["files"].update({"train-../x.tar": m["files"]["index.parquet"]}), "not the name of a shard"),
        (lambda m: m["files"].pop("index.parquet"), "does not list index.parquet"),
        (lambda m: m["files"].pop("train-000000.tar"), "3 rows of train-000000.tar, manifest.json says 0"),
        (lambda m: m["files"]["index.parquet"].update(bytes="many"), "files.index.parquet.bytes: "),
        (lambda m: m.clear(), "files: Field required"),
    ],
)
def test_a_manifest_that_disagrees_is_refused(
    dataset: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], match: str
) -> None:
    path = dataset / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    refused(dataset, tmp_path, match)


def put(**values: Any) -> Callable[[Rows], Any]:
    return lambda rows: rows[4].update(values)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            put(offset_source=10**9),
            r"index.parquet, train-000001.tar: .*sample 'e': its source is not inside the shard's",
        ),
        (put(length_result=10**9), "'e': its result is not inside"),
        (put(length_json=2**40), "'e': its json is not inside"),
        (put(offset_source=-5), "'e': its source"),
        (put(offset_source=2**63 - 1), "'e': its source"),
        (put(length_mask=0), "'e': its mask"),
        (put(offset_mask=None), "'e': its mask"),
        (put(offset_json=None, length_json=None), "'e': its json"),
        (put(offset_reference=0, length_reference=40), "'e': its reference"),
        (put(width=0), "'e': width and height are not 16 to 65535"),
        (put(width=None), "'e': width and height"),
        (put(height=70_000), "'e': width and height"),
        (put(width=60_000, height=60_000), "'e': width and height .* at most 150000000 in all"),
        (put(parent_key="nobody"), "'e': its parent_key is not of a sample before it"),
        (put(parent_key="e"), "'e': its parent_key"),
        (put(parent_key="f"), "'e': its parent_key"),
        (put(parent_key="a"), "'e': its parent_key"),
        (put(key=None), "a sample without key or type"),
        (put(type=None), "a sample without key or type"),
        (put(key="b"), "the key 'b' occurs twice"),
        (put(key="g"), "the key 'g' occurs twice"),
        (put(shard="train-000000.tar"), "rows of train-000001.tar are not together|rows of train-000000.tar"),
        (put(shard="train-000009.tar"), "train-0000"),
        (put(shard=None), "rows of train-000001.tar are not together"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    dataset: Path, tmp_path: Path, change: Callable[[Rows], Any], match: str
) -> None:
    files = json.loads((dataset / "manifest.json").read_text())["files"]
    rewrite(dataset, files, change)
    refused(dataset, tmp_path, match)


def test_an_unknown_edit_type_is_refused_with_the_nearest(dataset: Path, tmp_path: Path) -> None:
    files = json.loads((dataset / "manifest.json").read_text())["files"]
    rewrite(dataset, files, put(type="replase"))
    with pytest.raises(EditFoundryError, match=r"sample 'e' is of the unknown edit type 'replase' .nearest: replace"):
        build_index(spec(dataset), "train", tmp_path / "index")


def test_a_table_without_columns_or_that_is_none_is_refused(dataset: Path, tmp_path: Path) -> None:
    files = json.loads((dataset / "manifest.json").read_text())["files"]
    path = dataset / "index.parquet"
    for content in (pq.read_table(path).drop_columns(["width", "type"]), None):
        if content is None:
            path.write_bytes(b"PAR1 but nothing else")
        else:
            pq.write_table(content, path)
        files["index.parquet"] = {"bytes": path.stat().st_size, "rows": 7, "sha256": sha256_file(path)}
        (dataset / "manifest.json").write_text(json.dumps({"files": files, "format": 1, "rows": 7}))
        refused(dataset, tmp_path, "index.parquet: damaged .it has no column type, width" if content else "index.parq")


PEAK = """
import sys, threading
from pathlib import Path
from editfoundry.training.config import DataConfig, DatasetSpec
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.index import build_index
from editfoundry.training.data.order import Order

def anonymous():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

def watch():
    while not done.wait(0.005):
        peaks.append(anonymous())

done, peaks = threading.Event(), [anonymous()]
thread = threading.Thread(target=watch)
thread.start()
data = DataConfig(datasets=(DatasetSpec(path=sys.argv[1]),))
index = build_index(data.datasets, "train", Path(sys.argv[2]))
Order(index, Buckets(512, data.aspect_ratios), data, 64, 0, index.folder).batch(0)
done.set()
thread.join()
print(len(index), max(peaks))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    """Peak of memory that is not of mapped files, building index and order. The allocators are set to give back.

    400,000 samples more are 32 MB in the index and 60 MB as a table; the allocators take some 9 MB to warm up.
    """
    peaks = []
    for count in (100_000, 500_000):
        dataset = hollow_dataset(tmp_path / f"d{count}", [Many(count // 2), Many(count // 2, "style", "wide")], 5000)
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(dataset), str(tmp_path / f"i{count}")],
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"},
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        rows, peak = map(int, done.stdout.split())
        assert rows == count
        peaks.append(peak)
        shutil.rmtree(dataset)
    assert peaks[1] - peaks[0] < 16_000, peaks
