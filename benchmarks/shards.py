"""Tar shards against tarfile, webdataset and plain files: writing members, and reading them in order and at random.

Every writer ends with an fsync. Ours also hashes what it writes (the commit record needs the sha256), which one floor
does too.
"""

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import webdataset
from _measure import Case, arguments, measure, report, timed

from editfoundry.data_engine.shards import Span, TarWriter, read_member

SIZES = {"source.jpg": 120_000, "result.jpg": 120_000, "mask.png": 4_000, "json": 2_000}
Member = tuple[str, bytes]


def members(samples: int) -> list[Member]:
    """Members the size of a real dataset's, with incompressible content, the same on every call."""
    rng = np.random.default_rng(0)
    return [(f"{number:08d}.{name}", rng.bytes(int(size * rng.uniform(0.6, 1.4))))
            for number in range(samples) for name, size in SIZES.items()]


@contextmanager
def durable(path: Path) -> Iterator[IO[bytes]]:
    """A new file, flushed to the disk at the end."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_ours(path: Path, content: Sequence[Member]) -> list[Span]:
    path.unlink(missing_ok=True)
    writer = TarWriter(path)
    spans = [writer.add(name, data) for name, data in content]
    writer.close()
    assert len(writer.sha256) == 64
    return spans


def write_tarfile(path: Path, content: Sequence[Member]) -> None:
    with durable(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in content:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def write_webdataset(path: Path, content: Sequence[Member]) -> None:
    with durable(path) as file, webdataset.TarWriter(file, encoder=False, mtime=0.0) as tar:
        for start in range(0, len(content), len(SIZES)):
            group = content[start:start + len(SIZES)]
            key = group[0][0].partition(".")[0]
            tar.write({"__key__": key, **{name.partition(".")[2]: data for name, data in group}})


def write_raw(path: Path, content: Sequence[Member], hashed: bool) -> None:
    digest = hashlib.sha256()
    with durable(path) as file:
        for _, data in content:
            file.write(data)
            if hashed:
                digest.update(data)


def read_with_tarfile(tar: tarfile.TarFile, names: Sequence[str]) -> int:
    total = 0
    for name in names:
        file = tar.extractfile(name)
        assert file is not None
        total += len(file.read())
    return total


def stream_with_tarfile(path: Path) -> int:
    with tarfile.open(path) as tar:
        return sum(len(file.read()) for info in tar if (file := tar.extractfile(info)) is not None)


def stream_with_webdataset(path: Path) -> int:
    dataset = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    return sum(len(value) for sample in dataset for name, value in sample.items() if not name.startswith("__"))


def preads(path: Path, spans: Sequence[Span]) -> int:
    with path.open("rb") as file:
        return sum(len(os.pread(file.fileno(), length, offset)) for offset, length in spans)


def write_case(folder: Path, content: Sequence[Member]) -> Case:
    writers: dict[str, Callable[[Path], object]] = {
        "tarfile": lambda path: write_tarfile(path, content),
        "webdataset.TarWriter": lambda path: write_webdataset(path, content),
        "floor: one plain file, hashed": lambda path: write_raw(path, content, hashed=True),
        "floor: one plain file": lambda path: write_raw(path, content, hashed=False),
    }

    def contender(name: str, writer: Callable[[Path], object]) -> Callable[[], float]:
        path = folder / f"{name.replace(' ', '_').replace(':', '')}.tar"
        return timed(lambda: writer(path))

    return Case("write a shard", len(content), contender("ours", lambda path: write_ours(path, content)),
                {name: contender(name, writer) for name, writer in writers.items()})


def read_cases(path: Path, content: Sequence[Member], spans: Sequence[Span], opened: tarfile.TarFile) -> list[Case]:
    """opened: the same tar with tarfile's index already made, as ours is (it lies in the Parquet index)."""
    order = np.random.default_rng(1).permutation(len(content)).tolist()
    shuffled = [spans[number] for number in order]
    names = [content[number][0] for number in order]

    def ours(chosen: Sequence[Span]) -> int:
        return sum(len(read_member(path, span)) for span in chosen)

    expected = sum(len(data) for _, data in content)
    totals = (ours(spans), ours(shuffled), read_with_tarfile(opened, names), stream_with_tarfile(path),
              stream_with_webdataset(path), preads(path, spans))
    assert set(totals) == {expected}
    return [
        Case("read members at random", len(content), timed(lambda: ours(shuffled)),
             {"tarfile, index in memory": timed(lambda: read_with_tarfile(opened, names)),
              "floor: pread on one open file": timed(lambda: preads(path, shuffled))}),
        Case("read a shard in order", len(content), timed(lambda: ours(spans)),
             {"tarfile": timed(lambda: stream_with_tarfile(path)),
              "webdataset.WebDataset": timed(lambda: stream_with_webdataset(path)),
              "floor: pread on one open file": timed(lambda: preads(path, spans))}),
    ]


def main() -> None:
    parser = arguments("Write and read tar shards with editfoundry, tarfile and webdataset.", rounds=9)
    parser.add_argument("--samples", type=int, default=250, help="samples of four members (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    options = parser.parse_args()
    content = members(options.samples)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        results: list[dict[str, Any]] = measure(write_case(folder, content), options.rounds)
        path = folder / "read.tar"
        spans = write_ours(path, content)
        with tarfile.open(path) as opened:
            opened.getmembers()
            for case in read_cases(path, content, spans, opened):
                results += measure(case, options.rounds)
    data = {"members": len(content), "bytes": sum(len(data) for _, data in content)}
    report(options.json, "shards", rounds=options.rounds, data=data, results=results, packages=("webdataset", "numpy"))


if __name__ == "__main__":
    main()
