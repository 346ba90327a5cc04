"""Training runs of a judge on drawn pictures: the tiny Qwen2.5-VL, ratings and preferences from files."""

from pathlib import Path
from typing import Any

from judge_data import SMALLEST, preference, rating, write_lines, write_pictures
from training_run import merged

from editfoundry.core.hashing import canonical_json
from editfoundry.training.judge.config import JudgeTrainConfig
from editfoundry.training.judge.trainer import JudgeTrainer
from editfoundry.training.rundir import held
from editfoundry.training.sharding import make_accelerator

MODULE = "editfoundry.training.train_judge"
ALL = {"generate": 0.5, "expected": 1, "regression": 0.5, "ranking": 0.5, "preference": 1}
SEVERAL = ((60, 84), (112, 84), (56, 140))
"""Sizes of pictures, each of another grid."""


def write_judged(folder: Path, count: int = 12) -> Path:
    """`ratings.jsonl`, two results of each of `count` pictures, and `preferences.jsonl`, a choice between them."""
    write_pictures(folder, count, SEVERAL)
    rows = []
    for number in range(count):
        rows.append(rating(number))
        scores = {"following": 5 - number % 3, "naturalness": 1.5 + number % 2}
        rows.append(rating(number, id=f"s{number}", result=f"{number}-second.jpg", scores=scores))
    write_lines(folder / "ratings.jsonl", rows)
    write_lines(folder / "preferences.jsonl", [preference(number) for number in range(count)])
    return folder


def judge_settings(model: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """Plain settings of a run: all heads, global batches of 4 short rows, no worker processes, no trackers."""
    plain: dict[str, Any] = {
        "name": "test",
        "model": str(model),
        "rubric": "short",
        "seed": 3,
        "steps": 4,
        "global_batch": 4,
        "data": {
            "sources": [
                {"kind": "ratings", "path": str(folder / "ratings.jsonl")},
                {"kind": "preferences", "path": str(folder / "preferences.jsonl")},
            ],
            "holdout": 0.3,
            "max_pixels": 4 * SMALLEST,
            "pack": 700,
            "workers": 0,
        },
        "heads": ALL,
        "lora": {"rank": 4, "alpha": 8},
        "optimiser": {"lr": 1e-3},
        "validation": {"every": 0},
        "checkpoints": {"every": 2},
        "trackers": [],
    }
    return merged(plain, changes)


def write_judge_settings(folder: Path, plain: dict[str, Any], name: str = "train") -> Path:
    """The settings as a file that the command line takes (JSON is YAML)."""
    JudgeTrainConfig.model_validate(plain)
    path = folder / f"{name}.yaml"
    path.write_text(canonical_json(plain), encoding="utf-8")
    return path


def judge_in_process(plain: dict[str, Any], run: Path) -> JudgeTrainer:
    """A trainer that is ready to fit, in this process; its settings are written, but no folder is refused."""
    config = JudgeTrainConfig.model_validate(plain)
    run.mkdir(parents=True, exist_ok=True)
    with held(run, config):
        pass
    trainer = JudgeTrainer(config, run, make_accelerator(project_dir=run))
    trainer.prepare()
    return trainer
