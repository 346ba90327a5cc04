"""Colours and materials: what `adjust` can do to a surface, in CIE Lab, keeping its light and shade.

A colour replaces hue and chroma and shifts lightness part of the way; a material maps lightness through a ramp.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Float = NDArray[np.float32]


@dataclass(frozen=True)
class Paint:
    """A look: `words` for the instruction, and either a Lab colour or a dark-to-light ramp of sRGB colours."""

    words: str
    lab: tuple[float, float, float] | None = None
    ramp: tuple[tuple[int, int, int], ...] = ()


PAINTS: dict[str, Paint] = {
    "red": Paint("bright red", lab=(46, 62, 42)),
    "orange": Paint("orange", lab=(66, 38, 62)),
    "yellow": Paint("bright yellow", lab=(82, 4, 72)),
    "green": Paint("green", lab=(52, -46, 38)),
    "blue": Paint("deep blue", lab=(42, 12, -54)),
    "purple": Paint("purple", lab=(42, 42, -40)),
    "pink": Paint("pink", lab=(70, 42, 2)),
    "turquoise": Paint("turquoise", lab=(64, -34, -10)),
    "gold": Paint("polished gold", ramp=((38, 22, 4), (132, 88, 18), (212, 164, 52), (255, 240, 178))),
    "silver": Paint("polished silver", ramp=((22, 24, 28), (96, 100, 108), (172, 176, 184), (250, 251, 253))),
    "copper": Paint("shiny copper", ramp=((34, 14, 8), (124, 62, 36), (196, 118, 78), (255, 218, 190))),
}

_SIMILAR = {
    "red": {"red", "orange", "pink", "brown"},
    "orange": {"orange", "red", "yellow", "brown"},
    "yellow": {"yellow", "orange", "gold"},
    "green": {"green", "turquoise"},
    "blue": {"blue", "turquoise", "purple"},
    "purple": {"purple", "pink", "blue"},
    "pink": {"pink", "red", "purple"},
    "turquoise": {"turquoise", "teal", "green", "blue"},
    "gold": {"gold", "yellow", "orange", "brown"},
    "silver": {"silver", "gray", "white"},
    "copper": {"copper", "brown", "orange"},
}


def choices(colour: str) -> list[str]:
    """Paints that differ clearly from a thing of this colour word."""
    return [name for name in PAINTS if colour not in _SIMILAR[name]]


def repaint(image: Image, weight: Float, paint: Paint) -> Image:
    """The image [H, W, 3] with the paint applied where `weight` [H, W] in [0, 1] says, keeping shading and texture."""
    inside = weight > 0.5
    if not inside.any():
        return image.copy()
    lab = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    light = lab[..., 0]
    target = _ramp(image, light, inside, paint) if paint.ramp else _colour(lab, inside, paint)
    mixed = weight[..., None] * target + (1 - weight[..., None]) * image
    return np.where(weight[..., None] > 0, mixed.round(), image).clip(0, 255).astype(np.uint8)


def _colour(lab: Float, inside: NDArray[np.bool_], paint: Paint) -> Float:
    assert paint.lab is not None
    target_light, target_a, target_b = paint.lab
    light, mean = lab[..., 0], float(lab[..., 0][inside].mean())
    moved = light + 0.65 * (target_light - mean)
    moved = np.where(moved > 88, 88 + (moved - 88) * 0.5, moved).clip(2, 98)
    # Chroma fades toward black and white, as it does on real surfaces.
    fade = np.interp(moved, (0, 22, 84, 100), (0.25, 1.0, 1.0, 0.25)).astype(np.float32)
    residue = 0.12 * (lab[..., 1:] - lab[..., 1:][inside].mean(axis=0))
    out = np.dstack([moved, fade * target_a, fade * target_b]).astype(np.float32)
    out[..., 1:] += residue
    rgb: Float = cv2.cvtColor(out, cv2.COLOR_LAB2RGB) * 255
    return rgb


def _ramp(image: Image, light: Float, inside: NDArray[np.bool_], paint: Paint) -> Float:
    low, high = np.percentile(light[inside], (2, 98))
    level = ((light - low) / max(float(high - low), 12.0)).clip(0, 1)
    level = 0.55 * level + 0.45 * (level * level * (3 - 2 * level))
    stops = np.linspace(0, 1, len(paint.ramp))
    channels = [np.interp(level, stops, [c[i] for c in paint.ramp]) for i in range(image.shape[2])]
    return np.dstack(channels).astype(np.float32)


def colour_distance(a: Image, b: Image, inside: NDArray[np.bool_]) -> float:
    """Mean CIE76 difference of two images over the pixels inside."""
    first, second = (cv2.cvtColor(x.astype(np.float32) / 255, cv2.COLOR_RGB2LAB) for x in (a, b))
    return float(np.linalg.norm(first[inside] - second[inside], axis=1).mean()) if inside.any() else 0.0
