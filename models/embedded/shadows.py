"""The shadow, or on water the dark reflection, of an object of which only the silhouette is known.

Nothing is known of the light, so it is taken to be soft and from above: dark where the object touches its support,
fading within a fraction of its size.
"""

import cv2
import numpy as np

from editfoundry.models.protocols import Float

BAND = 0.2
"""Columns whose lowest point lies within this share of the height above the base count as standing on the support."""


def cast_shadow(alpha: Float, zone: str) -> tuple[Float, int]:
    """(shadow, margin) for a silhouette (float32 [h, w] in [0, 1]) that stands at its lowest row.

    The shadow is float32 [h + 2 margin, w + 2 margin] in [0, 1): the share of light taken away, in a frame that is
    `margin` pixels larger than the silhouette on every side. Raises ValueError for an unknown zone.
    """
    height, width = alpha.shape
    if zone == "sky":
        return np.zeros_like(alpha), 0
    margin = max(4, round(0.22 * max(height, width)))
    silhouette = np.pad(alpha, margin)
    if zone == "macro":
        return _lying(silhouette, height, width), margin
    if zone == "water":
        return _reflection(silhouette, margin, height), margin
    if zone in ("surface", "ground"):
        return _standing(silhouette, height, width), margin
    raise ValueError(f"unknown zone {zone!r}; known are surface, ground, water, sky, macro")


def _standing(silhouette: Float, height: int, width: int) -> Float:
    """Contact shadow under each foot, and a wide faint one under the body."""
    opaque = silhouette > 0.5
    rows = np.arange(silhouette.shape[0])
    lowest = np.where(opaque.any(axis=0), rows[-1] - opaque[::-1].argmax(axis=0), -1)
    base = lowest.max()
    standing = lowest >= base - BAND * height
    contact = np.zeros_like(silhouette)
    columns = np.flatnonzero(standing & (lowest >= 0))
    contact[lowest[columns], columns] = 1.0
    reach = min(height, width)
    contact = _blur(contact, 0.6 + 0.012 * reach, 0.5 + 0.007 * reach)
    contact /= max(float(contact.max()), 1e-6)
    near = _blur(np.where(standing & (lowest >= 0), 1.0, 0.0)[None].astype(np.float32), 0.04 * width + 1, 0)[0]
    cover = _blur(silhouette.sum(axis=0, dtype=np.float32)[None] / height, 0.05 * width + 1, 0)[0]
    depth = 0.035 * width + 0.02 * height
    centre = base - 0.25 * depth
    profile = np.exp(-0.5 * ((rows - centre) / depth) ** 2).astype(np.float32)
    body = profile[:, None] * np.minimum(cover * 2.0, 1.0)[None]
    tight = np.exp(-0.5 * ((rows - base) / (0.35 * depth + 0.7)) ** 2).astype(np.float32)[:, None] * near[None]
    shadow: Float = (1.0 - (1.0 - 0.45 * contact) * (1.0 - 0.26 * body) * (1.0 - 0.22 * tight)).astype(np.float32)
    return shadow


def _lying(silhouette: Float, height: int, width: int) -> Float:
    """The close shadow of something flat, a little to the lower right."""
    size = min(height, width)
    shift = np.array([[1, 0, 0.02 * size], [0, 1, 0.035 * size]], np.float32)
    moved = cv2.warpAffine(silhouette, shift, silhouette.shape[::-1], flags=cv2.INTER_LINEAR)
    tight = _blur(moved, 0.012 * size + 0.6, 0.012 * size + 0.6)
    wide = _blur(moved, 0.06 * size + 1, 0.06 * size + 1)
    return (1.0 - (1.0 - 0.35 * tight) * (1.0 - 0.22 * wide)).astype(np.float32)


def _reflection(silhouette: Float, margin: int, height: int) -> Float:
    """Each column of the silhouette upside down below its own lowest point, broken up and fading with depth."""
    rows = np.arange(silhouette.shape[0])[:, None]
    opaque = np.asarray(silhouette > 0.5)
    lowest = rows[-1] - opaque[::-1].argmax(axis=0)[None]
    mirrored = np.take_along_axis(silhouette, (2 * lowest - rows).clip(0, rows[-1]), axis=0)
    near = np.asarray(opaque.any(axis=0))[None] & (lowest >= margin + 0.7 * height) & (rows > lowest - 2)
    depth = min(margin, height)
    ramp = (1.0 - (rows - lowest) / depth).clip(0.0, 1.0)
    below = np.where(near, mirrored * ramp, 0.0).astype(np.float32)
    return (0.4 * _blur(below, 1.2, 0.9)).astype(np.float32)


def _blur(image: Float, across: float, down: float) -> Float:
    blurred: Float = cv2.GaussianBlur(image, (0, 0), across, sigmaY=max(down, 1e-3), borderType=cv2.BORDER_CONSTANT)
    return blurred
