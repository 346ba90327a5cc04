"""What ControlNets are shown."""

import cv2
import numpy as np

from editfoundry.core.geometry import resize
from editfoundry.models.protocols import Image


def canny(image: Image, low: int, high: int, side: int) -> Image:
    """Canny edges (white on black) of a picture, uint8 [H, W, 3] of its own size.

    Found on a copy whose short side is `side` pixels, so that thresholds mean the same for every picture.
    """
    height, width = image.shape[:2]
    scale = side / min(height, width)
    copy = resize(image, max(1, round(width * scale)), max(1, round(height * scale)))
    edges = cv2.Canny(np.ascontiguousarray(copy), low, high)
    return np.repeat(resize(edges, width, height)[..., None], 3, axis=2)
