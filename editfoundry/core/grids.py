"""The pixel grid that a source, its mask and every result share, and the only resize of the repository."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

GRID_MULTIPLE = 16
MIN_SHORT_SIDE = 64
MAX_UPSCALE = 1.1
DEFAULT_AREA = 1024 * 1024


@dataclass(frozen=True)
class Grid:
    """Width and height in pixels, each a positive multiple of 16. Raises ValueError for anything else."""

    width: int
    height: int

    def __post_init__(self) -> None:
        for name, value in (("width", self.width), ("height", self.height)):
            if value <= 0 or value % GRID_MULTIPLE:
                raise ValueError(f"grid {name} {value} is not a positive multiple of {GRID_MULTIPLE}")

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width), the order of an array."""
        return self.height, self.width

    @property
    def area(self) -> int:
        """Pixels."""
        return self.width * self.height

    @classmethod
    def for_size(cls, width: int, height: int, area: int = DEFAULT_AREA, multiple: int = GRID_MULTIPLE) -> Grid:
        """The grid for a source of `width` x `height` pixels.

        Among the grids of about min(`area`, source area) pixels (never more than 1.1 times that) whose sides are
        multiples of `multiple`, the one closest in aspect ratio, then in area. Covering it enlarges the source by at
        most 1.1 and crops only what the rounding to `multiple` costs.

        Raises ValueError when `multiple` is not a multiple of 16, or when the source is so small or so elongated that
        no such grid has a short side of at least 64 pixels.
        """
        if multiple <= 0 or multiple % GRID_MULTIPLE:
            raise ValueError(f"multiple {multiple} is not a positive multiple of {GRID_MULTIPLE}")
        if width <= 0 or height <= 0 or area <= 0:
            raise ValueError(f"cannot make a grid of area {area} for a {width}x{height} image: all must be positive")
        target = min(area, width * height)
        aspect = width / height
        heights = _near(math.sqrt(target / aspect), multiple)
        candidates = {(w, h) for h in heights for w in _near(h * aspect, multiple)}
        widths = _near(math.sqrt(target * aspect), multiple)
        candidates |= {(w, h) for w in widths for h in _near(w / aspect, multiple)}
        allowed = [
            (w, h)
            for w, h in candidates
            if min(w, h) >= MIN_SHORT_SIDE
            and w * h <= MAX_UPSCALE * target
            and max(w / width, h / height) <= MAX_UPSCALE
        ]
        if not allowed:
            raise ValueError(
                f"a {width}x{height} image is too small or too elongated for a grid with a short side of at least "
                f"{MIN_SHORT_SIDE} pixels at area {area}; use a larger image or a larger area"
            )

        def mismatch(size: tuple[int, int]) -> tuple[float, int, int]:
            aspect_error = abs(math.log(size[0] / size[1] / aspect))
            area_error = abs(math.log(size[0] * size[1] / target))
            return aspect_error + 0.25 * area_error, size[0], size[1]

        return cls(*min(allowed, key=mismatch))


def _near(length: float, multiple: int) -> set[int]:
    below = math.floor(length / multiple) * multiple
    return {side for side in (below - multiple, below, below + multiple) if side > 0}


def grid_transform(width: int, height: int, grid: Grid) -> tuple[float, float, float]:
    """(scale, offset_x, offset_y) that `to_grid` applies to a `width` x `height` image.

    A source point (x, y) lies at (x * scale - offset_x, y * scale - offset_y) on the grid, to within half a pixel
    (the scaled image has whole pixels). Offsets are whole grid pixels cropped at the left and the top.
    """
    scale, scaled_width, scaled_height = _cover(width, height, grid)
    return scale, float((scaled_width - grid.width) // 2), float((scaled_height - grid.height) // 2)


def _cover(width: int, height: int, grid: Grid) -> tuple[float, int, int]:
    scale = max(grid.width / width, grid.height / height)
    return scale, max(grid.width, round(width * scale)), max(grid.height, round(height * scale))


def to_grid(image: NDArray[Any], grid: Grid, *, nearest: bool = False) -> NDArray[Any]:
    """Scale `image` to cover `grid`, then crop the centre, so that the result has exactly the grid's size.

    `image` is [H, W] or [H, W, C], uint8 or float32/float64 (or any dtype with `nearest=True`, for masks and label
    maps). The dtype and the channel axis are kept; see `resize` for the filters and the errors.
    """
    height, width = _image_size(image)
    _, scaled_width, scaled_height = _cover(width, height, grid)
    scaled = resize(image, scaled_width, scaled_height, nearest=nearest)
    left, top = (scaled_width - grid.width) // 2, (scaled_height - grid.height) // 2
    return np.ascontiguousarray(scaled[top : top + grid.height, left : left + grid.width])


def resize(image: NDArray[Any], width: int, height: int, *, nearest: bool = False) -> NDArray[Any]:
    """Resample `image` ([H, W] or [H, W, C]) to `width` x `height`, antialiased; dtype and channel axis are kept.

    An axis that shrinks is averaged over area; an axis that grows is interpolated with a cubic, clipped to the range
    of the input so that it never overshoots. `nearest=True` picks the nearest sample instead and works for bool and
    integer arrays too. The input array itself is returned, uncopied, when it already has the size.

    Raises ValueError for an empty image, a size that is not positive, or a dtype that the filters cannot average.
    """
    if width <= 0 or height <= 0:
        raise ValueError(f"cannot resize to {width}x{height}: both sides must be positive")
    source_height, source_width = _image_size(image)
    if (source_width, source_height) == (width, height):
        return image
    if nearest:
        rows = _nearest_indices(source_height, height)
        columns = _nearest_indices(source_width, width)
        return np.ascontiguousarray(image[rows][:, columns])
    if image.dtype not in (np.uint8, np.float32, np.float64):
        raise ValueError(f"cannot average {image.dtype} pixels: pass uint8, float32 or float64, or nearest=True")
    smaller = (min(width, source_width), min(height, source_height))
    result = np.ascontiguousarray(image)
    if smaller != (source_width, source_height):
        result = cv2.resize(result, smaller, interpolation=cv2.INTER_AREA)
    if smaller != (width, height):
        low, high = result.min(), result.max()
        result = cv2.resize(result, (width, height), interpolation=cv2.INTER_CUBIC).clip(low, high)
    return result.reshape(height, width, *image.shape[2:])


def _nearest_indices(source: int, target: int) -> NDArray[np.intp]:
    """Index of the source sample whose centre is nearest to each target sample's centre."""
    return (2 * np.arange(target) + 1) * source // (2 * target)


def _image_size(image: NDArray[Any]) -> tuple[int, int]:
    if image.ndim not in (2, 3) or image.size == 0:
        raise ValueError(f"expected a non-empty [H, W] or [H, W, C] image, got an array of shape {list(image.shape)}")
    return int(image.shape[0]), int(image.shape[1])
