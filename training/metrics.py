"""What a run measured: one JSON line per row in RUN/metrics.jsonl, the same numbers to accelerate's trackers.

The file is the record: the report reads it, and a resumed run goes on with it. Trackers are views of it. Only rank 0
writes.
"""

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import canonical_json
from editfoundry.core.images import decode
from editfoundry.training.rundir import METRICS

if TYPE_CHECKING:
    from accelerate import Accelerator

TRACKERS = "trackers"
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Row(BaseModel):
    """A row of an older or a newer version may have other keys besides."""

    model_config = ConfigDict(frozen=True)


class StepRow(_Row):
    """What every optimiser step measures, over all ranks.

    loss: null where it was not finite. samples: those that counted. tokens: of all of their sequences. data_wait: share
    of `seconds` spent waiting for data.
    """

    step: int = Field(ge=0)
    epoch: Number
    loss: Number | None
    lr: Number
    grad_norm: Number | None
    samples: int
    tokens: int
    skipped_step: bool = False
    seconds: Number
    data_wait: Number
    samples_per_s: Number
    tokens_per_s: Number
    peak_memory_bytes: int | None = None


class TrainRow(StepRow):
    """One optimiser step of an editor's training.

    loss: weighted squared error per image token. loss_by_sigma: by bin, `0.0-0.2`. mean_weight: of the edit mask.
    tokens: text, visual and image ones. problems: what was wrong with the samples that were left out. flops: analytic,
    of this step. mfu: of the GPUs' peak, null where that is unknown.
    """

    kind: Literal["train"]
    mean_weight: Number | None = None
    loss_by_sigma: dict[str, Number | None] = {}
    loss_by_type: dict[str, Number | None] = {}
    skipped_samples: int = 0
    problems: list[str] = []
    flops: Number | None = None
    mfu: Number | None = None


class ValidationRow(_Row):
    """One validation: the loss at fixed noise levels, beside the loss of an edit that gives its input back.

    averaged: with the averaged weights. edited_area_error: of generated edits against the target, on the edited area,
    and identity_area_error that of the unchanged input. grid: path of a picture, relative to the run.
    """

    kind: Literal["validation"]
    step: int = Field(ge=0)
    split: str
    samples: int
    loss: Number | None
    identity_loss: Number | None
    loss_by_sigma: dict[str, Number | None] = {}
    loss_by_type: dict[str, Number | None] = {}
    identity_by_type: dict[str, Number | None] = {}
    averaged: bool
    seconds: Number
    edited_area_error: Number | None = None
    identity_area_error: Number | None = None
    grid: str | None = None


class JudgeRow(StepRow):
    """One optimiser step of a judge's training.

    loss: the weighted sum of `loss_by_head`, each per unit of its weight; a head that had nothing in the step is not
    there. samples: judged edits and comparisons.
    """

    kind: Literal["judge"]
    loss_by_head: dict[str, Number | None] = {}


class HeadReport(_Row):
    """How a head's scores agree with the given ones on photographs kept apart.

    spearman: of the overall scores, with its 95% interval (bootstrap by photograph); null where it is not defined.
    spearman_by_dimension: by the dimension's place in its section. exact, within_one: share of scores that are the
    same, or at most 1 apart, once rounded. error: mean absolute one.
    """

    spearman: Number | None
    low: Number | None
    high: Number | None
    spearman_by_dimension: dict[str, Number | None] = {}
    exact: Number
    within_one: Number
    error: Number


class JudgeValidationRow(_Row):
    """One validation of a judge.

    heads: `expected` (read in the mode `chained`) and `regression`, those that are trained. preference: share of
    comparisons answered as given.
    """

    kind: Literal["judge_validation"]
    step: int = Field(ge=0)
    samples: int
    heads: dict[str, HeadReport]
    preference: Number | None = None
    averaged: bool
    seconds: Number


Row = TrainRow | ValidationRow | JudgeRow | JudgeValidationRow
_ROW: TypeAdapter[Row] = TypeAdapter(Annotated[Row, Field(discriminator="kind")])


class Metrics:
    """The writer of a run's metrics.

    `accelerator` was made with `log_with=names` and `project_dir=RUN/trackers`; its trackers open at the first row.
    Raises UsageError naming a tracker that is not installed (accelerate itself leaves it out without a word).
    """

    def __init__(self, run: Path, accelerator: "Accelerator", names: Sequence[str]) -> None:
        available = {str(tracker) for tracker in accelerator.log_with}
        if missing := [name for name in names if name not in available]:
            raise UsageError(
                f"trackers: {', '.join(missing)} cannot be imported; install it with "
                f"`pip install {' '.join(missing)}`, or leave it out with `--set trackers=[]`"
            )
        self.run = run
        self._accelerator = accelerator

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        """Append a row (keys as in `TrainRow` or `ValidationRow`, without `step`), and tell the trackers.

        A number that is not finite is written as null: JSON has none.
        """
        if not self._accelerator.is_main_process:
            return
        plain = {**_finite(row), "step": step}
        with (self.run / METRICS).open("ab") as file:
            file.write(canonical_json(plain).encode() + b"\n")
        if not self._accelerator.trackers:
            self._open(step)
        kind = plain["kind"]
        self._accelerator.log({f"{kind}/{name}": value for name, value in numbers(plain) if name != "step"}, step=step)
        if plain.get("grid"):
            self._picture(f"{kind}/grid", self.run / plain["grid"], step)

    def truncate(self, step: int) -> None:
        """Drop the rows after `step`, and the half of a line that a killed run left. Reads only what it drops."""
        file = self.run / METRICS
        if not self._accelerator.is_main_process or not file.is_file() or not file.stat().st_size:
            return
        with file.open("r+b") as opened:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
                end = text.rfind(b"\n") + 1
                while end:
                    start = text.rfind(b"\n", 0, end - 1) + 1
                    if _parse(text[start:end], f"{file}: the line at byte {start}").step <= step:
                        break
                    end = start
            opened.truncate(end)

    def close(self) -> None:
        """Let the trackers write what they hold back."""
        for tracker in self._accelerator.trackers:
            tracker.finish()

    def _open(self, step: int) -> None:
        """Open the trackers; what an earlier attempt told TensorBoard of this step and later ones is hidden."""
        self._accelerator.init_trackers(
            self.run.resolve().name,
            init_kwargs={
                "tensorboard": {"purge_step": step},
                "wandb": {"name": self.run.resolve().name, "dir": str(self.run / TRACKERS)},
                "trackio": {"name": self.run.resolve().name, "resume": "allow"},
            },
        )

    def _picture(self, name: str, file: Path, step: int) -> None:
        """Show a picture in the trackers that take pictures."""
        pixels = decode(file.read_bytes())[None]
        for tracker in self._accelerator.trackers:
            if hasattr(tracker, "log_images"):
                options = {"dataformats": "NHWC"} if tracker.name == "tensorboard" else {}
                tracker.log_images({name: pixels}, step=step, **options)


def read_metrics(run: Path) -> Iterator[Row]:
    """The rows of a run, oldest first; a last line without its end (a row being written) is left out.

    Raises UsageError when the run has no metrics, EditFoundryError naming a damaged line.
    """
    file = run / METRICS
    if not file.is_file():
        raise UsageError(
            f"{run}: has no {METRICS}; is it the folder of a training run, and has a first step been made?"
        )
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):
                yield _parse(line, f"{file}: line {number}")


def numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """(name, number) of every number in a row; names of nested ones are joined with `/`. True is 1."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (bool, int, float)):
            yield prefix + name, float(value)


def _parse(line: bytes, where: str) -> Row:
    try:
        return _ROW.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][1:])
        raise EditFoundryError(
            f"{where} is damaged ({key + ': ' if key else ''}{first['msg']}); "
            "delete that line, or take the file from a copy of the run"
        ) from error


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
