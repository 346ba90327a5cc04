"""From a run's checkpoint to an editor's folder: the one it began with, and the trained weights in the place of its."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from editfoundry.core.errors import UsageError
from editfoundry.models.checkpoint import checkpoint_digest
from editfoundry.models.editor.initialise import new_folder
from editfoundry.models.editor.loading import Precision, change_settings, load_parts, read_index
from editfoundry.models.editor.model import EditorModel
from editfoundry.training.checkpoint import (
    AVERAGE,
    TRAINED,
    CheckpointError,
    Tensors,
    complete,
    folder_name,
    read_state,
    verify,
)
from editfoundry.training.config import TrainConfig
from editfoundry.training.parameters import merge_lora, prepare_parameters
from editfoundry.training.rundir import CHECKPOINTS, saved_config
from editfoundry.training.sharding.pieces import check_parameters

DTYPES: dict[str, Precision] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def export(run: Path, out: Path, *, step: int | None = None, ema: bool | None = None) -> Path:
    """Write the editor that a run has trained as a pipeline folder, `out`, and return it.

    step: of the checkpoint, the newest by default. ema: the averaged weights or the trained ones; averaged where there
    are any. Trained weights are written in float32, as they were trained; a LoRA is added to the weights it is on.
    Components that were not trained are copied as they are. The folder appears whole or not at all.
    Raises UsageError when `out` exists, for a checkpoint or an average that is not there, and for an editor that is not
    the one that was trained; CheckpointError for a damaged checkpoint or one that does not fit the editor; ModelMissing
    when the editor is gone.
    """
    config = TrainConfig.model_validate(saved_config(run))
    base = Path(config.model).expanduser()
    with new_folder(out) as staging:
        weights = chosen_weights(run, step, ema)
        if read_state(weights.parent).get("editor") != checkpoint_digest(str(base)):
            raise UsageError(f"{base}: the editor that {run} began with changed since; restore it, then export")
        parts = trained_parts(base, config)
        load_weights(EditorModel(**parts), config, weights)
        written = [name for name, part in parts.items() if part is not None]
        others = [path for path in base.iterdir() if path.name not in written]
        for path in others:
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, staging / path.name)
        for name in written:
            parts[name].save_pretrained(staging / name)
        change_settings(staging, details=config.stage != "connector")
    return out


def chosen_weights(run: Path, step: int | None, ema: bool | None) -> Path:
    """The file of trained or averaged weights to export, once its checkpoint is verified."""
    found = complete(run / CHECKPOINTS)
    if step is not None:
        found = [path for path in found if path.name == folder_name(step)]
    if not found:
        raise UsageError(f"{run}: has no checkpoint{'' if step is None else f' of step {step}'} to export")
    checkpoint = found[-1]
    verify(checkpoint)
    averaged = (checkpoint / AVERAGE).exists()
    if ema and not averaged:
        raise UsageError(f"{checkpoint}: holds no averaged weights (`ema` was off); export the trained ones")
    return checkpoint / (AVERAGE if averaged and ema is not False else TRAINED)


def trained_parts(base: Path, config: TrainConfig) -> dict[str, Any]:
    """The components that the stage trains, as they were before, each in the precision it is stored in; else None."""
    _, present = read_index(base)
    trainable = ("connector", "visual_connector", "transformer")
    names = [name for name in (trainable[:1] if config.stage == "connector" else trainable) if name in present]
    parts = load_parts(base, names, {name: stored_precision(base / name) for name in names} | {"default": "float32"})
    return {name: parts[name] for name in trainable}


def load_weights(model: EditorModel, config: TrainConfig, weights: Path) -> None:
    """Put trained weights into a model, in place. Raises CheckpointError when they are of another model or stage."""
    frozen = "bfloat16" if getattr(model.transformer, "dtype", None) == torch.bfloat16 else "float32"
    changes = {"frozen": frozen, "precision": frozen, "gradient_checkpointing": False, "compile": False}
    plain = config.model_copy(update=changes)
    named = prepare_parameters(model, plain, torch.device("cpu"))
    put_weights(named, weights, config.model)
    if config.lora:
        merge_lora(model)


def put_weights(named: Mapping[str, nn.Parameter], weights: Path, model: str) -> None:
    """Put a checkpoint's weights into the parameters of that name. model: what the configuration calls the model.

    Raises CheckpointError when they are of another model, or of other parameters.
    """
    with safe_open(weights, "pt") as file, torch.no_grad():
        tensors = Tensors(file)
        try:
            check_parameters({name: parameter.shape for name, parameter in named.items()}, tensors)
        except UsageError as error:
            raise CheckpointError(f"{weights}: {error}; was {model} changed since?") from error
        for name, parameter in named.items():
            parameter.copy_(tensors[name])


def stored_precision(folder: Path) -> Precision:
    """The precision that most weights of a component's folder are stored in."""
    counts: dict[str, int] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                part = file.get_slice(name)
                size = int(torch.Size(part.get_shape()).numel())
                counts[part.get_dtype()] = counts.get(part.get_dtype(), 0) + size
    most = max(counts, key=lambda dtype: counts[dtype])
    return DTYPES.get(most, "float32")
