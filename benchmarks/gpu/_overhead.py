"""A stage through the runner and its local executor, against a bare loop that calls the same model on the same files.

Both read a JPEG, decode it and detect. The runner also reads ahead, writes a row per picture and commits every shard.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from _measure import spread
from _subjects import VOCABULARY, Bench, detector

from editfoundry.core.config import Config
from editfoundry.core.geometry import resize
from editfoundry.core.images import decode, encode_jpeg
from editfoundry.core.progress import Advance
from editfoundry.data_engine import runner
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.sources import IngestConfig, SourceSpec
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.models.protocols import Image
from editfoundry.models.registry import ModelSpec


class Row(Record):
    """A picture, and what was found in it."""

    id: str
    found: tuple[tuple[str, float], ...] = ()


class FindConfig(Config):
    """side: of the picture that the worker warms its model up with."""

    side: int


class BenchmarkConfig(Config):
    """The part of RunConfig that the runner reads, and a section per stage."""

    seed: int = 0
    shard_size: int
    batch_timeout_s: float = 600
    models: dict[str, ModelSpec]
    ingest: IngestConfig
    find: FindConfig

    def shared(self) -> dict[str, object]:
        return {"shard_size": self.shard_size}


class List(Stage):
    """Takes every listed file in, as it is."""

    name: ClassVar[str] = "ingest"
    row: ClassVar[type[Record]] = Row

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [[Item(Row(id=item.record.id), {"original": Path(item.record.uri).read_bytes()})] for item in batch]


class Find(Stage):
    """Detects in every picture."""

    name: ClassVar[str] = "find"
    row: ClassVar[type[Record]] = Row
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("detector",)

    def setup(self, artifacts: Artifacts) -> None:
        super().setup(artifacts)
        find(self.models["detector"], blank(self.config.side))

    def prepare(self, item: Item) -> Item:
        item.pixels = [decode(item.blobs["original"])]
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [[Item(Row(id=item.record.id, found=find(self.models["detector"], item.pixels[0])))] for item in batch]


def blank(side: int) -> Image:
    """A picture that the model sees before time is taken."""
    return np.zeros((side, side, 3), np.uint8)


def find(model: Any, image: Image) -> tuple[tuple[str, float], ...]:
    """Labels and scores of what a detector finds."""
    return tuple((one.label, round(one.score, 4)) for one in model.detect(image, VOCABULARY))


class FirstBatch:
    """A progress bar that draws nothing and notes, for each stage, the time from its first batch to its end."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def bar(self, stage: str, total: int) -> Iterator[Advance]:
        del total
        first: list[float] = []

        def advance(count: int) -> None:
            del count
            first.append(first[0] if first else time.perf_counter())

        yield advance
        self.seconds[stage] = time.perf_counter() - first[0]


def overhead(bench: Bench, records: int, rounds: int) -> dict[str, Any]:
    """Seconds per picture both ways and their ratio, each as its spread over the rounds."""
    model = detector(bench)
    with tempfile.TemporaryDirectory(dir=bench.folder) as name:
        files = photographs(bench, Path(name) / "photographs", records)
        config = BenchmarkConfig(
            shard_size=max(1, records // 2),
            models={"detector": ModelSpec(name="grounding-dino", **model.options.model_dump(exclude_defaults=True))},
            ingest=IngestConfig(sources=(SourceSpec(path=str(files)),)),
            find=FindConfig(side=bench.side),
        )
        model.load()
        find(model, blank(bench.side))
        bare = [_timed(lambda: [find(model, decode(file.read_bytes())) for file in sorted(files.iterdir())])
                for _ in range(rounds)]  # fmt: skip
        ours = [_stage(config, Path(name) / f"run{number}") for number in range(rounds)]
    return {
        "records": records,
        "stage_s": spread([seconds / records for seconds in ours]),
        "bare_loop_s": spread([seconds / records for seconds in bare]),
        "ratio": spread([mine / theirs for mine, theirs in zip(ours, bare, strict=True)]),
    }


def photographs(bench: Bench, folder: Path, count: int) -> Path:
    """A folder of JPEGs."""
    folder.mkdir()
    [picture] = bench.photographs(1)
    for number in range(count):
        shifted = resize(picture[:, number % 16 :], bench.side, bench.side)
        (folder / f"{number:05d}.jpg").write_bytes(encode_jpeg(shifted, quality=92))
    return folder


def _stage(config: BenchmarkConfig, folder: Path) -> float:
    watch = FirstBatch()
    runner.run(config, folder, workers=1, stages=(List, Find), bar=watch.bar)
    return watch.seconds["find"]


def _timed(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started
