"""What all renderers share: options, digest, lazy loading, one generator per sample, batches of one shape.

Pipelines live in this process as long as a model uses them, and models that name one checkpoint with the same options
share one pipeline: painter and inserter hold a single FLUX Fill.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from pydantic import Field
from safetensors import SafetensorError

from editfoundry.core.config import Config
from editfoundry.core.errors import ConfigError, ModelMissing, UsageError
from editfoundry.core.hashing import canonical_json, sha256, sha256_file
from editfoundry.models.checkpoint import TorchOptions, checkpoint_digest, checkpoint_path
from editfoundry.models.protocols import Image

T = TypeVar("T")
HOW_NOT_WHAT = {"device", "offload", "compile", "batch"}
"""Options that decide how fast a result comes, not which."""
QUANTISED = ("transformer", "unet", "text_encoder_2")
QUANTISED_QWEN = ("transformer", "text_encoder")
BITS_AND_BYTES: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("bitsandbytes_8bit", {"load_in_8bit": True}),
    "nf4": ("bitsandbytes_4bit", {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
}


class Lora(Config):
    """A LoRA in safetensors. path: the file, or a folder or an id of the model store that holds the file `weight`."""

    path: str
    weight: str | None = None
    scale: float = 1.0

    def file(self) -> Path:
        """Where it is. Raises ConfigError for anything but safetensors, ModelMissing when it is not there."""
        path = Path(self.path).expanduser()
        if not path.is_file():
            if self.weight is None:
                raise ConfigError(f"loras: {self.path} is no file; name the file in it as `weight`")
            path = checkpoint_path(self.path, self.weight)
        if path.suffix != ".safetensors":
            raise ConfigError(f"loras: {path} is not a .safetensors file; nothing else is loaded")
        return path


class DiffusionOptions(TorchOptions):
    """What every renderer takes.

    work_size: the model works at about this many pixels squared. steps, guidance: of the sampler. offload: where
    weights wait: on the device (`none`), in memory by component (`model`) or by layer (`sequential`). quantisation:
    of the denoiser and the large text encoder, through bitsandbytes. compile: compile the denoiser's repeated blocks.
    """

    batch: int = Field(default=4, ge=1)
    work_size: int = Field(default=1024, ge=32)
    steps: int = Field(default=21, ge=1)
    guidance: float = Field(default=3.0, ge=0)
    offload: Literal["none", "model", "sequential"] = "none"
    quantisation: Literal["none", "int8", "nf4"] = "none"
    compile: bool = False
    loras: tuple[Lora, ...] = ()


class DiffusionModel(ABC):
    """Base of the renderers. A subclass sets `name`, `Options` and `checkpoints`, and builds its pipeline.

    version: raised whenever the code gives other results for the same weights. checkpoints: the options that name
    weights, each an id of the model store or a folder.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    checkpoints: ClassVar[tuple[str, ...]] = ("checkpoint",)

    def __init__(self, options: Any) -> None:
        self.options = options
        self.pipe: Any = None

    def digest(self) -> str:
        """SHA-256 over implementation, options that change results, and weights; loads nothing."""
        weights = {option: checkpoint_digest(getattr(self.options, option)) for option in self._weights()}
        skipped = HOW_NOT_WHAT | {"loras", *weights}
        loras = [[sha256_file(lora.file()), lora.scale] for lora in self.options.loras]
        payload = {
            "name": self.name,
            "version": self.version,
            "options": self.options.model_dump(mode="json", exclude=skipped),
            "weights": weights,
            "loras": loras,
        }
        return sha256(canonical_json(payload))

    def load(self) -> None:
        """Load the pipeline unless it is loaded. Raises ModelMissing or UsageError naming the remedy."""
        if self.pipe is None:
            for option in self._weights():
                checkpoint_path(getattr(self.options, option))
            self.pipe = self._build()

    def _weights(self) -> tuple[str, ...]:
        """The options that name weights in this configuration."""
        return self.checkpoints

    @abstractmethod
    def _build(self) -> Any:
        """The pipeline, placed and ready."""


_resident: WeakValueDictionary[str, Any] = WeakValueDictionary()


def resident(pipeline: str, options: DiffusionOptions) -> Any:
    """The pipeline of a diffusers class for these options: the one that a model of this process holds, or a new one."""
    place = options.model_dump(mode="json", include={"device", "dtype", "offload", "quantisation", "compile", "loras"})
    key = canonical_json([pipeline, str(checkpoint_path(options.checkpoint).resolve()), place])
    if key not in _resident:
        pipe = placed(opened(pipeline, options), options)
        _resident[key] = pipe
        return pipe
    return _resident[key]


def opened(pipeline: str, options: DiffusionOptions) -> Any:
    """A pipeline of the checkpoint with its LoRAs, shared with nobody and not yet placed."""
    pipe = load_component(pipeline, checkpoint_path(options.checkpoint), options, **quantisation(pipeline, options))
    add_loras(pipe, options.loras)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pipeline_class(options: DiffusionOptions, allowed: Sequence[str]) -> str:
    """Which of the classes a checkpoint's `model_index.json` names. Raises ModelMissing for any other."""
    index = checkpoint_path(options.checkpoint, "model_index.json")
    try:
        name = json.loads(index.read_text("utf-8"))["_class_name"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelMissing(f"{index}: names no pipeline class") from error
    if name not in allowed:
        raise ModelMissing(f"{index}: is of a {name!s:.80}; expected {' or '.join(allowed)}")
    return str(name)


def load_component(class_name: str, folder: Path, options: DiffusionOptions, **parts: Any) -> Any:
    """A diffusers class from a folder, safetensors only. Raises ModelMissing saying what the folder lacks."""
    import diffusers
    import transformers

    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    kind = getattr(diffusers, class_name)
    if issubclass(kind, diffusers.DiffusionPipeline):
        parts = {**_text_and_image_models(folder, options, parts), **parts}
    return from_folder(kind, folder, options, **parts)


def _text_and_image_models(folder: Path, options: DiffusionOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """A pipeline's models of transformers, each loaded by itself, since a pipeline draws weights they lack at random.

    Those that are given, or that the pipeline has to quantise, are left to it.
    """
    import transformers

    index = folder / "model_index.json"
    quantised = given["quantization_config"].components_to_quantize if "quantization_config" in given else ()
    try:
        kinds = {
            name: getattr(transformers, entry[1], None)
            for name, entry in json.loads(index.read_text("utf-8")).items()
            if isinstance(entry, list) and entry[0] == "transformers" and name not in (*given, *quantised)
        }
    except (OSError, ValueError, AttributeError, IndexError, TypeError) as error:
        raise ModelMissing(f"{index}: names no components of a pipeline") from error
    return {
        name: from_folder(kind, folder / name, options)
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    }


def from_folder(kind: Any, folder: Path, options: TorchOptions, **parts: Any) -> Any:
    """`kind.from_pretrained`, with its complaint as ours; also for weights that the folder lacks."""
    import diffusers
    import transformers

    tells = issubclass(kind, transformers.PreTrainedModel | diffusers.ModelMixin)
    told = {"output_loading_info": True} if tells else {}
    try:
        loaded = kind.from_pretrained(
            str(folder), dtype=options.precision(), local_files_only=True, use_safetensors=True, **told, **parts
        )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, SafetensorError) as error:
        if "out of memory" in str(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise ModelMissing(f"{folder}: not a checkpoint that {kind.__name__} can load: {reason}") from error
    model, lacking = (loaded[0], sorted(loaded[1]["missing_keys"])) if told else (loaded, _never_filled(loaded))
    if lacking:
        raise ModelMissing(f"{folder}: lacks {len(lacking)} weights of {kind.__name__}, among them {lacking[0]}")
    return model


def _never_filled(loaded: Any) -> list[str]:
    """Weights of a pipeline's models that no file filled."""
    parts = getattr(loaded, "components", {"": loaded})
    named = [(part, model) for part, model in parts.items() if hasattr(model, "named_parameters")]
    return [f"{part}.{name}".strip(".") for part, model in named for name, w in model.named_parameters() if w.is_meta]


def quantisation(pipeline: str, options: DiffusionOptions) -> dict[str, Any]:
    """The argument of `from_pretrained` that quantises. Raises UsageError on a CPU and without bitsandbytes."""
    if options.quantisation == "none":
        return {}
    if options.where() == "cpu":
        raise UsageError(f"quantisation: {options.quantisation} needs a GPU; set `quantisation: none` on a CPU")
    if find_spec("bitsandbytes") is None:
        raise UsageError(
            f"quantisation: {options.quantisation} needs the package bitsandbytes: pip install bitsandbytes"
        )
    from diffusers import PipelineQuantizationConfig

    parts = QUANTISED_QWEN if pipeline.startswith("Qwen") else QUANTISED
    backend, arguments = BITS_AND_BYTES[options.quantisation]
    if options.quantisation == "nf4":
        arguments = {**arguments, "bnb_4bit_compute_dtype": options.precision()}
    return {
        "quantization_config": PipelineQuantizationConfig(
            quant_backend=backend, quant_kwargs=arguments, components_to_quantize=list(parts)
        )
    }


def add_loras(pipe: Any, loras: Sequence[Lora]) -> None:
    """Load each LoRA under its own name and set their scales. Raises ConfigError for one of another model."""
    names = [f"lora{number}" for number in range(len(loras))]
    for name, lora in zip(names, loras, strict=True):
        file = lora.file()
        try:
            pipe.load_lora_weights(
                str(file.parent), weight_name=file.name, adapter_name=name, local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"loras: {file} does not fit {type(pipe).__name__}: {reason}") from error
        if not any(name in adapters for adapters in pipe.get_list_adapters().values()):
            raise ConfigError(f"loras: {file} does not fit {type(pipe).__name__}: it names none of its layers")
    if names:
        pipe.set_adapters(names, adapter_weights=[lora.scale for lora in loras])


def placed(pipe: Any, options: DiffusionOptions) -> Any:
    """The pipeline where the options want it, its blocks compiled if they say so. Raises UsageError on a CPU."""
    if options.offload != "none" and options.where() == "cpu":
        raise UsageError(f"offload: {options.offload} needs a GPU; set `offload: none` on a CPU")
    if options.offload == "model":
        pipe.enable_model_cpu_offload(device=options.where())
    elif options.offload == "sequential":
        pipe.enable_sequential_cpu_offload(device=options.where())
    else:
        pipe.to(options.where())
    if options.compile:
        for denoiser in (getattr(pipe, part, None) for part in ("transformer", "unet")):
            if denoiser is not None:
                denoiser.compile_repeated_blocks()
    return pipe


def generators(seeds: Sequence[int]) -> list[Any]:
    """One torch generator per sample, on the CPU, so that noise depends neither on the device nor on the batch."""
    import torch

    return [torch.Generator("cpu").manual_seed(seed % 2**63) for seed in seeds]


def in_buckets(items: Sequence[T], shape: Callable[[T], Hashable], batch: int) -> Iterator[list[int]]:
    """Indices of items of one shape, at most `batch` together; shapes in order of their first item."""
    buckets: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        buckets.setdefault(shape(item), []).append(index)
    for indices in buckets.values():
        for start in range(0, len(indices), batch):
            yield indices[start : start + batch]


def pictures(output: Any) -> list[Image]:
    """A pipeline's PIL images as uint8 [h, w, 3]."""
    return [np.asarray(image.convert("RGB")) for image in output.images]
