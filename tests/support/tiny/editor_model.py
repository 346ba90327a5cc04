"""The trained parts of a tiny editor in memory, and conditions for it: widths of states, latents, and random values."""

from typing import Any

import torch

from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.types import Condition

TEXT, VISUAL, LATENTS = 24, 20, 4
"""Widths of the vision-language model's and of SigLIP's states, channels of the latents."""


def small_model(visual: bool = True, guidance: bool = True, seed: int = 0) -> EditorModel:
    """An EditorModel of 2 + 2 blocks of width 32, the same weights for the same arguments."""
    from diffusers import FluxTransformer2DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        connector = Connector(TEXT, 48, 32, pooled_features=16)
        connector.pooled_projection.normal_()
        transformer = FluxTransformer2DModel(
            in_channels=4 * LATENTS,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=16,
            guidance_embeds=guidance,
            axes_dims_rope=(4, 4, 8),
        )
        return EditorModel(connector, Connector(VISUAL, 48, 32) if visual else None, transformer)


def random_condition(
    lengths: tuple[int, ...], pictures: int = 1, visual: bool = True, references: tuple[int, int] | None = None
) -> Condition:
    """A condition of rows with so many valid tokens, padded to the longest. references: latent size, for Kontext."""
    draw = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=draw)

    batch, longest = len(lengths), max(lengths)
    return Condition(
        text_states=normal(batch, longest, TEXT),
        text_mask=torch.arange(longest) < torch.tensor(lengths)[:, None],
        vision_end=torch.arange(1, pictures + 1).expand(batch, -1),
        visual_states=normal(batch, pictures, 5, VISUAL) if visual else None,
        reference_latents=normal(batch, pictures, LATENTS, *references) if references else None,
    )


def row(condition: Condition, index: int) -> Condition:
    """One row of a condition as a batch of its own, without its padding."""
    length = int(condition.text_mask[index].sum())
    one = Condition(*(None if part is None else part[index : index + 1] for part in condition))
    return one._replace(text_states=one.text_states[:, :length], text_mask=one.text_mask[:, :length])
