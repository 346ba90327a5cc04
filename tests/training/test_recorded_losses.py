"""Twenty losses of a small run, recorded: whatever changes the arithmetic or the order of the data shows here.

Record anew, after a change that is meant to change them: `python tests/training/test_recorded_losses.py`.
"""

import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

FILE = Path(__file__).parents[1] / "assets" / "losses" / "tiny.json"
STEPS = 20
RTOL = 1e-5


def machine() -> dict[str, Any]:
    """What the last bits of a loss depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((line.partition(": ")[2] for line in lines if line.startswith("model name")), ""),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "architecture": platform.machine(),
        "torch": torch.__version__.split("+")[0],
        "threads": torch.get_num_threads(),
    }


def losses(folder: Path) -> list[float]:
    """Of the tiny editor with dropout, weights and accumulation, in this process."""
    from tiny.editor import tiny_editor
    from training_data import edits, write_dataset
    from training_run import rows, settings

    from editfoundry.training.config import TrainConfig
    from editfoundry.training.sharding import make_accelerator
    from editfoundry.training.trainer import Trainer

    model = tiny_editor(folder / "editor", reference_latents="kontext")
    dataset = write_dataset(folder / "dataset", edits(10))
    config = TrainConfig.model_validate(settings(model, dataset, steps=STEPS, checkpoints={"every": STEPS}))
    run = folder / "run"
    run.mkdir()
    trainer = Trainer(config, run, make_accelerator(project_dir=run))
    trainer.prepare()
    trainer.fit()
    return [row["loss"] for row in rows(run)]


def test_losses_are_those_recorded(tmp_path: Path) -> None:
    entries = json.loads(FILE.read_text())
    here = machine()
    recorded = next((entry["losses"] for entry in entries if entry["machine"] == here), None)
    measured = losses(tmp_path)
    if recorded is not None:
        assert measured == recorded
    else:
        print(f"no losses are recorded for {here}: compared with those of {entries[0]['machine']} to {RTOL}")
        assert measured == pytest.approx(entries[0]["losses"], rel=RTOL)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    torch.set_num_threads(1)
    known = json.loads(FILE.read_text()) if FILE.exists() else []
    with tempfile.TemporaryDirectory() as name:
        entry = {"machine": machine(), "losses": losses(Path(name))}
    kept = [other for other in known if other["machine"] != entry["machine"]]
    FILE.write_text(json.dumps([entry, *kept], indent=2) + "\n")
