"""What a model's weights take on a GPU, from its options, the model store and the headers of weight files."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from editfoundry.core.errors import EditFoundryError
from editfoundry.models.manifest import packaged_manifest

BYTES_PER_WEIGHT = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 2.0}
QUANTISED = {"int8": 1.0, "nf4": 0.55}
"""Bytes a weight takes after quantisation; 4-bit weights with their scales."""
MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Weights:
    """A checkpoint that a model loads: id or folder, licence, number of weights (None: not known), and the bytes that

    lie on the GPU at once. offloaded: they come and go, so that only the largest such part of a worker counts.
    """

    checkpoint: str
    licence: str
    parameters: int | None
    bytes: float
    offloaded: bool


def weights_of(options: Mapping[str, Any]) -> list[Weights]:
    """Every checkpoint that a model's options name, as an id of the model store or a folder."""
    idle = {"depth"} if options.get("condition") == "canny" else set()
    named = [value for name, value in options.items() if isinstance(value, str) and name not in idle]
    return [weights for value in named for weights in _weights(value, options)]


def resident_gb(weights: Iterable[Weights]) -> float:
    """GB that a worker with these weights holds on its GPU: shared checkpoints once, of the offloaded the largest."""
    largest: dict[tuple[str, bool], float] = {}
    for one in weights:
        key = one.checkpoint, one.offloaded
        largest[key] = max(one.bytes, largest.get(key, 0.0))
    stays = sum(size for (_, offloaded), size in largest.items() if not offloaded)
    comes = max((size for (_, offloaded), size in largest.items() if offloaded), default=0.0)
    return (stays + comes) / 1e9


def _weights(value: str, options: Mapping[str, Any]) -> list[Weights]:
    entry = packaged_manifest().models.get(value)
    if entry is None and not Path(value).is_dir():
        return []
    width = QUANTISED.get(options.get("quantisation", "none"), BYTES_PER_WEIGHT[options.get("dtype", "auto")])
    offloaded = options.get("offload", "none") != "none"
    if entry is None:
        count: int | None = count_weights(Path(value))
        return [Weights(value, "as its folder says", count, (count or 0) * width, offloaded)]
    part = entry.largest_part if offloaded and entry.largest_part else entry.parameters
    return [Weights(value, entry.licence, entry.parameters, (part or 0) * width, offloaded)]


def count_weights(folder: Path) -> int:
    """Number of weights in a folder's safetensors files, by their headers. Raises EditFoundryError for damaged ones."""
    return sum(_in_file(path) for path in sorted(folder.rglob("*.safetensors")))


def _in_file(path: Path) -> int:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(file.read(size))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EditFoundryError(f"{path}: not a safetensors file: {error}") from error
