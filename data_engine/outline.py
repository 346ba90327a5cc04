"""How clean a mask is, in numbers: does its outline follow something that is really in the picture?"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Mask
from editfoundry.models.protocols import Image

# The outline is compared across a gap of this share of the object's size, in pixels at least MIN_GAP.
GAP = 0.012
MIN_GAP = 3
TANGENT = 5
VISIBLE = 8.0


@dataclass(frozen=True)
class Outline:
    """Measures of a mask, all shares from 0 to 1 but `contrast`.

    solidity: of the convex hull. fill: of the bounding box. on_frame: part of the outline on the image's border.
    contrast: median colour difference (CIE76) across the outline. visible: part of the outline where it exceeds 8.
    """

    solidity: float
    fill: float
    on_frame: float
    contrast: float
    visible: float


def outline(image: Image, mask: Mask) -> Outline:
    """Measure a non-empty mask over its uint8 RGB image. ValueError for an empty mask."""
    box = mask.box()
    if box is None:
        raise ValueError("an empty mask has no outline")
    contours, _ = cv2.findContours(mask.array.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    points = max(contours, key=len)[:, 0, :].astype(np.float32)
    hull = Mask(cv2.fillConvexPoly(np.zeros(mask.shape, np.uint8), cv2.convexHull(points.astype(np.int32)), 1) > 0)
    differences = _across(image, points, max(MIN_GAP, round(GAP * mask.area**0.5)))
    return Outline(
        solidity=mask.area / hull.area,
        fill=mask.area / box.area,
        on_frame=_on_frame(points, mask.shape),
        contrast=float(np.median(differences)) if len(differences) else 0.0,
        visible=float((differences > VISIBLE).mean()) if len(differences) else 0.0,
    )


def _on_frame(points: NDArray[np.float32], shape: tuple[int, int]) -> float:
    height, width = shape
    x, y = points[:, 0], points[:, 1]
    return float(((x <= 1) | (y <= 1) | (x >= width - 2) | (y >= height - 2)).mean())


def _across(image: Image, points: NDArray[np.float32], gap: int) -> NDArray[np.float32]:
    """Colour difference between the two sides of the outline at each point where both lie in the image."""
    smooth = cv2.GaussianBlur(image, (0, 0), 1).astype(np.float32) / 255
    lab = cv2.cvtColor(smooth, cv2.COLOR_RGB2LAB)
    along = np.roll(points, -TANGENT, axis=0) - np.roll(points, TANGENT, axis=0)
    length = np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-6)
    normal = np.stack([along[:, 1], -along[:, 0]], axis=1) / length
    sides = [np.rint(points + sign * gap * normal).astype(np.intp) for sign in (1, -1)]
    limit = np.array([image.shape[1], image.shape[0]])
    inside = np.logical_and.reduce([((side >= 0) & (side < limit)).all(axis=1) for side in sides])
    first, second = (lab[side[inside, 1], side[inside, 0]] for side in sides)
    differences: NDArray[np.float32] = np.linalg.norm(first - second, axis=1)
    return differences
