"""Tiny datasets in the layouts of others, written byte by byte: pictures, Parquet tables, tars and their parts."""

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image
from toy_engine import InProcess

from editfoundry.core.config import load_config
from editfoundry.core.geometry import Grid
from editfoundry.core.hashing import sha256
from editfoundry.core.images import encode_jpeg
from editfoundry.data_engine import runner
from editfoundry.data_engine.imports.config import ImportConfig
from editfoundry.data_engine.imports.listing import list_rows
from editfoundry.data_engine.imports.run import STAGES
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_table, tar_header

SIZE = (128, 96)
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def scene(seed: int = 0, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A smooth picture with some noise, uint8 [H, W, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    base = np.dstack([60 + 120 * x / size[0], 70 + 110 * y / size[1], 200 - 90 * x / size[0] - 8 * (seed % 9)])
    return (base + rng.normal(0, 4, base.shape)).clip(0, 255).astype(np.uint8)


def with_disc(
    image: np.ndarray,
    centre: tuple[int, int] = (64, 48),
    radius: int = 14,
    colour: tuple[int, int, int] = (225, 30, 40),
) -> np.ndarray:
    """The picture with a disc on it."""
    y, x = np.mgrid[0 : image.shape[0], 0 : image.shape[1]]
    out = image.copy()
    out[(x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2] = colour
    return out


def disc_mask(
    size: tuple[int, int] = SIZE, centre: tuple[int, int] = (64, 48), radius: int = 17, channels: int = 1
) -> bytes:
    """The mask of the disc as PNG, with values that are neither 0 nor 255 in it."""
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
    grey = np.where(inside, 250, 9).astype(np.uint8)
    return png(grey if channels == 1 else np.dstack([grey] * channels))


def png(pixels: np.ndarray) -> bytes:
    """PNG bytes."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def jpeg(pixels: np.ndarray, quality: int = 92, subsampling: int = 0, **extra: Any) -> bytes:
    """JPEG bytes by Pillow: 4:4:4 unless said otherwise."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=subsampling, **extra)
    return buffer.getvalue()


def stored(pixels: np.ndarray) -> bytes:
    """JPEG bytes as the engine stores them."""
    return encode_jpeg(pixels)


def tar(members: Sequence[tuple[str, bytes]]) -> bytes:
    """The bytes of a ustar archive."""
    blocks = [tar_header(name, len(data)) + data + bytes(-len(data) % 512) for name, data in members]
    return b"".join(blocks) + bytes(1024)


def split(folder: Path, name: str, data: bytes, cuts: Sequence[int]) -> list[Path]:
    """Write bytes as `name.000`, `name.001`, … cut at the given places."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, *cuts, len(data)]
    paths = []
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        paths.append(folder / f"{name}.{number:03d}")
        paths[-1].write_bytes(data[start:end])
    return paths


def table(
    path: Path, columns: Mapping[str, Any], types: Mapping[str, pa.DataType] | None = None, rows_per_group: int = 2
) -> Path:
    """Write a Parquet table of a few rows a group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: pa.array(values, (types or {}).get(name)) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path, row_group_size=rows_per_group)
    return path


def struct(data: bytes) -> dict[str, Any]:
    """A picture as Hugging Face `datasets` stores it."""
    return {"bytes": data, "path": "x.png"}


def config(*datasets: Mapping[str, Any], gates: Sequence[str] = ("geometry", "change"), **changes: Any) -> ImportConfig:
    """An import of the datasets that needs no weights."""
    changes = {"ingest": {"datasets": [dict(entry) for entry in datasets], **changes.pop("ingest", {})}, **changes}
    return ImportConfig.model_validate(
        {"shard_size": 2, "val_fraction": 0.0, "verify": {"gates": list(gates)}} | changes
    )


def imported(path: Path, *datasets: Mapping[str, Any], **changes: Any) -> "Result":
    """Import the datasets into the folder `path`, without worker processes."""
    runner.run(config(*datasets, **changes), path, executor=InProcess(), stages=STAGES, find=list_rows)
    return Result(path)


class Result:
    """A finished import: its index by instruction, and its rejects by stage."""

    def __init__(self, path: Path) -> None:
        self.run = RunDir(path)
        self.rows = {row["instruction"]: row for row in read_table(path / "dataset/index.parquet")}
        self.rejects: dict[str, list[Any]] = {}
        for stage in self.run.state().stages:
            store = self.run.store(stage.name, str(stage.fingerprint))
            self.rejects[stage.name] = [row.reject for commit in store.commits() for row in store.rejects(commit)]

    @property
    def reasons(self) -> list[str]:
        """The reason of every reject, in order."""
        return [reject.reason for rejects in self.rejects.values() for reject in rejects]

    def member(self, instruction: str, member: str) -> bytes:
        """The stored bytes of a member of the edge with that instruction."""
        row = self.rows[instruction]
        data = (self.run.dataset / row["shard"]).read_bytes()
        return data[row[f"offset_{member}"] : row[f"offset_{member}"] + row[f"length_{member}"]]


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def yaml_text(value: Any) -> str:
    """A configuration as YAML."""
    return yaml.safe_dump(value, sort_keys=False)


__all__ = ["Grid", "load_config", "pa", "sha256"]
