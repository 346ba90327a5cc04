"""Small datasets in the release layout (tars, index.parquet, manifest.json), made of drawn scenes."""

import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from editfoundry.core.hashing import canonical_json, sha256, sha256_file
from editfoundry.core.images import encode_jpeg, encode_mask_png
from editfoundry.core.masks import Mask

MEMBERS = ("source.jpg", "result.jpg", "mask.png", "reference.jpg", "json")
COLOURS = {"red": (210, 40, 40), "green": (40, 170, 60), "blue": (40, 70, 200), "yellow": (230, 210, 50)}


@dataclass(frozen=True)
class DrawnEdit:
    """One edit of a drawn scene. mask False leaves the mask out; parent: key of the turn before."""

    key: str
    instruction: str
    type: str = "add"
    size: tuple[int, int] = (64, 64)
    seed: int = 0
    colour: str = "red"
    mask: bool = True
    reference: bool = False
    split: str = "train"
    parent: str | None = None
    turn: int = 1
    premise: str = ""


def scene(edit: DrawnEdit) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source and result, uint8 [H, W, 3], and the edited area, bool [H, W]: a smooth gradient gains a square."""
    width, height = edit.size
    random = np.random.default_rng(edit.seed)
    corners = random.integers(40, 216, (2, 2, 3)).astype(np.float64)
    y, x = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    source = (1 - y) * ((1 - x) * corners[0, 0] + x * corners[0, 1]) + y * ((1 - x) * corners[1, 0] + x * corners[1, 1])
    area = np.zeros((height, width), bool)
    side = min(width, height) // 3
    top, left = int(random.integers(0, height - side)), int(random.integers(0, width - side))
    area[top : top + side, left : left + side] = True
    result = source.copy()
    result[area] = COLOURS[edit.colour]
    return source.astype(np.uint8), result.astype(np.uint8), area


def edits(count: int, **common: Any) -> list[DrawnEdit]:
    """Edits that differ in scene, colour and words."""
    names = list(COLOURS)
    return [
        replace(
            DrawnEdit(f"edit{number:05d}", f"add a {names[number % 4]} square, number {number}",
                      seed=number, colour=names[number % 4]),
            **common,
        )
        for number in range(count)
    ]


def write_dataset(folder: Path, drawn: Sequence[DrawnEdit], per_shard: int = 4) -> Path:
    """Write the edits in order, each split in tars of its own, and return the folder."""
    folder.mkdir(parents=True)
    rows, files = [], {}
    for split in sorted({edit.split for edit in drawn}):
        chosen = [edit for edit in drawn if edit.split == split]
        for number, start in enumerate(range(0, len(chosen), per_shard)):
            name = f"{split}-{number:06d}.tar"
            members = chosen[start : start + per_shard]
            rows += _write_shard(folder / name, members)
            files[name] = {"bytes": (folder / name).stat().st_size, "rows": len(members),
                           "sha256": sha256_file(folder / name)}
    _write_index(folder / "index.parquet", rows)
    files["index.parquet"] = {"bytes": (folder / "index.parquet").stat().st_size, "rows": len(rows),
                              "sha256": sha256_file(folder / "index.parquet")}
    write_manifest(folder, files, len(rows))
    return folder


def write_manifest(folder: Path, files: dict[str, Any], rows: int) -> None:
    """The manifest of a dataset's files."""
    text = canonical_json({"files": files, "format": 1, "rows": rows}) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _write_shard(path: Path, drawn: Sequence[DrawnEdit]) -> list[dict[str, Any]]:
    rows = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for edit in drawn:
            blobs = members(edit)
            row = _row(path.name, edit, blobs)
            for member, data in sorted(blobs.items()):
                info = tarfile.TarInfo(f"{edit.key}.{member}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
                short = member.split(".")[0]
                row[f"offset_{short}"], row[f"length_{short}"] = tar.offset - _padded(len(data)), len(data)
            rows.append(row)
    return rows


def members(edit: DrawnEdit) -> dict[str, bytes]:
    """The bytes of a sample by member name."""
    source, result, area = scene(edit)
    blobs = {"source.jpg": encode_jpeg(source), "result.jpg": encode_jpeg(result)}
    if edit.mask:
        blobs["mask.png"] = encode_mask_png(Mask(area))
    if edit.reference:
        blobs["reference.jpg"] = encode_jpeg(np.full((48, 48, 3), COLOURS[edit.colour], np.uint8))
    width, height = edit.size
    blobs["json"] = canonical_json({
        "key": edit.key, "type": edit.type, "instruction": edit.instruction, "grid": [width, height],
        "conversation": {"id": edit.key, "kind": "single", "turn": edit.turn, "parent_key": edit.parent,
                         "premise": edit.premise},
    }).encode()
    return blobs


def _row(shard: str, edit: DrawnEdit, blobs: dict[str, bytes]) -> dict[str, Any]:
    row: dict[str, Any] = {"key": edit.key, "shard": shard}
    for member in MEMBERS:
        short = member.split(".")[0]
        row[f"offset_{short}"] = row[f"length_{short}"] = None
    width, height = edit.size
    return row | {
        "type": edit.type, "instruction": edit.instruction, "source_sha256": sha256(blobs["source.jpg"]),
        "result_sha256": sha256(blobs["result.jpg"]), "photograph_sha256": sha256(blobs["source.jpg"]),
        "parent_key": edit.parent, "conversation_id": edit.key, "conversation_kind": "single", "turn": edit.turn,
        "width": width, "height": height, "mask_area": 0.1,
    }


def _write_index(path: Path, rows: list[dict[str, Any]]) -> None:
    spans = [(f"{what}_{member.split('.')[0]}", pa.int64()) for member in MEMBERS for what in ("offset", "length")]
    numbers = {"turn": pa.int32(), "width": pa.int32(), "height": pa.int32(), "mask_area": pa.float64()}
    plain = [name for name in rows[0] if name not in dict(spans)]
    schema = pa.schema([*((name, numbers.get(name, pa.string())) for name in plain), *spans])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def _padded(size: int) -> int:
    return -(-size // 512) * 512
