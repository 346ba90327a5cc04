"""Micro-batches: from rows of the index to tensors.

Whatever is random in a sample depends on (seed, position, slot) alone, position being that of its global batch and slot
its place therein: ranks, accumulation steps and worker processes share the work and change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from editfoundry.core.hashing import seed_for
from editfoundry.models.editor.prompt import EditorProcessor
from editfoundry.training import flow
from editfoundry.training.config import DataConfig, Dropout, Timesteps
from editfoundry.training.data.batch import MicroBatch
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.examples import BadSample, bad_sample
from editfoundry.training.data.index import ShardIndex
from editfoundry.training.data.pictures import Contents, PictureReader
from editfoundry.training.mask_weight import Unchanged, token_weights


class Reader(Protocol):
    """Where the samples of a micro-batch come from: pictures, or their features from a cache."""

    def read(self, rows: Sequence[int], bucket: int, text_kept: Sequence[bool]) -> Contents:
        """The samples `rows` of a bucket; without an instruction where the text is not kept."""
        ...


@dataclass(frozen=True)
class Kept:
    """Which conditions a sample is trained with: the instruction, and the pictures' details."""

    text: bool
    visual: bool


class MicroBatchBuilder:
    """Makes micro-batches; pickles, so that worker processes can have it.

    latent_channels, latent_factor: of the VAE, C and pixels per latent. references: give the pictures as pixels on the
    target's grid too, for an editor that sees their latents. cache: read features there instead of pictures.
    """

    def __init__(
        self,
        index: ShardIndex,
        data: DataConfig,
        buckets: Buckets,
        processor: EditorProcessor,
        latent_channels: int,
        latent_factor: int,
        timesteps: Timesteps,
        seed: int,
        references: bool,
        cache: Reader | None = None,
    ) -> None:
        if data.feature_cache is not None and cache is None:
            raise ValueError("data.feature_cache is set: open it with `open_cache` and pass it as `cache`")
        self.index, self.data, self.buckets = index, data, buckets
        self.latent_channels, self.latent_factor = latent_channels, latent_factor
        self.timesteps, self.seed = timesteps, seed
        self.reader = cache or PictureReader(index, data, buckets, processor, references)

    def build(self, rows: Sequence[int], bucket: int, position: int, slots: range) -> MicroBatch:
        """The samples `rows`, all of `bucket`, which are the `slots` of the global batch at `position`.

        Raises MissingShard, and BadSample for a sample that cannot be used; with `bad_samples: skip` it does not count.
        """
        height, width = (side // self.latent_factor for side in self.buckets.grid(bucket).shape)
        shape, tokens = (self.latent_channels, height, width), (height // 2, width // 2)
        kept = [draw_kept(self.data.dropout, self._generator(position, slot, "dropout")) for slot in slots]
        read = self.reader.read(rows, bucket, [one.text for one in kept])
        weights, problems = self._weights(rows, read, tokens)
        return MicroBatch(
            content=read.content,
            weight=torch.from_numpy(weights),
            valid=torch.tensor([not problem for problem in problems]),
            noise=self._normal(shape, position, slots, "noise"),
            posterior_noise=self._normal(shape, position, slots, "posterior"),
            sigma=self._sigma(tokens[0] * tokens[1], position, slots),
            visual_kept=torch.tensor([one.visual for one in kept]),
            position=position,
            keys=tuple(read.keys),
            types=tuple(self._type(row) for row in rows),
            problems=tuple(filter(None, problems)),
        )

    def _weights(
        self, rows: Sequence[int], read: Contents, tokens: tuple[int, int]
    ) -> tuple[NDArray[np.float32], list[str]]:
        """Token weights float32 [B, N], zeros for samples with a problem, and the problems, weighing included."""
        options, problems = self.data.mask_weight, list(read.problems)
        weights = np.zeros((len(rows), tokens[0] * tokens[1]), np.float32)
        for number, (row, area) in enumerate(zip(rows, read.areas, strict=True)):
            try:
                whole = self._type(row) in options.types_off
                weights[number] = token_weights(None if whole else area, tokens, options)
            except Unchanged as error:
                refused = str(bad_sample(self.index, row, f"{read.keys[number]}: {error}"))
                problems[number] = problems[number] or refused
            if problems[number] and self.data.bad_samples == "stop":
                raise BadSample(problems[number])
            if problems[number]:
                weights[number] = 0
        return weights, problems

    def _type(self, row: int) -> str:
        return self.index.types[int(self.index.rows[row]["type"])]

    def _normal(self, shape: tuple[int, ...], position: int, slots: range, what: str) -> Tensor:
        """Standard normal [B, *shape]."""
        return torch.stack([torch.randn(shape, generator=self._generator(position, slot, what)) for slot in slots])

    def _sigma(self, tokens: int, position: int, slots: range) -> Tensor:
        generators = [self._generator(position, slot, "sigma") for slot in slots]
        return torch.cat([flow.draw_sigma(tokens, self.timesteps, generator, 1) for generator in generators])

    def _generator(self, position: int, slot: int, what: str) -> Generator:
        return Generator().manual_seed(seed_for(self.seed, position, slot, what))


def draw_kept(shares: Dropout, generator: Generator) -> Kept:
    """Which conditions stay; at most one kind of dropout falls on a sample."""
    u = torch.rand((), dtype=torch.float64, generator=generator).item()
    if u < shares.text:
        return Kept(text=False, visual=True)
    if u < shares.text + shares.visual:
        return Kept(text=True, visual=False)
    if u < shares.text + shares.visual + shares.all:
        return Kept(text=False, visual=False)
    return Kept(text=True, visual=True)
