"""Decoding hostile image bytes to 8-bit sRGB, and the encodings of dataset pixels and masks."""

from __future__ import annotations

from io import BytesIO
from typing import Any, Literal

import imagehash
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from editfoundry.core.colour import over_white, split_alpha, to_srgb
from editfoundry.core.errors import ImageError
from editfoundry.core.image_headers import (
    DEFAULT_MAX_PIXELS,
    JPEG,
    PNG,
    TIFF,
    ImageInfo,
    OpenedImage,
    check_pixel_count,
    decoder_errors,
    ends_early,
    open_image,
    read_info,
    sniff,
)
from editfoundry.core.masks import Mask

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "ImageInfo",
    "decode",
    "decode_jpeg",
    "decode_mask_png",
    "decode_rgba",
    "encode_jpeg",
    "encode_mask_png",
    "encode_png",
    "hash_distance",
    "perceptual_hash",
    "read_info",
]

JPEG_QUALITY = 92


def decode(
    data: bytes,
    *,
    target: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    on_alpha: Literal["white", "error"] = "white",
) -> NDArray[np.uint8]:
    """Decode JPEG, PNG, GIF, WebP, TIFF or BMP bytes to uint8 sRGB [H, W, 3].

    The format is told by content. The EXIF orientation is applied and an embedded ICC profile converted to sRGB.
    Grey, palette, CMYK and 16-bit (high byte) pixels become RGB. Of an animation or a multi-page file the first
    frame is taken. Transparency is composited onto white, or refused with `on_alpha="error"`.

    With `target`, a JPEG is decoded at the smallest of the scales 1/8, 1/4, 1/2 and 1 whose short side is at least
    `target` pixels, which saves most of the work; other formats always come at full size.

    Raises ImageError with the reasons of `read_info`, and `truncated_image`, `corrupt_image`, `transparent_image`.
    Decoding is strict: a file from which pixels are missing is refused, never filled in.
    """
    opened = open_image(data, max_pixels=max_pixels)
    rgb, alpha = _decode_layers(opened, target)
    if alpha is None or alpha.min() == 255:
        return rgb
    if on_alpha == "error":
        raise ImageError("transparent_image", "the image has transparent pixels; flatten it, or allow white behind it")
    return over_white(rgb, alpha)


def decode_rgba(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode a cut-out to uint8 [H, W, 4]: sRGB and straight alpha, 255 throughout when the file has none.

    Everything else is as in `decode`, errors included.
    """
    rgb, alpha = _decode_layers(open_image(data, max_pixels=max_pixels), None)
    opaque = np.full(rgb.shape[:2], 255, np.uint8)
    return np.dstack((rgb, opaque if alpha is None else alpha))


def _decode_layers(opened: OpenedImage, target: int | None) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Upright sRGB [H, W, 3] and alpha [H, W], or None for a kind of image without alpha."""
    media_type = opened.info.media_type
    if media_type == JPEG:
        return _upright(_decode_jpeg_colours(opened, target), opened.info.orientation), None
    if media_type == PNG and ends_early(opened.data, PNG):
        raise ImageError("truncated_image", "the image/png file ends before its IEND chunk")
    with decoder_errors(opened.data, media_type):
        profile = opened.image.info.get("icc_profile")
        opened.image.load()
        if (
            media_type == PNG
            and opened.info.bit_depth == 16
            and isinstance(opened.image.info.get("transparency"), tuple)
        ):
            # Pillow keeps the high byte of 16-bit colours but not of the one that the file declares transparent.
            opened.image.info["transparency"] = tuple(value >> 8 for value in opened.image.info["transparency"])
        base, alpha = split_alpha(opened.image)
        rgb = to_srgb(base, profile)
    # Pillow turns a TIFF upright while loading it.
    orientation = 1 if media_type == TIFF else opened.info.orientation
    return _upright(rgb, orientation), None if alpha is None else _upright(np.array(alpha, np.uint8), orientation)


def _decode_jpeg_colours(opened: OpenedImage, target: int | None) -> NDArray[np.uint8]:
    mode, profile = opened.image.mode, opened.image.info.get("icc_profile")
    divisor = 1 if target is None else _dct_divisor(opened.image.size, target)
    if mode == "RGB" and not profile:
        return _strict_jpeg(opened.data, "RGB", opened.image.size, divisor)
    samples = _strict_jpeg(opened.data, "GRAY" if mode == "L" else mode, opened.image.size, divisor)
    if mode == "CMYK" and "adobe" in opened.image.info:
        # Files with Adobe's marker store ink inverted.
        samples = 255 - samples
    with decoder_errors(opened.data, JPEG):
        return to_srgb(Image.frombytes(mode, (samples.shape[1], samples.shape[0]), samples.tobytes()), profile)


def _dct_divisor(size: tuple[int, int], target: int) -> int:
    return next((divisor for divisor in (8, 4, 2) if -(-min(size) // divisor) >= target), 1)


def _strict_jpeg(data: bytes, colorspace: str, size: tuple[int, int], divisor: int) -> NDArray[np.uint8]:
    """Decode at 1/`divisor` of `size` (width, height), the size that the header gave; any decoder warning is fatal."""
    width, height = size
    with decoder_errors(data, JPEG):
        try:
            coded_height, coded_width, _, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError as error:
            if "subsampling" in str(error):
                message = f"JPEG with an unusual chroma subsampling ({error}); save it again as 4:4:4, 4:2:2 or 4:2:0"
                raise ImageError("unsupported_format", message) from error
            raise
        if (coded_width, coded_height) != size:
            raise ValueError(f"two frame headers disagree: {width}x{height} and {coded_width}x{coded_height}")
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data, colorspace, min_height=-(-height // divisor), min_width=-(-width // divisor)
        )
    return pixels


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Undo an EXIF orientation 1..8 on [H, W] or [H, W, C]."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def encode_jpeg(rgb: NDArray[np.uint8], quality: int = JPEG_QUALITY) -> bytes:
    """Encode uint8 [H, W, 3] as baseline 4:4:4 JPEG, the form of every dataset image.

    The same pixels, quality and library give the same bytes. Raises ValueError for another shape or dtype.
    """
    _require_rgb(rgb)
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(rgb), quality, "RGB", "444", fastdct=False)
    return encoded


def decode_jpeg(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode a dataset JPEG to uint8 [H, W, 3] exactly as stored: no orientation, no profile, no scaling.

    Raises ImageError `not_an_image` for anything but a JPEG, and for damage as `decode` does.
    """
    if sniff(data) != JPEG:
        raise ImageError("not_an_image", "expected a dataset JPEG, got another image format")
    with decoder_errors(data, JPEG):
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    check_pixel_count(width, height, max_pixels)
    return _strict_jpeg(data, "RGB", (width, height), 1)


def encode_png(rgb: NDArray[np.uint8]) -> bytes:
    """Encode uint8 [H, W, 3] as PNG, for pixels that have to be kept exactly. Raises ValueError as `encode_jpeg`."""
    _require_rgb(rgb)
    buffer = BytesIO()
    Image.fromarray(np.ascontiguousarray(rgb)).save(buffer, "PNG")
    return buffer.getvalue()


def encode_mask_png(mask: Mask) -> bytes:
    """Encode a mask as 8-bit grey PNG, 0 outside and 255 inside: what every image tool reads as a mask."""
    buffer = BytesIO()
    Image.fromarray(mask.array.astype(np.uint8) * np.uint8(255)).save(buffer, "PNG", compress_level=9)
    return buffer.getvalue()


def decode_mask_png(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Mask:
    """The mask of a grey PNG that holds only 0 and 255. Raises ImageError `not_a_mask` for any other content."""
    opened = open_image(data, max_pixels=max_pixels)
    if opened.info.media_type != PNG or opened.info.mode not in ("1", "L"):
        raise ImageError(
            "not_a_mask", f"a mask is a grey PNG, got {opened.info.media_type} with {opened.info.mode} pixels"
        )
    if ends_early(data, PNG):
        raise ImageError("truncated_image", "the image/png file ends before its IEND chunk")
    with decoder_errors(data, PNG):
        grey = _upright(np.array(opened.image.convert("L"), np.uint8), opened.info.orientation)
    if not ((grey == 0) | (grey == 255)).all():
        raise ImageError("not_a_mask", "a mask holds only the values 0 and 255; threshold it before storing")
    return Mask(grey > 127)


def perceptual_hash(rgb: NDArray[np.uint8]) -> str:
    """64-bit pHash of uint8 [H, W, 3] as 16 hex digits; equal scenes stay close under resizing and recompression."""
    _require_rgb(rgb)
    return str(imagehash.phash(Image.fromarray(np.ascontiguousarray(rgb))))


def hash_distance(a: str, b: str) -> int:
    """Number of bits, 0..64, in which two perceptual hashes differ. Raises ValueError unless both are 16 hex digits."""
    if len(a) != 16 or len(b) != 16:
        raise ValueError(f"perceptual hashes have 16 hex digits, got {a!r:.40} and {b!r:.40}")
    return (int(a, 16) ^ int(b, 16)).bit_count()


def _require_rgb(array: NDArray[Any]) -> None:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise ValueError(f"expected uint8 [H, W, 3], got {array.dtype} of shape {list(array.shape)}")
