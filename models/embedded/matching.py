"""Make a cut-out's colours, light and sharpness those of the place it is put into, without losing what it is.

Lab here is OpenCV's float Lab: L in [0, 100], a and b around [-127, 127].
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Box, resize
from editfoundry.models.protocols import Float, Image

GREY_CHROMA = 7.0
"""A photograph of which 99.5% is closer to grey than this is monochrome, and so is whatever is put into it."""
MAX_LIFT = 8.0
"""Haze lifts the darkest tones by at most this much L; a bright, even surface is no haze."""
DIM, DARK = 72.0, 45.0
"""White points (L) between which a scene goes from ordinary light to dusk, which tints and fades everything."""
STATISTICS_SIDE = 256
SMOOTH = 4.0
"""Grey levels of finest detail below which a place is too smooth to tell its focus."""


@dataclass(frozen=True)
class Light:
    """What a scene does to the things in it.

    black, white, mean: the ends and the middle of L. darks, lights, ambient: tints (a, b) of the dark tones, of the
    light tones and of everything near. chroma: distance from grey that 99.5% of the photograph stays below.
    """

    black: float
    white: float
    mean: float
    darks: Float
    lights: Float
    ambient: Float
    chroma: float

    @property
    def dusk(self) -> float:
        """How far the light is gone, 0..1."""
        return float(np.clip((DIM - self.white) / (DIM - DARK), 0.0, 1.0))


def measure_light(background: Image, box: Box) -> Light:
    """Light of the photograph; for lightness the surroundings of the box count as much as the whole."""
    whole, near = (_lab(_small(image)).reshape(-1, 3) for image in (background, _surroundings(background, box)))
    low, dark, bright, high = (float(value) for value in np.percentile(whole[:, 0], (1, 15, 90, 98)))
    return Light(
        black=low,
        white=0.25 * high + 0.75 * float(np.percentile(near[:, 0], 98)),
        mean=0.25 * float(whole[:, 0].mean()) + 0.75 * float(near[:, 0].mean()),
        darks=_tint(whole[whole[:, 0] <= dark]),
        lights=_tint(whole[whole[:, 0] >= bright]),
        ambient=near[:, 1:].mean(axis=0),
        chroma=float(np.percentile(np.hypot(whole[:, 1], whole[:, 2]), 99.5)),
    )


def match_colours(colours: Float, alpha: Float, background: Image, box: Box) -> Float:
    """Object colours (float32 [h, w, 3], 0..255) moved toward the light of the scene around `box`.

    Less light scales lightness and colour down together, haze lifts the darks a little, and the tones are drawn a
    little toward the mean of the place; darks and lights take some of the scene's tints; dusk fades colour; a
    monochrome photograph makes it monochrome.
    """
    if not (alpha > 0.5).any():
        return colours
    light = measure_light(background, box)
    lab = _lab((colours.clip(0, 255) / 255.0).astype(np.float32))
    gain = _exposure(lab[..., 0][alpha > 0.5], light)
    lab[..., 0] = _fit_lightness(lab[..., 0] * np.float32(gain), alpha, light)
    if light.chroma < GREY_CHROMA:
        lab[..., 1:] = 0.0
    else:
        lab[..., 1:] *= np.float32((0.35 + 0.65 * gain) * (1.0 - 0.5 * light.dusk))
        lab[..., 1:] += _tints(lab[..., 0], light)
    rgb: Float = cv2.cvtColor(lab, cv2.COLOR_Lab2RGB).clip(0.0, 1.0) * np.float32(255.0)
    return rgb


def _exposure(inside: Float, light: Light) -> float:
    """Factor on L, at most 1, that brings the object's brightest tones near the scene's white point."""
    high = float(np.percentile(inside, 97))
    return float(np.clip(1.0 + 0.85 * (light.white / max(high, 1.0) - 1.0), 0.35, 1.0))


def _fit_lightness(lightness: Float, alpha: Float, light: Light) -> Float:
    """Lift the darks to the haze of the scene and draw the middle toward its mean."""
    low, centre = (float(value) for value in np.percentile(lightness[alpha > 0.5], (2, 50)))
    lift = float(np.clip(0.5 * (light.black - low), 0.0, MAX_LIFT))
    fitted = lightness + lift * (1.0 - lightness / 100.0) ** 2
    shift = float(np.clip(0.2 * (light.mean - centre), -11.0, 7.0))
    middle = 1.0 - np.abs(fitted - 50.0) / 60.0
    return (fitted + shift * middle.clip(0.25, 1.0)).clip(0.0, 100.0).astype(np.float32)


def _tints(lightness: Float, light: Light) -> Float:
    """(a, b) to add at each lightness, float32 [h, w, 2]."""
    dark = ((55.0 - lightness) / 45.0).clip(0.0, 1.0)[..., None]
    bright = ((lightness - 20.0) / 60.0).clip(0.0, 1.0)[..., None]
    dusk = light.dusk
    tint = (0.4 * dark * _limit(light.darks, 14.0) + 0.5 * bright * _limit(light.lights, 16.0)) * (1.0 - dusk)
    return (tint + dusk * 0.75 * light.ambient).astype(np.float32)


def _tint(pixels: Float) -> Float:
    """Mean (a, b), in which vivid pixels, whose colour is their own and not the light's, count little."""
    chroma = np.hypot(pixels[:, 1], pixels[:, 2])
    weight = 1.0 / (1.0 + (chroma / 18.0) ** 2)
    mean: Float = (pixels[:, 1:] * weight[:, None]).sum(axis=0) / weight.sum()
    return mean


def _limit(tint: Float, most: float) -> Float:
    length = float(np.hypot(*tint))
    return tint if length <= most else tint * (most / length)


def match_sharpness(colours: Float, alpha: Float, background: Image, box: Box) -> tuple[Float, Float]:
    """Blur the object, edge included, where the photograph around its base is softer than the object is.

    A smooth place (sky, a bare table) says nothing about focus; there the sharpest of the whole photograph counts.
    """
    base = Box(box.x0, box.y1 - 0.2 * box.height, box.x1, box.y1 + 0.1 * box.height)
    theirs = _sharpness(_grey(_surroundings(background, base)), 98)
    if theirs < SMOOTH:
        theirs = _sharpness(_grey(background), 98)
    ours = _sharpness(_grey(colours), 95, alpha > 0.9)
    if ours <= theirs:
        return colours, alpha
    sigma = float(np.clip(0.45 * np.log2(ours / max(theirs, 0.5)), 0.0, 1.1))
    if sigma < 0.3:
        return colours, alpha
    return (cv2.GaussianBlur(colours, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE),
            cv2.GaussianBlur(alpha, (0, 0), min(sigma, 0.8), borderType=cv2.BORDER_CONSTANT))


def _sharpness(grey: Float, percentile: float, inside: NDArray[np.bool_] | None = None) -> float:
    """The strong end of the Laplacian's magnitude, in grey levels: what the finest visible detail amounts to."""
    detail = np.abs(cv2.Laplacian(cv2.GaussianBlur(grey, (0, 0), 0.7), cv2.CV_32F))
    values = detail[inside] if inside is not None else detail.ravel()
    return float(np.percentile(values, percentile)) if values.size else 0.0


def _grey(rgb: Image | Float) -> Float:
    grey: Float = cv2.cvtColor(rgb.astype(np.float32), cv2.COLOR_RGB2GRAY)
    return grey


def _surroundings(background: Image, box: Box) -> Image:
    """The box enlarged by 60% on each side, clipped to the photograph."""
    height, width = background.shape[:2]
    near = box.expand(0.6, pixels=8).clip(width, height) or Box(0, 0, width, height)
    x0, y0, x1, y1 = near.to_ints()
    return background[y0:y1, x0:x1]


def _small(image: Image) -> Float:
    """A copy of at most 256 pixels on the long side, as float RGB in [0, 1]."""
    scale = min(1.0, STATISTICS_SIDE / max(image.shape[:2]))
    width, height = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    return resize(np.ascontiguousarray(image), width, height).astype(np.float32) / np.float32(255.0)


def _lab(rgb: Float) -> Float:
    """Float Lab of float RGB in [0, 1]."""
    lab: Float = cv2.cvtColor(np.ascontiguousarray(rgb, np.float32), cv2.COLOR_RGB2Lab)
    return lab
