"""DeepSpeed's ZeRO: optimiser states (1), gradients (2) and parameters (3) sharded, through accelerate's plugin.

The engine is called directly, not through `accelerator.backward`, which would clip and step at once: then a step could
not be left out. What is read of DeepSpeed beyond its documented calls is listed here, for whoever updates it:
`optimizer.optimizer`, `scaled_global_norm`, `_get_norm_groups`, `clip_grad`, `averaged_gradients`, `update_lp_params`,
`refresh_fp32_params`, `single_partition_of_fp32_groups`, `fp32_partitioned_groups_flat`, `persistent_parameters`,
`_partition_all_parameters`, a parameter's `_hp_mapping` and `ds_tensor`.

Older versions than 0.19.8 may give 1 for the norm of gradients that are not finite, as 0.19.0 does: a step would be
made of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.training.config import Optimiser
from editfoundry.training.sharding.engine import Kind
from editfoundry.training.sharding.optimiser_state import Part, settings
from editfoundry.training.sharding.pieces import Piece, host_copy
from editfoundry.training.sharding.sharded import ShardedEngine


class ZeroEngine(ShardedEngine):
    """Stages 1 and 2: this rank's pieces are its partition of the float32 weights that the optimiser updates."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, names: Sequence[str], options: Optimiser) -> None:
        self.kind: Kind = zero_kind(accelerator)
        super().__init__(accelerator, model, names, options)

    def _optimise(self, options: Optimiser) -> None:
        super()._optimise(options)
        config = self.accelerator.deepspeed_plugin.deepspeed_config
        # Losses come already divided, and `accumulate` says which micro-batch is the last.
        config |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0}
        under_ambient_autocast(self.model, self.accelerator.device.type)
        self.wrapped, _ = self.accelerator.prepare(self.model, self.optimiser)
        self.zero = self.wrapped.optimizer

    def _piece(self, parameter: nn.Parameter) -> Piece:
        mapping = parameter._hp_mapping
        if mapping is None:  # another rank's
            return Piece(torch.empty(0, device=parameter.device), parameter.shape, 0)
        return Piece(mapping.hp_fragment.detach(), parameter.shape, mapping.lp_fragment_address.start)

    def forward(self, *arguments: Any) -> Any:
        kind = self.accelerator.device.type
        self.model.ambient = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            return self.wrapped(*arguments)

    @contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        self.wrapped.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: Tensor) -> None:
        self.wrapped.backward(loss * self.ranks, scale_wrt_gas=False)

    def clip(self, max_norm: float) -> float:
        self.zero.clip_grad = max_norm  # `step` scales by it
        return float(self._norm())

    def step(self, lr: float) -> None:
        self._set_rate(lr)
        self.wrapped.step()

    def zero_grad(self) -> None:
        # What DeepSpeed does itself when it leaves a step out.
        self.zero.zero_grad(set_to_none=True)
        self.zero.averaged_gradients = {}
        self._forget()

    def publish(self) -> None:
        self.zero.update_lp_params()

    @property
    def optimiser_format(self) -> str:
        return f"{self.kind} on {self.ranks} ranks"

    def optimiser_state(self) -> dict[str, Any]:
        state = [
            {key: host_copy(value) if isinstance(value, Tensor) else value for key, value in entry.items()}
            for entry in (self.optimiser.state.get(flat, {}) for flat in self._flats())
        ]
        return {"groups": settings(self.optimiser), "state": state}

    def load_optimiser(self, parts: Sequence[Part]) -> None:
        own, flats = parts[self.rank], self._flats()
        if len(own["state"]) != len(flats):
            raise EditFoundryError("the optimiser's state is of other parameters than this run trains")
        for flat, entry in zip(flats, own["state"], strict=True):
            self.optimiser.state[flat] = {
                key: value.to(flat.device, copy=True) if isinstance(value, Tensor) else value
                for key, value in entry.items()
            }
        for group, saved in zip(self.optimiser.param_groups, own["groups"], strict=True):
            group.update(saved)

    def _norm(self) -> Tensor:
        norm: Tensor = self.zero.scaled_global_norm()
        return norm

    def _forget(self) -> None:
        self.zero.all_grad_tensors = {}

    def _flats(self) -> list[Tensor]:
        flats: list[Tensor] = list(self.zero.single_partition_of_fp32_groups)
        return flats


class Zero3Engine(ZeroEngine):
    """Stage 3: this rank's pieces are the partitions that forward passes gather; the optimiser has its own copy."""

    def _piece(self, parameter: nn.Parameter) -> Piece:
        partition = parameter.ds_tensor
        return Piece(partition.detach(), torch.Size(parameter.ds_shape), self.rank * partition.numel())

    def publish(self) -> None:
        self.zero._partition_all_parameters()
        if kept := self.zero.persistent_parameters:
            kept[0].all_gather(kept)

    def load_trained(self, full: Mapping[str, Tensor]) -> None:
        super().load_trained(full)
        self.zero.refresh_fp32_params()

    def _norm(self) -> Tensor:
        from deepspeed.runtime.utils import combine_grad_norm_groups

        norm: Tensor = combine_grad_norm_groups(self.zero._get_norm_groups())
        return norm

    def _forget(self) -> None:
        self.zero.micro_step_id = 0

    def _flats(self) -> list[Tensor]:
        flats: list[Tensor] = list(self.zero.fp32_partitioned_groups_flat)
        return flats


def under_ambient_autocast(model: nn.Module, device_type: str) -> None:
    """Run the model's forward pass under the autocast that is on around the engine's, which DeepSpeed turns off."""
    inner = model.forward

    def forward(*arguments: Any) -> Any:
        enabled, dtype = model.ambient
        with torch.autocast(device_type, dtype=dtype, enabled=enabled):
            return inner(*arguments)

    model.forward = forward


def zero_kind(accelerator: Accelerator) -> Kind:
    """The stage that DeepSpeed is configured for. Raises UsageError for settings that training is not built for."""
    config = accelerator.deepspeed_plugin.deepspeed_config
    zero = config.get("zero_optimization", {})
    kinds: dict[Any, Kind] = {1: "zero1", 2: "zero2", 3: "zero3"}
    if zero.get("stage") not in kinds:
        raise UsageError(f"DeepSpeed's zero_optimization.stage is {zero.get('stage')}; set 1, 2 or 3, or use DDP")
    for name in ("fp16", "bf16"):
        if config.get(name, {}).get("enabled"):
            raise UsageError(f"DeepSpeed's {name} is on: trained weights stay float32; remove it and set `precision`")
    for name in ("offload_optimizer", "offload_param"):
        if (zero.get(name) or {}).get("device", "none") != "none":
            raise UsageError(f"DeepSpeed's zero_optimization.{name} is on, which training is not built for; remove it")
    return kinds[zero["stage"]]
