"""Aspect buckets: the grids of about constant area that pictures are trained on, and which one a sample belongs to."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from editfoundry.core.errors import ConfigError
from editfoundry.core.geometry import Grid
from editfoundry.core.grids import GRID_MULTIPLE

MAX_AREA = 1.1
MAX_RATIO = 8.0
MAX_PICTURES = 2


class Buckets:
    """The buckets of `size` (square root of the pixels) and `aspect_ratios` (width / height).

    A bucket is a grid and a number of pictures (1, or 2 with a reference): `grid number * 2 + pictures - 1`, grids
    from tall to wide. Ratios that round to the same grid share it. Raises ConfigError for a ratio without a grid.
    """

    def __init__(self, size: int, aspect_ratios: Sequence[float]) -> None:
        if not aspect_ratios:
            raise ConfigError("data.aspect_ratios: empty; name at least one, such as 1.0")
        self.size = size
        self.grids = tuple(sorted({_grid(size, ratio) for ratio in aspect_ratios}, key=lambda g: g.width / g.height))

    def __len__(self) -> int:
        return len(self.grids) * MAX_PICTURES

    def of(self, width: ArrayLike, height: ArrayLike, pictures: ArrayLike) -> NDArray[np.int64]:
        """Buckets of samples of `width` x `height` pixels with `pictures` pictures each (1 or 2), elementwise.

        The grid is the nearest in log aspect ratio: a sample lies above the boundary of two neighbours where its
        aspect is more than the geometric mean of theirs. In integers, hence the same on every machine.
        Raises ValueError for sides outside 1 to 65535 and other numbers of pictures.
        """
        wide, high, count = (np.asarray(value, np.int64) for value in (width, height, pictures))
        _require_between(wide, 1, 65535, "width")
        _require_between(high, 1, 65535, "height")
        _require_between(count, 1, MAX_PICTURES, "number of pictures")
        grid = np.zeros(np.broadcast_shapes(wide.shape, high.shape), np.int64)
        for below, above in zip(self.grids, self.grids[1:], strict=False):
            grid += wide**2 * (below.height * above.height) > high**2 * (below.width * above.width)
        return grid * MAX_PICTURES + count - 1

    def of_rows(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Buckets of rows of a shard index (records of `ROW`, any shape)."""
        return self.of(rows["width"], rows["height"], 1 + (rows["reference_length"] > 0))

    def grid(self, bucket: int) -> Grid:
        """The grid of a bucket."""
        return self.grids[bucket // MAX_PICTURES]

    def pictures(self, bucket: int) -> int:
        """How many pictures the samples of a bucket have: the one to edit, and perhaps a reference."""
        return bucket % MAX_PICTURES + 1


def _grid(size: int, ratio: float) -> Grid:
    """The grid of at most 1.1 size² pixels nearest in log aspect ratio, half counting log area."""
    if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        raise ConfigError(f"data.aspect_ratios: {ratio} is not between 1/{MAX_RATIO:g} and {MAX_RATIO:g}")
    area = size * size
    grids = [
        Grid(width, height)
        for width in _sides(size * math.sqrt(ratio))
        for height in _sides(size / math.sqrt(ratio))
        if width * height <= MAX_AREA * area
    ]
    if not grids:
        raise ConfigError(f"data.aspect_ratios: {ratio} has no grid of about {size}x{size} pixels; raise data.size")

    def mismatch(grid: Grid) -> tuple[float, int]:
        aspect = abs(math.log(grid.width / grid.height / ratio))
        return aspect + 0.5 * abs(math.log(grid.area / area)), grid.width

    return min(grids, key=mismatch)


def _sides(length: float) -> list[int]:
    below = math.floor(length / GRID_MULTIPLE) * GRID_MULTIPLE
    return [side for side in (below - GRID_MULTIPLE, below, below + GRID_MULTIPLE) if side > 0]


def _require_between(values: NDArray[Any], low: int, high: int, what: str) -> None:
    if values.size and not (values.min() >= low and values.max() <= high):
        raise ValueError(f"{what} {values.min()} to {values.max()}: not within {low} to {high}")
