"""Thresholds proposed from labels keep the recall asked for, and are judged on photographs they were not chosen on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import sha256
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.tuning import KNOBS, _Data, choose, read_labels, tune


def run_of(folder: Path, rows: list[dict[str, Any]]) -> RunDir:
    """A run of which only the index is there, which is all that tuning reads."""
    (folder / "run/dataset").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "run/dataset/index.parquet")
    return RunDir(folder / "run")


def labelled(folder: Path, labels: dict[str, bool]) -> Path:
    file = folder / "labels.jsonl"
    file.write_text("".join(json.dumps({"key": key, "good": good}) + "\n" for key, good in labels.items()))
    return file


def edits(count: int = 400, seed: int = 0) -> tuple[list[dict[str, Any]], dict[str, bool]]:
    """Good edits change more and show less of a seam; the CLIP score says nothing."""
    rng = np.random.default_rng(seed)
    good = rng.random(count) < 0.6
    rows = [
        {
            "key": f"k{i}",
            "photograph_sha256": sha256(str(i // 2)),
            "gate_change_strength": float(rng.normal(30 if good[i] else 18, 5)),
            "gate_seam": float(rng.normal(1.0, 0.2) if good[i] else rng.normal(1.6, 0.3)) if i % 3 else None,
            "gate_clip_score": float(rng.normal(0.6, 0.05)),
        }
        for i in range(count)
    ]
    return rows, {f"k{i}": bool(good[i]) for i in range(count)}


def test_thresholds_follow_what_tells_good_from_bad(tmp_path: Path) -> None:
    rows, labels = edits()
    found = tune(run_of(tmp_path, rows), labelled(tmp_path, {**labels, "gone": True}), recall=0.9)
    assert (found.labels, found.photographs, found.unknown) == (400, 200, ("gone",))
    assert 20 < found.thresholds["min_changed_difference"] < 28
    assert found.before.value == pytest.approx(found.good / 400, abs=1e-3)
    assert found.precision.value > 0.9 > found.before.high
    assert found.precision.low < found.precision.value < found.precision.high
    assert found.recall.value > 0.8 and found.conclusive


def test_the_proposal_is_the_same_every_time(tmp_path: Path) -> None:
    rows, labels = edits(200)
    run, file = run_of(tmp_path, rows), labelled(tmp_path, labels)
    assert tune(run, file, 0.9) == tune(run, file, 0.9)


def test_labels_that_nothing_measured_explains_propose_little_and_promise_nothing(tmp_path: Path) -> None:
    rows, _ = edits()
    coin = np.random.default_rng(5).random(len(rows)) < 0.5
    labels = {row["key"]: bool(heads) for row, heads in zip(rows, coin, strict=True)}
    found = tune(run_of(tmp_path, rows), labelled(tmp_path, labels), recall=0.9)
    assert not found.conclusive
    assert found.precision.low <= found.before.value <= found.precision.high + 0.02


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 1.0))
def test_the_chosen_cuts_keep_the_recall_on_what_they_were_chosen_on(seed: int, recall: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.full((60, len(KNOBS)), np.nan)
    values[:, :3] = rng.normal(size=(60, 3))
    good = rng.random(60) < 0.5
    good[0] = True
    data = _Data(values, good, np.arange(60, dtype=np.int64))
    kept = np.ones(60, bool)
    for knob, cut in choose(data, recall).items():
        kept &= (values[:, knob] >= cut) if KNOBS[knob].keeps == "above" else (values[:, knob] <= cut)
    assert (kept & good).sum() >= recall * good.sum() - 1e-9
    assert good[kept].mean() >= good.mean()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: expected"),
        ('{"key": "a"}', "line 1: expected"),
        ('{"key": "a", "good": "perhaps"}', "line 1: expected"),
        ('{"key": "a", "good": "yes"}', "line 1: expected"),
        ('{"key": "a", "good": 1}', "line 1: expected"),
        ('{"key": "a", "good": true}\n{"key": "a", "good": false}', "line 2: a is labelled good and bad"),
        ("[" * 100_000, "line 1: expected"),
    ],
)
def test_wrong_labels_name_their_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels.jsonl").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_labels(tmp_path / "labels.jsonl")


def test_too_few_labels_are_refused(tmp_path: Path) -> None:
    rows, _ = edits(40)
    with pytest.raises(UsageError, match="40 good and 0 bad"):
        tune(run_of(tmp_path, rows), labelled(tmp_path, {row["key"]: True for row in rows}), recall=0.9)
