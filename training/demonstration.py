"""The quickstart's second act: a miniature editor, trained for a few dozen steps on the shards that were just made.

It shows the trainer at work, not an editor: the miniature's weights are random, but that it passes pictures through.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from editfoundry.core.config import load_config
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json
from editfoundry.models.editor.miniature import write_miniature
from editfoundry.models.protocols import Image
from editfoundry.training.checkpoint import folder_name
from editfoundry.training.config import DatasetSpec, TrainConfig
from editfoundry.training.data.examples import read_example
from editfoundry.training.data.index import build_index
from editfoundry.training.metrics import TrainRow, ValidationRow, read_metrics
from editfoundry.training.report import write_report
from editfoundry.training.rundir import CHECKPOINTS

CONFIG = "train/tiny.yaml"
PHOTOGRAPHS = 24
"""Pictures of the dataset that the miniature's autoencoder is fitted to."""


def demonstrate(dataset: Path, folder: Path) -> dict[str, Any]:
    """Write `folder/model`, train it in `folder/run` by `editfoundry train editor`, and report; resumes if repeated.

    Returns the report's path and what validation measured before and after. Raises EditFoundryError when the training
    failed: its own message is on stderr.
    """
    model, run = folder / "model", folder / "run"
    if not model.exists():
        write_miniature(model, photographs=list(photographs(dataset)))
    overrides = (f"model={model}", f"data.datasets={canonical_json([{'path': str(dataset)}])}")
    settings = [part for override in overrides for part in ("--set", override)]
    steps = load_config(TrainConfig, CONFIG, overrides).steps
    if not (run / CHECKPOINTS / folder_name(steps)).is_dir():
        command = [sys.executable, "-m", "editfoundry", "train", "editor", CONFIG, "-o", str(run), *settings]
        if subprocess.run(command, stdout=sys.stderr.fileno()).returncode:
            raise EditFoundryError(f"{run}: the miniature could not be trained; what stopped it is said above")
    report = write_report(run)
    rows = list(read_metrics(run))
    validations = [row for row in rows if isinstance(row, ValidationRow)]
    first, last = validations[0], validations[-1]
    return {
        "report": str(report),
        "model": str(model),
        "run": str(run),
        "steps": sum(isinstance(row, TrainRow) for row in rows),
        "loss": [first.loss, last.loss],
        "identity_loss": last.identity_loss,
        "edited_area_error": [first.edited_area_error, last.edited_area_error],
        "identity_area_error": last.identity_area_error,
    }


def photographs(dataset: Path) -> Iterator[Image]:
    """Sources of the dataset, evenly from all over it."""
    with tempfile.TemporaryDirectory() as folder:
        index = build_index([DatasetSpec(path=str(dataset))], "train", Path(folder) / "index")
        count = min(PHOTOGRAPHS, len(index))
        for number in range(count):
            yield read_example(index, number * len(index) // count, history=False).source
