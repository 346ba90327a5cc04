"""A cheap pipeline of real stages over real records, for testing what runs stages. Importable by spawned workers.

Sources are text files `s<k>.txt` in a folder; their content says what happens to them:
`bad` (unusable image), `odd` (filtered), `crash` (the worker dies), `hang`, `raise` (an exception), `batch` (an
exception only in a batch with others), `full` (disk full), `missing` (model missing), `lost` (no outcome), `broken`
(bad graph), `once PATH` (the worker dies unless PATH exists).
"""

import errno
import hashlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import cv2
import pyarrow as pa
from PIL import Image
from pydantic import Field

from editfoundry.core.config import Config, load_config
from editfoundry.core.errors import ImageError, ModelMissing
from editfoundry.core.hashing import rng_for, sha256
from editfoundry.data_engine import runner
from editfoundry.data_engine.execution import Plan, Session, Task
from editfoundry.data_engine.ledger import Commit
from editfoundry.data_engine.records import Donor, Edge, Placement, Record, Reject, Sample, Source, Turn
from editfoundry.data_engine.rundir import State
from editfoundry.data_engine.stages.base import Artifacts, Barrier, Item, Outcome, Stage
from editfoundry.data_engine.stages.emit import Emit, EmitConfig


def _encoded(mode: str, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (16, 16)).save(buffer, kind)
    return buffer.getvalue()


JPEG, PNG = _encoded("RGB", "JPEG"), _encoded("L", "PNG")


class ToyIngestConfig(Config):
    folder: str


class ToyConfig(Config):
    """The part of RunConfig that the runner reads, and a section per toy stage."""

    seed: int = 0
    stack: str = "embedded"
    shard_size: int = 3
    batch_timeout_s: float = 60
    models: dict[str, str] = Field(default_factory=dict)
    ingest: ToyIngestConfig
    filter: Config = Config()
    catalogue: Config = Config()
    instruct: "ToyInstructConfig"
    render: Config = Config()
    emit: EmitConfig = EmitConfig()

    @property
    def made_by(self) -> str:
        return self.stack

    def shared(self) -> dict[str, object]:
        return {"seed": self.seed, "stack": self.stack, "shard_size": self.shard_size}


class ToyInstructConfig(Config):
    template: str = "Add a {donor} to the picture."


ToyConfig.model_rebuild()


class ToyFile(Record):
    id: str
    uri: str
    path: str

    def identity(self) -> dict[str, Any]:
        stat = Path(self.path).stat()
        return {"uri": self.uri, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def find(config: ToyIngestConfig) -> list[ToyFile]:
    """The folder's text files, in order of their names."""
    paths = sorted(Path(config.folder).glob("*.txt"))
    return [ToyFile(id=path.stem, uri=path.as_uri(), path=str(path)) for path in paths]


def _source(file: ToyFile, text: str) -> Source:
    digest = sha256(text)
    return Source(id=f"s_{digest[:12]}", sha256=digest, uri=file.uri, text=text, source_url=f"https://example.org/{file.id}",
                  licence="CC0-1.0", grid=(16, 16), split="val" if int(digest, 16) % 4 == 0 else "train")


class ToyIngest(Stage):
    name: ClassVar[str] = "ingest"
    row: ClassVar[type[Record]] = Source
    batch_size: ClassVar[int] = 2

    def prepare(self, item: Item) -> Item:
        text = Path(item.record.path).read_text()
        if text.startswith("bad"):
            raise ImageError("truncated_image", f"{item.record.uri}: ends early")
        return Item(item.record, {"photo.txt": text.encode()})

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [[Item(_source(item.record, item.blobs["photo.txt"].decode()), item.blobs)] for item in batch]


class ToyThreads(ToyIngest):
    """Reports, as its source's text, how many threads the libraries of this process use."""

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        counts = (os.environ["OMP_NUM_THREADS"], cv2.getNumThreads(), os.environ["PYTHONHASHSEED"], pa.cpu_count())
        return [[Item(_source(item.record, " ".join(map(str, counts))))] for item in batch]


class ToyUnstartable(ToyIngest):
    """Cannot be set up: raises, or dies when TOY_START says so."""

    def setup(self, artifacts: Artifacts) -> None:
        if os.environ["TOY_START"] == "die":
            os.kill(os.getpid(), 9)
        raise ZeroDivisionError("weights are odd")


class ToyFilter(Stage):
    """Turns odd sources away; does the other things the content asks for."""

    name: ClassVar[str] = "filter"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    batch_size: ClassVar[int] = 2

    def prepare(self, item: Item) -> Item:
        if item.record.text.startswith("crash in prepare"):
            os._exit(9)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        assert all(item.blobs["photo.txt"].decode() == item.record.text for item in batch)
        with self.meter.timed("text"):
            return [self._one(item, len(batch)) for item in batch]

    def _one(self, item: Item, companions: int) -> Outcome:
        match item.record.text.split()[0]:
            case "odd":
                self.meter.refuse("text")
                return [Reject(stage=self.name, id=item.record.id, reason="odd", source_sha256=item.record.sha256),
                        Reject(stage=self.name, id="r1", reason="tiny", unit="region")]
            case "crash":
                os.kill(os.getpid(), 11)
            case "hang":
                time.sleep(3600)
            case "raise":
                raise ZeroDivisionError("one is\nzero")
            case "batch" if companions > 1:
                raise ValueError("not in company")
            case "full":
                raise OSError(errno.ENOSPC, "No space left on device")
            case "missing":
                raise ModelMissing("toy.bin: not in the cache; run `editfoundry models pull`")
            case "lost":
                return []
            case "once":
                flag = Path(item.record.text.split()[1])
                if not flag.exists():
                    flag.touch()
                    os.kill(os.getpid(), 9)
        return [Item(item.record), Reject(stage=self.name, id="r2", reason="tiny", unit="region",
                                          source_sha256=item.record.sha256)]


class ToyCatalogue(Barrier):
    """Donors: two cut-outs of its own, and every fourth source as a background."""

    name: ClassVar[str] = "catalogue"
    row: ClassVar[type[Record]] = Donor
    reads: ClassVar[tuple[str, ...]] = ("filter",)

    def gather(self, rows: Callable[[str], Iterator[tuple[int, dict[str, Any]]]]) -> Iterator[Item | Reject]:
        for label in ("apple", "duck"):
            data = f"cutout of a {label}".encode()
            digest = hashlib.sha256(data).hexdigest()
            yield Item(Donor(sha256=digest, kind="cutout", label=label), {"png": data})
        yield Reject(stage=self.name, id="cutout_3", reason="not_an_image")
        for shard, row in rows("filter"):
            if int(row["sha256"], 16) % 4 == 1:
                yield Item(Donor(sha256=row["sha256"], kind="background", label="scene", shard=shard,
                                 source_id=row["id"]))


class ToyInstruct(Stage):
    """A single edit and a conversation of every source, each with donors drawn by seed."""

    name: ClassVar[str] = "instruct"
    row: ClassVar[type[Record]] = Sample
    artifacts: ClassVar[tuple[str, ...]] = ("catalogue",)
    batch_size: ClassVar[int] = 2

    def setup(self, artifacts: Artifacts) -> None:
        self.donors = [Donor.model_validate(row) for row in artifacts.rows("catalogue")]
        for donor in self.donors:
            if donor.kind == "background":
                assert sha256(artifacts.blob("ingest", donor.shard or 0, donor.source_id, "photo.txt")) == donor.sha256
            else:
                assert sha256(artifacts.blob("catalogue", 0, donor.sha256, "png")) == donor.sha256

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        kinds = ("single", "version_backtracking")
        return [[Item(self._sample(item.record, kind)) for kind in kinds] for item in batch]

    def _sample(self, source: Source, kind: Any) -> Sample:
        rng = rng_for(self.run.seed, source.id, kind)
        donor = self.donors[int(rng.integers(len(self.donors)))]
        parents = (0,) if kind == "single" else (0, 1, 1)
        turns = tuple(Turn(index=i, type="add", parent=parent, target="o1", target_label=donor.label,
                           instruction=self.config.template.format(donor=donor.label))
                      for i, parent in enumerate(parents, start=1))
        placement = Placement(object="o1", donor=donor.sha256, label=donor.label, box=(0, 0, 8, 8), zone="ground")
        return Sample(id=f"{source.id}_{kind[0]}", kind=kind, source=source, turns=turns, initial=(placement,),
                      donors=(donor.sha256,), split=source.split)


class ToyRender(Stage):
    """Nodes are one JPEG with a text behind it: the photograph's, and the instruction appended at every turn."""

    name: ClassVar[str] = "render"
    row: ClassVar[type[Record]] = Sample
    blobs: ClassVar[str] = "ingest"
    batch_size: ClassVar[int] = 4

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        time.sleep(float(os.environ.get("TOY_SLEEP", "0")))
        return [self._render(item.record, item.blobs["photo.txt"]) for item in batch]

    def _render(self, sample: Sample, photo: bytes) -> Outcome:
        nodes = [JPEG + photo]
        blobs = {"node0.jpg": nodes[0]}
        edges = []
        for turn in sample.turns:
            nodes.append(nodes[turn.parent] + f" | turn {turn.index}: {turn.instruction}".encode())
            blobs[f"node{turn.index}.jpg"], blobs[f"mask{turn.index}.png"] = nodes[-1], PNG
            broken = sample.source.text.startswith("broken") and turn.parent == 1
            edges.append(Edge(turn=turn.index, source_node=f"node{turn.parent}.jpg",
                              result_node=f"node{turn.index}.jpg",
                              source_sha256=sha256(nodes[0 if broken else turn.parent]), mask=f"mask{turn.index}.png",
                              result_sha256=sha256(nodes[-1]), mask_fraction=0.25,
                              gates={"outside_max": 0.0, "iou": 0.75, "detected": True, "note": None}))
        return [Item(sample.model_copy(update={"edges": tuple(edges)}), blobs)]


STAGES: tuple[type[Stage], ...] = (ToyIngest, ToyFilter, ToyCatalogue, ToyInstruct, ToyRender, Emit)


def config(folder: Path, **changes: Any) -> ToyConfig:
    """A configuration over the text files of `folder`."""
    return ToyConfig(ingest=ToyIngestConfig(folder=str(folder)),
                     **{"instruct": ToyInstructConfig(), **changes})


def run(folder: Path, path: Path, workers: int = 2, stages: Sequence[type[Stage]] = STAGES, **changes: Any,
        ) -> Path | None:
    """Run the toy pipeline over `folder` in `path`."""
    return runner.run(config(folder, **changes), path, workers=workers, stages=stages, find=find)


class InProcess:
    """An executor without processes, for tests of what is run rather than where."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []

    def execute(self, plan: Plan, tasks: Sequence[Task], advance: Callable[[int], None]) -> Iterator[Commit]:
        session = Session(plan)
        for task in tasks:
            self.ran.append((plan.stage.name, task.shard))
            commit = session.run(task, "here")
            advance(commit.inputs)
            yield commit

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def run_here(folder: Path, path: Path, stages: Sequence[type[Stage]] = STAGES, known: State | None = None,
             **changes: Any) -> list[tuple[str, int]]:
    """Run the toy pipeline without worker processes; returns the stages and shards that were run."""
    executor = InProcess()
    runner.run(config(folder, **changes), path, executor=executor, stages=stages, find=find, known=known)
    return executor.ran


def write_sources(folder: Path, count: int, special: dict[int, str] | None = None) -> Path:
    """`count` text files, those in `special` with that content; modification times are fixed."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"s{number:03d}.txt"
        path.write_text((special or {}).get(number, f"scene number {number}"))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return folder


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def main() -> None:
    """`python -c 'import toy_engine; toy_engine.main()' FOLDER RUN WORKERS`."""
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))


__all__ = ["ModelMissing", "Source", "load_config", "runner", "sha256"]
