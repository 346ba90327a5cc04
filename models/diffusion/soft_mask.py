"""Differential diffusion (Levin and Fried 2023, "Differential Diffusion: Giving Each Pixel Its Strength"): the softer a

pixel's mask, the later in the denoising it may leave the original. Diffusers' pipelines round masks to black and white;
this runs as their step callback instead.
"""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from editfoundry.core.hashing import seed_for
from editfoundry.models.diffusion.runtime import generators
from editfoundry.models.protocols import Image


class SoftMask:
    """Callback for `callback_on_step_end` that pins latents to the noised original while their mask forbids a change.

    A latent whose mask is m is free from the step at which a share of 1 - m of the steps is done; m = 0 never is.
    """

    def __init__(self, pipe: Any, images: Sequence[Any], masks: Sequence[Image], seeds: Sequence[int]) -> None:
        """images: PIL pictures of one size; masks: uint8 [h, w] of that size, 255 is free."""
        import torch
        from diffusers.utils.torch_utils import randn_tensor

        own = generators([seed_for(seed, "soft mask") for seed in seeds])
        pixels = pipe.image_processor.preprocess(list(images)).to(pipe._execution_device, pipe.vae.dtype)
        with torch.no_grad():
            self.original = pipe._encode_vae_image(pixels, own)  # in float32 where the autoencoder asks for it
        height, width = self.original.shape[-2:]
        small = [cv2.resize(mask, (width, height), interpolation=cv2.INTER_AREA) for mask in masks]
        self.mask = torch.from_numpy(np.stack(small)[:, None].astype(np.float32) / 255).to(self.original.device)
        self.noise = randn_tensor(self.original.shape, own, self.original.device, self.original.dtype)

    def __call__(self, pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """The latents after a step, pinned where they are not yet free."""
        import torch

        latents = tensors["latents"]
        timesteps = pipe.scheduler.timesteps
        done = (step + 1) / len(timesteps)
        if step + 1 < len(timesteps):
            following = timesteps[step + 1].expand(len(latents))
            kept = pipe.scheduler.add_noise(self.original, self.noise, following)
        else:
            kept = self.original
        return {"latents": torch.where(self.mask > 1 - done, latents, kept.to(latents.dtype))}
