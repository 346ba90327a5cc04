"""Metrics: the file that is the record, what a resumed run keeps of it, and what the trackers are told."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.images import encode_jpeg
from editfoundry.training.metrics import Metrics, TrainRow, ValidationRow, numbers, read_metrics
from editfoundry.training.rundir import METRICS

TRAIN = {
    "kind": "train",
    "epoch": 0.5,
    "loss": 0.25,
    "lr": 1e-3,
    "grad_norm": 2.0,
    "mean_weight": 1.25,
    "loss_by_sigma": {"0.0-0.2": 0.5, "0.2-0.4": None},
    "loss_by_type": {"add": 0.125},
    "samples": 8,
    "tokens": 128,
    "skipped_samples": 0,
    "problems": [],
    "skipped_step": False,
    "seconds": 0.5,
    "data_wait": 0.25,
    "samples_per_s": 16.0,
    "tokens_per_s": 256.0,
    "flops": 1e9,
    "mfu": None,
    "peak_memory_bytes": 1024,
}
VALIDATION = {
    "kind": "validation",
    "split": "val",
    "samples": 4,
    "loss": 0.5,
    "identity_loss": 0.75,
    "loss_by_sigma": {"0.1": 0.25},
    "loss_by_type": {"add": 0.5},
    "identity_by_type": {"add": 1.0},
    "averaged": True,
    "seconds": 2.0,
    "edited_area_error": 0.125,
    "identity_area_error": 0.25,
    "grid": "validation/grid-00000002.jpg",
}


@pytest.fixture(autouse=True)
def _one_process_state() -> Any:
    yield
    AcceleratorState._reset_state(True)
    PartialState._reset_state()


def opened(run: Path, *names: str) -> Metrics:
    run.mkdir(exist_ok=True)
    return Metrics(run, Accelerator(cpu=True, log_with=list(names) or None, project_dir=run / "trackers"), names)


def test_rows_are_read_back_as_written(tmp_path: Path) -> None:
    metrics = opened(tmp_path)
    metrics.log(1, TRAIN)
    metrics.log(2, {**VALIDATION, "grid": None})
    train, validation = read_metrics(tmp_path)
    assert isinstance(train, TrainRow) and isinstance(validation, ValidationRow)
    assert train.model_dump() == {**TRAIN, "step": 1}
    assert validation.model_dump() == {**VALIDATION, "grid": None, "step": 2}


def test_a_line_is_canonical_json_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    opened(tmp_path).log(
        3,
        {
            **TRAIN,
            "loss": float("nan"),
            "grad_norm": float("inf"),
            "loss_by_sigma": {"0.0-0.2": float("-inf")},
            "skipped_step": True,
        },
    )
    line = (tmp_path / METRICS).read_text()
    row = json.loads(line)
    assert line == json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n"
    assert (row["loss"], row["grad_norm"], row["loss_by_sigma"], row["skipped_step"]) == (
        None,
        None,
        {"0.0-0.2": None},
        True,
    )


def test_a_resumed_run_drops_later_rows_and_the_torn_line(tmp_path: Path) -> None:
    metrics = opened(tmp_path)
    for step in range(1, 6):
        metrics.log(step, TRAIN)
    kept = b"".join((tmp_path / METRICS).read_bytes().splitlines(keepends=True)[:3])
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"kind":"train","st')
    assert [row.step for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    metrics.truncate(3)
    assert (tmp_path / METRICS).read_bytes() == kept
    metrics.log(4, TRAIN)
    assert [row.step for row in read_metrics(tmp_path)] == [1, 2, 3, 4]


def test_a_resumed_run_reads_only_the_rows_it_drops(tmp_path: Path) -> None:
    metrics = opened(tmp_path)
    (tmp_path / METRICS).write_bytes(b"not a row\n" * 1000)
    metrics.log(3, TRAIN)
    kept = (tmp_path / METRICS).read_bytes()
    metrics.log(4, TRAIN)
    metrics.truncate(3)
    assert (tmp_path / METRICS).read_bytes() == kept
    with pytest.raises(EditFoundryError, match=r"metrics\.jsonl: the line at byte 9990 is damaged \(Invalid JSON"):
        metrics.truncate(2)
    assert (tmp_path / METRICS).read_bytes() == kept


def test_a_run_whose_rows_are_all_later_keeps_none(tmp_path: Path) -> None:
    metrics = opened(tmp_path)
    metrics.log(1, TRAIN)
    metrics.truncate(0)
    assert (tmp_path / METRICS).read_bytes() == b""
    metrics.truncate(0)


def test_truncating_a_run_without_metrics_does_nothing(tmp_path: Path) -> None:
    opened(tmp_path).truncate(0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"kind":"train","step":', r"line 2 is damaged \(Invalid JSON"),
        ('{"kind":"training","step":1}', r"line 2 is damaged \(Input tag 'training'"),
        (json.dumps({**TRAIN, "step": 2, "loss": "low"}), r"line 2 is damaged \(loss: Input should be a valid number"),
        (json.dumps({**TRAIN, "step": 2, "loss": float("nan")}), r"line 2 is damaged \(loss: Input should be a finite"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1") * 3, r"line 2 is damaged \(Invalid JSON"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, told: str) -> None:
    opened(tmp_path).log(1, TRAIN)
    with (tmp_path / METRICS).open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(EditFoundryError, match=rf"{METRICS}: {told}.*delete that line"):
        list(read_metrics(tmp_path))


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no metrics\.jsonl"):
        list(read_metrics(tmp_path))


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trackers: wandb cannot be imported.*pip install wandb"):
        opened(tmp_path, "tensorboard", "wandb")


def test_nested_numbers_are_joined_and_texts_left_out() -> None:
    assert dict(numbers({"a": 1, "b": {"c": {"d": 2.5}, "e": None}, "f": True, "g": "text"})) == {
        "a": 1.0,
        "b/c/d": 2.5,
        "f": 1.0,
    }


def scalars(run: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run / "trackers" / run.name)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_is_told_numbers_and_grids(tmp_path: Path) -> None:
    run = tmp_path / "run"
    metrics = opened(run, "tensorboard")
    (run / "validation").mkdir()
    (run / "validation" / "grid-00000002.jpg").write_bytes(encode_jpeg(np.full((16, 32, 3), 200, np.uint8)))
    metrics.log(1, TRAIN)
    metrics.log(2, VALIDATION)
    assert scalars(run, "train/loss") == [(1, 0.25)]
    assert scalars(run, "train/loss_by_type/add") == [(1, 0.125)]
    assert scalars(run, "validation/identity_by_type/add") == [(2, 1.0)]
    events = EventAccumulator(str(run / "trackers" / "run")).Reload()
    assert "train/step" not in events.Tags()["scalars"] and "train/mfu" not in events.Tags()["scalars"]
    (image,) = events.Images("validation/grid")
    assert (image.step, image.width, image.height) == (2, 32, 16)


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = opened(run, "tensorboard")
    for step in (1, 2, 3):
        first.log(step, TRAIN)
    second = opened(run, "tensorboard")
    second.truncate(1)
    second.log(2, {**TRAIN, "loss": 0.5})
    assert scalars(run, "train/loss") == [(1, 0.25), (2, 0.5)]


class Elsewhere(Accelerator):  # type: ignore[misc]
    """An accelerator of a rank that is not the first."""

    is_main_process = False


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    opened(tmp_path).log(1, TRAIN)
    written = (tmp_path / METRICS).read_bytes()
    other = Elsewhere(cpu=True, log_with=["tensorboard"], project_dir=tmp_path / "trackers")
    metrics = Metrics(tmp_path, other, ["tensorboard"])
    metrics.log(2, TRAIN)
    metrics.truncate(0)
    assert (tmp_path / METRICS).read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]
