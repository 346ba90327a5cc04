"""What an image file is, found from its bytes without decoding pixels."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from editfoundry.core.errors import ImageError

DEFAULT_MAX_PIXELS = 150_000_000

# Pillow warns from a fixed size on, deep inside some decoders; the limit that counts here is `max_pixels`.
# It also warns of every damaged EXIF block, which it reads for the resolution alone.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.TiffImagePlugin")

JPEG, PNG, GIF, WEBP, TIFF, BMP = "image/jpeg", "image/png", "image/gif", "image/webp", "image/tiff", "image/bmp"

# Opened by class, not through Image.open: only these parsers ever see the bytes.
_OPENERS: dict[str, Callable[[BytesIO], ImageFile.ImageFile]] = {
    JPEG: JpegImagePlugin.JpegImageFile,
    PNG: PngImagePlugin.PngImageFile,
    GIF: GifImagePlugin.GifImageFile,
    WEBP: WebPImagePlugin.WebPImageFile,
    TIFF: TiffImagePlugin.TiffImageFile,
    BMP: BmpImagePlugin.BmpImageFile,
}
_SIGNATURES = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"II*\x00", TIFF),
    (b"MM\x00*", TIFF),
    (b"BM", BMP),
)
_UNSUPPORTED = (
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"8BPS", "Photoshop"),
    (b"II+\x00", "BigTIFF"),
    (b"MM\x00+", "BigTIFF"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (b"\x76\x2f\x31\x01", "OpenEXR"),
)
_SWAPPED_AXES = (5, 6, 7, 8)
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True)
class ImageInfo:
    """Header facts of an encoded image.

    `width` and `height` are in pixels after the EXIF orientation is applied. `mode` is Pillow's name of the stored
    pixel layout, `frames` counts animation frames or pages (1 for a still image), `orientation` is the EXIF value
    1..8 (1 when absent or invalid), `icc` tells whether a colour profile is embedded (decoding honours it unless it
    is broken or made for another pixel layout), `bit_depth` is bits per channel as stored.
    """

    width: int
    height: int
    media_type: str
    mode: str
    frames: int
    orientation: int
    has_alpha: bool
    icc: bool
    bit_depth: int


@dataclass(frozen=True)
class OpenedImage:
    """An image whose header is parsed and whose pixels are not decoded yet."""

    data: bytes
    info: ImageInfo
    image: ImageFile.ImageFile


def read_info(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> ImageInfo:
    """The header facts of an encoded image; no pixel is decoded. Raises ImageError as `open_image` does."""
    return open_image(data, max_pixels=max_pixels).info


def open_image(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> OpenedImage:
    """Parse the header of JPEG, PNG, GIF, WebP, TIFF or BMP bytes, told apart by content.

    Raises ImageError with reason `empty_file`, `not_an_image`, `unsupported_format` (an image of a kind that is not
    read, such as SVG), `too_many_pixels` (width x height above `max_pixels`), or `truncated_image` / `corrupt_image`
    when not even the header can be read.
    """
    media_type = sniff(data)
    with decoder_errors(data, media_type):
        image = _OPENERS[media_type](BytesIO(data))
        check_pixel_count(*image.size, max_pixels)
        if media_type == TIFF:
            orientation = image.getexif().get(_ORIENTATION_TAG, 1)
        else:
            orientation = exif_orientation(_exif_bytes(data, media_type, image))
        orientation = orientation if orientation in range(1, 9) else 1
        width, height = image.size
        # Pillow has already swapped the sides of a TIFF, and turns its pixels itself when it loads them.
        if orientation in _SWAPPED_AXES and media_type != TIFF:
            width, height = height, width
        info = ImageInfo(
            width=width,
            height=height,
            media_type=media_type,
            mode=image.mode,
            frames=int(getattr(image, "n_frames", 1)),
            orientation=orientation,
            has_alpha=image.has_transparency_data,
            icc=bool(image.info.get("icc_profile")),
            bit_depth=_bit_depth(data, media_type, image),
        )
    return OpenedImage(data, info, image)


def sniff(data: bytes) -> str:
    """The media type of the bytes, whatever the file was called. Raises ImageError when it is none that is read."""
    if not data:
        raise ImageError("empty_file", "the image file is empty (0 bytes); fetch it again or remove it")
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return WEBP
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type
    name = next((name for signature, name in _UNSUPPORTED if data.startswith(signature)), None)
    if name is None and data[4:8] == b"ftyp":
        name = "HEIF, AVIF or video"
    if name is None and _is_svg(data):
        name = "SVG"
    if name is not None:
        raise ImageError(
            "unsupported_format", f"{name} is not read here; convert it to JPEG, PNG, WebP, TIFF, GIF or BMP"
        )
    raise ImageError("not_an_image", f"the bytes are no known image format (they start with {data[:8]!r})")


def _is_svg(data: bytes) -> bool:
    head = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return head.startswith((b"<svg", b"<?xml", b"<!doctype svg", b"<!--")) and b"<svg" in head


def check_pixel_count(width: int, height: int, max_pixels: int) -> None:
    """Raise ImageError `too_many_pixels` when an image of this size may not be decoded."""
    if width * height > max_pixels:
        raise ImageError(
            "too_many_pixels",
            f"the header declares {width}x{height} pixels, more than the limit of {max_pixels}; "
            "raise the limit only if you trust the file",
        )


@contextmanager
def decoder_errors(data: bytes, media_type: str) -> Iterator[None]:
    """Turn whatever a decoder raises on hostile bytes into an ImageError that keeps its words.

    Third-party decoders document no closed set of exceptions for malformed input, so all are taken here, and only
    around calls into them; running out of memory passes through.
    """
    try:
        yield
    except (ImageError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise ImageError("too_many_pixels", f"refused before decoding: {error}") from error
    except Exception as error:
        text = str(error) or type(error).__name__
        cut_short = ends_early(data, media_type) or "truncated" in text.lower() or "premature" in text.lower()
        if cut_short:
            raise ImageError("truncated_image", f"the {media_type} file ends too early: {text}") from error
        raise ImageError("corrupt_image", f"the {media_type} file cannot be decoded: {text}") from error


def ends_early(data: bytes, media_type: str) -> bool:
    """Whether the container lacks its end: for PNG and WebP exactly, for JPEG and GIF unless padded; else False."""
    if media_type == JPEG:
        return not data.rstrip(b"\0").endswith(b"\xff\xd9")
    if media_type == PNG:
        return all(name != b"IEND" for name, _ in png_chunks(data))
    if media_type == WEBP:
        return int.from_bytes(data[4:8], "little") + 8 > len(data)
    if media_type == GIF:
        return not data.rstrip(b"\0").endswith(b";")
    return False


def png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(name, payload) of each complete chunk of a PNG, up to the first that is cut short. Checksums are not read."""
    view, position = memoryview(data), 8
    while position + 12 <= len(data):
        length = int.from_bytes(view[position : position + 4], "big")
        end = position + 12 + length
        if end > len(data):
            return
        name = bytes(view[position + 4 : position + 8])
        # Pixel data is passed over, not copied.
        yield name, b"" if name == b"IDAT" else bytes(view[position + 8 : end - 4])
        position = end


def _exif_bytes(data: bytes, media_type: str, image: ImageFile.ImageFile) -> bytes:
    """The EXIF block; in a PNG it may also follow the pixels, where Pillow looks only after decoding them."""
    if media_type == PNG:
        return next((payload for name, payload in png_chunks(data) if name == b"eXIf"), b"")
    exif = image.info.get("exif", b"")
    return exif if isinstance(exif, bytes) else b""


def exif_orientation(exif: bytes) -> int:
    """The orientation tag of an EXIF block (with or without its "Exif" prefix); 1 when absent or unreadable.

    A photograph with a damaged EXIF block is still a good photograph, so damage here is no error.
    """
    block = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None or len(block) < 8:
        return 1
    (start,) = struct.unpack_from(f"{order}I", block, 4)
    if start + 2 > len(block):
        return 1
    (count,) = struct.unpack_from(f"{order}H", block, start)
    for offset in range(start + 2, min(start + 2 + 12 * count, len(block) - 11), 12):
        tag, kind, values = struct.unpack_from(f"{order}HHI", block, offset)
        if tag == _ORIENTATION_TAG and kind == 3 and values == 1:
            (value,) = struct.unpack_from(f"{order}H", block, offset + 8)
            return int(value) if 1 <= value <= 8 else 1
    return 1


def _bit_depth(data: bytes, media_type: str, image: ImageFile.ImageFile) -> int:
    if media_type == PNG:
        return data[24]
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))
        return int(max(bits))
    return 1 if image.mode == "1" else 8
