"""The report of an editor's training: one self-contained HTML page of curves, edits over time and settings.

Deterministic: the same run gives the same page. No dates, no machine, nothing from outside the run but whether the
model it started from is a miniature.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.pages.thumbnails import Thumbnails
from editfoundry.training.curves import Curve, Curves, below
from editfoundry.training.metrics import ValidationRow
from editfoundry.training.report_parts import (
    Figure,
    averaging_note,
    course,
    figure,
    memory,
    settings,
    short,
    speed,
    totals,
    write_page,
)
from editfoundry.training.rundir import VALIDATION, saved_config

MOST_SAMPLES = 12
MOST_TIMES = 6
PICTURE = 384
COPY = "input returned"
MINIATURE = (
    "A random-weight miniature: the real classes in the real layout, small enough for a laptop, with random weights "
    "where the real editor has trained ones. Its curves show that the trainer works, and nothing of how good an editor "
    "becomes."
)


class _Sample(BaseModel):
    """A sample of the validation grid, as `validation/samples.json` lists it; other keys do not matter here."""

    number: int
    type: str
    instruction: str


_SAMPLES = TypeAdapter(list[_Sample])


@dataclass(frozen=True)
class Edit:
    """A picture after some steps of training: the key of its picture on the page."""

    when: str
    picture: str


@dataclass(frozen=True)
class Story:
    """How one sample's edit changed: the keys of its source and target, and its edits, oldest first."""

    type: str
    instruction: str
    source: str
    target: str
    width: int
    height: int
    edits: tuple[Edit, ...]


def write_report(run: Path) -> Path:
    """Write RUN/report/index.html and return its path.

    Raises UsageError when `run` is no training run or has no metrics yet, EditFoundryError when its files are damaged.
    """
    config = saved_config(run)
    return write_page(run, _context(run, config, Curves(run)))


def _context(run: Path, config: Mapping[str, Any], curves: Curves) -> dict[str, Any]:
    """Everything the template shows."""
    thumbnails = Thumbnails(PICTURE)
    samples, times = _samples(run), _spread(curves.grids, MOST_TIMES)
    name = str(config.get("name", "training run"))
    return {
        "title": f"{name} · training report",
        "name": name,
        "lede": _lede(config, curves),
        "miniature": MINIATURE if _is_miniature(config) else "",
        "headline": list(_headline(curves)),
        "stories": [_story(run, sample, times, thumbnails) for sample in samples[:MOST_SAMPLES]],
        "stories_note": _stories_note(curves.grids, times, len(samples)),
        "agreement": [],
        "losses": list(_losses(curves)),
        "by_type": list(_by_type(curves)),
        "course": list(_course(curves)),
        "curves_note": _curves_note(curves),
        "totals": list(_totals(curves)),
        "problems": curves.problems,
        "skipped_samples": curves.skipped_samples,
        "settings": list(settings(config)),
        "images": thumbnails.images,
    }


def _lede(config: Mapping[str, Any], curves: Curves) -> str:
    stage = f"stage {config.get('stage')}" + (", as a LoRA" if config.get("lora") else "")
    step = curves.last_train.step if curves.last_train else 0
    return f"{stage[0].upper()}{stage[1:]}: {step:,} of {config.get('steps', 0):,} steps, {curves.samples:,} samples."


def _is_miniature(config: Mapping[str, Any]) -> bool:
    """Whether the editor it started from says so of itself; False where that editor is no longer there."""
    file = Path(str(config.get("model", ""))) / "model_index.json"
    if not file.is_file():
        return False
    try:
        index = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise EditFoundryError(f"{file}: damaged ({error}); restore the model that the run started from") from error
    return isinstance(index, dict) and index.get("miniature") is True


def _headline(curves: Curves) -> Iterator[tuple[str, str, str]]:
    train, validation = curves.last_train, curves.last_validation
    if train:
        loss = curves.train.get("loss")
        first = loss.points[0][1] if loss else 0.0
        yield "Training loss", short(train.loss), f"{short(first)} at first"
    if validation:
        yield "Validation loss", short(validation.loss), _against(validation.loss, validation.identity_loss)
        if validation.edited_area_error is not None:
            note = _against(validation.edited_area_error, validation.identity_area_error)
            yield "Error in the edited area", short(validation.edited_area_error), note
    if train:
        yield from speed(curves)
        if train.mfu is not None:
            yield "Model FLOPs utilisation", f"{train.mfu:.1%}", "of the GPUs' peak"
        yield from memory(curves)


def _against(value: float | None, copied: float | None) -> str:
    """How a loss compares with that of giving the input back."""
    if value is None or not copied:
        return ""
    change = 1 - value / copied
    return f"{abs(change):.0%} {'below' if change >= 0 else 'above'} {short(copied)}, the {COPY}"


def _losses(curves: Curves) -> Iterator[Figure]:
    """Loss of training and of validation, each with its parts by noise level."""
    train, validation = curves.train, curves.validation
    if "loss" in train:
        yield figure("Training loss", {"loss": train["loss"].points}, head=True)
    if "loss" in validation:
        both = {"validation": validation["loss"].points}
        if "identity_loss" in validation:
            both[COPY] = validation["identity_loss"].points
        yield figure("Validation loss", both, "On fixed samples, noise and noise levels.", head=True)
    if bins := below(train, "loss_by_sigma"):
        note = "Low: nearly the finished image. High: nearly noise."
        yield figure("Training loss by noise level", bins, note, ramp=True, head=True)
    if levels := below(validation, "loss_by_sigma"):
        yield figure("Validation loss by noise level", levels, ramp=True, head=True)


def _by_type(curves: Curves) -> Iterator[Figure]:
    """One chart per edit type."""
    train, validation = below(curves.train, "loss_by_type"), below(curves.validation, "loss_by_type")
    copied = below(curves.validation, "identity_by_type")
    for name in sorted({*train, *validation}):
        parts = {"validation": validation.get(name), COPY: copied.get(name), "training": train.get(name)}
        title = name.replace("_", " ") if name in validation else f"{name.replace('_', ' ')}, in training"
        yield figure(title, {part: points for part, points in parts.items() if points})


def _course(curves: Curves) -> Iterator[Figure]:
    """How the training itself went."""
    validation = curves.validation
    areas = {"edit": validation.get("edited_area_error"), COPY: validation.get("identity_area_error")}
    if areas["edit"]:
        yield figure(
            "Error in the edited area", _points(areas), "Mean squared error of generated edits, where the mask is."
        )
    yield from course(curves)


def _points(curves: Mapping[str, Curve | None]) -> dict[str, list[tuple[float, float]]]:
    return {name: curve.points for name, curve in curves.items() if curve}


def _curves_note(curves: Curves) -> str:
    notes = []
    if "identity_loss" in curves.validation:
        notes.append(f"An editor that only copies sits on the dashed line, the loss of the {COPY} unchanged.")
    return " ".join(filter(None, [*notes, averaging_note(curves)]))


def _samples(run: Path) -> list[_Sample]:
    file = run / VALIDATION / "samples.json"
    if not file.is_file():
        return []
    try:
        return _SAMPLES.validate_json(file.read_bytes())
    except ValidationError as error:
        raise EditFoundryError(
            f"{file}: damaged ({error.errors()[0]['msg']}); resume the run to write it again"
        ) from error


def _story(run: Path, sample: _Sample, times: list[int], thumbnails: Thumbnails) -> Story:
    """A sample's source, target and edits. An edit is left out where that validation generated none of this sample."""
    folder, number = run / VALIDATION, sample.number

    def keep(file: Path) -> str:
        return thumbnails.picture(file.relative_to(folder).as_posix(), file.read_bytes)

    source, target = (keep(folder / "samples" / f"{number}-{name}.jpg") for name in ("source", "target"))
    files = {step: folder / "edits" / f"{step:08d}" / f"{number}.jpg" for step in times}
    edits = tuple(Edit(f"step {step:,}", keep(file)) for step, file in files.items() if file.is_file())
    width, height = thumbnails.sizes[source]
    return Story(sample.type, sample.instruction, source, target, width, height, edits)


def _spread(steps: list[int], most: int) -> list[int]:
    """At most `most` of the steps, evenly spread, with the first and the last."""
    if len(steps) <= most:
        return steps
    return [steps[round(index * (len(steps) - 1) / (most - 1))] for index in range(most)]


def _stories_note(grids: list[int], times: list[int], samples: int) -> str:
    shown = min(samples, MOST_SAMPLES)
    samples_note = (
        f"{shown:,} of {samples:,} samples" if shown < samples else f"{samples:,} sample{'s' * (samples != 1)}"
    )
    times_note = f"{len(times):,} of {len(grids):,} validations" if len(times) < len(grids) else "every validation"
    return f"{samples_note}, at {times_note}."


def _totals(curves: Curves) -> Iterator[tuple[str, str]]:
    validation = curves.last_validation
    yield from totals(curves)
    yield "Samples left out as unusable", f"{curves.skipped_samples:,}"
    yield "Steps left out as not finite", f"{curves.skipped_steps:,}"
    if validation:
        yield "Validated on", _validated(validation)


def _validated(row: ValidationRow) -> str:
    weights = "averaged weights" if row.averaged else "trained weights"
    return f"{row.samples:,} samples of the split {row.split}, with the {weights}"
