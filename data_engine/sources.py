"""Listing the sources of a run: files, folders, globs and manifests, in one order on every machine.

Rules, so that every directory entry is accounted for:
- Every entry is a source, whatever its name: what it is gets decided by content, and what cannot be used becomes a
  reject. Entries whose name starts with a dot, and the manifests themselves, are skipped.
- A folder is descended into (unless `recursive` is off, then sub-folders are skipped). A folder named like an image or
  video (`x.jpg/`) is listed as well, as its name promises a source, and becomes a `not_a_file` reject.
- Symbolic links count as what they point to; a file or folder reached twice counts once, under its first name. A link
  that leads nowhere or in a circle is a source that becomes a reject.
- A folder that cannot be read is an error, and so is one that holds the run itself: its files would become sources.
- Sources are ordered by the bytes of their uri: the path as the configuration spells it. Bytes that are not UTF-8 are
  shown as `\\xNN`, and a backslash as two, so different names never look the same.
"""

import glob
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic import AfterValidator, Field, field_validator, model_validator

from editfoundry.core.config import Config, find_config, read_yaml, validate
from editfoundry.core.errors import ConfigError
from editfoundry.core.hashing import sha256
from editfoundry.data_engine.records import BoxList, Record, ZoneKind
from editfoundry.data_engine.video import VideoConfig

SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".svg", ".avif", ".heic",
    ".avi", ".mp4", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".ogv", ".flv", ".wmv",
)  # fmt: skip
MAX_TEXT = 1000


def clean_text(text: str) -> str:
    """Untrusted text as one printable line of at most 1,000 characters: control and format characters become spaces."""
    printable = "".join(" " if unicodedata.category(char).startswith("C") else char for char in text)
    return " ".join(printable.split())[:MAX_TEXT].rstrip()


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


class SourceSpec(Config):
    """A file, folder or glob of sources, and what holds for all of them unless the manifest says otherwise."""

    path: str = Field(min_length=1)
    manifest: str | None = None
    licence: CleanText = "unknown"
    source_url: CleanText = ""
    recursive: bool = True


class IngestConfig(Config):
    """sources: where to look. max_pixels and max_bytes: larger photographs are rejected before decoding."""

    sources: tuple[SourceSpec, ...] = Field(min_length=1)
    max_pixels: int = Field(default=100_000_000, ge=1)
    max_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    video: VideoConfig = VideoConfig()


class SourceFile(Record):
    """One directory entry to ingest. `path` is percent-encoded, so that any name on disk survives JSON.

    The id follows from the uri; what content has, is only known once the file is read.
    """

    id: str
    uri: str
    path: str
    licence: str = "unknown"
    source_url: str = ""
    text: str = ""
    zones: tuple[ManifestZone, ...] = ()

    @property
    def file(self) -> Path:
        """Where the bytes are."""
        return Path(os.fsdecode(unquote_to_bytes(self.path)))

    def identity(self) -> str:
        """Changes when the entry's metadata, size or modification time does: what tells a re-run to read it again."""
        try:
            status = self.file.stat()
            state = f"{status.st_mode}:{status.st_size}:{status.st_mtime_ns}"
        except OSError as error:
            state = f"errno {error.errno}"
        return sha256(f"{self.to_json()}\n{state}")


def list_sources(config: IngestConfig, run: Path | None = None) -> list[SourceFile]:
    """Every source of the configuration, ordered by uri, each once. run: the folder of the run they are listed for.

    Raises ConfigError for a path that does not exist or cannot be read, a glob without a match, a bad manifest, or
    sources inside `run`.
    """
    found = [source for spec in config.sources for source in _list_spec(spec)]
    found.sort(key=lambda pair: os.fsencode(pair[0]))
    seen: set[Path] = set()
    listed: list[SourceFile] = []
    inside = run.resolve() if run else None
    for path, source in found:
        real = _real(path)
        if inside and real.is_relative_to(inside):
            raise ConfigError(f"ingest.sources: {source.uri} belongs to the run itself, {run}; choose a folder outside "
                              "of the sources for the run")
        if real not in seen:
            seen.add(real)
            listed.append(source)
    return listed


def _list_spec(spec: SourceSpec) -> Iterator[tuple[Path, SourceFile]]:
    manifest, manifest_path = _read_manifest(spec)
    entries = {Path(entry.file): entry for entry in manifest.photographs}
    for root in _roots(spec):
        folder = root if root.is_dir() and not _looks_like_source(root) else root.parent
        names = set() if manifest.only_listed else set(_walk(root, spec.recursive, []))
        # A listed file that is missing is a source too: reading it gives the reject that says so.
        names |= {folder / file for file in entries if root in (folder, folder / file)}
        for path in names:
            if _real(path) != manifest_path:
                yield path, _source(path, spec, entries.get(path.relative_to(folder)))


def _roots(spec: SourceSpec) -> list[Path]:
    if os.path.lexists(spec.path):
        return [Path(spec.path)]
    # Path.glob takes no absolute pattern.
    matches = sorted(glob.glob(spec.path, recursive=spec.recursive), key=os.fsencode)  # noqa: PTH207
    if not matches:
        what = "no file matches this pattern" if glob.has_magic(spec.path) else "no such file or folder"
        raise ConfigError(f"ingest.sources: {spec.path}: {what}; paths are relative to {Path.cwd()}")
    return [Path(match) for match in matches]


def _looks_like_source(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _walk(path: Path, recursive: bool, above: Sequence[Path]) -> Iterator[Path]:
    """Paths at and below `path`; `above` are the real folders on the way here, so that a link to one of them ends."""
    if not path.is_dir():
        yield path
        return
    if _looks_like_source(path):
        yield path
    real = _real(path)
    if real in above or (above and not recursive):
        return
    try:
        names = os.listdir(path)  # noqa: PTH208
    except OSError as error:
        raise ConfigError(f"ingest.sources: {path}: the folder cannot be read: {error.strerror}") from error
    for name in sorted(names, key=os.fsencode):
        if not name.startswith("."):
            yield from _walk(path / name, recursive, [*above, real])


def _real(path: Path) -> Path:
    """Where a path really is; as it stands, for links in a circle, which Path.resolve refuses."""
    return Path(os.path.realpath(path))


def _source(path: Path, spec: SourceSpec, entry: ManifestEntry | None) -> SourceFile:
    raw = os.fsencode(path)
    return SourceFile(
        id=sha256(raw)[:16],
        uri=raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"),
        path=quote_from_bytes(raw),
        licence=spec.licence if entry is None or entry.licence is None else entry.licence,
        source_url=spec.source_url if entry is None or entry.source_url is None else entry.source_url,
        text="" if entry is None else entry.text,
        zones=() if entry is None else entry.zones,
    )


def _read_manifest(spec: SourceSpec) -> tuple[Manifest, Path | None]:
    """The manifest (empty without one) and its real path. Its text is untrusted: no interpolation happens."""
    if spec.manifest is None:
        return Manifest(), None
    file = find_config(spec.manifest)
    plain = read_yaml(file)
    return validate(Manifest, {} if plain is None else plain, where=str(file)), file.resolve()
