"""Finding pictures in many tars: each is looked through once, and only if it may hold what is wanted."""

from pathlib import Path

import import_data as tiny
import pytest

from editfoundry.core.errors import ImageError
from editfoundry.data_engine.imports import archives
from editfoundry.data_engine.imports.archives import Pictures
from editfoundry.data_engine.readers.tars import Archive, split_parts


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tars whose headers are read, in order."""
    names: list[str] = []
    read = Archive.members

    def counted(self: Archive) -> object:
        names.append(Path(self.name).name)
        return read(self)

    monkeypatch.setattr(Archive, "members", counted)
    return names


def pictures(folder: Path, tars: dict[str, list[str]], max_bytes: int = 1000) -> Pictures:
    """Tars of the given members, each holding its own path."""
    for name, members in tars.items():
        (folder / name).write_bytes(tiny.tar([(path, path.encode()) for path in members]))
    return Pictures(split_parts([str(folder / name) for name in tars]), max_bytes)


def test_a_tar_named_like_the_folder_is_tried_first_and_alone(tmp_path: Path, scanned: list[str]) -> None:
    found = pictures(tmp_path, {f"part{n}.tar": [f"part{n}/{k}/a.png" for k in range(3)] for n in range(5)})
    assert found.read("part3/1/a.png") == b"part3/1/a.png"
    assert found.read("./part3/2/a.png") == b"part3/2/a.png"
    assert scanned == ["part3.tar"]
    assert found.beside("part3/1/a.png", "part3/2/a.png")
    assert not found.beside("part3/1/a.png", "part3/1/mask.png")
    assert scanned == ["part3.tar"]


def test_folders_that_are_not_the_tars_names_are_learnt(tmp_path: Path, scanned: list[str]) -> None:
    tars = {f"t{n}.tar": [f"results_{n}/{k}.png" for k in range(3)] for n in range(4)}
    found = pictures(tmp_path, tars)
    assert found.read("results_2/0.png") == b"results_2/0.png"
    assert scanned == ["t0.tar", "t1.tar", "t2.tar"]
    for n in range(4):
        assert found.read(f"results_{n}/1.png") == f"results_{n}/1.png".encode()
    assert scanned == ["t0.tar", "t1.tar", "t2.tar", "t3.tar"]
    for path in ("results_1/9.png", "elsewhere/1.png"):
        with pytest.raises(ImageError, match="in none of the 4 tars") as missing:
            found.read(path)
        assert missing.value.reason == "missing_member"
    assert len(scanned) == 4


def test_only_a_few_indexes_are_held(tmp_path: Path, scanned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "INDEXES_IN_MEMORY", 2)
    found = pictures(tmp_path, {f"part{n}.tar": [f"part{n}/a.png"] for n in range(4)})
    for n in (0, 1, 2, 3, 0):
        assert found.read(f"part{n}/a.png") == f"part{n}/a.png".encode()
    assert scanned == [f"part{n}.tar" for n in (0, 1, 2, 3, 0)]
    found.close()


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../../b.png", "a\\b.png", "a\nb.png", "."])
def test_paths_that_could_lie_nowhere_are_refused(path: str, tmp_path: Path, scanned: list[str]) -> None:
    found = pictures(tmp_path, {"a.tar": ["a/b.png"]})
    with pytest.raises(ImageError) as refused:
        found.read(path)
    assert (refused.value.reason, scanned) == ("bad_path", [])


def test_links_and_giants_are_never_read(tmp_path: Path) -> None:
    link = bytearray(tiny.tar([("p/link.png", b"")]))
    link[156:157] = b"2"
    link[157:168] = b"/etc/passwd"
    link[148:156] = b" " * 8
    link[148:156] = f"{sum(link[:512]):06o}\0 ".encode()
    (tmp_path / "a.tar").write_bytes(link)
    (tmp_path / "b.tar").write_bytes(tiny.tar([("p/large.png", b"12345")]))
    found = Pictures([[str(tmp_path / "a.tar")], [str(tmp_path / "b.tar")]], max_bytes=4)
    for path, reason in (("p/link.png", "unsafe_member"), ("p/large.png", "too_many_bytes")):
        with pytest.raises(ImageError) as refused:
            found.read(path)
        assert refused.value.reason == reason
