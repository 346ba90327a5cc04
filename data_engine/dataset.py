"""RUN/dataset: emit's tars under their release names, the Parquet index and the manifest, swapped in as a whole."""

import ctypes
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json, sha256_file
from editfoundry.data_engine.ledger import MEMBERS, Commit, StageStore, full_disk_stops, sync_folder
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import Row, TableWriter
from editfoundry.data_engine.stages.emit import EdgeRow, Emit

MEMBER_NAMES = {"source": "source.jpg", "result": "result.jpg", "mask": "mask.png", "reference": "reference.jpg",
                "json": "json"}
SPLITS = ("train", "val")
BUILDING = "dataset.building"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_PLAIN = ("type", "instruction", "source_sha256", "result_sha256", "photograph_sha256", "parent_key",
          "conversation_id", "conversation_kind", "turn", "width", "height", "mask_area", "outside_max", "outside_mean")
_TAIL = ("origin", "donors", "stack", "licence", "source_url")
_TYPES = {"turn": pa.int32(), "width": pa.int32(), "height": pa.int32(), "mask_area": pa.float64(),
          "outside_max": pa.float64(), "outside_mean": pa.float64(), "donors": pa.list_(pa.string())}


@dataclass(frozen=True)
class ReleasedShard:
    """A dataset tar: its name, and the committed emit shard and split that it is."""

    name: str
    commit: Commit
    split: str


def emit_store(run: RunDir) -> StageStore:
    """The emit stage of the current configuration. Raises EditFoundryError when the run has not come that far."""
    mark = next((stage.fingerprint for stage in run.state().stages if stage.name == Emit.name), None)
    if mark is None:
        raise EditFoundryError(f"{run.path}: the run has not reached emit; repeat `editfoundry data run` to finish it")
    return run.store(Emit.name, mark)


def released_shards(store: StageStore) -> list[ReleasedShard]:
    """Dataset tars in release order, numbered per split over the shards that have samples in it."""
    counts = dict.fromkeys(SPLITS, 0)
    released = []
    for commit in store.commits():
        for split in SPLITS:
            if commit.file(MEMBERS, split):
                released.append(ReleasedShard(f"{split}-{counts[split]:06d}.tar", commit, split))
                counts[split] += 1
    return sorted(released, key=lambda shard: shard.name)


def publish(run: RunDir) -> Path:
    """Build RUN/dataset from emit's commits and swap it in; readers see the old dataset or the new one, whole."""
    building = run.path / BUILDING
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    with full_disk_stops(building):
        build(emit_store(run), building)
        sync_folder(building)
    swap(building, run.dataset)
    sync_folder(run.path)
    return run.dataset


def build(store: StageStore, folder: Path, link: bool = True) -> dict[str, Any]:
    """Write the dataset of emit's commits into an empty folder and return its manifest. link=False leaves tars out."""
    shards = released_shards(store)
    files: dict[str, Any] = {}
    for shard in shards:
        file = shard.commit.file(MEMBERS, shard.split)
        assert file is not None
        files[shard.name] = {"bytes": file.bytes, "rows": file.rows, "sha256": file.sha256}
        if link:
            os.link(store.files / file.name, folder / shard.name)
    index = folder / "index.parquet"
    rows = _write_index(store, index)
    files[index.name] = {"bytes": index.stat().st_size, "rows": rows, "sha256": sha256_file(index)}
    manifest = {"files": files, "format": 1, "rows": rows}
    with (folder / "manifest.json").open("x", encoding="utf-8") as file_out:
        file_out.write(canonical_json(manifest) + "\n")
        file_out.flush()
        os.fsync(file_out.fileno())
    return manifest


def swap(new: Path, current: Path) -> None:
    """Put `new` in the place of `current` in one step and delete what was there."""
    if not current.exists():
        new.rename(current)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(current), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot exchange {new} and {current}: {os.strerror(code)}")
    shutil.rmtree(new)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a dataset folder."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return manifest


def edges(store: StageStore) -> Iterator[tuple[ReleasedShard, Row, EdgeRow]]:
    """Every edge in release order (split, shard, place in the tar), with where it lies."""
    for shard in released_shards(store):
        for row in store.rows(shard.commit):
            if row.group == shard.split:
                yield shard, row, row.parse(EdgeRow)


def _write_index(store: StageStore, path: Path) -> int:
    gates = _gate_types(store)
    table = TableWriter(path, _schema(gates))
    count = 0
    for shard, row, edge in edges(store):
        table.add(_index_entry(shard.name, row, edge, gates))
        count += 1
    table.close()
    return count


def _index_entry(shard: str, row: Row, edge: EdgeRow, gates: dict[str, pa.DataType]) -> dict[str, Any]:
    entry: dict[str, Any] = {"key": edge.id, "shard": shard}
    for short, member in MEMBER_NAMES.items():
        entry[f"offset_{short}"], entry[f"length_{short}"] = row.members.get(member, (None, None))
    data = edge.model_dump(mode="json")
    entry.update({name: data[name] for name in (*_PLAIN, *_TAIL)})
    for name, kind in gates.items():
        value = edge.gates.get(name)
        entry[f"gate_{name}"] = str(value) if value is not None and kind == pa.string() else value
    return entry


def _gate_types(store: StageStore) -> dict[str, pa.DataType]:
    """Every gate value that occurs, with the narrowest column type that holds all of its values."""
    kinds: dict[str, set[type]] = {}
    for _, _, edge in edges(store):
        for name, value in edge.gates.items():
            kinds.setdefault(name, set()).update([] if value is None else [type(value)])
    return {name: _column_type(kinds[name]) for name in sorted(kinds)}


def _column_type(kinds: set[type]) -> pa.DataType:
    if kinds == {bool}:
        return pa.bool_()
    return pa.float64() if kinds <= {int, float} else pa.string()


def _schema(gates: dict[str, pa.DataType]) -> pa.Schema:
    spans = [(f"{what}_{short}", pa.int64()) for short in MEMBER_NAMES for what in ("offset", "length")]
    columns = [("key", pa.string()), ("shard", pa.string()), *spans,
               *((name, _TYPES.get(name, pa.string())) for name in _PLAIN),
               *((f"gate_{name}", kind) for name, kind in gates.items()),
               *((name, _TYPES.get(name, pa.string())) for name in _TAIL)]
    return pa.schema(columns)
