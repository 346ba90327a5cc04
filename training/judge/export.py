"""From a judge's run to a folder that `--judge local:DIR` loads: the model it began with, and what was trained."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from editfoundry.core.errors import UsageError
from editfoundry.models.checkpoint import checkpoint_digest, checkpoint_path
from editfoundry.models.editor.initialise import new_folder
from editfoundry.models.judge.folder import REGRESSION, SETTINGS, JudgeSettings, read_settings, write_settings
from editfoundry.models.judge.rubric import load_rubric
from editfoundry.training.checkpoint import CheckpointError, Tensors, read_state
from editfoundry.training.export import chosen_weights, stored_precision
from editfoundry.training.judge.config import JudgeTrainConfig
from editfoundry.training.judge.model import JudgeModel, prepare_parameters
from editfoundry.training.rundir import saved_config
from editfoundry.training.sharding.pieces import check_parameters

FILES = (".json", ".txt", ".jinja", ".model")
"""What a folder has beside its weights: settings, tokenizer, template."""


def export_judge(run: Path, out: Path, *, step: int | None = None, ema: bool | None = None) -> Path:
    """Write the judge that a run has trained as a folder, `out`, and return it. A LoRA is added to the weights it is on.

    step: of the checkpoint, the newest by default. ema: the averaged weights or the trained ones; averaged where there
    are any. The folder appears whole or not at all.
    Raises UsageError when `out` exists, for a checkpoint or an average that is not there, and for a model that is not
    the one that was trained; CheckpointError for a damaged checkpoint or one that does not fit the model.
    """
    from transformers import AutoModelForImageTextToText

    config = JudgeTrainConfig.model_validate(saved_config(run))
    base = checkpoint_path(config.model)
    with new_folder(out) as staging:
        weights = chosen_weights(run, step, ema)
        if read_state(weights.parent).get("model") != checkpoint_digest(config.model):
            raise UsageError(f"{base}: the model that {run} began with changed since; restore it, then export")
        vlm: Any = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32, local_files_only=True)
        model = JudgeModel(vlm, config.heads)
        named = prepare_parameters(model, config, torch.device("cpu"))
        with safe_open(weights, "pt") as file, torch.no_grad():
            tensors = Tensors(file)
            try:
                check_parameters({name: parameter.shape for name, parameter in named.items()}, tensors)
            except UsageError as error:
                raise CheckpointError(f"{weights}: {error}; was {config.model} changed since?") from error
            for name, parameter in named.items():
                parameter.copy_(tensors[name])
        if config.trains == "lora":
            merge_lora(vlm)
        vlm.to(getattr(torch, stored_precision(base))).save_pretrained(staging)
        for file_ in sorted(base.iterdir()):
            if file_.suffix in FILES and not (staging / file_.name).exists() and file_.name != SETTINGS:
                shutil.copy2(file_, staging / file_.name)
        if model.regression is not None:
            state = {name: tensor.contiguous() for name, tensor in model.regression.state_dict().items()}
            save_file(state, staging / REGRESSION)
        write_settings(staging, settings(config, base))
    return out


def settings(config: JudgeTrainConfig, base: Path) -> JudgeSettings:
    """What is written beside the weights."""
    before, heads = read_settings(base), config.heads
    trained: list[Any] = [name for name, weight in heads.model_dump().items() if weight]
    return JudgeSettings(
        rubric=config.rubric,
        rubric_digest=load_rubric(config.rubric).digest,
        order=config.order,
        head="expected" if heads.expected else "regression" if heads.regression or heads.ranking else "generate",
        heads=tuple(trained),
        min_pixels=config.data.min_pixels,
        max_pixels=config.data.max_pixels,
        base=checkpoint_digest(config.model),
        miniature=before is not None and before.miniature,
    )


def merge_lora(vlm: Any) -> None:
    """Add the LoRA to the weights it is on and take it off, in place."""
    from peft.tuners.lora import LoraLayer

    for parent in list(vlm.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLayer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
    vlm._hf_peft_config_loaded = False
    vlm.peft_config = {}
