"""From a judge's run to a folder that `--judge local:DIR` loads: the model it began with, and what was trained."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from editfoundry.core.errors import UsageError
from editfoundry.models.checkpoint import checkpoint_digest, checkpoint_path
from editfoundry.models.editor.initialise import new_folder
from editfoundry.models.judge.folder import REGRESSION, SETTINGS, JudgeSettings, read_settings, write_settings
from editfoundry.models.judge.rubric import Rubric, load_rubric
from editfoundry.models.judge.types import Head
from editfoundry.training.checkpoint import read_state
from editfoundry.training.export import chosen_weights, put_weights, stored_precision
from editfoundry.training.judge.config import JudgeTrainConfig
from editfoundry.training.judge.model import open_judge, prepare_parameters
from editfoundry.training.parameters import merge_lora
from editfoundry.training.rundir import saved_config

CPU = torch.device("cpu")
FILES = (".json", ".txt", ".jinja", ".model")
"""What a folder has beside its weights: settings, tokenizer, template."""


def export_judge(run: Path, out: Path, *, step: int | None = None, ema: bool | None = None) -> Path:
    """Write the judge that a run has trained as a folder, `out`, and return it.

    step: of the checkpoint, the newest by default. ema: the averaged weights or the trained ones; averaged where there
    are any. A LoRA is added to the weights it is on. Weights are written in the precision of the model the run began
    with, as inference reads them; the regression head in float32. The folder appears whole or not at all.
    Raises UsageError when `out` exists, for a checkpoint or an average that is not there, and for a model that is not
    the one that was trained; CheckpointError for a damaged checkpoint or one that does not fit the model; ModelMissing
    when the model is gone.
    """
    config = JudgeTrainConfig.model_validate(saved_config(run))
    base = checkpoint_path(config.model)
    with new_folder(out) as staging:
        weights = chosen_weights(run, step, ema)
        if read_state(weights.parent).get("model") != checkpoint_digest(config.model):
            raise UsageError(f"{base}: the model that {run} began with changed since; restore it, then export")
        exact = config.model_copy(update={"precision": "float32", "gradient_checkpointing": False})
        rubric = load_rubric(config.rubric)
        model, _ = open_judge(exact, rubric.scale, CPU)
        put_weights(prepare_parameters(model, exact, CPU), weights, config.model)
        merge_lora(model)
        model.vlm.to(getattr(torch, stored_precision(base))).save_pretrained(staging)
        for file in sorted(base.iterdir()):
            if file.suffix in FILES and not (staging / file.name).exists() and file.name != SETTINGS:
                shutil.copy2(file, staging / file.name)
        if model.regression is not None:
            save_file(model.regression.state_dict(), staging / REGRESSION)
        write_settings(staging, settings(config, rubric, base))
    return out


def settings(config: JudgeTrainConfig, rubric: Rubric, base: Path) -> JudgeSettings:
    """What is written beside the weights. head: the first that was trained of expected, regression and generate."""
    before, heads = read_settings(base), config.heads
    trained: list[Any] = [name for name, weight in heads.model_dump().items() if weight]
    regresses = bool(heads.regression or heads.ranking)
    best: tuple[tuple[Head, bool], ...] = (
        ("expected", bool(heads.expected)),
        ("regression", regresses),
        ("generate", bool(heads.generate)),
    )
    return JudgeSettings(
        rubric=config.rubric,
        rubric_digest=rubric.digest,
        order=config.order,
        head=next((name for name, is_trained in best if is_trained), "expected"),
        heads=tuple(trained),
        min_pixels=config.data.min_pixels,
        max_pixels=config.data.max_pixels,
        base=checkpoint_digest(config.model),
        miniature=before is not None and before.miniature,
    )
