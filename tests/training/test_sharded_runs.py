"""Whole runs on two CPU processes under ZeRO-2 and FSDP2: train, save, resume, and export for one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tiny.editor import tiny_editor
from training_data import edits, scene, write_dataset
from training_run import ENVIRONMENT, finished, forked, rows, settings, write_settings

from editfoundry.models.editor.pipeline import load_editor
from editfoundry.training.export import export

STEPS = 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zero2", "fsdp2"])
def test_two_sharded_processes_train_save_resume_and_export(kind: str, tmp_path: Path) -> None:
    drawn = edits(8)
    model = tiny_editor(tmp_path / "editor", reference_latents="kontext")
    dataset = write_dataset(tmp_path / "dataset", drawn)
    plain = settings(model, dataset, steps=STEPS, ema={"decay": 0.5})
    whole, half = write_settings(tmp_path, plain), write_settings(tmp_path, {**plain, "steps": STEPS // 2}, "half")
    assert finished(forked(whole, tmp_path / "one")) == 0, (tmp_path / "one.log").read_text()

    sharded = tmp_path / kind
    for config in (half, whole):
        command = [sys.executable, "-m", "editfoundry", "train", "editor", str(config), "-o", str(sharded),
                   "--accelerate", f"accelerate/{kind}.yaml", "--processes", "2"]  # fmt: skip
        environment = {name: value for name, value in ENVIRONMENT.items() if name != "ACCELERATE_USE_CPU"}
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr[-3000:]

    newest = sharded / "checkpoints" / f"step-{STEPS:08d}"
    state = json.loads((newest / "state.json").read_text())
    assert (state["kind"], state["ranks"]) == (kind, 2)
    for mine, alone in zip(rows(sharded), rows(tmp_path / "one"), strict=True):
        assert mine["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert mine["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-3)
    averaged = load_file(newest / "ema.safetensors")
    expected = load_file(tmp_path / "one" / "checkpoints" / newest.name / "ema.safetensors")
    assert averaged.keys() == expected.keys()
    for name, weight in averaged.items():
        np.testing.assert_allclose(weight.numpy(), expected[name].numpy(), rtol=1e-3, atol=1e-4)

    editor = load_editor(export(sharded, tmp_path / "exported"), device="cpu")
    held = dict(editor.model().named_parameters())
    assert all(np.array_equal(weight.numpy(), held[name].detach().numpy()) for name, weight in averaged.items())
    source, _, _ = scene(drawn[0])
    result = editor(source, drawn[0].instruction, steps=2).images[0]
    assert result.shape == source.shape
    assert result.dtype == np.uint8
