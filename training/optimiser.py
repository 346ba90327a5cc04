"""The optimiser, and its learning rate: a pure function of the step, so the same on every rank and after a resume."""

import math
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from editfoundry.core.errors import UsageError
from editfoundry.training.config import Optimiser

LEAST_PRODIGY_LR = 0.1
EIGHT_BIT_SIZE = 4096
"""Weights from which bitsandbytes holds a tensor's moments in 8 bits; those of smaller ones are float32."""


def build_optimiser(named: Mapping[str, Parameter], options: Optimiser, *, sharded: bool = False) -> Optimizer:
    """An optimiser of float32 parameters, one group in the mapping's order. Set its groups' `lr` before each step.

    `adamw` is PyTorch's fused kernel on every device: one pass, and the same floats for the same shards and threads.
    `adamw8bit` (Dettmers et al. 2021) holds both moments in 8 bits with one scale per 256 values; on the CPU too.
    `prodigy` (Mishchenko & Defazio 2023) finds the step size itself, and `lr` multiplies it: leave it near 1.

    sharded: each rank will hold only its slices of the parameters, as under ZeRO (FSDP2's DTensors show it themselves).
    Raises UsageError for a package that is not installed, and for a device or sharding that an optimiser is not for.
    """
    parameters = list(named.values())
    settings: dict[str, Any] = {"lr": options.lr, "betas": options.betas, "weight_decay": options.weight_decay}
    if options.name == "adamw":
        return AdamW(parameters, fused=True, **settings)
    slices = any(isinstance(parameter, DTensor) for parameter in parameters)
    if options.name == "adamw8bit":
        return _adamw8bit(parameters, settings, slices)
    return _prodigy(parameters, settings, sharded or slices)


def learning_rate(options: Optimiser, step: int, steps: int) -> float:
    """The rate of step `step` of `steps`, counted from 0: the formulas of diffusers' schedules of the same names.

    Linear from 0 to `lr` over the warm-up, then constant, or falling to 0 at `steps` along a cosine or a line.
    """
    if step < options.warmup:
        return options.lr * step / options.warmup
    done = min((step - options.warmup) / max(1, steps - options.warmup), 1.0)
    left = {"constant": 1.0, "cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done}
    return options.lr * left[options.schedule]


def _adamw8bit(parameters: list[Parameter], settings: dict[str, Any], slices: bool) -> Optimizer:
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise _missing("adamw8bit", "bitsandbytes", "quantised") from error
    if slices:
        raise UsageError("optimiser.name `adamw8bit` cannot step FSDP2's sharded tensors; use `adamw`, or DDP or ZeRO")
    for device in {parameter.device for parameter in parameters}:
        trial = Parameter(torch.zeros(EIGHT_BIT_SIZE, device=device))
        trial.grad = torch.zeros_like(trial)
        try:
            AdamW8bit([trial]).step()
        except RuntimeError as error:  # no kernel for this device, or no library for its driver
            reason = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"optimiser.name `adamw8bit`: bitsandbytes cannot step on {device} ({reason}); use `adamw`"
            ) from error
    optimiser: Optimizer = AdamW8bit(parameters, **settings)
    return optimiser


def _prodigy(parameters: list[Parameter], settings: dict[str, Any], sharded: bool) -> Optimizer:
    try:
        from prodigyopt import Prodigy
    except ImportError as error:
        raise _missing("prodigy", "prodigyopt") from error
    if sharded:
        raise UsageError(
            "optimiser.name `prodigy` estimates one step size from all parameters, which no rank holds under ZeRO and "
            "FSDP2; use `adamw`, or DDP"
        )
    if settings["lr"] < LEAST_PRODIGY_LR:
        raise UsageError(
            f"optimiser.lr is {settings['lr']}: `prodigy` finds the step size itself and multiplies it by lr; set lr: 1"
        )
    with redirect_stdout(sys.stderr):  # it announces weight decay
        optimiser: Optimizer = Prodigy(parameters, use_bias_correction=True, safeguard_warmup=True, **settings)
    return optimiser


def _missing(name: str, package: str, extra: str = "train") -> UsageError:
    return UsageError(f"optimiser.name `{name}` needs {package}; pip install 'editfoundry[{extra}]', or use `adamw`")
