"""Every bad or odd input, through the real ingest stage: accepted on purpose, or refused with a precise reason."""

import os
import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from source_stages import ingest

from editfoundry.data_engine.records import Source


def photo(width: int = 320, height: int = 240) -> Image.Image:
    """Smooth colours with texture: a picture that survives JPEG."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + k) * np.cos(y / (11 + k)) for k in range(3)]
    return Image.fromarray((np.stack(waves, axis=2) * 90 + 128).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header_bomb(width: int, height: int) -> bytes:
    """A valid PNG header that declares a gigantic image, and hardly any data."""
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def only_reject(folder: Path, **settings: object) -> tuple[str, str]:
    items, rejects = ingest(folder, **settings)
    assert not items
    (reject,) = rejects
    return reject.reason, reject.detail


def only_source(folder: Path, **settings: object) -> Source:
    items, rejects = ingest(folder, **settings)
    assert not rejects, rejects
    (item,) = items
    return item.record


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
REFUSED = {
    "truncated.jpg": (encoded(photo(), "JPEG")[:-4000], "truncated_image"),
    "truncated.png": (encoded(photo(), "PNG")[:-4000], "truncated_image"),
    "empty.jpg": (b"", "empty_file"),
    "dot.png": (encoded(photo(1, 1), "PNG"), "too_small"),
    "strip.png": (encoded(photo(4000, 20), "PNG"), "too_small"),
    "long.png": (encoded(photo(6000, 66), "PNG"), "too_elongated"),
    "bomb.png": (png_header_bomb(40_000, 40_000), "too_many_pixels"),
    "drawing.svg": (SVG, "unsupported_format"),
    "notes.jpg": (b"just some words", "not_an_image"),
    "half.mp4": (b"\0\0\0\x18ftypisom" + bytes(200), "bad_video"),
    "playlist.avi": (b"ffconcat version 1.0\nfile /etc/passwd\n", "not_an_image"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    data, reason = REFUSED[name]
    (tmp_path / name).write_bytes(data)
    found, detail = only_reject(tmp_path)
    assert found == reason
    assert name in detail


def test_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_header_bomb(40_000, 40_000))
    _, detail = only_reject(tmp_path)
    assert "40000x40000" in detail


def test_pixel_and_byte_limits_come_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(encoded(photo(), "PNG"))
    assert only_reject(tmp_path, ingest={"max_pixels": 320 * 240 - 1})[0] == "too_many_pixels"
    assert only_reject(tmp_path, ingest={"max_bytes": 100})[0] == "too_many_bytes"
    assert only_source(tmp_path, ingest={"max_pixels": 320 * 240}).width == 320


@pytest.mark.parametrize(
    ("name", "data", "media_type"),
    [
        ("png_named.jpg", encoded(photo(), "PNG"), "image/png"),
        ("cmyk.jpg", encoded(photo().convert("CMYK"), "JPEG"), "image/jpeg"),
        ("grey.jpg", encoded(photo().convert("L"), "JPEG"), "image/jpeg"),
        ("deep.png", encoded(Image.fromarray(np.arange(320 * 240).reshape(240, 320).astype(np.uint16)), "PNG"),
         "image/png"),
        ("palette.png", encoded(photo().quantize(64), "PNG", transparency=3), "image/png"),
        ("loop.gif", encoded(photo(), "GIF", save_all=True, append_images=[photo().rotate(90)]), "image/gif"),
        ("loop.webp", encoded(photo(), "WEBP", save_all=True, append_images=[photo().rotate(90)]), "image/webp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_accepted_on_purpose(tmp_path: Path, name: str, data: bytes, media_type: str) -> None:
    (tmp_path / name).write_bytes(data)
    source = only_source(tmp_path)
    assert (source.media_type, source.width, source.height) == (media_type, 320, 240)
    assert source.grid == (320, 240)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientations_turn_the_size(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "turned.jpg").write_bytes(encoded(photo(), "JPEG", exif=exif.tobytes()))
    source = only_source(tmp_path)
    assert (source.width, source.height) == ((240, 320) if orientation >= 5 else (320, 240))


def test_folder_named_like_a_photograph_is_a_reject_and_is_still_searched(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").mkdir()
    (tmp_path / "x.jpg" / "inner.png").write_bytes(encoded(photo(), "PNG"))
    items, rejects = ingest(tmp_path)
    assert [reject.reason for reject in rejects] == ["not_a_file"]
    assert items[0].record.uri.endswith("x.jpg/inner.png")


def test_fifo_is_refused_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert only_reject(tmp_path)[0] == "not_a_file"


def test_dangling_link_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert only_reject(tmp_path)[0] == "missing_file"


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9\\.png"
    Path(os.fsdecode(name)).write_bytes(encoded(photo(), "PNG"))
    source = only_source(tmp_path)
    assert source.uri.endswith("caf\\xe9\\\\.png")
    assert source.uri.encode("utf-8")


def test_names_with_dots_never_reach_an_id(tmp_path: Path) -> None:
    (tmp_path / "a.b..c.tar.png").write_bytes(encoded(photo(), "PNG"))
    (tmp_path / "..hidden.png").write_bytes(encoded(photo(), "PNG"))
    source = only_source(tmp_path)
    assert set(source.id) <= set("0123456789abcdef")
    assert len(source.id) == 16


def test_two_files_with_one_content_are_both_accounted_for(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        (tmp_path / name).write_bytes(encoded(photo(), "PNG"))
    items, rejects = ingest(tmp_path)
    assert not rejects
    assert items[0].record.id == items[1].record.id
    assert [Path(item.record.uri).name for item in items] == ["one.png", "two.png"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop its uid")
def test_unreadable_file_with_a_dropped_uid(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encoded(photo(), "PNG"))
    (tmp_path / "secret.png").chmod(0)
    program = (
        "import os, sys\n"
        "from source_stages import config\n"
        "from editfoundry.core.errors import ImageError\n"
        "from editfoundry.data_engine.sources import list_sources\n"
        "from editfoundry.data_engine.stages.base import Item\n"
        "from editfoundry.data_engine.stages.ingest import Ingest\n"
        "settings = config('.')\n"
        "(source,) = list_sources(settings.ingest)\n"
        "os.setuid(65534)\n"
        "try:\n"
        "    Ingest(settings).prepare(Item(source))\n"
        "except ImageError as error:\n"
        "    print(error.reason)\n"
    )
    tmp_path.chmod(0o755)
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "unreadable"
