"""Put an alpha cut-out into a photograph so that it belongs there: size, colour, light, sharpness, edges, shadow.

Pure functions of their arguments. The work is split in two because a scene is composed many times from the same parts:
`make_layer` matches one cut-out to its place, `composite` lays the finished layer over any version of the photograph.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from editfoundry.core.geometry import Box, Mask, resize
from editfoundry.models.embedded.matching import match_colours, match_sharpness
from editfoundry.models.embedded.shadows import cast_shadow
from editfoundry.models.protocols import Float, Image

MAX_UPSCALE = 1.5
INVISIBLE = 1.0 / 254.0
REACH = 2.5
"""A colour is carried outward from the solid inside of a cut-out over at most this many source pixels."""


@dataclass(frozen=True)
class Layer:
    """A window of the grid that holds one object and its shadow.

    rgb: uint8 [h, w, 3], the object's colours as they appear in the scene. alpha: float32 [h, w] in [0, 1], how far
    they cover it. shadow: float32 [h, w] in [0, 1), the share of light the object takes from what lies beneath.
    left, top: the window's corner on the grid.
    """

    rgb: Image
    alpha: Float
    shadow: Float
    left: int
    top: int

    @property
    def window(self) -> tuple[slice, slice]:
        """(rows, columns) of the grid that the layer occupies."""
        height, width = self.alpha.shape
        return slice(self.top, self.top + height), slice(self.left, self.left + width)


def make_layer(rgba: Image, background: Image, box: Box, zone: str, flip: bool = False) -> Layer:
    """Fit a tight cut-out (uint8 [h, w, 4], straight alpha) into `box` of `background` (uint8 [H, W, 3]).

    `zone` decides what the object rests on: "surface" and "ground" give a contact shadow, "macro" the close shadow of
    something lying flat, "water" a reflection, "sky" none. `flip` mirrors the cut-out. Parts of the box outside the
    background are cropped.

    Raises ValueError when the box enlarges the cut-out more than 1.5 times, lies outside the background, or when the
    arrays are not what is said above.
    """
    if rgba.dtype != np.uint8 or rgba.ndim != 3 or rgba.shape[2] != 4:
        raise ValueError(f"a cut-out is uint8 [h, w, 4], got {rgba.dtype} of shape {list(rgba.shape)}")
    if background.dtype != np.uint8 or background.ndim != 3 or background.shape[2] != 3:
        raise ValueError(f"a background is uint8 [H, W, 3], got {background.dtype} of shape {list(background.shape)}")
    left, top = round(box.x0), round(box.y0)
    width, height = max(1, round(box.width)), max(1, round(box.height))
    if width > MAX_UPSCALE * rgba.shape[1] + 1 or height > MAX_UPSCALE * rgba.shape[0] + 1:  # one pixel of rounding
        raise ValueError(f"box {box.as_list()} enlarges the {rgba.shape[1]}x{rgba.shape[0]} cut-out more than "
                         f"{MAX_UPSCALE} times; place it smaller or use a larger cut-out")
    if box.clip(background.shape[1], background.shape[0]) is None:
        raise ValueError(f"box {box.as_list()} lies outside the {background.shape[1]}x{background.shape[0]} background")
    colours, alpha = _fit(rgba[:, ::-1] if flip else rgba, width, height)
    colours = match_colours(colours, alpha, background, box)
    colours, alpha = match_sharpness(colours, alpha, background, box)
    shadow, margin = cast_shadow(alpha, zone)
    if zone == "water":
        alpha = _dip(alpha)
    padding = ((margin, margin), (margin, margin))
    rgb = np.pad(np.rint(colours).clip(0, 255).astype(np.uint8), (*padding, (0, 0)), mode="edge")
    alpha = np.pad(np.where(alpha < INVISIBLE, 0.0, alpha).astype(np.float32), padding)
    shadow = np.where(shadow < INVISIBLE, 0.0, shadow).astype(np.float32)
    return _crop(Layer(rgb, alpha, shadow, left - margin, top - margin), background.shape)


def composite(base: Image, layer: Layer) -> Image:
    """`base` (uint8 [H, W, 3]) with the layer's shadow and object on it; pixels outside its support are unchanged."""
    rows, columns = layer.window
    beneath = base[rows, columns].astype(np.float32) * (1.0 - layer.shadow[..., None])
    weight = layer.alpha[..., None]
    result = base.copy()
    result[rows, columns] = np.rint(beneath + weight * (layer.rgb - beneath)).clip(0, 255).astype(np.uint8)
    return result


def support(layer: Layer, shape: tuple[int, ...]) -> Mask:
    """Every pixel that `composite` may change in an image of `shape` (height, width, ...)."""
    touched = np.zeros(shape[:2], np.bool_)
    touched[layer.window] = (layer.alpha > 0) | (layer.shadow > 0)
    return Mask(touched)


def _fit(rgba: Image, width: int, height: int) -> tuple[Float, Float]:
    """Colours (float32 [height, width, 3], 0..255) and alpha (float32) at the wanted size, without the old fringe."""
    alpha = _shrink(rgba[..., 3].astype(np.float32) / 255.0)
    colours = _decontaminate(rgba[..., :3].astype(np.float32), rgba[..., 3])
    small_alpha = resize(alpha, width, height).clip(0.0, 1.0)
    premultiplied = resize(colours * alpha[..., None], width, height)
    plain = resize(colours, width, height)
    weight = small_alpha[..., None]
    return np.where(weight > 0.02, premultiplied / np.maximum(weight, 0.02), plain).astype(np.float32), small_alpha


def _shrink(alpha: Float) -> Float:
    """Pull the edge in by about half a pixel and soften it; thin parts such as legs and whiskers keep their core."""
    softened = cv2.GaussianBlur(alpha, (0, 0), 0.8, borderType=cv2.BORDER_CONSTANT)
    shrunk: Float = np.minimum(alpha, ((softened - 0.32) / 0.5).clip(0.0, 1.0)).astype(np.float32)
    return shrunk


def _decontaminate(colours: Float, alpha: NDArray[np.uint8]) -> Float:
    """Replace colours near the edge, which hold some of the cut-out's old background, by the nearest inner ones."""
    solid = cv2.erode((alpha > 242).astype(np.uint8), np.ones((3, 3), np.uint8), borderValue=0).astype(np.bool_)
    if not solid.any():
        return colours
    distance, (rows, columns) = ndimage.distance_transform_edt(~solid, return_indices=True)
    carried = cv2.GaussianBlur(colours[rows, columns], (0, 0), 0.8)
    weight = np.where(distance > REACH, 0.0, np.minimum(distance, 1.0))[..., None]
    beyond = (alpha == 0)[..., None]
    clean: Float = np.where(beyond, colours[rows, columns], colours + weight * (carried - colours)).astype(np.float32)
    return clean


def _dip(alpha: Float) -> Float:
    """Let the lowest rows fade, as what floats is partly under the surface."""
    depth = max(2, round(alpha.shape[0] * 0.03))
    ramp = np.ones(alpha.shape[0], np.float32)
    ramp[-depth:] = np.linspace(1.0, 0.0, depth, dtype=np.float32)
    return alpha * ramp[:, None]


def _crop(layer: Layer, shape: tuple[int, ...]) -> Layer:
    """The part of a layer that lies inside an image of `shape`."""
    height, width = layer.alpha.shape
    top, left = max(layer.top, 0), max(layer.left, 0)
    rows = slice(top - layer.top, min(layer.top + height, shape[0]) - layer.top)
    columns = slice(left - layer.left, min(layer.left + width, shape[1]) - layer.left)
    return Layer(np.ascontiguousarray(layer.rgb[rows, columns]), np.ascontiguousarray(layer.alpha[rows, columns]),
                 np.ascontiguousarray(layer.shadow[rows, columns]), left, top)
