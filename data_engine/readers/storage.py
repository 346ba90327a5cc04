"""Files on any file system: plain paths on the local disk, and `scheme://…` URLs through fsspec.

Paths without a scheme (or with `file://`) never go through fsspec. What a file *says* is never opened: only addresses
from the configuration come here.
"""

import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import fsspec
from braceexpand import braceexpand

from editfoundry.core.errors import ImageError, UsageError

MAX_PARTS = 1_000_000
_STATES = ("ETag", "etag", "md5Hash", "content_md5", "sha", "blob_id", "checksum", "mtime", "LastModified",
           "last_modified", "updated", "created")  # fmt: skip


class ContainerError(ImageError):
    """A tar, table or file that cannot be read. As an ImageError it makes a reject of what it should have held.

    Reasons: `missing_file`, `unreadable`, `damaged_tar`, `truncated_tar`, `compressed_tar`, `unsafe_member`,
    `damaged_table`, `bad_record`.
    """


@dataclass(frozen=True)
class Remote:
    """A file behind a URL with the parts of `Path` that reading needs: `name` and `open("rb")`."""

    url: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open it for reading. Raises ContainerError."""
        assert mode == "rb", "remote files are only read"
        return open_input(self.url)


File = Path | Remote


def is_remote(url: str) -> bool:
    """Whether the address goes through fsspec: it has a scheme other than `file`."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme != "file" and scheme.replace("::", "").replace("+", "").isalnum()


def local_path(url: str) -> Path:
    """The path of a local address."""
    return Path(unquote(url.removeprefix("file://")) if url.startswith("file://") else url)


def open_input(url: str) -> BinaryIO:
    """A seekable binary stream of the file. Raises ContainerError `missing_file` or `unreadable`, and UsageError for

    a scheme that no installed package serves.
    """
    with storage_errors(url):
        if is_remote(url):
            system, path = file_system(url)
            return cast(BinaryIO, system.open(path, "rb"))
        return local_path(url).open("rb")


def size(url: str) -> int:
    """Bytes of the file. Raises ContainerError."""
    with storage_errors(url):
        if not is_remote(url):
            return local_path(url).stat().st_size
        system, path = file_system(url)
        return int(system.size(path))


def identity(url: str) -> str:
    """A short text that changes when the file does: size and modification time, or what the store says (ETag, hash).

    A file that is not there has the identity of its error, so listing goes on and reading makes the reject.
    """
    if not is_remote(url):
        try:
            status = local_path(url).stat()
        except OSError as error:
            return f"errno {error.errno}"
        return f"{status.st_mode}:{status.st_size}:{status.st_mtime_ns}"
    system, path = file_system(url)
    try:
        with storage_errors(url):
            return info_identity(system.info(path))
    except ContainerError as error:
        return error.reason


def info_identity(info: dict[str, Any]) -> str:
    """The identity of what fsspec's `info`, or a listing with details, says of a file."""
    states = [f"{name}={info[name]}" for name in _STATES if info.get(name) is not None]
    return ":".join([str(info.get("size")), *states])


def expand(pattern: str) -> list[str]:
    """The addresses that a path, glob or brace pattern (`{000..012}`, `{a,b}`) names, in the order of their bytes.

    A local path that exists as it is spelt is taken so. Raises UsageError for a part without a match.
    """
    if not is_remote(pattern) and os.path.lexists(local_path(pattern)):
        return [pattern]
    found = {url for part in _braces(pattern) for url in _matches(part)}
    return sorted(found, key=os.fsencode)


def is_folder(url: str) -> bool:
    """Whether the address is a folder. Raises ContainerError when the store does not answer."""
    if not is_remote(url):
        return local_path(url).is_dir()
    system, path = file_system(url)
    with storage_errors(url):
        return bool(system.isdir(path))


def join(folder: str, name: str) -> str:
    """The address of a name in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)  # noqa: PTH118


def names(folder: str) -> list[str]:
    """The names directly inside a folder, in the order of their bytes. Raises ContainerError."""
    with storage_errors(folder):
        if not is_remote(folder):
            return sorted(os.listdir(local_path(folder)), key=os.fsencode)  # noqa: PTH208
        system, path = file_system(folder)
        return sorted((entry.rstrip("/").rsplit("/", 1)[-1] for entry in system.ls(path, detail=False)),
                      key=os.fsencode)  # fmt: skip


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path in it. Raises UsageError for a scheme that nothing serves."""
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        scheme = url.partition("://")[0]
        raise UsageError(f"{url}: nothing installed reads {scheme}:// ({' '.join(str(error).split())})") from error
    return system, str(path)


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turn whatever a file system raises into a ContainerError that names the address.

    Stores behind fsspec document no closed set of exceptions, so all are taken here, and only around calls into them.
    """
    try:
        yield
    except (ImageError, UsageError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise ContainerError("missing_file", f"{url}: there is no such file") from error
    except OSError as error:
        raise ContainerError("unreadable", f"{url}: {error.strerror or error}") from error
    except Exception as error:
        raise ContainerError("unreadable", f"{url}: {type(error).__name__}: {error}") from error


def _braces(pattern: str) -> list[str]:
    try:
        parts = list(itertools.islice(braceexpand(pattern, escape=False), MAX_PARTS + 1))
    except ValueError as error:
        raise UsageError(f"{pattern}: {error}") from error
    if len(parts) > MAX_PARTS:
        raise UsageError(f"{pattern}: names more than {MAX_PARTS} files")
    return parts


def _matches(part: str) -> list[str]:
    magic = glob.has_magic(part)
    if is_remote(part):
        system, path = file_system(part)
        with storage_errors(part):
            found = [str(system.unstrip_protocol(match)) for match in system.glob(path)] if magic else []
            found = found or ([part] if not magic and system.exists(path) else [])
    else:
        # Path.glob takes no absolute pattern.
        found = glob.glob(os.fspath(local_path(part)), recursive=True) if magic else []  # noqa: PTH207
        found = found or ([part] if not magic and os.path.lexists(local_path(part)) else [])
    if not found:
        what = "no file matches this pattern" if magic else "no such file or folder"
        where = "" if is_remote(part) else f"; paths are relative to {Path.cwd()}"
        raise UsageError(f"{part}: {what}{where}")
    return found


def files_below(folder: str, suffixes: Sequence[str]) -> list[str]:
    """The files at any depth of a folder whose names end so and do not start with a dot, in the order of their bytes.

    Raises ContainerError when a folder cannot be read.
    """
    with storage_errors(folder):
        if is_remote(folder):
            system, path = file_system(folder)
            found = [str(system.unstrip_protocol(name)) for name in system.find(path)]
        else:
            walked = os.walk(local_path(folder), onerror=_raise)
            found = [os.path.join(place, name) for place, _, names_there in walked for name in names_there]  # noqa: PTH118
    wanted = [url for url in found if url.endswith(tuple(suffixes)) and not url.rsplit("/", 1)[-1].startswith(".")]
    return sorted(wanted, key=os.fsencode)


def _raise(error: OSError) -> None:
    raise error
