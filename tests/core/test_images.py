"""Image decoding on purpose for every kind of file, and refusal of every bad one."""

import struct
import subprocess
import sys
import warnings
import zlib
from io import BytesIO

import imagehash
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image, ImageCms

from editfoundry.core.errors import ImageError
from editfoundry.core.geometry import Mask, resize
from editfoundry.core.images import (
    decode,
    decode_jpeg,
    decode_mask_png,
    decode_rgba,
    encode_jpeg,
    encode_mask_png,
    encode_png,
    hash_distance,
    perceptual_hash,
    read_info,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")

QUADRANTS = {"red": (250, 10, 10), "green": (10, 240, 10), "blue": (10, 10, 245), "grey": (128, 128, 128)}
DECODERS = (decode, decode_rgba)


def quadrants(width=96, height=64):
    """Red upper left, green upper right, blue lower left, grey lower right."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = QUADRANTS["red"]
    pixels[: height // 2, width // 2 :] = QUADRANTS["green"]
    pixels[height // 2 :, : width // 2] = QUADRANTS["blue"]
    pixels[height // 2 :, width // 2 :] = QUADRANTS["grey"]
    return pixels


def smooth(width=96, height=64):
    """A photograph-like gradient that survives compression."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack((columns * 255 // width, rows * 255 // height, (rows + columns) % 200), axis=-1).astype(np.uint8)


def encoded(image, kind, **options):
    buffer = BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(name, payload):
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def raw_png(width, height, bit_depth, colour_type, samples, *chunks):
    """A PNG from raw big-endian scanlines, for kinds that Pillow cannot write. `samples` is bytes per row."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in samples))
    parts = [png_chunk(b"IHDR", header), *chunks, png_chunk(b"IDAT", body), png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def jpeg_with_size(width, height):
    """A small JPEG whose frame header declares another size."""
    data = encoded(smooth(), "JPEG")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def exif(orientation):
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def assert_refused(data, reason, **options):
    for decoder in DECODERS:
        with pytest.raises(ImageError) as caught:
            decoder(data, **options)
        assert caught.value.reason == reason
        assert str(caught.value)


def assert_close(actual, expected, tolerance):
    assert actual.dtype == np.uint8
    assert actual.shape == expected.shape
    assert np.abs(actual.astype(int) - expected).max() <= tolerance


# Kinds of file


@pytest.mark.parametrize(
    ("kind", "media_type", "options", "tolerance"),
    [
        ("JPEG", "image/jpeg", {"quality": 95, "subsampling": 0}, 4),
        ("JPEG", "image/jpeg", {"quality": 95, "subsampling": 0, "progressive": True}, 4),
        ("PNG", "image/png", {}, 0),
        ("WEBP", "image/webp", {"lossless": True}, 0),
        ("TIFF", "image/tiff", {}, 0),
        ("TIFF", "image/tiff", {"compression": "tiff_lzw"}, 0),
        ("BMP", "image/bmp", {}, 0),
    ],
)
def test_plain_rgb_of_every_format(kind, media_type, options, tolerance):
    pixels = smooth()
    data = encoded(pixels, kind, **options)
    info = read_info(data)
    assert (info.width, info.height, info.media_type, info.mode) == (96, 64, media_type, "RGB")
    assert (info.frames, info.orientation, info.has_alpha, info.icc, info.bit_depth) == (1, 1, False, False, 8)
    assert_close(decode(data), pixels, tolerance)
    rgba = decode_rgba(data)
    assert_close(rgba[..., :3], pixels, tolerance)
    assert (rgba[..., 3] == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "BMP"])
def test_grey_becomes_rgb(kind):
    grey = smooth()[..., 0]
    data = encoded(grey, kind, **({"quality": 98} if kind == "JPEG" else {}))
    assert read_info(data).mode == "L"
    assert_close(decode(data), np.repeat(grey[..., None], 3, axis=2), 2 if kind == "JPEG" else 0)


def test_bilevel_png():
    pattern = np.indices((16, 24)).sum(axis=0) % 2 == 0
    data = encoded(Image.fromarray(pattern), "PNG")
    assert read_info(data).bit_depth == 1
    assert_close(decode(data)[..., 1], pattern.astype(np.uint8) * 255, 0)


def test_cmyk_jpeg_with_adobe_inversion():
    pixels = quadrants()
    image = Image.fromarray(pixels).convert("CMYK")
    data = encoded(image, "JPEG", quality=98)
    assert b"Adobe" in data
    assert read_info(data).mode == "CMYK"
    assert_close(decode(data), pixels, 6)


def test_cmyk_jpeg_without_adobe_marker_is_not_inverted():
    data = encoded(Image.new("CMYK", (16, 16), (255, 255, 0, 0)), "JPEG", quality=98)
    start = data.index(b"\xff\xee")
    length = struct.unpack(">H", data[start + 2 : start + 4])[0]
    bare = data[:start] + data[start + 2 + length :]
    # Pillow stores ink inverted: read without its marker the same samples mean the complementary ink.
    assert_close(decode(data), np.full((16, 16, 3), (0, 0, 255), np.uint8), 4)
    assert_close(decode(bare), np.zeros((16, 16, 3), np.uint8), 4)


def test_cmyk_tiff():
    data = encoded(Image.fromarray(quadrants()).convert("CMYK"), "TIFF")
    assert_close(decode(data), quadrants(), 0)


def test_sixteen_bit_grey_png_is_scaled_not_clipped():
    samples = np.array([[0, 1, 255, 256], [32768, 40000, 65279, 65535]], np.uint16)
    data = encoded(Image.fromarray(samples), "PNG")
    info = read_info(data)
    assert (info.bit_depth, info.has_alpha) == (16, False)
    assert decode(data)[..., 0].tolist() == [[0, 0, 0, 1], [128, 156, 254, 255]]


def test_sixteen_bit_grey_tiff_in_both_byte_orders():
    samples = np.array([[0, 300, 32768, 65535]], np.uint16)
    expected = [[0, 1, 128, 255]]
    little = encoded(Image.fromarray(samples), "TIFF")
    assert read_info(little).bit_depth == 16
    assert decode(little)[..., 0].tolist() == expected
    tags = [(256, 4), (257, 1), (258, 16), (259, 1), (262, 1), (273, 122), (277, 1), (278, 1), (279, 8)]
    entries = b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    big = b"MM\0*" + struct.pack(">IH", 8, 9) + entries + struct.pack(">I", 0)
    big += b"\0" * (122 - len(big)) + samples.astype(">u2").tobytes()
    assert decode(big)[..., 0].tolist() == expected


def test_sixteen_bit_colour_png():
    row = np.array([0, 256, 65535, 32768, 40000, 257], ">u2").tobytes()
    assert decode(raw_png(2, 1, 16, 2, [row])).tolist() == [[[0, 1, 255], [128, 156, 1]]]


def test_sixteen_bit_png_with_a_transparent_value():
    grey = np.array([100, 40000, 101], ">u2").tobytes()
    transparent = png_chunk(b"tRNS", struct.pack(">H", 40000))
    assert decode_rgba(raw_png(3, 1, 16, 0, [grey], transparent))[0].tolist() == [
        [0, 0, 0, 255],
        [156, 156, 156, 0],
        [0, 0, 0, 255],
    ]
    colour = np.array([256, 512, 768, 65535, 0, 0], ">u2").tobytes()
    transparent = png_chunk(b"tRNS", struct.pack(">HHH", 256, 512, 768))
    assert decode(raw_png(2, 1, 16, 2, [colour], transparent)).tolist() == [[[255, 255, 255], [255, 0, 0]]]


def test_sixteen_bit_grey_alpha_png():
    row = np.array([65535, 65535, 0, 0, 0, 65535], ">u2").tobytes()
    data = raw_png(3, 1, 16, 4, [row])
    assert read_info(data).has_alpha
    assert decode(data)[0].tolist() == [[255, 255, 255], [255, 255, 255], [0, 0, 0]]


def test_palette_png_with_transparency():
    image = Image.new("P", (3, 1))
    image.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    image.putdata([0, 1, 2])
    data = encoded(image, "PNG", transparency=bytes([255, 0, 128]))
    info = read_info(data)
    assert (info.mode, info.has_alpha) == ("P", True)
    assert decode_rgba(data)[0].tolist() == [[200, 0, 0, 255], [0, 200, 0, 0], [0, 0, 200, 128]]
    assert decode(data)[0].tolist() == [[200, 0, 0], [255, 255, 255], [127, 127, 227]]
    with pytest.raises(ImageError) as caught:
        decode(data, on_alpha="error")
    assert caught.value.reason == "transparent_image"


def test_alpha_is_composited_on_white():
    pixels = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [10, 20, 30, 51]]], np.uint8)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})):
        data = encoded(pixels, kind, **options)
        assert read_info(data).has_alpha
        np.testing.assert_array_equal(decode_rgba(data), pixels)
        assert decode(data)[0].tolist() == [[255, 255, 255], [10, 20, 30], [206, 208, 210]]
    grey = encoded(Image.fromarray(np.array([[[40, 0], [40, 255]]], np.uint8), "LA"), "PNG")
    assert decode(grey)[0].tolist() == [[255, 255, 255], [40, 40, 40]]


def test_opaque_alpha_passes_where_transparency_is_an_error():
    pixels = np.dstack((smooth(), np.full((64, 96), 255, np.uint8)))
    assert_close(decode(encoded(pixels, "PNG"), on_alpha="error"), smooth(), 0)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animations_give_their_first_frame(kind):
    frames = [Image.new("RGB", (32, 24), colour) for colour in ("#ff0000", "#00ff00", "#0000ff")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=100, **options)
    info = read_info(data)
    assert (info.frames, info.width, info.height) == (3, 32, 24)
    assert_close(decode(data), np.full((24, 32, 3), (255, 0, 0), np.uint8), 0)


def test_multi_page_tiff_gives_its_first_page():
    pages = [Image.new("RGB", (8, 8), colour) for colour in ("#102030", "#ffffff")]
    data = encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    assert read_info(data).frames == 2
    assert decode(data)[0, 0].tolist() == [16, 32, 48]


def test_float_and_integer_tiffs_are_unsupported():
    for dtype in (np.float32, np.int32):
        assert_refused(encoded(np.ones((8, 8), dtype), "TIFF"), "unsupported_format")


# Orientation

CORNERS = {
    1: ("red", "green", "blue", "grey"),
    2: ("green", "red", "grey", "blue"),
    3: ("grey", "blue", "green", "red"),
    4: ("blue", "grey", "red", "green"),
    5: ("red", "blue", "green", "grey"),
    6: ("blue", "red", "grey", "green"),
    7: ("grey", "green", "blue", "red"),
    8: ("green", "grey", "red", "blue"),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind, orientation):
    options = {"JPEG": {"quality": 98, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    data = encoded(quadrants(96, 64), kind, exif=exif(orientation), **options)
    info = read_info(data)
    expected_size = (64, 96) if orientation >= 5 else (96, 64)
    assert info.orientation == orientation
    assert (info.width, info.height) == expected_size
    pixels = decode(data)
    assert pixels.shape == (*expected_size[::-1], 3)
    found = (pixels[8, 8], pixels[8, -8], pixels[-8, 8], pixels[-8, -8])
    for corner, name in zip(found, CORNERS[orientation], strict=True):
        assert_close(corner, np.array(QUADRANTS[name]), 5)
    assert decode_rgba(data).shape[:2] == pixels.shape[:2]


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"Exif\0\0garbage",
        exif(0),
        exif(9),
    ],
)
def test_damaged_exif_means_upright(block):
    data = encoded(quadrants(), "JPEG", exif=block)
    assert read_info(data).orientation == 1
    assert decode(data).shape == (64, 96, 3)


def test_damaged_exif_is_not_reported_by_pillow(tmp_path):
    # In a process of its own: pytest replaces the warning filters that the module sets.
    file = tmp_path / "damaged.jpg"
    file.write_bytes(encoded(quadrants(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"))
    code = (
        "import sys, pathlib; from editfoundry.core.images import decode\n"
        "print(decode(pathlib.Path(sys.argv[1]).read_bytes()).shape)"
    )
    ran = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
    assert (ran.stdout.strip(), ran.stderr) == ("(64, 96, 3)", "")


def test_orientation_stored_after_the_pixels_of_a_png():
    data = encoded(quadrants(), "PNG")
    chunk = png_chunk(b"eXIf", exif(6).removeprefix(b"Exif\0\0"))
    assert read_info(data[:-12] + chunk + data[-12:]).orientation == 6


# Colour profiles


def bgr_like_profile():
    """A copy of the sRGB profile whose red and blue primaries are swapped: any conversion shows at once."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for index in range(struct.unpack_from(">I", profile, 128)[0]):
        at = 132 + 12 * index
        swapped = {b"rXYZ": b"bXYZ", b"bXYZ": b"rXYZ"}.get(bytes(profile[at : at + 4]))
        if swapped:
            profile[at : at + 4] = swapped
    return bytes(profile)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_icc_profile_is_converted(kind):
    options = {"JPEG": {"quality": 98, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    data = encoded(quadrants(), kind, icc_profile=bgr_like_profile(), **options)
    assert read_info(data).icc
    assert_close(decode(data), quadrants()[..., ::-1], 8)


def test_icc_profile_leaves_alpha_alone():
    pixels = np.dstack((quadrants(), smooth()[..., 0]))
    rgba = decode_rgba(encoded(pixels, "PNG", icc_profile=bgr_like_profile()))
    np.testing.assert_array_equal(rgba[..., 3], pixels[..., 3])
    assert_close(rgba[..., :3], quadrants()[..., ::-1], 8)


def test_srgb_and_unusable_profiles_change_nothing():
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for profile in (srgb, lab, b"broken", srgb[:200]):
        data = encoded(smooth(), "PNG", icc_profile=profile)
        assert read_info(data).icc
        assert_close(decode(data), smooth(), 0)
        assert_close(decode(encoded(smooth()[..., 0], "PNG", icc_profile=profile))[..., 2], smooth()[..., 0], 0)


# Scaled decoding


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, (120, 200)),
        (121, (120, 200)),
        (61, (120, 200)),
        (60, (60, 100)),
        (30, (30, 50)),
        (15, (15, 25)),
        (1, (15, 25)),
    ],
)
def test_target_picks_the_smallest_sufficient_scale(target, expected):
    pixels = smooth(200, 120)
    for options in ({}, {"icc_profile": bgr_like_profile()}, {"progressive": True}):
        assert decode(encoded(pixels, "JPEG", **options), target=target).shape == (*expected, 3)
    assert decode(encoded(pixels, "PNG"), target=target).shape == (120, 200, 3)


@given(st.integers(8, 200), st.integers(8, 200), st.integers(1, 220), st.sampled_from([1, 6]))
@settings(max_examples=60, deadline=None)
def test_scaled_decode_is_never_too_small(width, height, target, orientation):
    data = encoded(smooth(width, height), "JPEG", exif=exif(orientation))
    rows, columns = decode(data, target=target).shape[:2]
    full_rows, full_columns = decode(data).shape[:2]
    assert min(rows, columns) >= min(target, width, height)
    scales = [(-(-full_rows // divisor), -(-full_columns // divisor)) for divisor in (8, 4, 2, 1)]
    assert (rows, columns) == next(size for size in scales if min(size) >= min(target, width, height))


def test_scaled_decode_shows_the_same_picture():
    data = encoded(smooth(800, 640), "JPEG", quality=95)
    assert_close(decode(data, target=160)[5:-5, 5:-5], resize(decode(data), 200, 160)[5:-5, 5:-5], 16)


# Refusals


def test_empty_file():
    assert_refused(b"", "empty_file")


@pytest.mark.parametrize("data", [b"\0", b"hello world", b"<html><body>404</body></html>", b"{}", b"\x1f\x8b\x08\0\0"])
def test_not_an_image(data):
    assert_refused(data, "not_an_image")


@pytest.mark.parametrize(
    "data",
    [
        b'<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"/>',
        b'\xef\xbb\xbf<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg/>',
        b"%PDF-1.7",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"\0\0\0\x1cftypheic\0\0\0\0",
        b"\0\0\0\x0cjP  \r\n",
    ],
)
def test_unsupported_formats(data):
    assert_refused(data, "unsupported_format")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_one_pixel_is_an_image(kind):
    data = encoded(np.full((1, 1, 3), 255, np.uint8), kind)
    assert (read_info(data).width, read_info(data).height) == (1, 1)
    assert decode(data).tolist() == [[[255, 255, 255]]]


def gif_with_size(width, height):
    data = encoded(smooth(), "GIF")
    return data[:6] + struct.pack("<HH", width, height) + data[10:]


def tiff_with_size(width, height):
    image = Image.new("1", (64, 64))
    data = bytearray(encoded(image, "TIFF"))
    start = struct.unpack_from("<I", data, 4)[0]
    for index in range(struct.unpack_from("<H", data, start)[0]):
        at = start + 2 + 12 * index
        tag = struct.unpack_from("<H", data, at)[0]
        if tag in (256, 257):
            struct.pack_into("<HII", data, at + 2, 4, 1, width if tag == 256 else height)
    return bytes(data)


def webp_with_size(width, height):
    extended = b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + extended + encoded(smooth(), "WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp_with_size(width, height):
    data = encoded(smooth(), "BMP")
    return data[:18] + struct.pack("<ii", width, height) + data[26:]


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(raw_png(40_000, 40_000, 8, 2, [b"\0" * 1000]), id="png"),
        pytest.param(jpeg_with_size(40_000, 40_000), id="jpeg"),
        pytest.param(gif_with_size(40_000, 40_000), id="gif"),
        pytest.param(tiff_with_size(40_000, 40_000), id="tiff"),
        pytest.param(webp_with_size(40_000, 40_000), id="webp"),
        pytest.param(bmp_with_size(40_000, 40_000), id="bmp"),
    ],
)
def test_header_bombs_are_refused_before_decoding(bomb):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError) as caught:
            read_info(bomb)
        assert caught.value.reason == "too_many_pixels"
        assert_refused(bomb, "too_many_pixels")


def test_the_pixel_limit_is_exact():
    data = encoded(smooth(100, 100), "PNG")
    assert read_info(data, max_pixels=10_000).width == 100
    assert_refused(data, "too_many_pixels", max_pixels=9_999)


def test_a_large_image_below_the_limit_raises_no_warning():
    data = encoded(Image.new("1", (10_000, 9_500)), "PNG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_info(data).width == 10_000


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("BMP", {}),
    ],
)
def test_every_cut_of_a_file_is_refused(kind, options):
    data = encoded(smooth(40, 30), kind, **options)
    decode(data)
    for length in [*range(1, 40), *range(40, len(data) - 1, 13), *range(max(40, len(data) - 12), len(data) - 1)]:
        with pytest.raises(ImageError) as caught:
            decode(data[:length])
        assert caught.value.reason in ("truncated_image", "corrupt_image", "not_an_image")


def test_every_cut_of_a_gif_is_refused_unless_all_pixels_are_there():
    data = encoded(smooth(40, 30), "GIF")
    for length in range(1, len(data) - 1, 7):
        try:
            pixels = decode(data[:length])
        except ImageError:
            continue
        np.testing.assert_array_equal(pixels, decode(data))
        assert length > len(data) - 12  # only the end marks are missing


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_file_cut_in_half_is_called_truncated(kind):
    data = encoded(smooth(), kind)
    assert_refused(data[: len(data) // 2], "truncated_image")


def test_truncated_cmyk_and_profiled_jpegs_are_refused_too():
    cmyk = encoded(Image.fromarray(smooth()).convert("CMYK"), "JPEG")
    profiled = encoded(smooth(), "JPEG", icc_profile=bgr_like_profile())
    for data in (cmyk, profiled):
        assert_refused(data[:-60], "truncated_image")
        assert_refused(data[:-60] + b"\xff\xd9", "truncated_image")


def test_a_png_with_a_flipped_bit_is_corrupt():
    data = bytearray(encoded(smooth(), "PNG"))
    data[data.index(b"IDAT") + 40] ^= 0x10
    assert_refused(bytes(data), "corrupt_image")


SAMPLES = [
    encoded(smooth(24, 16), "JPEG"),
    encoded(smooth(24, 16), "JPEG", progressive=True, exif=exif(6), icc_profile=bgr_like_profile()),
    encoded(Image.fromarray(smooth(24, 16)).convert("CMYK"), "JPEG"),
    encoded(smooth(24, 16), "PNG", exif=exif(3), icc_profile=bgr_like_profile()),
    encoded(Image.fromarray(smooth(24, 16)).quantize(16), "PNG", transparency=3),
    encoded(smooth(24, 16)[..., 0].astype(np.uint16) * 257, "PNG"),
    encoded(smooth(24, 16), "GIF", save_all=True, append_images=[Image.new("RGB", (24, 16))]),
    encoded(smooth(24, 16), "WEBP", exif=exif(8)),
    encoded(smooth(24, 16), "TIFF", compression="tiff_lzw"),
    encoded(smooth(24, 16), "TIFF"),
    encoded(smooth(24, 16), "BMP"),
]
SIGNATURES = [
    b"",
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"RIFF\x40\0\0\0WEBPVP8 ",
    b"II*\0",
    b"MM\0*",
    b"BM",
]


def assert_only_image_errors(data):
    for call in (read_info, decode, decode_rgba, decode_jpeg, decode_mask_png):
        try:
            call(data, max_pixels=1_000_000)
        except ImageError as error:
            assert error.reason


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SIGNATURES), st.binary(max_size=200))
def test_random_bytes_raise_only_image_errors(signature, rest):
    assert_only_image_errors(signature + rest)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_mutated_files_raise_only_image_errors(sample, data):
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(1, len(changed))) :]
    assert_only_image_errors(bytes(changed))


# Dataset encodings


@given(npst.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))))
@settings(max_examples=30, deadline=None)
def test_encode_jpeg_is_deterministic_and_4_4_4(pixels):
    data = encode_jpeg(pixels)
    assert data == encode_jpeg(pixels.copy())
    assert data == encode_jpeg(pixels[:, ::-1][:, ::-1])
    assert simplejpeg.decode_jpeg_header(data)[3] == "444"
    assert decode_jpeg(data).shape == pixels.shape


def test_dataset_jpeg_is_close_and_decoded_as_stored():
    assert_close(decode_jpeg(encode_jpeg(smooth(), 98)), smooth(), 4)
    turned = encoded(quadrants(96, 64), "JPEG", exif=exif(6))
    assert decode_jpeg(turned).shape == (64, 96, 3)
    assert decode(turned).shape == (96, 64, 3)


@pytest.mark.parametrize("pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((4, 4, 4), np.uint8)])
def test_encode_jpeg_refuses_other_arrays(pixels):
    with pytest.raises(ValueError, match=r"expected uint8 \[H, W, 3\]"):
        encode_jpeg(pixels)
    with pytest.raises(ValueError, match=r"expected uint8 \[H, W, 3\]"):
        perceptual_hash(pixels)


def test_png_keeps_every_pixel_and_gives_the_same_bytes():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    for kept in (pixels, pixels[::-1, ::2], pixels[:1, :1]):
        assert np.array_equal(decode(encode_png(kept)), kept)
        assert encode_png(kept) == encode_png(kept.copy())
    with pytest.raises(ValueError, match="expected uint8"):
        encode_png(pixels[..., 0])


def test_decode_jpeg_refuses_other_formats_and_damage():
    for data, reason in (
        (encoded(smooth(), "PNG"), "not_an_image"),
        (encode_jpeg(smooth())[:-40], "truncated_image"),
        (jpeg_with_size(40_000, 40_000), "too_many_pixels"),
    ):
        with pytest.raises(ImageError) as caught:
            decode_jpeg(data)
        assert caught.value.reason == reason


@given(npst.arrays(np.bool_, st.tuples(st.integers(1, 40), st.integers(1, 40))))
def test_mask_png_round_trip(array):
    data = encode_mask_png(Mask(array))
    assert decode_mask_png(data) == Mask(array)
    assert data == encode_mask_png(Mask(array.copy()))
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(data))), array.astype(np.uint8) * 255)


def test_mask_png_is_small():
    rows, columns = np.mgrid[0:640, 0:960]
    disc = Mask((rows - 300) ** 2 + (columns - 400) ** 2 < 150**2)
    assert len(encode_mask_png(disc)) < 3000


def test_decode_mask_png_refuses_what_is_no_mask():
    for data in (encoded(smooth(), "PNG"), encoded(smooth()[..., 0], "PNG"), encode_jpeg(smooth())):
        with pytest.raises(ImageError) as caught:
            decode_mask_png(data)
        assert caught.value.reason == "not_a_mask"


def test_perceptual_hash_follows_the_scene():
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    scene = resize(pixels, 320, 240)
    same = perceptual_hash(decode(encoded(resize(scene, 200, 150), "JPEG")))
    other = perceptual_hash(resize(np.random.default_rng(2).integers(0, 256, (8, 8, 3), dtype=np.uint8), 320, 240))
    assert perceptual_hash(scene) == str(imagehash.phash(Image.fromarray(scene)))
    assert len(same) == 16
    assert hash_distance(perceptual_hash(scene), same) <= 4
    assert hash_distance(perceptual_hash(scene), other) > 12


def test_hash_distance_counts_bits():
    assert hash_distance("0000000000000000", "ffffffffffffffff") == 64
    assert hash_distance("00000000000000f0", "0000000000000010") == 3
    for wrong in ("", "0" * 15, "z" * 16):
        with pytest.raises(ValueError, match=r"16 hex digits|invalid literal"):
            hash_distance(wrong, "0" * 16)
