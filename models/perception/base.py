"""What the full stack's perception models share: options, digest, loading, and images as their processors take them.

Weights are float32; where the options ask for less, the forward pass runs under autocast. That is as fast, and keeps
box coordinates, normalisations and softmaxes exact: bfloat16 alone cannot tell neighbouring pixels of an image apart.
"""

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from PIL import Image as PillowImage

from editfoundry.core.errors import EditFoundryError, ModelMissing
from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.models.checkpoint import TorchOptions, checkpoint_digest
from editfoundry.models.protocols import Float, Image

MOST_ELONGATED = 32
"""Largest ratio of an image's sides that is taken as it is: resizing the short side to 800 would make millions."""
LONG_SIDE_OF_A_STRIP = 2048


class CheckpointError(EditFoundryError):
    """A folder of weights that is not a checkpoint of the model it was given for."""


class TorchModel:
    """Base of the perception models. Construction is cheap; `load()` reads the weights, once.

    A subclass sets `name`, `version` (raised whenever its code gives other results for the same weights and options)
    and implements `_load`. `located`: options that say where weights lie and run; the weights have their own digests.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    located: ClassVar[frozenset[str]] = frozenset({"checkpoint", "device", "batch"})

    def __init__(self, options: TorchOptions) -> None:
        self.options = options
        self._loaded = False

    def digest(self) -> str:
        """SHA-256 over name, version, the options that change results, and the weights' digests. Loads nothing.

        Raises ModelMissing for weights that are not there, naming the remedy.
        """
        options = self.options.model_dump(mode="json", exclude=set(self.located))
        parts = {"name": self.name, "version": self.version, "options": options, "weights": self._weight_digests()}
        return sha256(canonical_json(parts))

    def load(self) -> None:
        """Load the weights unless they are loaded. Raises ModelMissing or CheckpointError naming the remedy."""
        if self._loaded:
            return
        import torch

        if self.options.where() == "cpu":
            torch.set_num_threads(1)  # the number of threads changes the last bits
        self._load()
        self._loaded = True

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Inference without gradients, under autocast where the options ask for less than float32."""
        with computing(self.options):
            yield

    def _weight_digests(self) -> list[str]:
        return [checkpoint_digest(self.options.checkpoint)]

    def _load(self) -> None:
        raise NotImplementedError


@contextmanager
def computing(options: TorchOptions) -> Iterator[None]:
    """Inference without gradients on the options' device, under autocast where they ask for less than float32."""
    import torch

    precision = options.precision()
    device = torch.device(options.where()).type
    with torch.inference_mode(), torch.autocast(device, precision, enabled=precision != torch.float32):
        yield


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Turns what a library raises over unreadable weights into CheckpointError. `what`: the model they should be of."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(
            f"{folder}: cannot be read as a checkpoint of {what}: {reason}; pull it again, or name another checkpoint"
        ) from error


def pretrained(architecture: Any, folder: Path, device: str, dtype: Any = None) -> Any:
    """`architecture.from_pretrained(folder)` for inference, from safetensors of this machine only. dtype: float32.

    Raises CheckpointError when the folder cannot be read or lacks a weight: transformers would draw it at random.
    """
    import torch
    from transformers.utils import logging

    what, verbosity, progress = architecture.__name__, logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # weights the file has too many are told at length; those it lacks are refused below
    logging.disable_progress_bar()
    try:
        with reading(folder, what):
            model, told = architecture.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                dtype=dtype or torch.float32,
                output_loading_info=True,
            )
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()
    if told["missing_keys"]:
        lacking = sorted(told["missing_keys"])
        raise CheckpointError(
            f"{folder}: not a checkpoint of {what}: it lacks {len(lacking)} weights, among them {lacking[0]}"
        )
    return model.to(device).eval().requires_grad_(False)


def processor(architecture: Any, folder: Path) -> Any:
    """`architecture.from_pretrained(folder)` of a processor, from this machine only. Raises CheckpointError."""
    with reading(folder, architecture.__name__):
        return architecture.from_pretrained(folder, local_files_only=True)


def required(module: str, package: str, remedy: str) -> Any:
    """An optional module. Raises ModelMissing with the remedy where its package is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModelMissing(f"the package {package} is not installed; {remedy}") from error


def rgb(image: Image) -> Image:
    """The image in contiguous memory. Raises ValueError unless it is uint8 [H, W, 3] with at least one pixel."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ValueError(f"an image must be uint8 [H, W, 3], not {image.dtype} {list(image.shape)}")
    return np.ascontiguousarray(image)


def picture(image: Image) -> Any:
    """An image as PIL, which is what processors cannot mistake: arrays of 1 or 3 rows look like channels to them.

    One whose sides differ more than 32 times is squashed to that ratio; positions relative to its sides stay.
    Raises ValueError as `rgb`.
    """
    pixels = rgb(image)
    height, width = pixels.shape[:2]
    if max(height, width) > MOST_ELONGATED * min(height, width):
        longest = min(max(height, width), LONG_SIDE_OF_A_STRIP)
        shortest = max(min(height, width, longest), math.ceil(longest / MOST_ELONGATED))
        size = (longest, shortest) if width > height else (shortest, longest)
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return PillowImage.fromarray(pixels)


def batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Runs of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def content(image: Image) -> str:
    """A name for an image's pixels: equal for equal images, wherever they lie in memory."""
    return sha256(canonical_json([list(image.shape), sha256(rgb(image).tobytes())]))


def unit_rows(vectors: Any) -> Float:
    """Rows of a tensor [N, D] scaled to length 1, as float32 on the CPU."""
    import torch

    return np.asarray(torch.nn.functional.normalize(vectors.float(), dim=-1).cpu().numpy(), dtype=np.float32)
