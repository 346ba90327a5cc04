"""Axis-aligned boxes in pixel coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A rectangle in xyxy pixel coordinates, half-open: it covers x0 <= x < x1 and y0 <= y < y1.

    Coordinates are finite floats and may lie outside an image until `clip` is called.
    Raises ValueError for a non-finite coordinate or a width or height that is not positive.
    """

    x0: float
    y0: float
    x1: float
    y1: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in self.as_list()):
            raise ValueError(f"box {self.as_list()} has a coordinate that is not a finite number")
        if self.x1 <= self.x0 or self.y1 <= self.y0:
            raise ValueError(f"box {self.as_list()} is empty: xyxy needs x1 > x0 and y1 > y0")

    @classmethod
    def from_list(cls, values: Sequence[float]) -> Box:
        """The box of four numbers x0, y0, x1, y1; ValueError for any other count."""
        if len(values) != 4:
            raise ValueError(f"a box needs 4 numbers (x0, y0, x1, y1), got {len(values)}")
        x0, y0, x1, y1 = (float(value) for value in values)
        return cls(x0, y0, x1, y1)

    def as_list(self) -> list[float]:
        """[x0, y0, x1, y1], the form that JSON and Parquet store."""
        return [self.x0, self.y0, self.x1, self.y1]

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    @property
    def height(self) -> float:
        return self.y1 - self.y0

    @property
    def area(self) -> float:
        """Square pixels."""
        return self.width * self.height

    @property
    def center(self) -> tuple[float, float]:
        """(x, y) of the middle."""
        return self.x0 + self.width / 2, self.y0 + self.height / 2

    def to_ints(self) -> tuple[int, int, int, int]:
        """The smallest whole-pixel rectangle that covers the box, for slicing as `array[y0:y1, x0:x1]`."""
        return math.floor(self.x0), math.floor(self.y0), math.ceil(self.x1), math.ceil(self.y1)

    def clip(self, width: int, height: int) -> Box | None:
        """The part inside a `width` x `height` image, or None when nothing of it lies there."""
        x0, y0 = max(self.x0, 0.0), max(self.y0, 0.0)
        x1, y1 = min(self.x1, float(width)), min(self.y1, float(height))
        return Box(x0, y0, x1, y1) if x1 > x0 and y1 > y0 else None

    def expand(self, fraction: float = 0.0, *, pixels: float = 0.0) -> Box:
        """Move every edge outward by `fraction` of the box's own width or height plus `pixels`.

        Negative amounts shrink it; ValueError when nothing is left.
        """
        across, down = self.width * fraction + pixels, self.height * fraction + pixels
        return Box(self.x0 - across, self.y0 - down, self.x1 + across, self.y1 + down)

    def intersection(self, other: Box) -> float:
        """Shared area in square pixels; 0.0 when they only touch or lie apart."""
        across = min(self.x1, other.x1) - max(self.x0, other.x0)
        down = min(self.y1, other.y1) - max(self.y0, other.y0)
        return across * down if across > 0 and down > 0 else 0.0

    def iou(self, other: Box) -> float:
        """Intersection over union, 0..1."""
        shared = self.intersection(other)
        union = self.area + other.area - shared
        return min(shared / union, 1.0) if union > 0 else 0.0

    def contains(self, other: Box, tolerance: float = 0.0) -> bool:
        """Whether `other` lies inside this box, allowed to stick out by `tolerance` pixels on each side."""
        return (
            other.x0 >= self.x0 - tolerance
            and other.y0 >= self.y0 - tolerance
            and other.x1 <= self.x1 + tolerance
            and other.y1 <= self.y1 + tolerance
        )

    def distance(self, other: Box) -> float:
        """Length in pixels of the shortest gap between the two boxes; 0.0 when they touch or overlap."""
        across = max(other.x0 - self.x1, self.x0 - other.x1, 0.0)
        down = max(other.y0 - self.y1, self.y0 - other.y1, 0.0)
        return math.hypot(across, down)
