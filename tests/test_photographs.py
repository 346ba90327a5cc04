"""Fetching the quickstart's files: only pinned members are kept, and what cannot be had is said."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from editfoundry.core.config import CONFIG_ROOT, cache_root, load_config, validate
from editfoundry.core.errors import ConfigError
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.sources import Manifest
from editfoundry.photographs import (
    Lock,
    PhotographsError,
    fetch,
    photographs_home,
    read_lock,
)

STREET, ART = b"pretend this is a street" * 50, b"pretend this is art" * 40


def pin(carrier: str, member: str, content: bytes) -> dict[str, object]:
    return {"carrier": carrier, "member": member, "sha256": sha256(content).hexdigest(), "bytes": len(content)}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index on disk that holds `scenery` 1.0, for the real pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "scenery-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("scenery/data/street.jpg", STREET)
        wheel.writestr("scenery/data/art.png", ART)
        wheel.writestr("scenery-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: scenery\nVersion: 1.0\n")
        wheel.writestr("scenery-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("scenery-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def lock(**files: dict[str, object]) -> Lock:
    return validate(Lock, {
        "carriers": {"scenery": {"source": "pypi:scenery==1.0", "bytes": 2000},
                     "wallpapers": {"source": "deb:wallpapers", "bytes": 2000}},
        "files": {name.replace("__", "/").replace("_jpg", ".jpg").replace("_png", ".png"): file
                  for name, file in files.items()},
    }, "test")


@pytest.mark.usefixtures("index")
def test_a_wheel_gives_its_members_under_our_names_and_goes_away(tmp_path: Path) -> None:
    wanted = lock(photographs__street_jpg=pin("scenery", "scenery/data/street.jpg", STREET),
                  photographs__copy_jpg=pin("scenery", "scenery/data/street.jpg", STREET),
                  styles__art_png=pin("scenery", "scenery/data/art.png", ART))
    seen: list[tuple[str, int, int]] = []
    result = fetch(tmp_path / "home", lambda *step: seen.append(step), wanted)
    assert (result.files, result.new, result.notes) == (3, 3, ())
    files = {str(p.relative_to(result.home)): p.read_bytes() for p in result.home.rglob("*") if p.is_file()}
    assert files == {".lock": b"", "photographs/street.jpg": STREET, "photographs/copy.jpg": STREET,
                     "styles/art.png": ART}
    assert seen[-1] == ("scenery", 2000, 2000)


@pytest.mark.usefixtures("index")
def test_only_what_is_missing_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = lock(photographs__street_jpg=pin("scenery", "scenery/data/street.jpg", STREET),
                  styles__art_png=pin("scenery", "scenery/data/art.png", ART))
    home = tmp_path / "home"
    fetch(home, lock=wanted)
    before = (home / "photographs/street.jpg").stat().st_mtime_ns
    (home / "styles/art.png").write_bytes(b"cut short")
    assert fetch(home, lock=wanted).new == 1
    assert (home / "styles/art.png").read_bytes() == ART
    assert (home / "photographs/street.jpg").stat().st_mtime_ns == before
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert fetch(home, lock=wanted).new == 0, "a complete home needs no client"


@pytest.mark.usefixtures("index")
def test_a_file_that_is_not_the_pinned_one_is_not_kept(tmp_path: Path) -> None:
    wanted = lock(photographs__street_jpg=pin("scenery", "scenery/data/street.jpg", STREET),
                  styles__art_png=pin("scenery", "scenery/data/art.png", ART[::-1]),
                  styles__gone_png=pin("scenery", "scenery/data/gone.png", ART))
    result = fetch(tmp_path / "home", lock=wanted)
    assert [p.name for p in result.home.rglob("*.*") if p.suffix in (".jpg", ".png")] == ["street.jpg"]
    assert "has no scenery/data/gone.png" in result.notes[0]
    assert "scenery/data/art.png is not the pinned file" in result.notes[1]


@pytest.mark.usefixtures("index")
def test_without_apt_the_rest_is_fetched_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = lock(photographs__street_jpg=pin("scenery", "scenery/data/street.jpg", STREET),
                  photographs__hill_jpg=pin("wallpapers", "usr/share/hill.jpg", ART))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    result = fetch(tmp_path / "home", lock=wanted)
    assert (result.files, result.new) == (1, 1)
    assert result.notes == ("wallpapers: comes from a Debian package, and this machine has no apt-get and dpkg-deb "
                            "(1 files left out)",)


def test_no_photograph_at_all_is_an_error_with_the_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wanted = lock(photographs__street_jpg=pin("scenery", "scenery/data/street.jpg", STREET))
    with pytest.raises(PhotographsError, match=r"no photograph could be fetched: scenery: .*failed"):
        fetch(tmp_path / "home", lock=wanted)


def package_of(folder: Path, content: bytes, mode: Callable[[tarfile.TarInfo], None]) -> Path:
    """A real .deb (ar archive of two tars) with usr/share/hill.jpg in it."""
    def tar(name: str, data: bytes, change: Callable[[tarfile.TarInfo], None]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    control = b"Package: wallpapers\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: x\n"
    members = [("debian-binary", b"2.0\n"), ("control.tar", tar("./control", control, lambda _: None)),
               ("data.tar", tar("./usr/share/hill.jpg", content, mode))]
    parts = [b"!<arch>\n"]
    for name, data in members:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
        parts.append(header.encode() + data + b"\n" * (len(data) % 2))
    path = folder / "wallpapers_1_all.deb"
    path.write_bytes(b"".join(parts))
    return path


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `apt-get` that copies the package of this folder, in front of the real `dpkg-deb`."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb on this machine")
    folder = tmp_path / "apt"
    folder.mkdir()
    script = folder / "apt-get"
    script.write_text(f'#!/bin/sh\n[ "$1" = download ] && cp {folder}/*.deb .\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_a_debian_package_is_read_without_installing_it(tmp_path: Path, apt: Path) -> None:
    package_of(apt, STREET, lambda _: None)
    wanted = lock(photographs__hill_jpg=pin("wallpapers", "usr/share/hill.jpg", STREET))
    result = fetch(tmp_path / "home", lock=wanted)
    assert (result.new, result.notes) == (1, ())
    assert (result.home / "photographs/hill.jpg").read_bytes() == STREET


def test_a_link_in_a_package_is_no_file(tmp_path: Path, apt: Path) -> None:
    def as_link(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0

    package_of(apt, b"", as_link)
    wanted = lock(photographs__hill_jpg=pin("wallpapers", "usr/share/hill.jpg", STREET))
    with pytest.raises(PhotographsError, match=r"has no usr/share/hill\.jpg"):
        fetch(tmp_path / "home", lock=wanted)


@pytest.mark.parametrize("name", ["photographs/../x.jpg", "photographs/A.jpg", "photographs/a b.jpg", "elsewhere/a.jpg",
                                  "photographs/.hidden"])
def test_names_are_plain_and_stay_inside(name: str) -> None:
    with pytest.raises(ConfigError):
        validate(Lock, {"carriers": {}, "files": {name: pin("scenery", "m", STREET)}}, "test")


def test_the_packaged_lock_and_manifest_name_the_same_photographs() -> None:
    packaged = read_lock()
    assert {file.carrier for file in packaged.files.values()} == set(packaged.carriers)
    plain = yaml.safe_load((CONFIG_ROOT / "data" / "photographs.yaml").read_text())
    manifest = validate(Manifest, plain, "photographs.yaml")
    names = [f"photographs/{entry.file}" for entry in manifest.photographs]
    assert sorted(names) == sorted(name for name in packaged.files if name.startswith("photographs/"))
    assert len(names) >= 40 and all(entry.licence and entry.source_url and entry.text for entry in manifest.photographs)
    cutouts = yaml.safe_load((CONFIG_ROOT / "data" / "donors.yaml").read_text())["cutouts"]
    assert sorted(f"cutouts/{entry['file']}" for entry in cutouts) == sorted(
        name for name in packaged.files if name.startswith("cutouts/"))


def test_the_quickstart_config_reads_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITFOUNDRY_CACHE", str(tmp_path))
    config = load_config(RunConfig, "data/quickstart.yaml")
    assert cache_root() == tmp_path and photographs_home() == tmp_path / "photographs"
    assert config.ingest.sources[0].path == str(tmp_path / "photographs" / "photographs")
    locked = read_lock().files
    for style in config.catalogue.styles:
        assert str(style.path.relative_to(photographs_home())) in locked
    assert not any((photographs_home() / name).exists() for name in locked)


def test_a_complete_home_is_recognised_quickly(tmp_path: Path) -> None:
    """Counts the work instead of the time: no child process is started when nothing is missing."""
    wanted = lock(photographs__street_jpg=pin("scenery", "scenery/data/street.jpg", STREET))
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs/street.jpg").write_bytes(STREET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started a process"))
        assert fetch(tmp_path, lock=wanted).files == 1
