"""Which way training is spread over processes: what the launcher asked for, as accelerate understood it."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DistributedDataParallelKwargs, DistributedType, InitProcessGroupKwargs
from torch import nn

from editfoundry.core.errors import UsageError
from editfoundry.training.config import Optimiser
from editfoundry.training.sharding.ddp import DdpEngine
from editfoundry.training.sharding.engine import Engine, Kind
from editfoundry.training.sharding.fsdp import FsdpEngine
from editfoundry.training.sharding.zero import Zero3Engine, ZeroEngine, zero_kind

ENGINES: dict[Kind, type[Engine]] = {
    "none": Engine,
    "ddp": DdpEngine,
    "zero1": ZeroEngine,
    "zero2": ZeroEngine,
    "zero3": Zero3Engine,
    "fsdp2": FsdpEngine,
}


def make_accelerator(**arguments: Any) -> Accelerator:
    """The Accelerator of a training run, as the launcher's environment asks; `arguments` are its own (`log_with` ...).

    Precision is left at "no": trained weights stay float32 and the trainer autocasts.
    """
    if not torch.cuda.is_available():  # else DeepSpeed says on stdout that it finds no GPU, wherever it is looked at
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    handlers: list[Any] = [DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    if _wanted("ACCELERATE_USE_DEEPSPEED"):
        if _wanted("ACCELERATE_USE_CPU"):
            raise UsageError(
                "accelerate leaves DeepSpeed out where ACCELERATE_USE_CPU is set; for DeepSpeed on the CPU set "
                'CUDA_VISIBLE_DEVICES="" instead'
            )
        # Without init, models load as they are; with it, transformers would shard the frozen encoders too.
        arguments["deepspeed_plugin"] = DeepSpeedPlugin(zero3_init_flag=False)
        if not torch.cuda.is_available():
            handlers.append(InitProcessGroupKwargs(backend="gloo"))
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")  # DeepSpeed's calls
    return Accelerator(mixed_precision="no", kwargs_handlers=handlers, **arguments)


def engine_kind(accelerator: Accelerator) -> Kind:
    """The way that the launcher asked for. Raises UsageError for one that is not built here."""
    kind = accelerator.distributed_type
    if kind == DistributedType.NO:
        return "none"
    # accelerate says MULTI_CPU for FSDP on a CPU, and would train it unsharded.
    if kind == DistributedType.FSDP or (kind == DistributedType.MULTI_CPU and _wanted("ACCELERATE_USE_FSDP")):
        if os.environ.get("FSDP_VERSION", "2") != "2" or _wanted("FSDP_OFFLOAD_PARAMS"):
            raise UsageError("fsdp_config: training is built for fsdp_version 2 without fsdp_offload_params; set those")
        return "fsdp2"
    if kind == DistributedType.DEEPSPEED:
        return zero_kind(accelerator)
    if kind in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        return "ddp"
    raise UsageError(
        f"training is not built for accelerate's distributed type {kind.value}; use a file of configs/accelerate"
    )


def build_engine(
    accelerator: Accelerator, model: nn.Module, named: Mapping[str, nn.Parameter], options: Optimiser
) -> Engine:
    """Spread `model` and the optimiser of its trained parameters over the processes. On all ranks.

    named: the trained parameters, float32; every other one is frozen. Names of `model.named_parameters()`.
    """
    for parameter in named.values():
        assert parameter.dtype == torch.float32, "trained parameters are float32"
    model.to(accelerator.device)
    return ENGINES[engine_kind(accelerator)](accelerator, model, list(named), options)


def _wanted(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() == "true"
