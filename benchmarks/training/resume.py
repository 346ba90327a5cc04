"""Resuming at a position: opening the shard index and the order, and getting the first global batch, beyond imports.

The index is synthetic, ten million rows of 10,000 shards, memory-mapped. Each time is of a new process after its
imports; "cold" has the kernel forget the files' pages first. The peer that ratios are against is the same job at
position 0: 1 is flat. torch's own sampler has to shuffle the epoch and walk to the place.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _measure import Case, Contender, arguments, measure, report, timed

from editfoundry.core.hashing import canonical_json
from editfoundry.data_engine.taxonomy import TYPES
from editfoundry.training.config import DataConfig, DatasetSpec
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.index import FORMAT, INDEX, ROW, ROWS, open_index
from editfoundry.training.data.order import Order
from editfoundry.training.data.tables import MEMBERS

PER_SHARD, CHUNK = 1000, 1_000_000
SIDES = np.array(
    [
        (1024, 1024),
        (1152, 896),
        (896, 1152),
        (1216, 832),
        (832, 1216),
        (1344, 768),
        (768, 1344),
        (1184, 880),
        (880, 1184),
        (1440, 720),
    ]
)
DATA = DataConfig(datasets=(DatasetSpec(path="synthetic"),), size=512, types={"style": 0.5, "add": 1.5})


def write_index(folder: Path, rows: int) -> None:
    """An index of `rows` samples of the photographs' usual shapes and of all edit types."""
    folder.mkdir()
    types = sorted(TYPES)
    random = np.random.default_rng(0)
    with (folder / ROWS).open("xb") as file:
        for first in range(0, rows, CHUNK):
            part = np.zeros(min(CHUNK, rows - first), ROW)
            numbers = first + np.arange(len(part))
            part["shard"], part["parent"] = numbers // PER_SHARD, -1
            part["type"] = random.integers(0, len(types), len(part))
            sides = SIDES[random.integers(0, len(SIDES), len(part))]
            part["width"], part["height"] = sides[:, 0], sides[:, 1]
            part["caption"] = random.integers(20, 200, len(part))
            for place, member in enumerate(MEMBERS):
                there = (part["type"] == types.index("visual")) | (member != "reference")
                part[f"{member}_offset"] = np.where(there, numbers % PER_SHARD * 500_000 + 512 + place * 100_000, 0)
                part[f"{member}_length"] = np.where(there, 90_000, 0)
            file.write(part.tobytes())
    shards = [[0, f"train-{number:06d}.tar", PER_SHARD * 500_000] for number in range(-(-rows // PER_SHARD))]
    content = {
        "format": FORMAT,
        "digest": f"{rows:016d}",
        "split": "train",
        "rows": rows,
        "types": types,
        "datasets": ["synthetic"],
        "manifests": [""],
        "shards": shards,
    }
    (folder / INDEX).write_text(canonical_json(content), encoding="utf-8")


def first_batch(folder: Path, global_batch: int, position: int) -> int:
    """The whole job. Returns the first row of the batch, read from the index."""
    index = open_index(folder)
    order = Order(index, Buckets(DATA.size, DATA.aspect_ratios), DATA, global_batch, 0, folder)
    _, rows = order.batch(position)
    return int(index.rows[rows]["shard"][0])


def resume(folder: Path, global_batch: int, position: int, cold: bool) -> Contender:
    """The job in a process of its own, which says how long it took after its imports."""

    def contender() -> float:
        if cold:
            forget(folder)
        arguments = [sys.executable, __file__, "--child", str(folder), str(global_batch), str(position)]
        return float(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)

    return contender


def forget(folder: Path) -> None:
    """Have the kernel drop what it holds of the folder's files."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def walk(rows: int, samples: int) -> int:
    """What resuming costs with torch's sampler: shuffle the epoch and skip what was seen of it."""
    import torch
    from torch.utils.data import RandomSampler

    sampler = RandomSampler(range(rows), generator=torch.Generator().manual_seed(0))
    return next(islice(iter(sampler), samples % rows, None))


def child(folder: str, global_batch: str, position: str) -> None:
    started = time.perf_counter()
    first_batch(Path(folder), int(global_batch), int(position))
    print(time.perf_counter() - started)


def cases(folder: Path, rows: int, global_batch: int, positions: Sequence[int], cold: bool) -> list[Case]:
    kind = "cold" if cold else "warm"
    made = []
    for position in positions:
        peers = {"position 0": resume(folder, global_batch, 0, cold)}
        if not cold:
            peers["torch RandomSampler, walked"] = timed(lambda seen=position * global_batch: walk(rows, seen))
        made.append(Case(f"resume at {position:,}, {kind}", 1, resume(folder, global_batch, position, cold), peers))
    return made


def main() -> None:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--rows", type=int, default=10_000_000, help="samples in the index (default: %(default)s)")
    parser.add_argument("--global-batch", type=int, default=256, help="samples of a batch (default: %(default)s)")
    parser.add_argument("--positions", type=int, nargs="+", default=[1_000, 30_000, 1_000_000, 1_000_000_000])
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "index"
        write_index(folder, options.rows)
        started = time.perf_counter()
        first_batch(folder, options.global_batch, 0)
        sorting = time.perf_counter() - started
        results: list[dict[str, Any]] = []
        for cold in (False, True):
            for case in cases(folder, options.rows, options.global_batch, options.positions, cold):
                results += measure(case, options.rounds)
        facts = {
            "seconds to sort the rows into groups, once per run": round(sorting, 2),
            "slowest resume, seconds": max(result["ours_seconds"]["max"] for result in results),
            "bytes of the index and the order": sum(path.stat().st_size for path in folder.iterdir()),
        }
    report(
        options.json,
        "training/resume",
        rounds=options.rounds,
        packages=("numpy", "torch"),
        results=results,
        facts=facts,
        data={"rows": options.rows, "global_batch": options.global_batch},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
