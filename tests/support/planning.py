"""Planning in tests: a catalogue in memory, sources with real objects, and a writer that answers by script."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from editfoundry.core.config import validate
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.records import Caption, Donor, Region, Reject, Sample, Source, Zone
from editfoundry.data_engine.stages.base import Artifacts, Item
from editfoundry.data_engine.stages.instruct import Instruct
from editfoundry.models.protocols import Brief, Unanswered, Written

THINGS = {
    "rooster": "brown", "ball": "red", "crate": "green", "mug": "blue", "stone": "gray", "black cat": "black",
    "goose": "white", "lemon": "yellow",
}  # fmt: skip


class Library(Artifacts):
    """A catalogue in memory: the far side of the stage."""

    def __init__(self, donors: list[Donor]) -> None:
        self.donors = donors

    def rows(self, stage: str) -> Iterator[dict[str, Any]]:
        assert stage == "catalogue"
        return iter([d.model_dump(mode="json") for d in self.donors])

    def blob(self, stage: str, shard: int, record_id: str, member: str) -> bytes:
        raise AssertionError("planning reads no pixels")


def donors(split: str = "train") -> list[Donor]:
    return [
        Donor(
            sha256=f"{split[0]}{i}".rjust(64, "0"),
            kind="cutout",
            label=label,
            zones=("surface",),
            height_m=0.2,
            width=160,
            height=160,
            colour=colour,
            split=split,
        )
        for i, (label, colour) in enumerate(THINGS.items())
    ]


def source(index: int = 0, **changes: Any) -> Source:
    base = Source(
        id=f"{index:016x}",
        sha256=f"{index:064x}",
        uri=f"{index}.jpg",
        grid=(640, 448),
        zones=(Zone(kind="surface", box=(10, 220, 630, 440), width_m=1.2, origin="manifest"),),
    )
    return base.model_copy(update=changes)


def config(**instruct: Any) -> RunConfig:
    return validate(RunConfig, {"ingest": {"sources": [{"path": "photos"}]}, "instruct": instruct}, "test")


def planned(of: Source, donor_list: list[Donor] | None = None, **instruct: Any) -> list[Item | Reject]:
    stage = Instruct(config(**instruct))
    stage.setup(Library(donors() if donor_list is None else donor_list))
    return stage.process([Item(of)])[0]


def samples(outcome: list[Item | Reject]) -> list[Sample]:
    return [part.record for part in outcome if isinstance(part, Item)]


QUIET: dict[str, Any] = {"donor_rates": {}, "photograph_rates": {}, "conversation_rates": {}}
"""Rates under which nothing is planned; tests add what they ask for."""


def real(index: int, label: str, box: tuple[float, float, float, float]) -> Region:
    """A qualified object of the photograph, a third of whose box it fills."""
    area = (box[2] - box[0]) * (box[3] - box[1]) / 3 / (640 * 448)
    return Region(
        id=f"r{index}",
        label=label,
        kind="object",
        box=box,
        area=area,
        detector="ssd",
        detector_score=0.9,
        qualified=True,
    )


CUP, CAR, PERSON = (
    real(0, "cup", (20, 20, 120, 120)),
    real(1, "car", (420, 30, 620, 210)),
    real(2, "person", (240, 60, 300, 200)),
)


def photograph(index: int = 0, regions: Sequence[Region] = (CUP, CAR), **changes: Any) -> Source:
    """A source on whose own objects generated edits can be planned."""
    caption = Caption(text="A cup stands on a table before a car.", summary="a cup and a car on a street")
    return source(index, regions=tuple(regions), caption=caption, **changes)


class ScriptedWriter:
    """An `InstructionWriter` that answers each brief by a function and keeps every call's briefs."""

    name = "scripted"

    def __init__(self, answer: Callable[[Brief], Any]) -> None:
        self.answer, self.calls = answer, list[list[Brief]]()

    def digest(self) -> str:
        return "scripted"

    def load(self) -> None:
        pass

    def write(self, briefs: Sequence[Brief]) -> list[Written | Unanswered]:
        self.calls.append(list(briefs))
        return [self.answer(brief) for brief in briefs]


def echo(brief: Brief) -> Written:
    """The reply of a writer that repeats the plan."""
    results = tuple(turn.result if turn.open_result else "" for turn in brief.turns)
    return Written(tuple(turn.draft for turn in brief.turns), results, brief.premise)


def written(
    writer: Any, sources: Sequence[Source], donor_list: list[Donor] | None = None, **instruct: Any
) -> list[list[Item | Reject]]:
    """What instruct makes of a batch of sources with this writer."""
    stage = Instruct(config(**(QUIET | instruct)))
    stage.setup(Library(donors() if donor_list is None else donor_list))
    stage.models["writer"] = writer
    return stage.process([Item(one) for one in sources])


def only_sample(outcome: list[Item | Reject]) -> Sample:
    """The one sample of an outcome."""
    (sample,) = samples(outcome)
    return sample


def rejects(outcome: list[Item | Reject]) -> list[Reject]:
    """The rejects of an outcome."""
    return [part for part in outcome if isinstance(part, Reject)]
