"""Files of their own: folders, globs and manifests on the local disk, or on any store that fsspec reaches.

Rules, so that every directory entry is accounted for:
- Every entry is a source, whatever its name: what it is gets decided by content, and what cannot be used becomes a
  reject. Entries whose name starts with a dot, and the manifests themselves, are skipped.
- A folder is descended into (unless `recursive` is off, then sub-folders are skipped). A folder named like an image or
  video (`x.jpg/`) is listed as well, as its name promises a source, and becomes a `not_a_file` reject.
- Symbolic links count as what they point to; a file or folder reached twice counts once, under its first name. A link
  that leads nowhere or in a circle is a source that becomes a reject.
- A folder that cannot be read is an error.
- On a store there are no links, and folders are what its paths say; the rest holds there too.
"""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from editfoundry.core.config import find_config, read_yaml, validate
from editfoundry.core.errors import ConfigError
from editfoundry.core.hashing import sha256
from editfoundry.data_engine.layouts.base import Block, Found, Layout, Opened, Single
from editfoundry.data_engine.readers.storage import file_system, info_identity, is_remote, local_path, storage_errors
from editfoundry.data_engine.source_spec import (
    SUFFIXES,
    Locator,
    Manifest,
    ManifestEntry,
    SourceFile,
    SourceSpec,
    encoded,
    uri_of,
)


class Files(Layout):
    """One source a file. Photographs and videos are read by ingest itself, by path or as a stream."""

    format = "files"

    def blocks(self) -> Iterator[Block]:
        manifest, manifest_path = _read_manifest(self.spec)
        entries = {entry.file if is_remote(self.spec.path) else str(Path(entry.file)): entry
                   for entry in manifest.photographs}  # fmt: skip
        if is_remote(self.spec.path):
            yield from self._remote(manifest, entries)
            return
        for root in _roots(self.spec):
            folder = root if root.is_dir() and not _looks_like_source(root) else root.parent
            paths = set() if manifest.only_listed else set(_walk(root, self.spec.recursive, []))
            # A listed file that is missing is a source too: reading it gives the reject that says so.
            paths |= {folder / file for file in entries if root in (folder, folder / file)}
            for path in paths:
                if real_path(path) != manifest_path:
                    yield self._block(os.fspath(path), entries.get(str(path.relative_to(folder))))

    def read(self, locator: Locator, opened: Opened, max_bytes: int) -> Found:
        raise TypeError("ingest reads files of their own itself, since videos are read as streams")

    def _remote(self, manifest: Manifest, entries: Mapping[str, ManifestEntry]) -> Iterator[Block]:
        folder, found = _remote_files(self.spec)
        urls = {} if manifest.only_listed else dict(found)
        for file in entries:
            urls.setdefault(f"{folder}/{file}", found.get(f"{folder}/{file}", {}))
        for url, info in urls.items():
            entry = entries.get(url.removeprefix(f"{folder}/"))
            yield self._block(url, entry, info_identity(info) if info else "missing")

    def _block(self, address: str, entry: ManifestEntry | None, state: str = "") -> Block:
        raw = os.fsencode(address)
        spec = self.spec
        source = SourceFile(
            id=sha256(raw)[:16],
            uri=uri_of(address),
            path=encoded(address),
            licence=spec.licence if entry is None or entry.licence is None else entry.licence,
            source_url=spec.source_url if entry is None or entry.source_url is None else entry.source_url,
            text="" if entry is None else entry.text,
            zones=() if entry is None else entry.zones,
            spec=self.number,
            state=state,
        )
        return Single(source, raw, address)


def _remote_files(spec: SourceSpec) -> tuple[str, dict[str, dict[str, Any]]]:
    """The folder's URL, and what the store says of every file in it (or of the files a glob names), by URL."""
    system, path = file_system(spec.path)
    root = path.rstrip("/")
    with storage_errors(spec.path):
        if glob.has_magic(root):
            found = system.glob(root, detail=True)
            root = root[: next(at for at, char in enumerate(root) if char in "*?[")].rpartition("/")[0]
        elif system.isdir(root):
            found = system.find(root, maxdepth=None if spec.recursive else 1, detail=True)
        else:
            found = {root: system.info(root)} if system.exists(root) else {}
            root = root.rpartition("/")[0]
    files = {name: info for name, info in found.items() if info.get("type") != "directory" and not _hidden(name, root)}
    if not files:
        raise ConfigError(f"ingest.sources: {spec.path}: there is no file; check the address")
    return system.unstrip_protocol(root), {system.unstrip_protocol(name): info for name, info in files.items()}


def _hidden(name: str, root: str) -> bool:
    inside = name.removeprefix(root) if root else name
    return any(part.startswith(".") for part in inside.split("/"))


def _roots(spec: SourceSpec) -> list[Path]:
    path = os.fspath(local_path(spec.path))
    if os.path.lexists(path):
        return [Path(path)]
    # Path.glob takes no absolute pattern.
    matches = sorted(glob.glob(path, recursive=spec.recursive), key=os.fsencode)  # noqa: PTH207
    if not matches:
        what = "no file matches this pattern" if glob.has_magic(path) else "no such file or folder"
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
    here = real_path(path)
    if here in above or (above and not recursive):
        return
    try:
        names = os.listdir(path)  # noqa: PTH208
    except OSError as error:
        raise ConfigError(f"ingest.sources: {path}: the folder cannot be read: {error.strerror}") from error
    for name in sorted(names, key=os.fsencode):
        if not name.startswith("."):
            yield from _walk(path / name, recursive, [*above, here])


def real_path(path: Path) -> Path:
    """Where a path really is; as it stands, for links in a circle, which Path.resolve refuses."""
    return Path(os.path.realpath(path))


def _read_manifest(spec: SourceSpec) -> tuple[Manifest, Path | None]:
    """The manifest (empty without one) and its real path. Its text is untrusted: no interpolation happens."""
    if spec.manifest is None:
        return Manifest(), None
    file = find_config(spec.manifest)
    plain = read_yaml(file)
    return validate(Manifest, {} if plain is None else plain, where=str(file)), file.resolve()
