"""Cut-outs: which alpha images can be placed into a photograph, and what of them is the object."""

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import ImageError
from editfoundry.core.geometry import Mask
from editfoundry.models.protocols import Image

VISIBLE = 16
SOLID = 200
SPECK = 0.01
"""Parts smaller than this share of the largest one are left-overs of the cutting, not the object."""
MAX_SOFT = 0.5


def tight_cutout(rgba: Image, min_side: int = 0) -> Image:
    """The object of a cut-out, uint8 [h, w, 4], without specks and cropped to its alpha.

    Raises ImageError: `no_alpha` when nothing is transparent, `empty_cutout` when nothing is visible, `soft_cutout`
    when more than half of what is visible is see-through (smoke, glass, a bad matte), `small_cutout` when the long side
    is under `min_side` pixels.
    """
    alpha = rgba[..., 3]
    if int(alpha.min()) > VISIBLE:
        raise ImageError("no_alpha", "the image has no transparent pixel; a cut-out needs an alpha channel")
    visible = alpha > VISIBLE
    if not visible.any():
        raise ImageError("empty_cutout", "every pixel is transparent")
    kept = _without_specks(visible)
    box = Mask(kept).box()
    assert box is not None, "specks are measured against the largest part, which stays"
    x0, y0, x1, y1 = box.to_ints()
    result = np.where(kept[..., None], rgba, np.uint8(0))[y0:y1, x0:x1]
    if max(result.shape[:2]) < min_side:
        raise ImageError("small_cutout", f"the object is {x1 - x0}x{y1 - y0} pixels; at least {min_side} are needed")
    soft = float((result[..., 3][result[..., 3] > VISIBLE] < SOLID).mean())
    if soft > MAX_SOFT:
        raise ImageError("soft_cutout", f"{soft:.0%} of the object is see-through")
    return np.ascontiguousarray(result)


def _without_specks(visible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    _, labels, statistics, _ = cv2.connectedComponentsWithStats(visible.astype(np.uint8), connectivity=8)
    areas = statistics[:, cv2.CC_STAT_AREA].copy()
    areas[0] = 0
    kept: NDArray[np.bool_] = (areas >= SPECK * areas.max())[labels] & visible
    return kept
