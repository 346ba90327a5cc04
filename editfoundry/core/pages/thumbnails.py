"""The image store of a page: small JPEGs and mask overlays as data URIs, each kept once."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import binary_erosion

from editfoundry.core.grids import resize
from editfoundry.core.images import decode, decode_mask_png
from editfoundry.core.pages import data_uri

LONG_SIDE = 640
QUALITY = 80
_TINT = (255, 45, 120)
_TINT_ALPHA, _EDGE_ALPHA = 96, 255


class Thumbnails:
    """Data URIs by key, for the `images` value of `render`. An image whose key is already there is not read again.

    `long_side`: pixels of a picture's longer side at most; smaller pictures keep their size. `sizes`: (width, height)
    of each image as kept.
    """

    def __init__(self, long_side: int = LONG_SIDE) -> None:
        self.long_side = long_side
        self.images: dict[str, str] = {}
        self.sizes: dict[str, tuple[int, int]] = {}

    def picture(self, key: str, read: Callable[[], bytes]) -> str:
        """Keep the image file that `read` returns as a JPEG, and return `key`. Raises ImageError for a broken image."""
        if key not in self.images:
            pixels = decode(read(), target=self.long_side)
            self.sizes[key] = width, height = self._size(pixels.shape[1], pixels.shape[0])
            small = np.ascontiguousarray(resize(pixels, width, height))
            self.images[key] = data_uri(simplejpeg.encode_jpeg(small, QUALITY, "RGB", "420"), "image/jpeg")
        return key

    def overlay(self, key: str, read: Callable[[], bytes]) -> str:
        """Keep a dataset mask as a translucent tint with a firm edge, and return `key`. Raises ImageError."""
        if key not in self.images:
            inside = decode_mask_png(read()).array
            self.sizes[key] = width, height = self._size(inside.shape[1], inside.shape[0])
            inside = resize(inside, width, height, nearest=True)
            edge = inside & ~binary_erosion(inside, iterations=2, border_value=1)
            self.images[key] = data_uri(_palette_png(inside.astype(np.uint8) + edge), "image/png")
        return key

    def _size(self, width: int, height: int) -> tuple[int, int]:
        scale = min(1.0, self.long_side / max(width, height))
        return max(1, round(width * scale)), max(1, round(height * scale))


def _palette_png(indices: NDArray[np.uint8]) -> bytes:
    """A PNG of indices [H, W] where 0 is clear, 1 the tint and 2 the edge."""
    image = Image.frombytes("P", (indices.shape[1], indices.shape[0]), indices.tobytes())
    image.putpalette(bytes(_TINT * 3))
    buffer = BytesIO()
    image.save(buffer, "PNG", bits=2, transparency=bytes((0, _TINT_ALPHA, _EDGE_ALPHA)))
    return buffer.getvalue()
