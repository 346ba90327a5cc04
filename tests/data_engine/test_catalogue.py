"""The catalogue: what becomes a donor, in which order, with which split; and what is refused with a clear error."""

from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from editfoundry.core.config import CONFIG_ROOT, validate
from editfoundry.core.errors import ConfigError, ImageError
from editfoundry.core.images import decode_rgba
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.cutouts import tight_cutout
from editfoundry.data_engine.records import Region, Source, Zone
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.catalogue import Catalogue, CutoutLabels
from editfoundry.data_engine.stages.ingest import split_of


def disc(colour: tuple[int, int, int], side: int = 120, radius: int = 40) -> np.ndarray:
    y, x = np.mgrid[:side, :side] - side // 2
    rgba = np.zeros((side, side, 4), np.uint8)
    rgba[np.hypot(x, y) <= radius] = (*colour, 255)
    return rgba


def png(array: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def label(file: str, **fields: Any) -> dict[str, Any]:
    return {"file": file, "label": file.removesuffix(".png"), "zones": ["surface"], "height_m": 0.1, **fields}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in (("apple", (200, 30, 30)), ("lemon", (220, 210, 40)), ("lime", (90, 200, 60))):
        (tmp_path / f"{name}.png").write_bytes(png(disc(colour)))
    (tmp_path / "waves.png").write_bytes(png(np.full((64, 64, 3), 90, np.uint8)))
    write_labels(tmp_path, [label("apple.png", colour="red"), label("lemon.png"), label("lime.png")])
    return tmp_path


def write_labels(folder: Path, labels: list[dict[str, Any]]) -> None:
    (folder / "labels.yaml").write_text(yaml.safe_dump({"cutouts": labels}))


def stage(folder: Path, val_fraction: float = 0.1, **catalogue: Any) -> Catalogue:
    section = {"cutouts": [{"path": str(folder), "labels": str(folder / "labels.yaml"), "licence": "CC0-1.0",
                            "source_url": "https://example.org/fruit"}],
               "styles": [{"path": str(folder / "waves.png"), "name": "gray waves"}], **catalogue}
    return Catalogue(validate(RunConfig, {"ingest": {"sources": [{"path": "x"}]}, "catalogue": section,
                                          "val_fraction": val_fraction}, "test"))


def gather(catalogue: Catalogue, *sources: Source) -> list[Item]:
    def rows(name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        assert name == "qualify"
        yield from ((index // 2, source.model_dump(mode="json")) for index, source in enumerate(sources))

    return list(catalogue.gather(rows))


def photograph(letter: str, **fields: Any) -> Source:
    ground = Zone(kind="ground", box=(0, 100, 300, 200), width_m=4, origin="manifest")
    defaults = {"id": letter * 16, "sha256": letter * 64, "uri": f"{letter}.jpg", "grid": (320, 240),
                "zones": (ground,), "text": "A quiet street, seen from a bridge.", "split": "val",
                "licence": "CC-BY-2.0"}
    return Source.model_validate({**defaults, **fields})


def test_donors_are_ordered_by_content_and_carry_what_the_labels_say(folder: Path) -> None:
    items = gather(stage(folder))
    hashes = [item.record.sha256 for item in items]
    assert hashes == sorted(hashes) and len(items) == 4
    apple = next(item for item in items if item.record.label == "apple")
    assert apple.record.sha256 == sha256((folder / "apple.png").read_bytes()).hexdigest()
    expected = {"kind": "cutout", "width": 81, "height": 81, "height_m": 0.1, "zones": ("surface",), "colour": "red",
                "licence": "CC0-1.0", "source_url": "https://example.org/fruit"}
    assert {key: getattr(apple.record, key) for key in expected} == expected


def test_a_cut_out_is_stored_tight_and_a_style_as_it_is(folder: Path) -> None:
    items = {item.record.label: item for item in gather(stage(folder))}
    stored = decode_rgba(items["lemon"].blobs["original"])
    assert np.array_equal(stored, disc((220, 210, 40))[20:101, 20:101])
    assert items["gray waves"].blobs["original"] == (folder / "waves.png").read_bytes()
    assert (items["gray waves"].record.width, items["gray waves"].record.height) == (64, 64)


def test_the_split_follows_the_content_as_for_sources(folder: Path) -> None:
    for item in gather(stage(folder, val_fraction=0.5)):
        assert item.record.split == split_of(item.record.sha256, 0, 0.5)
    assert {item.record.split for item in gather(stage(folder, val_fraction=0.0))} == {"train"}


def test_a_fit_photograph_becomes_a_background_and_keeps_its_split(folder: Path) -> None:
    items = gather(stage(folder), photograph("a"), photograph("b"), photograph("c"))
    backgrounds = [item for item in items if item.record.kind == "background"]
    assert [(b.record.source_id, b.record.shard, b.record.split) for b in backgrounds] == [
        ("a" * 16, 0, "val"), ("b" * 16, 0, "val"), ("c" * 16, 1, "val")]
    assert backgrounds[0].record.label == "a quiet street" and not backgrounds[0].blobs
    assert backgrounds[0].record.licence == "CC-BY-2.0"


PEOPLE = [Region(id=str(n), label="person", kind="object", box=(0, 0, 50, 50), detector="t", detector_score=1)
          for n in range(2)]


@pytest.mark.parametrize("fields", [{"faces": 1}, {"has_text": True}, {"zones": ()}, {"text": ""}, {"kind": "frames"},
                                    {"regions": PEOPLE}])
def test_other_photographs_do_not(folder: Path, fields: dict[str, Any]) -> None:
    items = gather(stage(folder), photograph("a", **fields))
    assert all(item.record.kind != "background" for item in items)


def test_backgrounds_can_be_turned_off(folder: Path) -> None:
    assert len(gather(stage(folder, backgrounds=False), photograph("a"))) == 4


def test_equal_content_is_one_donor(folder: Path) -> None:
    (folder / "again.png").write_bytes((folder / "apple.png").read_bytes())
    write_labels(folder, [label("apple.png"), label("again.png")])
    assert [item.record.label for item in gather(stage(folder)) if item.record.kind == "cutout"] == ["apple"]


def test_other_pixels_or_labels_are_other_settings(folder: Path) -> None:
    before = stage(folder).settings()
    assert stage(folder).settings() == before
    (folder / "apple.png").write_bytes(png(disc((10, 30, 30))))
    repainted = stage(folder).settings()
    assert repainted != before
    write_labels(folder, [label("apple.png", height_m=0.2)])
    assert stage(folder).settings() not in (before, repainted)


def test_a_missing_file_is_an_error_unless_only_present_ones_are_wanted(folder: Path) -> None:
    (folder / "lime.png").unlink()
    with pytest.raises(ConfigError, match=r"lime\.png: no such file"):
        gather(stage(folder))
    assert sorted(item.record.label for item in gather(stage(folder, only_present=True))) == [
        "apple", "gray waves", "lemon"]


@pytest.mark.parametrize("name", ["../apple.png", "/etc/passwd", ""])
def test_labels_cannot_point_outside_the_folder(folder: Path, name: str) -> None:
    write_labels(folder, [label("apple.png") | {"file": name}])
    with pytest.raises(ConfigError, match="relative to the folder"):
        stage(folder).settings()


def test_an_unusable_cut_out_is_an_error_that_names_file_and_reason(folder: Path) -> None:
    (folder / "apple.png").write_bytes(png(np.full((100, 100, 3), 90, np.uint8)))
    with pytest.raises(ConfigError, match=r"apple\.png: no_alpha"):
        gather(stage(folder))
    (folder / "apple.png").write_bytes(b"not a picture")
    with pytest.raises(ConfigError, match=r"apple\.png: not_an_image"):
        gather(stage(folder))


@pytest.mark.parametrize(("rgba", "reason"), [
    (np.full((80, 80, 4), 255, np.uint8), "no_alpha"),
    (np.zeros((80, 80, 4), np.uint8), "empty_cutout"),
    (disc((1, 2, 3)) // (1, 1, 1, 3), "soft_cutout"),
    (disc((1, 2, 3), radius=20), "small_cutout"),
])
def test_reasons(rgba: np.ndarray, reason: str) -> None:
    with pytest.raises(ImageError) as caught:
        tight_cutout(rgba.astype(np.uint8), min_side=60)
    assert caught.value.reason == reason


def test_specks_are_not_part_of_the_object() -> None:
    rgba = disc((200, 100, 50))
    rgba[2:5, 110:113] = 255
    assert tight_cutout(rgba).shape == (81, 81, 4)


def test_the_packaged_labels_are_valid_and_distinct() -> None:
    plain = yaml.safe_load((CONFIG_ROOT / "data" / "donors.yaml").read_text())
    labels = validate(CutoutLabels, plain, "donors.yaml").cutouts
    assert len(labels) >= 110
    assert len({entry.file for entry in labels}) == len({entry.label for entry in labels}) == len(labels)
    assert all(entry.label[0].islower() or entry.label.split()[0] in
               ("Magellanic", "American", "British", "Christmas", "Volkswagen") for entry in labels)
