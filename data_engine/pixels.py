"""The pixels every stage looks at: a source's image on its grid, decoded from the bytes that ingest kept."""

import math
from collections.abc import Sequence

from editfoundry.core.geometry import Box, Grid, to_grid
from editfoundry.core.images import decode
from editfoundry.data_engine.records import BoxList, Source
from editfoundry.data_engine.stages.base import Item
from editfoundry.models.protocols import Image


def grid_pixels(item: Item) -> list[Image]:
    """The item's photograph, or both frames of its pair, uint8 RGB on the source's grid.

    A JPEG is decoded at the smallest scale that still covers the grid. Raises ImageError for undecodable bytes.
    """
    source: Source = item.record
    grid = Grid(*source.grid)
    cover = max(grid.width / source.width, grid.height / source.height)
    target = math.ceil(min(source.width, source.height) * min(cover, 1.0))
    names = ("original", "second") if source.kind == "frames" else ("original",)
    return [to_grid(decode(item.blobs[name], target=target), grid) for name in names]


def box_list(box: Box, grid: Sequence[int]) -> BoxList:
    """The part of a box inside a grid of (width, height), to a hundredth of a pixel. ValueError when there is none."""
    inside = box.clip(grid[0], grid[1])
    if inside is None:
        raise ValueError(f"box {box.as_list()} lies outside the {grid[0]}x{grid[1]} grid")
    return round(inside.x0, 2), round(inside.y0, 2), round(inside.x1, 2), round(inside.y1, 2)
