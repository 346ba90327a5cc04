"""Thresholds of the gates from people's labels: the most precise set that still keeps a chosen share of the good edits.

Thresholds are chosen one at a time, each time the cut that raises precision most while recall stays at or above the
one asked for (forward selection, as in decision lists). What is reported is not what they were chosen on: labels are
split into folds by photograph, and every fold is judged by thresholds chosen on the others. Intervals are percentile
bootstraps over photographs (Efron 1979; clustered, since edits of one photograph resemble each other).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, StrictBool, ValidationError, computed_field

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import rng_for, seed_for
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_table

FOLDS = 5
RESAMPLES = 1000
MIN_EACH = 10
"""Good and bad labels that are needed at least."""
MAX_CUTS = 64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Knob:
    """A threshold and the measured value that it cuts. keeps: which side goes on."""

    threshold: str
    value: str
    keeps: Literal["above", "below"]


KNOBS = (
    Knob("min_changed_share", "change_share", "above"),
    Knob("min_changed_difference", "change_strength", "above"),
    Knob("min_prominence", "prominence", "above"),
    Knob("min_structure", "structure", "above"),
    Knob("max_background_motion", "background_motion", "below"),
    Knob("min_recognition_gain", "recognition_gain", "above"),
    Knob("still_there", "still_there", "below"),
    Knob("there", "there", "above"),
    Knob("min_clip_score", "clip_score", "above"),
    Knob("min_direction", "clip_direction", "above"),
    Knob("max_quality_drop", "quality_drop", "below"),
    Knob("max_aesthetic_drop", "aesthetic_drop", "below"),
    Knob("max_seam", "seam", "below"),
    Knob("min_texture", "texture", "above"),
    Knob("max_texture", "texture", "below"),
    Knob("max_ghost", "ghost", "below"),
    Knob("min_extract_share", "object_share", "above"),
    Knob("min_following", "judge_following", "above"),
    Knob("min_naturalness", "judge_naturalness", "above"),
)


class Estimate(Record):
    """A share with its 95% interval."""

    value: float
    low: float
    high: float


class Tuning(Record):
    """What the labels say. thresholds: proposed, by name; they are used under `verify.thresholds`.

    precision, recall: of the proposed set, on photographs it was not chosen on. before: precision without any of them
    (every labelled edit). unknown: labelled keys that the run does not hold.
    """

    labels: int
    good: int
    photographs: int
    wanted_recall: float
    thresholds: dict[str, float]
    precision: Estimate
    recall: Estimate
    before: Estimate
    unknown: tuple[str, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def conclusive(self) -> bool:
        """Whether the precision is surely better than before: the two intervals lie apart."""
        return self.precision.low > self.before.high


class Label(BaseModel):
    """One line of the labels file: a key of the dataset, and whether a person would keep the edit."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: str
    good: StrictBool


@dataclass(frozen=True)
class _Data:
    """Labelled edits: measured values [N, K] (NaN: not measured, which no threshold cuts), verdicts, photographs."""

    values: Floats
    good: Bools
    photograph: NDArray[np.int64]

    def take(self, rows: NDArray[Any]) -> "_Data":
        return _Data(self.values[rows], self.good[rows], self.photograph[rows])


Cuts = dict[int, float]
"""Threshold by index into KNOBS."""


def tune(run: RunDir, labels: Path, recall: float) -> Tuning:
    """Propose thresholds from a JSONL file of labels. Raises UsageError for a bad file or too few labels."""
    if not 0 < recall <= 1:
        raise UsageError(f"--recall {recall}: a share above 0 and up to 1")
    given = read_labels(labels)
    index = run.dataset / "index.parquet"
    if not index.is_file():
        raise EditFoundryError(f"{run.path}: has no dataset yet; finish it with `editfoundry data run -o {run.path}`")
    rows = {row["key"]: row for row in read_table(index) if row["key"] in given}
    data = _data(rows, given)
    good = int(data.good.sum())
    if min(good, len(rows) - good) < MIN_EACH:
        raise UsageError(
            f"{labels}: {good} good and {len(rows) - good} bad edits of this run are labelled; at least "
            f"{MIN_EACH} of each are needed, and a few hundred in all to propose anything"
        )
    kept = _held_out(data, recall)
    cuts = choose(data, recall)
    return Tuning(
        labels=len(rows), good=good, photographs=len(set(data.photograph.tolist())), wanted_recall=recall,
        thresholds={KNOBS[knob].threshold: _outward(cut, KNOBS[knob]) for knob, cut in sorted(cuts.items())},
        precision=_estimate(data, kept, "precision"), recall=_estimate(data, kept, "recall"),
        before=_estimate(data, np.ones_like(kept), "precision"), unknown=tuple(sorted(set(given) - set(rows))),
    )  # fmt: skip


def read_labels(path: Path) -> dict[str, bool]:
    """Labels by key. Raises UsageError naming the line that is wrong, or a key that is labelled both ways."""
    found: dict[str, bool] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            label = Label.model_validate(json.loads(line))
        except (ValidationError, ValueError, RecursionError) as error:
            raise UsageError(f'{path}: line {number}: expected {{"key": "…", "good": true or false}}') from error
        if found.setdefault(label.key, label.good) != label.good:
            raise UsageError(f"{path}: line {number}: {label.key} is labelled good and bad")
    return found


def choose(data: _Data, recall: float) -> Cuts:
    """The cuts that raise precision most, one after the other, while recall stays at or above `recall`."""
    cuts: Cuts = {}
    kept = np.ones(len(data.good), bool)
    best = _precision(data.good, kept)
    wanted = recall * data.good.sum()
    while True:
        step: tuple[float, int, float, Bools] | None = None
        for knob in range(len(KNOBS)):
            for cut in _candidates(data, knob):
                after = kept & _passes(data, knob, cut)
                if (after & data.good).sum() < wanted:
                    continue
                precision = _precision(data.good, after)
                if precision > best + 1e-9 and (step is None or precision > step[0] + 1e-9):
                    step = (precision, knob, cut, after)
        if step is None:
            return cuts
        best, knob, cut, kept = step
        cuts[knob] = cut


def _candidates(data: _Data, knob: int) -> Sequence[float]:
    """Cuts worth trying: values of good edits, so that each is the tightest that keeps the same good ones."""
    values = np.unique(data.values[data.good, knob])
    values = values[~np.isnan(values)]
    if len(values) > MAX_CUTS:
        values = values[np.linspace(0, len(values) - 1, MAX_CUTS).round().astype(int)]
    chosen: list[float] = values.tolist()
    return chosen


def _passes(data: _Data, knob: int, cut: float) -> Bools:
    values = data.values[:, knob]
    inside: Bools = (values >= cut if KNOBS[knob].keeps == "above" else values <= cut) | np.isnan(values)
    return inside


def _precision(good: Bools, kept: Bools) -> float:
    return float(good[kept].mean()) if kept.any() else 0.0


def _held_out(data: _Data, recall: float) -> Bools:
    """Which edits go on under thresholds that were chosen without their photograph."""
    fold = data.photograph % FOLDS
    kept = np.ones(len(data.good), bool)
    for number in range(FOLDS):
        inside = fold == number
        if inside.any() and data.good[~inside].any():
            for knob, cut in choose(data.take(~inside), recall).items():
                kept[inside] &= _passes(data, knob, cut)[inside]
    return kept


def _estimate(data: _Data, kept: Bools, what: Literal["precision", "recall"]) -> Estimate:
    where, counted = (kept, data.good) if what == "precision" else (data.good, kept)
    clusters = np.unique(data.photograph, return_inverse=True)[1]
    number = int(clusters.max()) + 1
    hits = np.bincount(clusters, weights=where & counted, minlength=number)
    totals = np.bincount(clusters, weights=where, minlength=number)
    drawn = rng_for("tune-gates", what, number).integers(number, size=(RESAMPLES, number))
    sums = totals[drawn].sum(axis=1)
    shares = hits[drawn].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.percentile(shares, (2.5, 97.5)) if len(shares) else (0.0, 1.0)
    value = float(hits.sum() / max(totals.sum(), 1))
    return Estimate(value=round(value, 4), low=round(float(low), 4), high=round(float(high), 4))


def _data(rows: Mapping[str, Mapping[str, Any]], labels: Mapping[str, bool]) -> _Data:
    keys = sorted(rows)
    values = np.full((len(keys), len(KNOBS)), np.nan)
    for number, key in enumerate(keys):
        for knob, value in _measured(rows[key]):
            values[number, knob] = value
    good = np.array([labels[key] for key in keys], bool)
    photographs = np.array([seed_for(rows[key]["photograph_sha256"]) for key in keys], np.int64)
    return _Data(values, good, photographs)


def _measured(row: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    for number, knob in enumerate(KNOBS):
        value = row.get(f"gate_{knob.value}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield number, float(value)


def _outward(cut: float, knob: Knob) -> float:
    """Rounded to four digits on the side that keeps what the cut keeps."""
    step = 10.0 ** (np.floor(np.log10(abs(cut))) - 3) if cut else 1e-4
    rounded = (np.floor if knob.keeps == "above" else np.ceil)(cut / step) * step
    return float(f"{rounded:.6g}")
