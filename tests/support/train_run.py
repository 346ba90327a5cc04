"""A training run's folder as the trainer leaves it, with made-up numbers and plain pictures."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from editfoundry.core.hashing import canonical_json
from editfoundry.core.images import encode_jpeg
from editfoundry.training.config import TrainConfig

CONFIG = {
    "name": "synthetic",
    "model": "model",
    "stage": "joint",
    "steps": 40,
    "global_batch": 8,
    "micro_batch": 4,
    "data": {"datasets": [{"path": "dataset"}], "size": 64},
    "ema": {"decay": 0.99},
}
SAMPLES = [("add", "Put a red boat on the lake."), ("remove", "Remove the lamp."), ("style", "Make it a woodcut.")]
BINS = ("0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0")
LEVELS = ("0.1", "0.3", "0.5", "0.7", "0.9")


def train_row(step: int, **changes: Any) -> dict[str, Any]:
    """A training step whose loss falls as 1 / sqrt(step), with a little of a wave on it."""
    loss = 1 / math.sqrt(step) + 0.03 * math.sin(step)
    return {
        "kind": "train",
        "step": step,
        "epoch": step / 100,
        "loss": loss,
        "lr": 1e-3 * min(step / 5, 1),
        "grad_norm": 2 / step,
        "mean_weight": 1.4,
        "samples": 8,
        "tokens": 512,
        "skipped_samples": 0,
        "loss_by_sigma": {name: loss * (1 + index / 5) for index, name in enumerate(BINS)},
        "loss_by_type": {kind: loss * (1 + index / 4) for index, (kind, _) in enumerate(SAMPLES)},
        "skipped_step": False,
        "seconds": 0.5,
        "data_wait": 0.125,
        "samples_per_s": 16.0,
        "tokens_per_s": 1024.0,
        "flops": 1e9,
        "mfu": None,
        "peak_memory_bytes": 500_000_000,
        **changes,
    }


def validation_row(step: int, **changes: Any) -> dict[str, Any]:
    """A validation whose loss falls as 1 / sqrt(step) past an unchanging identity baseline of 0.5."""
    loss = 1 / math.sqrt(step)
    kinds = [kind for kind, _ in SAMPLES]
    return {
        "kind": "validation",
        "step": step,
        "split": "val",
        "samples": 16,
        "loss": loss,
        "identity_loss": 0.5,
        "loss_by_sigma": {name: loss * (1 + index / 5) for index, name in enumerate(LEVELS)},
        "loss_by_type": dict.fromkeys(kinds, loss),
        "identity_by_type": dict.fromkeys(kinds, 0.5),
        "averaged": True,
        "seconds": 3.0,
        "edited_area_error": loss / 2,
        "identity_area_error": 0.25,
        "grid": f"validation/grid-{step:08d}.jpg",
        **changes,
    }


def write_run(run: Path, rows: Iterable[dict[str, Any]], **settings: Any) -> Path:
    """RUN/config.json and RUN/metrics.jsonl."""
    run.mkdir(parents=True)
    config = TrainConfig.model_validate(CONFIG | settings)
    (run / "config.json").write_text(canonical_json(config.model_dump(mode="json")))
    with (run / "metrics.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(canonical_json(row) + "\n" for row in rows)
    return run


def write_grid(run: Path, steps: Iterable[int], samples: Iterable[tuple[str, str]] = tuple(SAMPLES)) -> None:
    """RUN/validation: sources are blue, targets red, and edits go from one to the other over the steps."""
    folder, steps, samples = run / "validation", list(steps), list(samples)
    (folder / "samples").mkdir(parents=True)
    entries = []
    for number, (kind, instruction) in enumerate(samples):
        for name, share in (("source", 0.0), ("target", 1.0)):
            (folder / "samples" / f"{number}-{name}.jpg").write_bytes(flat(share))
        entries.append(
            {
                "key": f"k{number}",
                "type": kind,
                "instruction": instruction,
                "number": number,
                "source": f"samples/{number}-source.jpg",
                "target": f"samples/{number}-target.jpg",
            }
        )
    (folder / "samples.json").write_text(json.dumps(entries))
    for step in steps:
        edits = folder / "edits" / f"{step:08d}"
        edits.mkdir(parents=True)
        for number in range(len(samples)):
            (edits / f"{number}.jpg").write_bytes(flat(step / max(steps)))


def flat(share: float) -> bytes:
    """A picture between blue (0) and red (1)."""
    colour = [round(40 + 180 * share), 60, round(220 - 180 * share)]
    return encode_jpeg(np.full((64, 96, 3), colour, np.uint8))


def course(steps: int, every: int) -> Iterator[dict[str, Any]]:
    """The rows of a whole run."""
    for step in range(1, steps + 1):
        yield train_row(step)
        if step % every == 0:
            yield validation_row(step)
