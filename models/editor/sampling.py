"""From noise to an edited picture's latents: Euler steps along the predicted velocity."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from torch import Tensor

from editfoundry.models.editor.latents import unpack
from editfoundry.models.editor.types import Condition


def schedule(scheduler: Any, steps: int, image_tokens: int) -> Any:
    """A scheduler of the same configuration, set to `steps` noise levels, shifted for so many image tokens as in FLUX.

    The given scheduler is left as it is.
    """
    config = scheduler.config
    ready = type(scheduler).from_config(config)
    shape = config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
    ready.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps), mu=calculate_shift(image_tokens, *shape))
    ready.set_begin_index(0)
    return ready


@torch.no_grad()  # type: ignore[untyped-decorator]
def generate(
    forward: Callable[[Tensor, Tensor, Condition, float], Tensor],
    scheduler: Any,
    noise: Tensor,
    condition: Condition,
    *,
    steps: int,
    guidance: float,
    negative: Condition | None = None,
    cfg: float = 1.0,
) -> Tensor:
    """Scaled latents [B, C, h, w] of the edited pictures, float32.

    forward: an EditorModel, or what wraps one in training. scheduler: a FlowMatchEulerDiscreteScheduler. noise:
    standard normal, of the latents' shape. guidance: of a guidance-distilled FLUX. cfg: true classifier-free guidance
    against `negative`, which costs a second pass a step; 1 is none. Raises ValueError for a cfg without `negative`.
    """
    if cfg == 1:
        negative = None
    elif negative is None:
        raise ValueError(f"cfg {cfg} needs a negative condition")
    height, width = noise.shape[-2:]
    scheduler = schedule(scheduler, steps, height * width // 4)
    latents = noise.float()
    for sigma, timestep in zip(scheduler.sigmas[:-1].tolist(), scheduler.timesteps, strict=True):
        levels = torch.full((len(latents),), sigma, device=latents.device)
        velocity = forward(latents, levels, condition, guidance)
        if negative is not None:
            away = forward(latents, levels, negative, guidance)
            velocity = away + cfg * (velocity - away)
        (latents,) = scheduler.step(unpack(velocity, height, width), timestep, latents, return_dict=False)
    return latents
