"""The micro-batch: what the loader hands to the trainer. Everything random in it depends on (seed, position, slot)."""

from typing import NamedTuple

from torch import Tensor

from editfoundry.models.editor.types import Condition, EncoderInputs


class Pictures(NamedTuple):
    """Pixels for the frozen encoders. target: uint8 [B, 3, H, W]. references: uint8 [B, R, 3, H, W] on the target's

    grid, None unless the editor sees the pictures' latents.
    """

    inputs: EncoderInputs
    target: Tensor
    references: Tensor | None


class Features(NamedTuple):
    """What the frozen encoders make of the pictures. moments: [B, 2C, h, w], mean and log-variance of the target's

    unscaled latents.
    """

    condition: Condition
    moments: Tensor


class MicroBatch(NamedTuple):
    """One rank's samples of one accumulation step, all of one bucket.

    content: pictures, or their features from the cache. weight: float [B, N], of each image token's loss; a row of
    zeros is a sample that does not count (`valid` False). noise, posterior_noise: float [B, C, h, w]. sigma: float [B]
    in (0, 1). visual_kept: bool [B], False where condition dropout took the pictures' details away. position: of the
    global batch. keys, types: of the samples. problems: what is wrong with those that do not count.
    """

    content: Pictures | Features
    weight: Tensor
    valid: Tensor
    noise: Tensor
    posterior_noise: Tensor
    sigma: Tensor
    visual_kept: Tensor
    position: int
    keys: tuple[str, ...]
    types: tuple[str, ...]
    problems: tuple[str, ...]
