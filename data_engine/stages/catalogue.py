"""The donor catalogue: cut-outs to place, pictures whose style to borrow, and photographs that can be backgrounds."""

from collections.abc import Callable, Iterator
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image as PillowImage
from pydantic import Field, field_validator

from editfoundry.core.config import Config, load_config
from editfoundry.core.errors import ConfigError, ImageError
from editfoundry.core.hashing import sha256
from editfoundry.core.images import decode_rgba, read_info
from editfoundry.data_engine.cutouts import tight_cutout
from editfoundry.data_engine.records import Donor, Record, Source, Split, ZoneKind
from editfoundry.data_engine.stages.base import Barrier, Item
from editfoundry.data_engine.stages.ingest import split_of
from editfoundry.models.protocols import Image

MAX_DONOR_PIXELS = 64_000_000
PLACES = ("ground", "water")


class CutoutLabel(Config):
    """What one cut-out shows. `height_m`: real metres from its lowest to its highest visible point."""

    file: str
    label: str = Field(min_length=1)
    category: str = ""
    zones: tuple[ZoneKind, ...] = Field(min_length=1)
    height_m: float = Field(gt=0, le=1000)
    colour: str = ""

    @field_validator("file")
    @classmethod
    def _inside(cls, value: str) -> str:
        if not value or "\0" in value or Path(value).is_absolute() or ".." in Path(value).parts:
            raise ValueError("a file is named relative to the folder of cut-outs, without '..'")
        return value


class CutoutLabels(Config):
    """The labels file beside a folder of cut-outs; what it does not name is not used."""

    cutouts: tuple[CutoutLabel, ...]


class CutoutSpec(Config):
    """A folder of RGBA cut-outs, and the labels file (or packaged config) that says what each one is."""

    path: Path
    labels: Path
    licence: str = "unknown"
    source_url: str = ""


class StyleSpec(Config):
    """A picture whose style can be borrowed; `name` is what an instruction calls it ("Van Gogh's Starry Night")."""

    path: Path
    name: str = Field(min_length=1)
    licence: str = "unknown"
    source_url: str = ""


class CatalogueConfig(Config):
    """Where donors come from.

    only_present: take the labelled cut-outs and styles that are there; otherwise a missing file is an error.
    min_cutout_side: long side in pixels that a cut-out needs. backgrounds: offer qualified photographs as backgrounds,
    if they show open ground or water, no face, no text and at most max_background_objects objects.
    """

    cutouts: tuple[CutoutSpec, ...] = ()
    styles: tuple[StyleSpec, ...] = ()
    only_present: bool = False
    min_cutout_side: int = Field(default=60, ge=1)
    backgrounds: bool = True
    max_background_objects: int = Field(default=0, ge=0)


class Catalogue(Barrier):
    """Gathers every donor of the run, ordered by content hash; equal content is one donor.

    Cut-outs (PNG of the object, tightly cropped) and styles (their own bytes) are stored as `original`; a background is
    only named by the shard and id of its source. A donor's split follows from its content, as a source's does.
    """

    name: ClassVar[str] = "catalogue"
    row: ClassVar[type[Record]] = Donor
    reads: ClassVar[tuple[str, ...]] = ("qualify",)
    config: CatalogueConfig

    def settings(self) -> dict[str, Any]:
        """The section, the labels, and the hash of every donor file: other pixels are another catalogue."""
        contents: list[Any] = [[label.model_dump(mode="json"), sha256(data)] for _, label, data in self._cutouts]
        contents += [[spec.name, sha256(data)] for spec, data in self._styles]
        return {**super().settings(), "contents": contents}

    def gather(self, rows: Callable[[str], Iterator[tuple[int, dict[str, Any]]]]) -> Iterator[Item]:
        donors: dict[str, Item] = {}
        for item in (*self._cutout_items(), *self._style_items()):
            donors.setdefault(item.record.sha256, item)
        if self.config.backgrounds:
            for shard, row in rows("qualify"):
                source = Source.model_validate(row)
                if self._is_background(source):
                    donors.setdefault(source.sha256, Item(_background(source, shard)))
        yield from (donors[digest] for digest in sorted(donors))

    def _cutout_items(self) -> Iterator[Item]:
        for spec, label, data in self._cutouts:
            try:
                rgba = tight_cutout(decode_rgba(data, max_pixels=MAX_DONOR_PIXELS), self.config.min_cutout_side)
            except ImageError as error:
                raise ConfigError(f"catalogue.cutouts: {spec.path / label.file}: {error.reason}: {error}; "
                                  f"mend the file, or remove it from {spec.labels}") from error
            digest = sha256(data)
            yield Item(
                Donor(sha256=digest, kind="cutout", label=label.label, category=label.category, zones=label.zones,
                      height_m=label.height_m, width=rgba.shape[1], height=rgba.shape[0], colour=label.colour,
                      licence=spec.licence, source_url=spec.source_url, split=self._split(digest)),
                {"original": _png(rgba)},
            )

    def _style_items(self) -> Iterator[Item]:
        for spec, data in self._styles:
            try:
                info = read_info(data, max_pixels=MAX_DONOR_PIXELS)
            except ImageError as error:
                raise ConfigError(f"catalogue.styles: {spec.path}: {error.reason}: {error}") from error
            digest = sha256(data)
            yield Item(
                Donor(sha256=digest, kind="style", label=spec.name, width=info.width, height=info.height,
                      licence=spec.licence, source_url=spec.source_url, split=self._split(digest)),
                {"original": data},
            )

    @cached_property
    def _cutouts(self) -> list[tuple[CutoutSpec, CutoutLabel, bytes]]:
        """Every labelled cut-out that is there, with its file's bytes."""
        return [(spec, label, data) for spec in self.config.cutouts
                for label in load_config(CutoutLabels, spec.labels).cutouts
                if (data := self._read(spec.path / label.file, f"catalogue.cutouts: {spec.labels}")) is not None]

    @cached_property
    def _styles(self) -> list[tuple[StyleSpec, bytes]]:
        return [(spec, data) for spec in self.config.styles
                if (data := self._read(spec.path, "catalogue.styles")) is not None]

    def _read(self, path: Path, where: str) -> bytes | None:
        """A donor's bytes; None for a missing file where the configuration allows that."""
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            if self.config.only_present:
                return None
            raise ConfigError(f"{where}: {path}: no such file; remove it there, or set catalogue.only_present"
                              ) from error
        except OSError as error:
            raise ConfigError(f"{where}: {path}: {error.strerror or error}") from error

    def _is_background(self, source: Source) -> bool:
        objects = sum(region.kind == "object" for region in source.regions)
        return (source.kind == "photograph" and not source.has_text and source.faces == 0
                and objects <= self.config.max_background_objects
                and any(zone.kind in PLACES for zone in source.zones) and bool(_phrase(source)))

    def _split(self, digest: str) -> Split:
        return split_of(digest, self.run.seed, self.run.val_fraction)


def _background(source: Source, shard: int) -> Donor:
    return Donor(sha256=source.sha256, kind="background", label=_phrase(source), width=source.grid[0],
                 height=source.grid[1], licence=source.licence, source_url=source.source_url, split=source.split,
                 shard=shard, source_id=source.id)


def _phrase(source: Source) -> str:
    """The scene as a noun phrase for an instruction: the first part of what is known of it, without the full stop."""
    text = source.text or (source.caption.summary if source.caption else "")
    phrase = text.split(". ")[0].split(",")[0].strip().rstrip(".")
    return phrase[:1].lower() + phrase[1:]


def _png(rgba: Image) -> bytes:
    buffer = BytesIO()
    PillowImage.fromarray(rgba, "RGBA").save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
