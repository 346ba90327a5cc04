"""Rectified flow as FLUX is trained: the path from picture to noise, its velocity, which noise levels, and the error.

x_sigma = (1 - sigma) x0 + sigma eps, so that the velocity, the model's target, is eps - x0 at every sigma. Noise levels
are logit-normal (Esser et al. 2024, "Scaling Rectified Flow Transformers", section 3.1), then shifted by the number of
image tokens as in FLUX's released sampler, so that training and `FlowMatchEulerDiscreteScheduler` agree.
"""

import math

import torch
from torch import Generator, Tensor

from editfoundry.training.config import Timesteps

GUIDANCE = 1.0
"""In training; the distilled guidance of FLUX is turned up only when generating."""
LOW_TOKENS = 256
HIGH_TOKENS = 4096


def mu(tokens: int, options: Timesteps) -> float:
    """The shift for a picture of `tokens` image tokens: linear, 0.63 for 512² (1024 tokens), 1.15 for 1024² (4096)."""
    slope = (options.high_mu - options.low_mu) / (HIGH_TOKENS - LOW_TOKENS)
    return options.low_mu + slope * (tokens - LOW_TOKENS)


def shift(u: Tensor, mu: float) -> Tensor:
    """Noise levels u in (0, 1), moved towards 1 for mu > 0: e^mu u / (1 + (e^mu - 1) u)."""
    factor = math.exp(mu)
    return factor * u / (1 + (factor - 1) * u)


def draw_sigma(tokens: int, options: Timesteps, generator: Generator, count: int) -> Tensor:
    """`count` noise levels for pictures of `tokens` image tokens: float32 [count], on the generator's device."""
    # As diffusers.training_utils does, whose import would take each worker of the loader many seconds.
    u = torch.normal(options.mean, options.std, (count,), device=generator.device, generator=generator).sigmoid()
    return shift(u, mu(tokens, options))


def noised(x0: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """The point of the path at `sigma` [B]: x0 at 0, noise at 1; x0 and noise are [B, C, h, w]."""
    level = sigma.view(-1, 1, 1, 1)
    return (1 - level) * x0 + level * noise


def target(x0: Tensor, noise: Tensor) -> Tensor:
    """The velocity that the model learns, the same at every sigma."""
    return noise - x0


def identity_error(x0: Tensor, source: Tensor, sigma: Tensor) -> Tensor:
    """Error of the velocity of a model that gives back the picture to edit: [B, C, h, w], for latents `source` of it.

    Such a model says (x_sigma - source) / sigma where (x_sigma - x0) / sigma is true: they differ by (x0 - source) /
    sigma, whatever the noise. An editor that learned anything must be below it.
    """
    return (x0 - source) / sigma.view(-1, 1, 1, 1)


def weighted_squares(prediction: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Per sample, the sum over image tokens of the weighted squared error, in float32: [B].

    prediction, target: packed velocities [B, N, 4C], whose error is averaged over channels. weight: [B, N]. The loss of
    a global batch is the sum of all its samples' values over its number of tokens.
    """
    return ((prediction.float() - target.float()).square().mean(-1) * weight).sum(1)
