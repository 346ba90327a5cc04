"""Pictures of a row on the grid: sizes that must agree, masks given or observed, and what is pasted back."""

from dataclasses import dataclass

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from editfoundry.core.errors import ImageError
from editfoundry.core.geometry import Grid, Mask, to_grid
from editfoundry.core.images import decode, read_info
from editfoundry.data_engine.imports.config import ObservedMask
from editfoundry.data_engine.imports.rows import RowRefused
from editfoundry.data_engine.scene import Image

MIN_SIDE = 64
MASK_LEVEL = 128
TOUCHED = 0.01
_PLAIN_MARKERS = frozenset({0xE0, 0xDB, 0xC0, 0xC4, 0xDA})
"""JFIF header, quantisation tables, baseline frame, Huffman tables, scan: what a JPEG cannot do without."""

Size = tuple[int, int]


@dataclass(frozen=True)
class Picture:
    """A picture of a row: its bytes, its pixels as decoded, upright uint8 [H, W, 3], and its media type."""

    data: bytes
    pixels: Image
    media_type: str

    @property
    def size(self) -> Size:
        """(width, height) in pixels."""
        return self.pixels.shape[1], self.pixels.shape[0]


def open_picture(data: bytes, what: str, max_pixels: int) -> Picture:
    """Decode a picture. Raises ImageError that says which one of the row it is."""
    try:
        media_type = read_info(data, max_pixels=max_pixels).media_type
        return Picture(data, decode(data, max_pixels=max_pixels), media_type)
    except ImageError as error:
        raise ImageError(error.reason, f"{what}: {error}") from error


def same_shape(first: Size, second: Size) -> bool:
    """Whether one size is the other scaled, up to the rounding of a side to whole pixels."""
    (width, height), (small_width, small_height) = sorted((first, second), reverse=True)
    return (
        abs(small_height - height * small_width / width) <= 1 or abs(small_width - width * small_height / height) <= 1
    )


def require_same_shape(before: Size, after: Size, what: str) -> None:
    """Raise RowRefused `size_mismatch` unless source and result are one size, or one the other scaled."""
    if before != after and not same_shape(before, after):
        raise RowRefused(
            "size_mismatch", f"{what}: source {before[0]}×{before[1]} and result {after[0]}×{after[1]} differ in shape"
        )


def common_grid(sizes: list[Size], area: int) -> Grid:
    """The grid for pictures of one shape: that of the smallest, so that none is enlarged. Raises ImageError."""
    width, height = min(sizes)
    try:
        return Grid.for_size(width, height, area)
    except ValueError as error:
        raise ImageError("too_small" if min(width, height) < MIN_SIDE else "too_elongated", str(error)) from error


def given_mask(data: bytes, picture: Size, grid: Grid, what: str, *, resize: bool, max_pixels: int) -> Mask:
    """The mask that a dataset ships, on the grid: every pixel that it touches with a channel of 128 or more.

    resize: take one of another size if it has the picture's shape. Raises RowRefused `mask_size_mismatch` or
    `empty_mask`, and ImageError for one that cannot be decoded.
    """
    opened = open_picture(data, f"{what}, mask", max_pixels)
    if opened.size != picture and not (resize and same_shape(opened.size, picture)):
        raise RowRefused(
            "mask_size_mismatch",
            f"{what}: the mask is {opened.size[0]}×{opened.size[1]}, the picture {picture[0]}×{picture[1]}",
        )
    inside = (opened.pixels.max(axis=2) >= MASK_LEVEL).astype(np.float32)
    mask = Mask(to_grid(inside, grid) > TOUCHED)
    if not mask.area:
        raise RowRefused("empty_mask", f"{what}: the mask is empty")
    return mask


def observed_mask(before: Image, after: Image, config: ObservedMask) -> Mask | None:
    """Where two pictures differ visibly, without specks, with a margin; None if they do not."""
    changed = Mask(cv2.absdiff(before, after).max(axis=2) > config.threshold)
    opened = changed.erode(config.open).dilate(config.open)
    return opened.dilate(config.dilate) if opened.area else None


def pasted(before: Image, after: Image, mask: Mask, feather: float) -> tuple[Image, Mask]:
    """`after` inside of the mask, `before` outside, blended over `feather` pixels; and the mask of all that changed."""
    weights: NDArray[np.float32] = mask.feather(feather)[..., None]
    blended = before + weights * (after.astype(np.float32) - before)
    return np.rint(blended).astype(np.uint8), mask.dilate(feather)


def mean_difference(first: Image, second: Image) -> float:
    """Mean absolute difference of two pictures of one size, in levels of 255."""
    return float(cv2.absdiff(first, second).mean())


def is_dataset_jpeg(picture: Picture, grid: Grid) -> bool:
    """Whether the bytes are what this engine would store: a bare baseline 4:4:4 JPEG in colour of the grid's size.

    Such a picture is stored as it is; encoding it again would only wear it. Anything that carries more than pixels
    (EXIF, a profile, comments) is not bare.
    """
    if picture.media_type != "image/jpeg" or picture.size != (grid.width, grid.height):
        return False
    if not _markers(picture.data) <= _PLAIN_MARKERS or not picture.data.endswith(b"\xff\xd9"):
        return False
    _, _, colours, subsampling = simplejpeg.decode_jpeg_header(picture.data)
    return bool(subsampling == "444" and colours == "YCbCr")


def _markers(data: bytes) -> set[int]:
    """The markers of a decodable JPEG's segments up to its scan."""
    found: set[int] = set()
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        found.add(marker)
        if marker == 0xDA:
            break
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return found
