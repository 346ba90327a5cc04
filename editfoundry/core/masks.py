"""Binary masks: algebra, morphology, COCO run lengths, and the comparison outside a mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco
from scipy import ndimage

from editfoundry.core.boxes import Box
from editfoundry.core.grids import Grid

MAX_MASK_PIXELS = 1 << 28
JPEG_BLOCK = 8


class Mask:
    """An immutable bool image [H, W]; True is inside.

    Operations return new masks. Those that take another mask raise ValueError when the sizes differ, and those that
    take pixels raise ValueError when the number is negative.
    """

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[np.bool_]) -> None:
        """Copies `array`. Raises ValueError unless it is a non-empty bool array of two dimensions."""
        if array.dtype != np.bool_ or array.ndim != 2 or array.size == 0:
            raise ValueError(
                f"a mask is a non-empty bool array [H, W], got {array.dtype} of shape {list(array.shape)}; "
                "compare first, as in Mask(array > 127)"
            )
        self._array = array.copy(order="C")
        self._array.setflags(write=False)

    @classmethod
    def from_box(cls, box: Box, grid: Grid) -> Mask:
        """Every pixel of the grid that the box touches; empty when the box lies outside."""
        array = np.zeros(grid.shape, np.bool_)
        inside = box.clip(grid.width, grid.height)
        if inside is not None:
            x0, y0, x1, y1 = inside.to_ints()
            array[y0:y1, x0:x1] = True
        return cls(array)

    @property
    def array(self) -> NDArray[np.bool_]:
        """The pixels, bool [H, W], read-only."""
        return self._array

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width)."""
        return self._array.shape[0], self._array.shape[1]

    @property
    def area(self) -> int:
        """Number of pixels inside."""
        return int(np.count_nonzero(self._array))

    @property
    def fraction(self) -> float:
        """Share of the image that is inside, 0..1."""
        return self.area / self._array.size

    def box(self) -> Box | None:
        """The tight bounding box, or None for an empty mask."""
        columns, rows = np.flatnonzero(self._array.any(axis=0)), np.flatnonzero(self._array.any(axis=1))
        if not len(columns):
            return None
        return Box(float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and np.array_equal(self._array, other._array)

    def __hash__(self) -> int:
        return hash((self.shape, np.packbits(self._array).tobytes()))

    def __repr__(self) -> str:
        return f"Mask({self.shape[1]}x{self.shape[0]}, area={self.area})"

    def __and__(self, other: Mask) -> Mask:
        return Mask(self._array & self._same_size(other))

    def __or__(self, other: Mask) -> Mask:
        return Mask(self._array | self._same_size(other))

    def __sub__(self, other: Mask) -> Mask:
        return Mask(self._array & ~self._same_size(other))

    def __invert__(self) -> Mask:
        return Mask(~self._array)

    def iou(self, other: Mask) -> float:
        """Intersection over union, 0..1; 0.0 for two empty masks."""
        union = np.count_nonzero(self._array | self._same_size(other))
        return float(np.count_nonzero(self._array & other._array) / union) if union else 0.0

    def containment(self, other: Mask) -> float:
        """Share of this mask that lies inside `other`, 0..1; 0.0 when this mask is empty."""
        shared = np.count_nonzero(self._array & self._same_size(other))
        return float(shared / self.area) if shared else 0.0

    def _same_size(self, other: Mask) -> NDArray[np.bool_]:
        if other.shape != self.shape:
            raise ValueError(f"masks differ in size: (h, w) = {self.shape} and {other.shape}; bring both to one grid")
        return other._array

    def dilate(self, pixels: float) -> Mask:
        """Add every pixel whose centre is at most `pixels` (Euclidean) from the centre of a pixel inside."""
        return Mask(self._distance_to_inside() <= _not_negative(pixels))

    def erode(self, pixels: float) -> Mask:
        """Remove every pixel at most `pixels` from a pixel outside. The border of the image is not outside."""
        return ~(~self).dilate(pixels)

    def feather(self, pixels: float) -> NDArray[np.float32]:
        """Blend weights, float32 [H, W] in 0..1.

        1 inside the mask, falling smoothly with the distance to it, and exactly 0 outside `dilate(pixels)`, so that
        blending by these weights changes nothing there.
        """
        distance = self._distance_to_inside()
        ramp = np.clip(1.0 - distance / (_not_negative(pixels) + 1.0), 0.0, 1.0)
        return np.where(distance <= pixels, ramp * ramp * (3.0 - 2.0 * ramp), 0.0).astype(np.float32)

    def _distance_to_inside(self) -> NDArray[np.float32]:
        """Euclidean distance in pixels from each pixel centre to the nearest one inside; infinite when none is."""
        if not self._array.any():
            return np.full(self.shape, np.inf, np.float32)
        outside = (~self._array).astype(np.uint8)
        distance: NDArray[np.float32] = cv2.distanceTransform(outside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
        return distance

    def fill_holes(self) -> Mask:
        """Add every region outside the mask that does not reach the border of the image (4-connected)."""
        return Mask(ndimage.binary_fill_holes(self._array).astype(np.bool_))

    def components(self) -> list[Mask]:
        """The 8-connected parts, largest first; equal ones in reading order of their first pixel."""
        count, labels = cv2.connectedComponents(self._array.astype(np.uint8), connectivity=8)
        parts = [Mask(labels == label) for label in range(1, count)]
        return sorted(parts, key=lambda part: (-part.area, int(part.array.argmax())))

    def largest_component(self) -> Mask:
        """The largest 8-connected part; an empty mask gives itself."""
        return next(iter(self.components()), self)

    def blocks(self, size: int = JPEG_BLOCK) -> NDArray[np.bool_]:
        """Which `size` x `size` blocks the mask touches, bool [ceil(H / size), ceil(W / size)]."""
        if size <= 0:
            raise ValueError(f"block size {size} is not positive")
        height, width = self.shape
        padded = np.pad(self._array, ((0, -height % size), (0, -width % size)))
        tiles = padded.reshape(padded.shape[0] // size, size, padded.shape[1] // size, size)
        return np.asarray(tiles.any(axis=(1, 3)), np.bool_)

    def to_rle(self) -> dict[str, Any]:
        """COCO compressed run lengths: {"size": [height, width], "counts": text}."""
        encoded = coco.encode(np.asfortranarray(self._array.astype(np.uint8)))
        return {"size": list(self.shape), "counts": encoded["counts"].decode("ascii")}

    @classmethod
    def from_rle(cls, rle: Mapping[str, Any]) -> Mask:
        """The mask of a COCO compressed RLE. ValueError for anything that is not exactly that."""
        size, counts = rle.get("size"), rle.get("counts")
        if (
            not isinstance(size, Sequence)
            or len(size) != 2
            or not all(isinstance(side, int) and not isinstance(side, bool) for side in size)
        ):
            raise ValueError(f"RLE size must be [height, width] in whole pixels, got {size!r:.80}")
        if isinstance(counts, bytes):
            counts = counts.decode("ascii", errors="replace")
        if not isinstance(counts, str):
            raise ValueError(f"RLE counts must be compressed text, got {type(counts).__name__}")
        return cls.from_counts(counts, size[0], size[1])

    @classmethod
    def from_counts(cls, counts: str, height: int, width: int) -> Mask:
        """The mask of COCO compressed `counts` for an image of `height` x `width` pixels.

        Raises ValueError when the text is malformed or does not describe exactly that many pixels, or when there are
        none or more than 2**28 of them. The runs are expanded here because pycocotools reads and writes out of bounds
        on malformed text.
        """
        if height <= 0 or width <= 0 or height * width > MAX_MASK_PIXELS:
            raise ValueError(f"a mask of {width}x{height} pixels is refused: allowed are 1 to {MAX_MASK_PIXELS} pixels")
        runs = _run_lengths(counts, height * width)
        if runs.min() < 0 or int(runs.sum()) != height * width:
            raise ValueError(f"RLE counts do not describe {width}x{height} pixels: runs sum to {int(runs.sum())}")
        inside = np.arange(len(runs)) % 2 == 1
        return cls(inside.repeat(runs).reshape(width, height).T)


def _not_negative(pixels: float) -> float:
    if not pixels >= 0:
        raise ValueError(f"expected a distance of 0 pixels or more, got {pixels}")
    return pixels


def _run_lengths(counts: str, pixels: int) -> NDArray[np.int64]:
    """Parse COCO's compressed counts: 5 bits a character, low first, 0x20 = more follow, sign in the last one's 0x10.

    From the fourth run on, a number is the difference to the run two before it.
    """
    try:
        codes = np.frombuffer(counts.encode("ascii"), np.uint8).astype(np.int64) - 48
    except UnicodeEncodeError as error:
        raise ValueError("RLE counts hold a character outside ASCII") from error
    if not len(codes) or codes.min() < 0 or codes.max() > 63:
        raise ValueError("RLE counts are empty or hold a character outside '0'..'o'")
    last = np.flatnonzero((codes & 0x20) == 0)
    if not len(last) or last[-1] != len(codes) - 1:
        raise ValueError("RLE counts end in the middle of a number")
    first = np.concatenate(([0], last[:-1] + 1))
    lengths = last - first + 1
    if lengths.max() > 6 or len(last) > pixels + 2:
        raise ValueError("RLE counts hold a number too long, or more runs than the image has pixels")
    position = np.arange(len(codes)) - np.repeat(first, lengths)
    numbers = np.add.reduceat((codes & 0x1F) << (5 * position), first)
    numbers -= np.where(codes[last] & 0x10, np.int64(1) << (5 * lengths), 0)
    runs = numbers.copy()
    runs[1::2] = np.cumsum(numbers[1::2])
    runs[2::2] = np.cumsum(numbers[2::2])
    return runs


def containment_tree(masks: Sequence[Mask], threshold: float = 0.9) -> list[int | None]:
    """For each mask the index of its parent: the smallest larger mask that holds at least `threshold` of it.

    None where there is no such mask. Of masks with equal area the earlier one counts as the larger, so that
    duplicates nest and the result is always a forest. Empty masks have no parent and are none.
    """
    areas = [mask.area for mask in masks]
    parents: list[int | None] = []
    for child, mask in enumerate(masks):
        larger = [i for i, area in enumerate(areas) if (area, -i) > (areas[child], -child)]
        holders = [i for i in larger if areas[child] and mask.containment(masks[i]) >= threshold]
        parents.append(min(holders, key=lambda i: (areas[i], -i), default=None))
    return parents


def outside_difference(a: NDArray[np.uint8], b: NDArray[np.uint8], mask: Mask) -> tuple[int, float]:
    """(largest, mean) absolute difference of two decoded images over the 8x8 blocks that `mask` does not touch.

    `a` and `b` are uint8 [H, W] or [H, W, C] of one shape, with the mask's height and width (ValueError otherwise).
    A local edit stored as 4:4:4 JPEG must give (0, 0.0). When every block is touched there is nothing to compare and
    the answer is (0, 0.0) as well.
    """
    if a.dtype != np.uint8 or b.dtype != np.uint8:
        raise ValueError(f"expected uint8 images, got {a.dtype} and {b.dtype}")
    if a.shape != b.shape or a.shape[:2] != mask.shape:
        raise ValueError(f"sizes differ: images {list(a.shape)} and {list(b.shape)}, mask {list(mask.shape)}")
    height, width = mask.shape
    touched = mask.blocks().repeat(JPEG_BLOCK, axis=0).repeat(JPEG_BLOCK, axis=1)[:height, :width]
    difference = cv2.absdiff(a, b)[~touched]
    return (int(difference.max()), float(difference.mean())) if difference.size else (0, 0.0)
