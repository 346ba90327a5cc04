"""The numbers of a run by step, gathered in one streaming pass and in bounded memory, for charts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from editfoundry.core.errors import UsageError
from editfoundry.training.metrics import (
    JudgeValidationRow,
    StepRow,
    TrainRow,
    ValidationRow,
    numbers,
    read_metrics,
)

T = TypeVar("T", bound=StepRow)
V = TypeVar("V", ValidationRow, JudgeValidationRow)
MOST_POINTS = 240
MOST_PROBLEMS = 20


class Curve:
    """One number by step. At most twice `most` points stay of any count: each is the mean of `width` numbers."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self.most, self.width = most, 1
        self._sums: list[tuple[int, float, float]] = []  # count, sum of steps, sum of values

    def add(self, step: float, value: float) -> None:
        """Add the value of a later step."""
        if self._sums and self._sums[-1][0] < self.width:
            count, steps, values = self._sums.pop()
            self._sums.append((count + 1, steps + step, values + value))
            return
        if len(self._sums) == 2 * self.most:
            pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
            self._sums = [(a + d, b + e, c + f) for (a, b, c), (d, e, f) in pairs]
            self.width *= 2
        self._sums.append((1, step, value))

    @property
    def points(self) -> list[tuple[float, float]]:
        """(mean step, mean value), in order."""
        return [(steps / count, values / count) for count, steps, values in self._sums]


class RunCurves(Generic[T, V]):
    """Every number of a run's rows as a curve, by name (`loss_by_type/add`), and what they add up to.

    train, validation: the kinds of its rows. Raises UsageError when there is no row. The rows may be without
    validations, or without training steps.
    """

    def __init__(self, run: Path, train: type[T], validation: type[V]) -> None:
        self.train: dict[str, Curve] = {}
        self.validation: dict[str, Curve] = {}
        self.last_train: T | None = None
        self.first_validation: V | None = None
        self.last_validation: V | None = None
        self.samples = self.tokens = self.skipped_steps = self.peak_memory = 0
        self.seconds = self.validation_seconds = 0.0
        for row in read_metrics(run):
            if isinstance(row, train):
                self.add_step(row)
            else:
                assert isinstance(row, validation), "a run has rows of its own kinds alone"
                self.add_validation(row)
        if not self.train and not self.validation:
            raise UsageError(f"{run}: has no metrics yet; the first training step writes the first ones")

    @property
    def width(self) -> int:
        """Steps that a point of a training curve stands for, at most."""
        return max((curve.width for curve in self.train.values()), default=1)

    def add_step(self, row: T) -> None:
        """Take in a training step."""
        _add(self.train, row)
        self.last_train = row
        self.samples += row.samples
        self.tokens += row.tokens
        self.skipped_steps += row.skipped_step
        self.seconds += row.seconds
        self.peak_memory = max(self.peak_memory, row.peak_memory_bytes or 0)

    def add_validation(self, row: V) -> None:
        """Take in a validation."""
        _add(self.validation, row)
        self.first_validation = self.first_validation or row
        self.last_validation = row
        self.validation_seconds += row.seconds


class Curves(RunCurves[TrainRow, ValidationRow]):
    """Those of an editor's run."""

    def __init__(self, run: Path) -> None:
        self.grids: list[int] = []
        self.problems: list[str] = []  # the first ones
        self.skipped_samples = 0
        super().__init__(run, TrainRow, ValidationRow)

    def add_step(self, row: TrainRow) -> None:
        super().add_step(row)
        self.skipped_samples += row.skipped_samples
        self.problems += row.problems[: MOST_PROBLEMS - len(self.problems)]

    def add_validation(self, row: ValidationRow) -> None:
        super().add_validation(row)
        if row.grid:
            self.grids.append(row.step)


def _add(curves: dict[str, Curve], row: StepRow | ValidationRow | JudgeValidationRow) -> None:
    for name, value in numbers(row.model_dump()):
        curves.setdefault(name, Curve()).add(row.step, value)


def below(curves: dict[str, Curve], name: str) -> dict[str, list[tuple[float, float]]]:
    """The points of the curves `name/…`, by what stands for the dots; numbers in order of size, names as they came."""
    found = {key.removeprefix(f"{name}/"): curve.points for key, curve in curves.items() if key.startswith(f"{name}/")}
    return {key: found[key] for key in ordered(found)}


def ordered(names: Iterable[str]) -> list[str]:
    """Bins such as `0.2-0.4` by where they begin; other names as they came."""

    def start(name: str) -> float:
        try:
            return float(name.partition("-")[0])
        except ValueError:
            return 0.0

    return sorted(names, key=start)
