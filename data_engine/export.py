"""A dataset in other layouts: ImgEdit's release (split tars, Parquet of paths, region JSON), and Parquet with images.

Both are written shard by shard from RUN/dataset; memory does not grow with the dataset.
"""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import yaml

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.data_engine.dataset import MEMBER_NAMES
from editfoundry.data_engine.ledger import full_disk_stops
from editfoundry.data_engine.records import Region, Source
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import DamagedFile, TableWriter, read_member, read_table, tar_header
from editfoundry.data_engine.stages.emit import SINGLE

SPLIT_BYTES = 4 * 1024**3
FORMATS = ("imgedit", "parquet")
BLOCK = 512
Edge = dict[str, Any]

_TURN = [("input_images", pa.list_(pa.string())), ("output_images", pa.list_(pa.string())), ("prompt", pa.string())]
IMGEDIT_SINGLE = pa.schema(_TURN)
IMGEDIT_MULTI = pa.schema([("data", pa.list_(pa.struct(_TURN)))])


def export(run: RunDir, layout: str, out: Path, split_bytes: int = SPLIT_BYTES) -> Path:
    """Write the dataset of `run` into the new folder `out`. layout: imgedit or parquet.

    `out` appears when it is whole. split_bytes: size of the parts an ImgEdit tar is cut into. Raises DamagedFile, and
    UsageError for an unknown layout, a run without a dataset, or a folder that is not empty.
    """
    if layout not in FORMATS:
        raise UsageError(f"--format {layout}: unknown; choose {' or '.join(FORMATS)}")
    if not (run.dataset / "index.parquet").is_file():
        raise UsageError(f"{run.path}: has no dataset yet; finish it with `editfoundry data run -o {run.path}`")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; choose a new one")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with full_disk_stops(out):
        part.mkdir(parents=True)
        try:
            if layout == "imgedit":
                _imgedit(run, part, split_bytes)
            else:
                _parquet(run, part)
            part.replace(out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return out


class SplitTar:
    """A tar written as `<name>.000`, `<name>.001`, …: parts of equal size whose concatenation is the archive."""

    def __init__(self, folder: Path, name: str, part_bytes: int) -> None:
        self.folder, self.name, self.part_bytes = folder, name, part_bytes
        self.parts = 0
        self.room = 0
        self.file: IO[bytes] | None = None

    def add(self, name: str, data: bytes) -> None:
        """Append a member."""
        self._write(tar_header(name, len(data)) + data + bytes(-len(data) % BLOCK))

    def close(self) -> None:
        self._write(bytes(2 * BLOCK))
        if self.file:
            self.file.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not self.room:
                self._next_part()
            assert self.file is not None
            count = min(self.room, len(view))
            self.file.write(view[:count])
            self.room -= count
            view = view[count:]

    def _next_part(self) -> None:
        if self.file:
            self.file.close()
        self.file = (self.folder / f"{self.name}.{self.parts:03d}").open("xb")
        self.parts += 1
        self.room = self.part_bytes


def _shards(run: RunDir) -> Iterator[tuple[str, list[Edge]]]:
    """(shard, its edges): a shard's rows are adjacent in the index, and there are few enough of them to hold."""
    index = read_table(run.dataset / "index.parquet")
    for shard, rows in itertools.groupby(index, key=lambda row: str(row["shard"])):
        yield shard, list(rows)


def _image(run: RunDir, edge: Edge, member: str) -> bytes | None:
    if edge[f"offset_{member}"] is None:
        return None
    path = run.dataset / edge["shard"]
    data = read_member(path, (edge[f"offset_{member}"], edge[f"length_{member}"]))
    if edge.get(f"{member}_sha256", digest := sha256(data)) != digest:
        raise DamagedFile(path, f"{edge['key']}: the bytes of its {member} are not those of the index")
    return data


def _conversations(edges: list[Edge]) -> Iterator[list[Edge]]:
    turns = (edge for edge in edges if edge["conversation_kind"] != SINGLE)
    for _, conversation in itertools.groupby(turns, key=lambda edge: str(edge["conversation_id"])):
        yield sorted(conversation, key=lambda edge: int(edge["turn"]))


def _imgedit(run: RunDir, out: Path, split_bytes: int) -> None:
    for shard, edges in _shards(run):
        name = shard.removesuffix(".tar")
        single = [[edge] for edge in edges if edge["conversation_kind"] == SINGLE]
        _imgedit_part(run, out / "single_turn", name, single, split_bytes)
        _imgedit_part(run, out / "multi_turn", name, list(_conversations(edges)), split_bytes)
    _regions(run, out / "regions")


def _imgedit_part(run: RunDir, folder: Path, name: str, rows: list[list[Edge]], split_bytes: int) -> None:
    """One Parquet file and one split tar, a row per list of edges.

    Images, and masks that no row names, lie under `<name>/<type>/<key>.<member>`, in conversations under
    `<name>/<kind>/<type>/…`: the release says types by folders alone.
    """
    if not rows:
        return
    images, tables = folder / "images", folder / "parquet"
    images.mkdir(parents=True, exist_ok=True)
    tables.mkdir(exist_ok=True)
    multi = folder.name == "multi_turn"
    tar = SplitTar(images, f"{name}.tar.split", split_bytes)
    table = TableWriter(tables / f"{name}.parquet", IMGEDIT_MULTI if multi else IMGEDIT_SINGLE)
    for edges in rows:
        turns = []
        for edge in edges:
            paths = {}
            where = f"{name}/{edge['conversation_kind']}/{edge['type']}" if multi else f"{name}/{edge['type']}"
            for member in ("source", "result", "mask", "reference"):
                data = _image(run, edge, member)
                if data is not None:
                    paths[member] = f"{where}/{edge['key']}.{MEMBER_NAMES[member]}"
                    tar.add(paths[member], data)
            inputs = [paths[member] for member in ("source", "reference") if member in paths]
            turns.append({"input_images": inputs, "output_images": [paths["result"]], "prompt": edge["instruction"]})
        table.add({"data": turns} if multi else turns[0])
    table.close()
    tar.close()


def _regions(run: RunDir, folder: Path) -> None:
    """The region JSON of every qualified source, a line each, in the fields of the released intermediate data."""
    stage = next((stage for stage in run.state().stages if stage.name == "qualify" and stage.fingerprint), None)
    if stage is None:
        return
    folder.mkdir()
    store = run.store(stage.name, str(stage.fingerprint))
    for commit in store.commits():
        if commit.outputs:
            with (folder / f"regions-{commit.shard:05d}.jsonl").open("x", encoding="utf-8") as file:
                for row in store.rows(commit):
                    file.write(canonical_json(region_json(row.parse(Source))) + "\n")


def region_json(source: Source) -> dict[str, Any]:
    """A source's regions as ImgEdit's intermediate data has them; `aes` scores are None where no model gave any."""
    kinds = {kind: [_segment(region) for region in source.regions if region.kind == kind]
             for kind in ("background", "object")}
    caption = source.caption
    width, height = source.grid
    return {
        "path": source.uri, "cap": [caption.text] if caption else [], "aes": source.scores.get("aesthetic"),
        "resolution": {"height": height, "width": width},
        "tags": {"background": list(caption.backgrounds) if caption else [],
                 "object": list(caption.objects) if caption else [], "summary": caption.summary if caption else ""},
        "segmentation": {**kinds, "box_format": "xyxy"},
        "bg_count": dict(sorted(Counter(part["class_name"] for part in kinds["background"]).items())),
        "obj_count": dict(sorted(Counter(part["class_name"] for part in kinds["object"]).items())),
    }


def _segment(region: Region) -> dict[str, Any]:
    mask = region.mask["counts"] if region.mask else None
    return {"class_name": region.label, "bbox": list(region.box), "mask": mask, "score": region.detector_score,
            "clip_score": region.scorer_score, "aes_score": region.aesthetic}


_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_IMAGES = ("source", "result", "mask", "reference")
_TEXTS = ("type", "instruction", "origin", "licence", "source_url", "photograph_sha256", "stack")
_EDGE = [("key", pa.string()), *((name, _IMAGE) for name in _IMAGES), *((name, pa.string()) for name in _TEXTS),
         ("parent_key", pa.string()), ("turn", pa.int32()), ("mask_area", pa.float64()),
         ("details", pa.string())]
_FEATURE_TYPES = {pa.string(): "string", pa.int32(): "int32", pa.float64(): "float64"}


def _parquet(run: RunDir, out: Path) -> None:
    """Single edits and conversations as separate configurations, images inside, and a card that declares both."""
    licences: Counter[str] = Counter()
    files: dict[str, set[str]] = {}
    for shard, edges in _shards(run):
        licences.update(edge["licence"] for edge in edges)
        split = shard.partition("-")[0]
        single = [_edge_columns(run, edge) for edge in edges if edge["conversation_kind"] == SINGLE]
        turns = ({"conversation_id": conversation[0]["conversation_id"], "kind": conversation[0]["conversation_kind"],
                  "turns": [_edge_columns(run, edge) for edge in conversation]}
                 for conversation in _conversations(edges))
        for name, rows, schema in (("single_turn", iter(single), _single_schema()),
                                   ("multi_turn", turns, _multi_schema())):
            if _write_rows(out / name / f"{shard.removesuffix('.tar')}.parquet", rows, schema):
                files.setdefault(name, set()).add(split)
    (out / "README.md").write_text(_card(run, files, licences), encoding="utf-8")


def _write_rows(path: Path, rows: Iterator[dict[str, Any]], schema: pa.Schema) -> bool:
    """Write rows, in small groups since they hold images. Returns False, and writes no file, for no rows."""
    first = next(rows, None)
    if first is None:
        return False
    path.parent.mkdir(exist_ok=True)
    table = TableWriter(path, schema, rows_per_group=32)
    for row in itertools.chain([first], rows):
        table.add(row)
    table.close()
    return True


def _edge_columns(run: RunDir, edge: Edge) -> dict[str, Any]:
    columns: dict[str, Any] = {name: edge[name] for name, _ in _EDGE if name in edge}
    for member in _IMAGES:
        data = _image(run, edge, member)
        columns[member] = None if data is None else {"bytes": data, "path": f"{edge['key']}.{MEMBER_NAMES[member]}"}
    details = _image(run, edge, "json")
    assert details is not None
    columns["details"] = details.decode()
    return columns


def _features(fields: list[tuple[str, pa.DataType]]) -> dict[str, Any]:
    return {name: {"_type": "Image"} if kind == _IMAGE else {"dtype": _FEATURE_TYPES[kind], "_type": "Value"}
            for name, kind in fields}


def _with_features(schema: pa.Schema, features: dict[str, Any]) -> pa.Schema:
    """Store the features where `datasets` looks for them, in the columns' order, so that images decode as images."""
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _single_schema() -> pa.Schema:
    return _with_features(pa.schema(_EDGE), _features(_EDGE))


def _multi_schema() -> pa.Schema:
    head = [("conversation_id", pa.string()), ("kind", pa.string())]
    features = {**_features(head), "turns": {"feature": _features(_EDGE), "_type": "List"}}
    return _with_features(pa.schema([*head, ("turns", pa.list_(pa.struct(_EDGE)))]), features)


def _card(run: RunDir, files: dict[str, set[str]], licences: Counter[str]) -> str:
    """The dataset card: which files make which configuration, and under which licences the photographs are."""
    names = {"train": "train", "val": "validation"}
    configs = [{"config_name": name, "data_files": [{"split": names[split], "path": f"{name}/{split}-*.parquet"}
                                                    for split in sorted(files[name])]} for name in sorted(files)]
    name = run.settings().get("name", run.path.name)
    head = yaml.safe_dump({"configs": configs, "license": "other", "pretty_name": name,
                           "task_categories": ["image-to-image"]}, sort_keys=True, allow_unicode=True)
    lines = [f"- {licence}: {count} edits" for licence, count in sorted(licences.items())]
    return "\n".join(["---", head + "---", "", f"# {name}", "",
                      "Instruction-based image edits made with EditFoundry. `single_turn` has one edit a row, "
                      "`multi_turn` one conversation.", "", "Licences of the source photographs:", "", *lines, ""])
