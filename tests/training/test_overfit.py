"""The whole of it learns: eight samples, fresh noise at every step, measured on noise and levels kept apart."""

from pathlib import Path

import pytest
from training_data import edits, scene, write_dataset
from training_run import finished, forked, rows, settings, write_settings

from editfoundry.models.editor.miniature import write_miniature


@pytest.mark.slow
def test_the_miniature_overfits_eight_samples(tmp_path: Path) -> None:
    drawn = edits(8)
    model = write_miniature(tmp_path / "editor", photographs=[scene(edit)[1] for edit in drawn])
    plain = settings(
        model,
        write_dataset(tmp_path / "dataset", drawn),
        steps=180,
        stage="full",
        global_batch=8,
        micro_batch=8,
        data={"dropout": {"text": 0, "visual": 0, "all": 0}},
        optimiser={"lr": 3e-3, "warmup": 20, "schedule": "cosine"},
        validation={"every": 180, "samples": 8, "grid": 8, "steps": 12, "guidance": 1.0},
        checkpoints={"every": 180},
    )
    config = write_settings(tmp_path, plain)
    assert finished(forked(config, tmp_path / "run")) == 0, (tmp_path / "run.log").read_text()
    before, after = rows(tmp_path / "run", "validation")
    assert after["loss"] <= 0.1 * before["loss"]
    assert after["loss"] < after["identity_loss"]
    assert after["edited_area_error"] < after["identity_area_error"]
