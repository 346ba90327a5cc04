"""Two ControlNets of FLUX.1-dev at once, one of which is alimama's inpainting ControlNet.

Diffusers' own `FluxMultiControlNetModel` adds up the nets' blocks pairwise, which is right only for nets of one depth,
and its `FluxControlNetModel` has no channel for the mask that the released inpainting net was trained with.
"""

import math
from typing import Any

import torch
from diffusers import FluxControlNetModel, FluxMultiControlNetModel
from diffusers.configuration_utils import register_to_config

MASK_CHANNELS = 4
"""A 2x2 patch of the mask at the latents' size."""


class InpaintingControlNet(FluxControlNetModel):  # type: ignore[misc]
    """A FLUX ControlNet whose condition is the masked picture's latents with the mask beside them.

    The condition is [B, L, in_channels + 4], packed: latents of the picture with the area to paint black, then the
    mask, 1 where the picture is known (https://github.com/alimama-creative/FLUX-Controlnet-Inpainting).
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        patch_size: int = 1,
        in_channels: int = 64,
        num_layers: int = 19,
        num_single_layers: int = 38,
        attention_head_dim: int = 128,
        num_attention_heads: int = 24,
        joint_attention_dim: int = 4096,
        pooled_projection_dim: int = 768,
        guidance_embeds: bool = False,
        axes_dims_rope: tuple[int, ...] = (16, 56, 56),
        extra_condition_channels: int = MASK_CHANNELS,
    ) -> None:
        super().__init__(
            patch_size=patch_size,
            in_channels=in_channels,
            num_layers=num_layers,
            num_single_layers=num_single_layers,
            attention_head_dim=attention_head_dim,
            num_attention_heads=num_attention_heads,
            joint_attention_dim=joint_attention_dim,
            pooled_projection_dim=pooled_projection_dim,
            guidance_embeds=guidance_embeds,
            axes_dims_rope=list(axes_dims_rope),
        )
        self.controlnet_x_embedder = torch.nn.Linear(in_channels + extra_condition_channels, self.inner_dim)


class JoinedControlNets(FluxMultiControlNetModel):  # type: ignore[misc]
    """A ControlNet and an inpainting ControlNet whose residuals are added per block of the transformer.

    depth: (double, single) blocks of the transformer. Set `known` to the mask of known pixels, [B, L, 4], before a run.
    """

    def __init__(self, control: Any, inpainting: InpaintingControlNet, depth: tuple[int, int]) -> None:
        super().__init__([control, inpainting])
        self.depth = depth
        self.known: torch.Tensor | None = None

    def forward(
        self,
        hidden_states: torch.Tensor,
        controlnet_cond: list[torch.Tensor],
        controlnet_mode: Any,
        conditioning_scale: list[float],
        guidance: torch.Tensor | None = None,
        **rest: Any,
    ) -> tuple[list[torch.Tensor] | None, list[torch.Tensor] | None]:
        """Residuals of every double and every single block of the transformer."""
        assert self.known is not None, "the mask of known pixels is set before a run"
        edges, picture = controlnet_cond
        known = self.known.to(picture.device, picture.dtype)
        conditions = (edges, torch.cat([picture, known], dim=-1))
        rest["return_dict"] = False
        double: list[torch.Tensor] | None = None
        single: list[torch.Tensor] | None = None
        for net, condition, scale in zip(self.nets, conditions, conditioning_scale, strict=True):
            blocks, single_blocks = net(
                hidden_states=hidden_states,
                controlnet_cond=condition,
                conditioning_scale=scale,
                guidance=guidance if net.config.guidance_embeds else None,
                **rest,
            )
            double = _added(double, _spread(blocks, self.depth[0]))
            single = _added(single, _spread(single_blocks, self.depth[1]))
        return double, single


def _spread(blocks: list[torch.Tensor] | None, depth: int) -> list[torch.Tensor] | None:
    """A net's residuals, one per block of the transformer, each serving as many neighbours as diffusers lets it."""
    if blocks is None:
        return None
    interval = math.ceil(depth / len(blocks))
    return [blocks[index // interval] for index in range(depth)]


def _added(a: list[torch.Tensor] | None, b: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
    if a is None or b is None:
        return a if b is None else b
    return [x + y for x, y in zip(a, b, strict=True)]


def packed_known(masks: torch.Tensor) -> torch.Tensor:
    """Masks [B, 1, h, w] at the latents' size, 1 where painted, packed to [B, L, 4], 1 where known.

    Rounded to black and white.
    """
    batch, _, height, width = masks.shape
    known = 1 - masks.round()
    patches = known.view(batch, 1, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(batch, (height // 2) * (width // 2), MASK_CHANNELS)
