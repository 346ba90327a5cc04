"""Where photographs come from: the configuration of sources and manifests, and what is listed of each photograph."""

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic import AfterValidator, Field, field_validator, model_validator

from editfoundry.core.config import Config
from editfoundry.core.hashing import sha256
from editfoundry.core.text import one_line
from editfoundry.data_engine.records import BoxList, Record, ZoneKind
from editfoundry.data_engine.video import VideoConfig

SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".svg", ".avif", ".heic",
    ".avi", ".mp4", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".ogv", ".flv", ".wmv",
)  # fmt: skip
MAX_TEXT = 1000


def clean_text(text: str) -> str:
    """Untrusted text as one printable line of at most 1,000 characters: control and format characters become spaces."""
    return one_line(text, MAX_TEXT)


CleanText = Annotated[str, AfterValidator(clean_text)]


class ManifestZone(Config):
    """A placement zone: box as fractions of the upright photograph's width and height, `width_m` metres across it."""

    kind: ZoneKind
    box: BoxList
    width_m: float = Field(gt=0, le=100_000, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        x0, y0, x1, y1 = self.box
        if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
            raise ValueError("a zone's box is [x0, y0, x1, y1] as fractions from 0 to 1 with x0 < x1 and y0 < y1")
        return self


class ManifestEntry(Config):
    """What is known of one photograph; `file` is relative to the source's folder. None: as the source says."""

    file: str
    licence: CleanText | None = None
    source_url: CleanText | None = None
    text: CleanText = ""
    zones: tuple[ManifestZone, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.file or "\0" in self.file or Path(self.file).is_absolute() or ".." in Path(self.file).parts:
            raise ValueError("a manifest's file is a path inside the source's folder, without '..'")
        return self


class Manifest(Config):
    """The YAML file beside a source. `only_listed`: take nothing that it does not name."""

    only_listed: bool = False
    photographs: tuple[ManifestEntry, ...] = ()

    @field_validator("photographs")
    @classmethod
    def _each_once(cls, value: tuple[ManifestEntry, ...]) -> tuple[ManifestEntry, ...]:
        counts = Counter(Path(entry.file) for entry in value)
        twice = next((path for path, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is listed twice")
        return value


Format = Literal["files", "auto", "webdataset", "img2dataset", "laion", "parquet", "imgedit-json"]
Role = Literal["image", "text", "licence", "url", "width", "height", "id"]
Span = tuple[int, int]

_ONLY = {
    "manifest": ("files",),
    "images": ("laion", "imgedit-json"),
    "check_hash": ("img2dataset", "laion"),
    "columns": ("webdataset", "parquet", "img2dataset", "laion"),
    "metadata": ("webdataset", "parquet", "img2dataset", "laion", "imgedit-json"),
}


class Limits(Config):
    """What a number of the metadata must be: `min` <= it <= `max`, and strictly `above` < it < `below`.

    ImgEdit's own filter compares strictly: `aesthetic: {above: 4.75}`.
    """

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if all(limit is None for limit in (self.min, self.max, self.above, self.below)):
            raise ValueError("a cut needs one of min, max, above, below")
        return self

    def problem(self, value: float) -> str:
        """What is wrong with a value, "" if nothing is."""
        checks = (
            (self.min is not None and value < self.min, f"is under {self.min}"),
            (self.max is not None and value > self.max, f"is over {self.max}"),
            (self.above is not None and value <= self.above, f"is not above {self.above}"),
            (self.below is not None and value >= self.below, f"is not below {self.below}"),
        )
        return next((words for fails, words in checks if fails), "")


class SourceSpec(Config):
    """Sources of one layout, and what holds for all of them unless the manifest or the data say otherwise.

    path: a file, folder, glob or brace pattern (`{000..012}`), on the local disk or any fsspec URL.
    format: the layout; `auto` tells tars, img2dataset folders and Parquet apart (`layouts.detect`), else say it.
    columns: which column (or sidecar of a WebDataset) holds what, where the names are not the usual ones.
    images: the photographs of layouts that keep them elsewhere: `laion` and `imgedit-json`.
    metadata: cuts by column, made before any pixel is read; `short_side` is the lesser of width and height.
    check_hash: compare img2dataset's hashes with the stored bytes. Off, since they are of the bytes as downloaded,
    which its re-encoding changes; outputs made with `--disable_all_reencoding` can be checked.
    """

    path: str = Field(min_length=1)
    format: Format = "files"
    manifest: str | None = None
    licence: CleanText = "unknown"
    source_url: CleanText = ""
    recursive: bool = True
    columns: dict[Role, str] = Field(default_factory=dict)
    images: str | None = Field(default=None, min_length=1)
    metadata: dict[str, Limits] = Field(default_factory=dict)
    check_hash: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, formats in _ONLY.items():
            if getattr(self, name) and self.format not in (*formats, "auto"):
                raise ValueError(f"{name} is for the format {' or '.join(formats)}, not for {self.format}")
        if self.format == "imgedit-json" and self.images is None:
            raise ValueError("the format imgedit-json needs `images`, the folder that its paths are relative to")
        return self


class IngestConfig(Config):
    """sources: where to look. max_pixels and max_bytes: larger photographs are rejected before decoding."""

    sources: tuple[SourceSpec, ...] = Field(min_length=1)
    max_pixels: int = Field(default=100_000_000, ge=1)
    max_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    video: VideoConfig = VideoConfig()


class Locator(Record):
    """Where a photograph lies in a container: a row of a table, or spans (offset, bytes) of a tar or JSON file.

    containers: addresses, percent-encoded so that any name survives JSON; the parts of a split tar are several.
    """

    containers: tuple[str, ...]
    row: int = -1
    spans: dict[str, Span] = Field(default_factory=dict)

    @property
    def urls(self) -> list[str]:
        """The containers' addresses."""
        return [decoded(container) for container in self.containers]


class SourceFile(Record):
    """One photograph or directory entry to ingest. `path` is percent-encoded, so that any name on disk survives JSON.

    The id follows from the uri; what content has, is only known once the file is read. spec: position of its
    `SourceSpec`. locator: where it lies in a container, None for a file of its own, or one that is refused. image: of a
    row of metadata, where its pixels are. state: identity of its container, or of a remote file, when it was listed.
    reason, detail: why it is refused already; reading it gives that reject.
    """

    id: str
    uri: str
    path: str = ""
    licence: str = "unknown"
    source_url: str = ""
    text: str = ""
    zones: tuple[ManifestZone, ...] = ()
    spec: int = 0
    format: Format = "files"
    locator: Locator | None = None
    image: Locator | None = None
    state: str = ""
    reason: str = ""
    detail: str = ""

    @property
    def address(self) -> str:
        """The path or URL of a file of its own."""
        return decoded(self.path)

    @property
    def file(self) -> Path:
        """Where the bytes of a local file are."""
        return Path(self.address)

    def identity(self) -> str:
        """Changes when the entry's metadata, size or modification time does: what tells a re-run to read it again.

        What lies in a container, or on a remote store, is not looked at again: its state was taken while listing.
        """
        if self.state or self.format != "files":
            return sha256(f"{self.to_json()}\n{self.state}")
        try:
            status = self.file.stat()
            state = f"{status.st_mode}:{status.st_size}:{status.st_mtime_ns}"
        except OSError as error:
            state = f"errno {error.errno}"
        return sha256(f"{self.to_json()}\n{state}")


def encoded(address: str) -> str:
    """An address or path, percent-encoded."""
    return quote_from_bytes(os.fsencode(address))


def decoded(text: str) -> str:
    """What `encoded` was given."""
    return os.fsdecode(unquote_to_bytes(text))


def uri_of(address: str) -> str:
    """How an address is shown: bytes that are not UTF-8 as `\\xNN`, and a backslash as two, so none look the same."""
    return os.fsencode(address).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def id_of(uri: str) -> str:
    """The id of what lies in a container, from its uri."""
    return sha256(uri.encode("utf-8", "backslashreplace"))[:16]
