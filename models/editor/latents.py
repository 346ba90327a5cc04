"""Pixels to latents and back: the only place that knows the VAE's shift and scale, and FLUX's 2x2 packing.

The VAE computes in float32, also under autocast. Letters of shapes: see `types.py`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def factor(vae: Any) -> int:
    """Pixels per latent, in each direction."""
    return int(2 ** (len(vae.config.block_out_channels) - 1))


def unit(pixels: Tensor) -> Tensor:
    """uint8 levels as float32 in [-1, 1]; pixels that are floats already stay as they are."""
    return pixels.float() / 127.5 - 1 if pixels.dtype == torch.uint8 else pixels


@torch.no_grad()  # type: ignore[untyped-decorator]
def moments(vae: Any, pixels: Tensor) -> Tensor:
    """Mean and log-variance of the unscaled latents: [B, 3, H, W] in [-1, 1], or uint8 -> float32 [B, 2C, h, w]."""
    pixels = unit(pixels)
    with _float32(vae, pixels):
        return vae.encode(pixels.float()).latent_dist.parameters


def sample(vae: Any, moments: Tensor, noise: Tensor | None) -> Tensor:
    """Scaled latents, float32 [B, C, h, w]: drawn with standard normal noise [B, C, h, w], or the mean for None."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    posterior = DiagonalGaussianDistribution(moments.float())
    latents = posterior.mean if noise is None else posterior.mean + posterior.std * noise
    return (latents - _shift(vae)) * vae.config.scaling_factor


@torch.no_grad()  # type: ignore[untyped-decorator]
def decode(vae: Any, latents: Tensor) -> Tensor:
    """Scaled latents [B, C, h, w] -> float32 pixels [B, 3, H, W], clipped to [-1, 1]."""
    with _float32(vae, latents):
        pixels: Tensor = vae.decode(latents.float() / vae.config.scaling_factor + _shift(vae)).sample
    return pixels.clamp(-1, 1)


def pack(latents: Tensor) -> Tensor:
    """[B, C, h, w] -> [B, N, 4C]: each 2x2 square of latents is one image token; rows of tokens from top to bottom."""
    return F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """[B, N, 4C] -> [B, C, height, width]; height and width are those of the latents."""
    return F.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, (height // 2, width // 2)), 2)


def image_ids(height: int, width: int, picture: int = 0, device: torch.device | None = None) -> Tensor:
    """Rotary positions of a picture's tokens: float32 [N, 3] of (picture, row, column).

    picture: 0 for what is being made, 1 + r for the latents of the request's picture r, as FLUX.1-Kontext has it.
    """
    ranges = (picture, picture + 1), (0, height // 2), (0, width // 2)
    return torch.cartesian_prod(*(torch.arange(*ends, device=device) for ends in ranges)).float()


def _shift(vae: Any) -> float:
    """The VAE's shift; a VAE whose configuration has none is not shifted."""
    return float(vae.config.shift_factor or 0)


def _float32(vae: Any, tensor: Tensor) -> torch.autocast:
    """A context without autocast. Raises ValueError for a VAE in any other dtype, which would lose detail."""
    if vae.dtype != torch.float32:
        raise ValueError(f"the VAE is in {vae.dtype}; load it in float32 (`vae.to(torch.float32)`)")
    return torch.autocast(tensor.device.type, enabled=False)
