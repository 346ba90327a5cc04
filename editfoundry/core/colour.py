"""Pixels of any layout that an image file may hold, as 8-bit sRGB with or without alpha."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from editfoundry.core.errors import ImageError

# A profile that moves no colour by more than this many levels is taken for sRGB itself.
_SAME_COLOUR = 2
_PROFILE_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}
_INTENT = ImageCms.Intent.RELATIVE_COLORIMETRIC
_FLAGS = ImageCms.Flags.BLACKPOINTCOMPENSATION


def split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Separate a decoded image into its colours (mode L, RGB or CMYK) and its alpha (mode L, None if opaque by kind).

    16-bit samples keep their high byte. Raises ImageError `unsupported_format` for layouts without a defined range or
    conversion (32-bit integer, float, Lab).
    """
    if image.mode.startswith("I;16"):
        return _split_sixteen_bit(image)
    if image.mode in ("La", "RGBa"):
        image = image.convert(image.mode.upper())
    if image.has_transparency_data:
        layered = image.convert("LA" if image.mode in ("1", "L", "LA") else "RGBA")
        return layered.convert(layered.mode[:-1]), layered.getchannel("A")
    if image.mode in ("L", "RGB", "CMYK"):
        return image, None
    if image.mode in ("1", "P", "YCbCr", "RGBX"):
        return image.convert("L" if image.mode == "1" else "RGB"), None
    raise ImageError(
        "unsupported_format", f"pixels of kind {image.mode} have no fixed range; convert the file to 8-bit RGB"
    )


def _split_sixteen_bit(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    samples = np.asarray(image)
    base = Image.fromarray((samples >> 8).astype(np.uint8))
    transparent = image.info.get("transparency")
    if not isinstance(transparent, int):
        return base, None
    return base, Image.fromarray(np.where(samples == transparent, 0, 255).astype(np.uint8))


def to_srgb(base: Image.Image, profile: bytes | None) -> NDArray[np.uint8]:
    """Colours of a mode L, RGB or CMYK image as uint8 sRGB [H, W, 3].

    The embedded ICC `profile` is honoured (relative colorimetric, black point compensation). Without one, or with
    one that is broken or made for another layout, grey and RGB count as sRGB already and CMYK is converted by the
    plain complement rule, as image viewers do.
    """
    transform = _transform_to_srgb(profile, base.mode) if profile else None
    converted = transform.apply(base) if transform is not None else base.convert("RGB")
    return np.array(converted, np.uint8)


@lru_cache(maxsize=32)
def _transform_to_srgb(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """The transform for pixels of `mode`; None when the profile is unusable for them or changes nothing."""
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        if source.profile.xcolor_space.strip() != _PROFILE_SPACES[mode]:
            return None
        target = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
        transform = ImageCms.buildTransform(source, target, mode, "RGB", _INTENT, _FLAGS)
        probe = _probe(mode)
        moved = np.abs(_signed(transform.apply(probe)) - _signed(probe.convert("RGB")))
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    return transform if mode == "CMYK" or moved.max() > _SAME_COLOUR else None


def _probe(mode: str) -> Image.Image:
    """A small image of `mode` with colours spread over the whole range."""
    levels = np.linspace(0, 255, 9).astype(np.uint8)
    if mode == "L":
        return Image.fromarray(levels[None])
    cube = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(27, 27, 3)
    return Image.fromarray(cube).convert(mode)


def _signed(image: Image.Image) -> NDArray[np.int16]:
    return np.asarray(image).astype(np.int16)


def over_white(rgb: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Composite uint8 [H, W, 3] with straight uint8 alpha [H, W] onto white, rounded to the nearest level."""
    weight = alpha[..., None].astype(np.uint16)
    blended: NDArray[Any] = (rgb * weight + 255 * (255 - weight) + 127) // 255
    return blended.astype(np.uint8)
