"""Crop with context, work at the model's own size, and stitch back so that nothing outside the mask changes.

The crop is the mask's box with its surroundings, square where the picture allows, resampled to about `work_size`²
pixels. Stitching resamples the painted crop back and blends it in over a rim inside the mask.
"""

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Mask, resize
from editfoundry.models.protocols import Float, Image

REFERENCE_SIDE = 1024
"""Short side of the picture that distances of a recipe are given for."""
KEEP = 1.25
"""A picture already on the multiple, with an area within this factor of the work size's, is not resampled."""


@dataclass(frozen=True)
class Crop:
    """A window of a picture at the model's size, and what stitching needs.

    pixels: uint8 [h, w, 3]; mask: float32 [h, w] in 0..1, of the same size. window: (x0, y0, x1, y1) in the picture.
    """

    source: Image
    whole: Mask
    window: tuple[int, int, int, int]
    pixels: Image
    mask: Float

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) the model works at."""
        return self.pixels.shape[1], self.pixels.shape[0]

    def soft_mask(self, blur: float) -> Image:
        """The mask blurred by a Gaussian of `blur` pixels at the model's size, uint8 [h, w]."""
        soft = cv2.GaussianBlur(self.mask, (0, 0), blur, borderType=cv2.BORDER_REPLICATE) if blur > 0 else self.mask
        levels: Image = np.rint(soft * np.float32(255)).clip(0, 255).astype(np.uint8)
        return levels

    def stitch(self, painted: Image, blend: float) -> Image:
        """The picture with the painted crop (uint8, any size of the crop's aspect) in place of what the mask covers.

        Pixels outside the mask are bit-identical to the source. Inside, the painted picture fades in over `blend`
        pixels of the source from the mask's edge, or over half the mask's depth where it is thinner than that.
        """
        if painted.dtype != np.uint8 or painted.ndim != 3 or painted.shape[2] != 3:
            raise ValueError(f"expected uint8 [h, w, 3], got {painted.dtype} {list(painted.shape)}")
        x0, y0, x1, y1 = self.window
        inside = self.whole.array[y0:y1, x0:x1]
        weight = inward_weights(self.whole, blend)[y0:y1, x0:x1][inside][:, None]
        old = self.source[y0:y1, x0:x1][inside].astype(np.float32)
        new = resize(painted, x1 - x0, y1 - y0)[inside].astype(np.float32)
        result = self.source.copy()
        result[y0:y1, x0:x1][inside] = np.rint(old + weight * (new - old)).clip(0, 255).astype(np.uint8)
        return result


def crop_around(image: Image, mask: Mask, *, work_size: int, context: float = 1.2, multiple: int = 32) -> Crop | None:
    """The crop for a mask, or None for an empty one.

    The window is the mask's box times `context`, widened to a square as far as the picture reaches, and moved inside
    it. The sides of the crop are multiples of `multiple`. Raises ValueError when sizes differ.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"expected a uint8 RGB image [H, W, 3], got {image.dtype} {list(image.shape)}")
    if mask.shape != image.shape[:2]:
        raise ValueError(f"image {list(image.shape[:2])} and mask {list(mask.shape)} differ in (height, width)")
    box = mask.box()
    if box is None:
        return None
    height, width = mask.shape
    side = max(math.ceil(context * max(box.width, box.height)), multiple)
    left, top, right, bottom = box.to_ints()
    x0, x1 = _span(left, right, side, width)
    y0, y1 = _span(top, bottom, side, height)
    across, down = work_dimensions(x1 - x0, y1 - y0, work_size, multiple)
    window = np.ascontiguousarray(image[y0:y1, x0:x1])
    inside = mask.array[y0:y1, x0:x1].astype(np.float32)
    return Crop(image, mask, (x0, y0, x1, y1), resize(window, across, down), resize(inside, across, down))


def _span(low: int, high: int, side: int, limit: int) -> tuple[int, int]:
    """`side` pixels around [low, high), moved inside [0, limit), or all of it where that is shorter."""
    length = min(max(side, high - low), limit)
    start = min(max((low + high - length) // 2, 0), limit - length)
    return start, start + length


def work_dimensions(width: int, height: int, work_size: int, multiple: int = 16) -> tuple[int, int]:
    """(width, height) to work at: about `work_size`² pixels of the same aspect, both multiples of `multiple`.

    A picture that is already on the multiple and of about that area keeps its size, so that it is not resampled.
    """
    area = work_size * work_size
    on_grid = width % multiple == 0 and height % multiple == 0
    if on_grid and 1 / KEEP <= width * height / area <= KEEP:
        return width, height
    scale = math.sqrt(area / (width * height))
    return _rounded(width * scale, multiple), _rounded(height * scale, multiple)


def _rounded(length: float, multiple: int) -> int:
    return max(1, round(length / multiple)) * multiple


def inward_weights(mask: Mask, blend: float) -> Float:
    """How much of the painted picture to take, float32 [H, W]: 0 outside the mask, rising to 1 inside it.

    It rises over `blend` pixels from the edge, or over half of the mask's depth where that is less. The border of the
    picture is not an edge.
    """
    inside: NDArray[np.uint8] = mask.array.astype(np.uint8)
    if inside.all():
        return np.ones(mask.shape, np.float32)
    depth: Float = cv2.distanceTransform(inside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    reach = min(max(blend, 0.0), float(depth.max()) / 2)
    ramp = np.clip(depth / np.float32(reach + 1.0), 0.0, 1.0)
    weights: Float = (ramp * ramp * (3.0 - 2.0 * ramp)).astype(np.float32)
    return np.where(inside > 0, weights, np.float32(0.0)) if reach >= 1 else inside.astype(np.float32)


def scaled(pixels: float, image: Image) -> float:
    """A recipe's distance, given for a short side of 1024, for this picture."""
    return float(pixels * min(image.shape[:2]) / REFERENCE_SIDE)
