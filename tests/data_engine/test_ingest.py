"""Listing, manifests, identity, split, grid, zones and duplicates."""

import os
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from source_stages import config, duplicate_groups, ingest

from editfoundry.core.config import validate
from editfoundry.core.errors import ConfigError
from editfoundry.core.images import hash_distance
from editfoundry.data_engine.sources import IngestConfig, SourceFile, SourceSpec, clean_text, list_sources
from editfoundry.data_engine.stages.duplicates import _close_pairs
from editfoundry.data_engine.stages.ingest import split_of


def noise(seed: int, width: int = 320, height: int = 240) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 10, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def save(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def listed(*specs: SourceSpec) -> list[SourceFile]:
    return list_sources(IngestConfig(sources=specs))


def names(sources: list[SourceFile]) -> list[str]:
    return [Path(source.uri).name for source in sources]


def test_order_is_by_bytes_and_hidden_entries_are_skipped(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.jpg", "é.jpg", "Z.jpg", ".hidden.jpg", "sub/c.txt", ".git/x.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names(listed(SourceSpec(path=str(tmp_path)))) == ["Z.jpg", "a.jpg", "b.jpg", "c.txt", "é.jpg"]
    assert names(listed(SourceSpec(path=str(tmp_path), recursive=False))) == ["Z.jpg", "a.jpg", "b.jpg", "é.jpg"]


def test_each_real_file_counts_once(tmp_path: Path) -> None:
    save(tmp_path / "a.png", noise(1))
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    (tmp_path / "loop").symlink_to(tmp_path)
    specs = (SourceSpec(path=str(tmp_path)), SourceSpec(path=str(tmp_path / "*.png")))
    assert names(listed(*specs)) == ["a.png"]


def test_missing_paths_and_empty_globs_are_configuration_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        listed(SourceSpec(path=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="no file matches"):
        listed(SourceSpec(path=str(tmp_path / "*.jpg")))


def test_links_in_a_circle_are_sources_that_become_rejects(tmp_path: Path) -> None:
    for name, target in (("a", "b"), ("b", "a"), ("self.jpg", "self.jpg")):
        (tmp_path / name).symlink_to(target)
    assert names(listed(SourceSpec(path=str(tmp_path)))) == ["a", "b", "self.jpg"]
    items, rejects = ingest(tmp_path)
    assert not items
    assert [reject.reason for reject in rejects] == ["unreadable"] * 3
    assert all("Too many levels of symbolic links" in reject.detail for reject in rejects)


def test_a_run_inside_its_sources_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.png", noise(1))
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "driver.jsonl").write_text("")
    sources = IngestConfig(sources=(SourceSpec(path=str(tmp_path)),))
    with pytest.raises(ConfigError, match=r"driver\.jsonl belongs to the run itself"):
        list_sources(sources, tmp_path / "run")
    assert names(list_sources(sources, tmp_path / "elsewhere")) == ["a.png", "driver.jsonl"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop its uid")
def test_a_folder_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    for folder in takewhile(lambda path: path != Path(gettempdir()), (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            listed(SourceSpec(path=str(tmp_path)))
        except ConfigError as error:
            os._exit("closed: the folder cannot be read: Permission denied" not in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_identity_follows_the_file_and_its_metadata(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", noise(1))
    (before,) = listed(SourceSpec(path=str(tmp_path)))
    identity = before.identity()
    assert identity == listed(SourceSpec(path=str(tmp_path)))[0].identity()
    assert identity != listed(SourceSpec(path=str(tmp_path), licence="CC0"))[0].identity()
    path.write_bytes(path.read_bytes() + b"\0")
    assert identity != before.identity()


MANIFEST = """
only_listed: {only}
photographs:
  - file: a.png
    licence: CC0
    text: "A cup\\n${{oc.env:HOME}} on\\u0007 a\\u202e table"
    zones: [{{kind: surface, box: [0.0, 0.5, 0.5, 1.0], width_m: 0.8}}]
  - {{file: missing.png}}
"""


def with_manifest(folder: Path, only: bool) -> SourceSpec:
    save(folder / "a.png", noise(1))
    save(folder / "b.png", noise(2))
    (folder / "list.yaml").write_text(MANIFEST.format(only=str(only).lower()))
    return SourceSpec(path=str(folder), manifest=str(folder / "list.yaml"), licence="unknown", source_url="local")


def test_manifest_gives_metadata_and_is_no_source(tmp_path: Path) -> None:
    everything = listed(with_manifest(tmp_path, only=False))
    assert names(everything) == ["a.png", "b.png", "missing.png"]
    first, second, _ = everything
    assert (first.licence, first.source_url) == ("CC0", "local")
    assert (second.licence, second.text) == ("unknown", "")
    assert first.text == "A cup ${oc.env:HOME} on a table"
    assert names(listed(with_manifest(tmp_path, only=True))) == ["a.png", "missing.png"]


def test_listed_file_that_is_missing_is_a_reject_and_zones_land_on_the_grid(tmp_path: Path) -> None:
    spec = with_manifest(tmp_path, only=True)
    items, rejects = ingest(tmp_path, ingest={"sources": [spec.model_dump()]})
    assert [reject.reason for reject in rejects] == ["missing_file"]
    (zone,) = items[0].record.zones
    assert (zone.kind, zone.box, zone.width_m, zone.origin) == ("surface", (0.0, 120.0, 160.0, 240.0), 0.8, "manifest")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"file": "../secret.jpg"}, "without"),
        ({"file": "/etc/passwd"}, "without"),
        ({"file": "a\0.png"}, "without"),
        ({"file": "a.png", "zones": [{"kind": "sky", "box": [0, 0, 1, float("inf")], "width_m": 1}]}, "finite"),
        ({"file": "a.png", "zones": [{"kind": "sky", "box": [0, 0, 1], "width_m": 1}]}, "box"),
        ({"file": "a.png", "zones": [{"kind": "sky", "box": [0.5, 0, 0.2, 1], "width_m": 1}]}, "fractions"),
        ({"file": "a.png", "zones": [{"kind": "sky", "box": [0, 0, 1, 1], "width_m": float("nan")}]}, "width_m"),
        ({"file": "a.png", "license": "CC0"}, "did you mean"),
    ],
)
def test_bad_manifests_are_configuration_errors(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    save(tmp_path / "a.png", noise(1))
    (tmp_path / "list.yaml").write_text(yaml.safe_dump({"photographs": [entry]}))
    with pytest.raises(ConfigError, match=message):
        listed(SourceSpec(path=str(tmp_path), manifest=str(tmp_path / "list.yaml")))


@given(st.text(max_size=3000))
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    cleaned = clean_text(text)
    assert len(cleaned) <= 1000
    assert cleaned == clean_text(cleaned)
    assert all(char == " " or char.isprintable() or not char.isspace() for char in cleaned)
    assert "\n" not in cleaned and "\x00" not in cleaned and "\u202e" not in cleaned


def test_split_follows_content_and_seed() -> None:
    hashes = [f"{number:064x}" for number in range(4000)]
    splits = [split_of(digest, seed=1, val_fraction=0.1) for digest in hashes]
    assert 0.08 < splits.count("val") / len(splits) < 0.12
    assert splits == [split_of(digest, seed=1, val_fraction=0.1) for digest in hashes]
    assert splits != [split_of(digest, seed=2, val_fraction=0.1) for digest in hashes]
    assert all(split_of(digest, seed=1, val_fraction=0.0) == "train" for digest in hashes[:50])


def test_original_bytes_are_kept_and_grid_is_of_the_configured_area(tmp_path: Path) -> None:
    path = save(tmp_path / "big.png", noise(3, 1200, 800))
    (item,), _ = ingest(tmp_path)
    assert item.blobs == {"original": path.read_bytes()}
    width, height = item.record.grid
    assert width % 16 == height % 16 == 0
    assert 0.85 * 200_000 < width * height <= 1.1 * 200_000


def test_sizes_and_crops_are_one_group_and_the_largest_is_kept(tmp_path: Path) -> None:
    scene = noise(5, 1000, 700)
    save(tmp_path / "large.png", scene)
    save(tmp_path / "small.png", scene.resize((500, 350)))
    save(tmp_path / "crop.png", scene.crop((150, 105, 1000, 700)))
    save(tmp_path / "other.png", noise(6, 900, 700))
    items, _ = ingest(tmp_path)
    (group,) = duplicate_groups(items)
    assert Path(group["keeper_uri"]).name == "large.png"
    assert {Path(uri).name for uri in group["uris"]} == {"large.png", "small.png", "crop.png"}
    (plain,) = duplicate_groups(items, duplicates={"crops": False})
    assert {Path(uri).name for uri in plain["uris"]} == {"large.png", "small.png"}


def test_same_content_keeps_the_smallest_uri(tmp_path: Path) -> None:
    data = BytesIO()
    noise(1).save(data, "PNG")
    for name in ("z.png", "a.png"):
        (tmp_path / name).write_bytes(data.getvalue())
    items, _ = ingest(tmp_path)
    (group,) = duplicate_groups(items)
    assert Path(group["keeper_uri"]).name == "a.png"
    assert group["sha256s"] == [items[0].record.sha256]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(0, 12), st.integers(0, 2**64 - 1))
def test_close_pairs_match_the_plain_comparison(hashes: list[int], distance: int, flips: int) -> None:
    near = [value ^ (flips & (1 << index % 64)) for index, value in enumerate(hashes)]
    array = np.array(hashes + near, np.uint64)
    expected = {
        (a, b)
        for a in range(len(array))
        for b in range(a + 1, len(array))
        if hash_distance(f"{int(array[a]):016x}", f"{int(array[b]):016x}") <= distance
    }
    assert set(_close_pairs(array, distance)) == expected


def test_configuration_errors_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sources"):
        validate(IngestConfig, {"sources": []}, "file.yaml")
    assert config(tmp_path).ingest.sources[0].path == os.fspath(tmp_path)
