"""CLIP (Radford et al. 2021) through open_clip: CLIPScore, directional similarity and image embeddings.

A checkpoint is an open_clip folder: `open_clip_config.json` and `open_clip_model.safetensors`. All models of a process
that name the same folder share one copy of the weights.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from editfoundry.core.errors import ModelMissing
from editfoundry.models.checkpoint import TorchOptions, checkpoint_path
from editfoundry.models.perception.base import (
    TorchModel,
    batches,
    computing,
    content,
    picture,
    reading,
    required,
    unit_rows,
)
from editfoundry.models.protocols import Float, Image

REMEMBERED_TEXTS = 8192
WEIGHT = 2.5
"""What CLIPScore scales the cosine by, so that it spreads over [0, 1]."""
STILL = 1e-6
"""Length of a change of embedding below which nothing has changed."""


class ClipTowers:
    """A loaded open_clip model: both towers, its own preprocessing and tokenizer."""

    def __init__(self, folder: Path, device: str) -> None:
        self.model, self._preprocess, self._tokenizer = _read(folder, device)
        self._device = device
        self._remembered: OrderedDict[tuple[str, str], Float] = OrderedDict()

    def images(self, images: Sequence[Image], options: TorchOptions) -> Float:
        """float32 [N, D], rows of length 1. Equal images are encoded once."""
        import torch

        names = [content(image) for image in images]
        distinct = dict(zip(names, images, strict=True))
        rows: list[Float] = [np.zeros((0, self.width), np.float32)]
        for chunk in batches(list(distinct.values()), options.batch):
            pixels = torch.stack([self._preprocess(picture(image)) for image in chunk]).to(self._device)
            with computing(options):
                rows.append(unit_rows(self.model.encode_image(pixels)))
        places = {name: place for place, name in enumerate(distinct)}
        return np.concatenate(rows)[[places[name] for name in names]]

    def texts(self, texts: Sequence[str], options: TorchOptions) -> Float:
        """float32 [N, D], rows of length 1; what a text has beyond 77 tokens is cut. The last texts are remembered.

        Each is encoded alone: in a batch its last bits would depend on which others were remembered.
        """
        return np.array([self._text(text, options) for text in texts], np.float32).reshape(-1, self.width)

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return int(self.model.visual.output_dim)

    def _text(self, text: str, options: TorchOptions) -> Float:
        key = (text, str(options.precision()))
        if key not in self._remembered:
            with computing(options):
                tokens = self._tokenizer([text]).to(self._device)
                self._remembered[key] = unit_rows(self.model.encode_text(tokens))[0]
            if len(self._remembered) > REMEMBERED_TEXTS:
                self._remembered.popitem(last=False)
        self._remembered.move_to_end(key)
        return self._remembered[key]


@lru_cache(maxsize=4)
def shared_towers(folder: Path, device: str) -> ClipTowers:
    """The model of a folder, loaded once in a process however many scorers and embedders use it."""
    return ClipTowers(folder, device)


def towers(options: TorchOptions) -> ClipTowers:
    """The shared model that the options name. Raises ModelMissing or CheckpointError naming the remedy."""
    return shared_towers(checkpoint_path(options.checkpoint).resolve(), options.where())


def _read(folder: Path, device: str) -> tuple[Any, Any, Any]:
    library = required("open_clip", "open_clip_torch", "pip install 'editfoundry[full]'")
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        if not (folder / name).is_file():  # open_clip would take a pickle, or random weights
            raise ModelMissing(f"{folder}: not an open_clip checkpoint: it lacks {name}")
    with reading(folder, "open_clip"):
        model, _, preprocess = library.create_model_and_transforms(f"local-dir:{folder}", device=device)
        tokenizer = library.get_tokenizer(f"local-dir:{folder}")
    return model.eval().requires_grad_(False), preprocess, tokenizer


class ClipModel(TorchModel):
    """What scorer and embedder share."""

    class Options(TorchOptions):
        """batch: most images encoded at once."""

        checkpoint: str = "clip-vit-l14"
        batch: int = Field(default=32, ge=1)

    options: Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
        self._towers: ClipTowers

    def _load(self) -> None:
        self._towers = towers(self.options)


class ClipScorer(ClipModel):
    """`ImageTextScorer`: CLIPScore (Hessel et al. 2021), 2.5 · max(cos, 0), of images against texts as they are."""

    name = "clip"
    metric = "clip_score"
    directional = True

    def score(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """CLIPScore in [0, 2.5] of image *i* with text *i*. Raises ValueError unless there are as many of each."""
        if len(images) != len(texts):
            raise ValueError(f"{len(images)} images cannot be scored against {len(texts)} texts: give one text each")
        self.load()
        seen, said = self._towers.images(images, self.options), self._towers.texts(texts, self.options)
        return [WEIGHT * max(float(cosine), 0.0) for cosine in (seen * said).sum(axis=1)]

    def direction(self, before: Image, after: Image, said_before: str, said_after: str) -> float:
        """Cosine in [-1, 1] of the images' change with the texts' (Gal et al. 2021); 0.0 where either is no change."""
        self.load()
        seen = self._towers.images([before, after], self.options)
        said = self._towers.texts([said_before, said_after], self.options)
        changed, meant = seen[1] - seen[0], said[1] - said[0]
        lengths = float(np.linalg.norm(changed)), float(np.linalg.norm(meant))
        if min(lengths) < STILL:
            return 0.0
        return float(np.clip(changed @ meant / (lengths[0] * lengths[1]), -1.0, 1.0))


class ClipImageEmbedder(ClipModel):
    """`ImageEmbedder` with CLIP's image tower."""

    name = "clip-image"

    def embed(self, images: Sequence[Image]) -> Float:
        """float32 [N, D], rows of length 1, of uint8 RGB images [H, W, 3]; the middle square of each is seen."""
        self.load()
        return self._towers.images(images, self.options)
