"""Which parameters train, how all are stored, and what that costs in memory.

Trained parameters are float32, whatever the precision of the forward pass: a step of 1e-6 is lost on a bfloat16 weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import seed_for
from editfoundry.models.editor import stages
from editfoundry.models.editor.model import EditorModel
from editfoundry.training.config import LoraOptions, TrainConfig

if TYPE_CHECKING:
    from editfoundry.training.judge.config import JudgeTrainConfig
    from editfoundry.training.sharding import Kind  # imports DeepSpeed where it is installed

CONNECTORS = ("connector.", "visual_connector.")
EDITOR = ("connector", "visual_connector", "transformer")
STATE_BYTES = {"adamw": 8.0, "adamw8bit": 2 + 2 * 4 / 256, "prodigy": 16.0}
"""Bytes of optimiser state for each trained weight: two float32 moments; two of 8 bits with a float32 scale for each
256 (bitsandbytes keeps tensors below 4096 weights in float32); and Prodigy's two moments, slopes and first weights."""


def prepare_parameters(model: EditorModel, config: TrainConfig, device: torch.device) -> dict[str, nn.Parameter]:
    """Make the model what its stage trains, on `device`, in place; returns the trained parameters by name.

    Trained ones, of a stage's whole modules or of a LoRA that is added on them, are float32; frozen ones are stored as
    `config.frozen` says (bfloat16 under `float8`: FLUX is frozen but gradients pass through it, and autograd keeps the
    weights that it computed with). Also turns on gradient checkpointing and compilation of FLUX's blocks.

    Load what is trained in float32: what was rounded before is not found again. Raises as `frozen_dtype`.
    """
    trained = set(stages.trainable(model, config.stage))
    if config.lora:
        trained = {name for name in trained if name.startswith(CONNECTORS)}
    model.requires_grad_(False)
    if config.lora:
        add_lora(model.transformer, stages.LORA_TARGETS, config.lora, config.seed)
        trained |= {name for name, _ in model.named_parameters() if is_lora(name)}
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if name in trained else frozen_dtype(config, device))
    model.to(device)
    named = {name: parameter.requires_grad_() for name, parameter in model.named_parameters() if name in trained}
    if config.gradient_checkpointing:
        model.transformer.enable_gradient_checkpointing()
    if config.compile:
        model.transformer.compile_repeated_blocks()
    return named


def precision(config: "TrainConfig | JudgeTrainConfig", device: torch.device) -> torch.dtype:
    """The dtype of forward passes; `auto` is bfloat16, and float32 on the CPU."""
    name = config.precision if config.precision != "auto" else "float32" if device.type == "cpu" else "bfloat16"
    return getattr(torch, name)


def frozen_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """How frozen weights that gradients pass through are stored; `auto` is the dtype of forward passes.

    Raises UsageError for bfloat16 beside trained weights of FLUX in a float32 pass: its layers do not mix the two.
    """
    if config.frozen == "auto":
        return precision(config, device)
    if config.frozen == "float32":
        return torch.float32
    if config.stage == "joint" and config.lora is None and precision(config, device) == torch.float32:
        raise UsageError(
            f"frozen `{config.frozen}` stores FLUX in bfloat16, and the forward pass is float32, in which stage "
            "`joint` trains parts of it; set `precision: bfloat16`, or `frozen: float32`"
        )
    return torch.bfloat16


def store_float8(*encoders: nn.Module) -> None:
    """Store linear and convolution weights of frozen encoders as float8 (e4m3), each computed in its present dtype.

    For the vision-language model and SigLIP, which no gradient passes through. Their embeddings, norms, patch layers
    and SigLIP's pooling head stay as they are; the VAE is not for this. Halves their memory for a rounding of about 3%
    of each weight (diffusers' layerwise casting, without scales).
    """
    from diffusers.hooks import apply_layerwise_casting

    for encoder in encoders:
        dtype = next(parameter.dtype for parameter in encoder.parameters() if parameter.is_floating_point())
        apply_layerwise_casting(
            encoder,
            storage_dtype=torch.float8_e4m3fn,
            compute_dtype=dtype,
            skip_modules_classes=(nn.Embedding, nn.MultiheadAttention),
        )


def add_lora(part: Any, targets: str, options: LoraOptions, seed: int) -> None:
    """Put a LoRA, drawn from the seed, on the linear layers that `targets` matches by name.

    part: a model of diffusers or transformers; their own `add_adapter` would ask for versions of peft of their own.
    """
    from peft import LoraConfig, inject_adapter_in_model

    settings: dict[str, Any] = {"r": options.rank, "lora_alpha": options.alpha}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "lora") % 2**63)
        inject_adapter_in_model(LoraConfig(target_modules=targets, **settings), part)


def is_lora(name: str) -> bool:
    """Whether a parameter of that name is of a LoRA."""
    return ".lora_A." in name or ".lora_B." in name


def merge_lora(model: nn.Module) -> None:
    """Add the LoRA to the weights it is on and take it off, in place: modules and names are those of the base again.

    The weights it was on become float32, so that the sum is not rounded.
    """
    from peft.tuners.lora import LoraLayer

    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, LoraLayer):
                layer.get_base_layer().float()
                layer.merge()
                setattr(parent, name, layer.get_base_layer())
        if hasattr(parent, "peft_config"):
            del parent.peft_config


@dataclass(frozen=True)
class ModuleMemory:
    """What a module holds, and its bytes on one rank. dtypes: of its weights, by number of weights, most first."""

    module: str
    parameters: int
    trained: int
    dtypes: tuple[str, ...]
    weight_bytes: int
    gradient_bytes: int
    optimiser_bytes: int
    average_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.gradient_bytes + self.optimiser_bytes + self.average_bytes


def summarise(
    modules: Mapping[str, nn.Module | None],
    named: Mapping[str, nn.Parameter],
    config: TrainConfig,
    kind: "Kind",
    ranks: int,
) -> list[ModuleMemory]:
    """One row for each module that is there; call it once parameters are prepared and before they are sharded.

    modules: the editor's under their names in it, and others. named: the trained parameters.

    An estimate of what stays: activations, buckets of communication and the allocator's slack come on top. Sharding
    divides by `ranks`: optimiser and average under ZeRO-1, gradients too under ZeRO-2, trained weights too under
    FSDP2, and all weights of the editor under ZeRO-3. ZeRO's optimisers hold their own copy of trained weights. Weights
    outside the editor are whole on every rank.
    """
    ids = {id(parameter) for parameter in named.values()}
    rows = []
    for name, module in modules.items():
        if module is not None:
            split: tuple[list[Tensor], list[Tensor]] = ([], [])
            for parameter in module.parameters():
                split[id(parameter) in ids].append(parameter)
            rows.append(_memory(name, *split, config, kind, ranks))
    return rows


def _memory(
    name: str, frozen: list[Tensor], trained: list[Tensor], config: TrainConfig, kind: "Kind", ranks: int
) -> ModuleMemory:
    sizes: dict[str, int] = {}
    for parameter in (*frozen, *trained):
        dtype = str(parameter.dtype).removeprefix("torch.")
        sizes[dtype] = sizes.get(dtype, 0) + parameter.numel()
    count = sum(int(parameter.numel()) for parameter in trained)

    def share(*kinds: "Kind") -> float:
        """Trained weights on a rank, of what these kinds shard."""
        return count / ranks if kind in kinds else count

    held = sum(parameter.numel() * parameter.element_size() for parameter in frozen)
    if kind == "zero3" and name in EDITOR:
        held //= ranks
    state = share("zero1", "zero2", "zero3", "fsdp2")
    own_copy = 4 if kind in ("zero1", "zero2", "zero3") else 0
    return ModuleMemory(
        module=name,
        parameters=sum(sizes.values()),
        trained=count,
        dtypes=tuple(sorted(sizes, key=lambda dtype: -sizes[dtype])),
        weight_bytes=held + round(4 * share("zero3", "fsdp2")),
        gradient_bytes=round(4 * share("zero2", "zero3", "fsdp2")),
        optimiser_bytes=round((STATE_BYTES[config.optimiser.name] + own_copy) * state),
        average_bytes=round(4 * state) if config.ema else 0,
    )
