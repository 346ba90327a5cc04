"""Optimiser states by parameter name, in plain tensors and numbers, so that no pickle is ever needed to read one.

A rank keeps {"groups": [settings], "state": {name: {"start", "split": {}, "whole": {}}}}: `split` holds what belongs
element by element to the rank's run of the parameter (flattened), `whole` the rest (step counts, tables). States of
other numbers of ranks are read by cutting the runs anew.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from editfoundry.core.errors import EditFoundryError
from editfoundry.training.sharding.pieces import Piece, host_copy

Part = Mapping[str, Any]
"""What one rank kept; empty where another rank keeps everything."""


Optimised = Mapping[str, tuple[nn.Parameter, Piece]]
"""By name: each parameter as the optimiser knows it, with this rank's piece of it."""


def settings(optimiser: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimiser's groups without their parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimiser.param_groups]


def named_state(optimiser: torch.optim.Optimizer, optimised: Optimised) -> dict[str, Any]:
    """A copy of this rank's state on the CPU."""
    state = {}
    for name, (parameter, run) in optimised.items():
        split, whole = {}, {}
        for key, value in optimiser.state.get(parameter, {}).items():
            local = value.to_local() if isinstance(value, DTensor) else value
            if isinstance(local, Tensor) and local.dim() and local.shape == run.tensor.shape:
                split[key] = host_copy(local).view(-1)
            else:
                whole[key] = host_copy(local) if isinstance(local, Tensor) else local
        state[name] = {"start": run.start, "split": split, "whole": whole}
    return {"groups": settings(optimiser), "state": state}


def load_named(optimiser: torch.optim.Optimizer, optimised: Optimised, parts: Sequence[Part]) -> None:
    """Take up what all ranks kept, of this number of them or another. Raises EditFoundryError if it does not fit."""
    parts = [part for part in parts if part]
    if not parts or any(set(part["state"]) != set(optimised) for part in parts):
        raise EditFoundryError("the optimiser's state is of other parameters than this run trains")
    state = {}
    for number, (name, (parameter, run)) in enumerate(optimised.items()):
        runs = [part["state"][name] for part in parts]
        state[number] = {**_whole(name, run, runs), **_split(name, parameter, run, runs)}
    numbers = iter(range(len(optimised)))
    groups = [
        {**saved, "params": [next(numbers) for _ in group["params"]]}
        for saved, group in zip(parts[0]["groups"], optimiser.param_groups, strict=True)
    ]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def _whole(name: str, run: Piece, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [saved for saved in runs if saved["start"] == run.start and _length(saved) in (None, run.size)]
    whole = {
        key: host_copy(value) if isinstance(value, Tensor) else value
        for key, value in (own or runs)[0]["whole"].items()
    }
    if not own and any(isinstance(value, Tensor) and value.numel() > 1 for value in whole.values()):
        raise EditFoundryError(
            f"{name}: its optimiser state cannot be divided among another number of ranks; resume with the number "
            "that wrote the checkpoint"
        )
    return whole


def _split(name: str, parameter: nn.Parameter, run: Piece, runs: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The elementwise entries of this rank's run, put together from the runs that were kept."""
    found = {}
    for key, example in runs[0]["split"].items():
        local = torch.empty(run.tensor.numel(), dtype=example.dtype)
        filled = 0
        for saved in runs:
            values, first = saved["split"][key], saved["start"]
            low, high = max(run.start, first), min(run.start + run.size, first + len(values))
            if low < high:
                local[low - run.start : high - run.start] = values[low - first : high - first]
                filled += high - low
        if filled != run.tensor.numel():
            raise EditFoundryError(f"{name}: the optimiser's `{key}` has {filled} of {run.tensor.numel()} values")
        found[key] = _like(parameter, local.view(run.tensor.shape))
    return found


def _length(saved: Mapping[str, Any]) -> int | None:
    return next((len(values) for values in saved["split"].values()), None)


def _like(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """A rank's part of a tensor, distributed as the parameter is."""
    if not isinstance(parameter, DTensor):
        return local
    local = local.to(parameter.device)
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
