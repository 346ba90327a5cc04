"""The smallest EditorModel, with random weights and inputs for it, without any of the encoders before it."""

from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor

from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.stages import Stage
from editfoundry.models.editor.types import Condition
from editfoundry.training.config import TrainConfig


def tiny_model(*, visual: bool = True, guidance: bool = False) -> EditorModel:
    """Width 32, two double and two single blocks; text states of width 20, SigLIP's of 12. The same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer = FluxTransformer2DModel(
            in_channels=16,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=24,
            pooled_projection_dim=8,
            guidance_embeds=guidance,
            axes_dims_rope=(4, 4, 8),
        )
        connector = Connector(20, 40, 24, 8)
        return EditorModel(connector, Connector(12, 28, 24) if visual else None, transformer)


def tiny_inputs(*, visual: bool = True, references: int = 0, seed: int = 0) -> tuple[Tensor, Tensor, Condition, float]:
    """Arguments of EditorModel's forward for two pictures of 2 x 3 image tokens, the second with padded text."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    condition = Condition(
        text_states=draw(2, 7, 20),
        text_mask=torch.tensor([[True] * 7, [True] * 5 + [False] * 2]),
        vision_end=torch.tensor([[2], [3]]),
        visual_states=draw(2, 1, 5, 12) if visual else None,
        reference_latents=draw(2, references, 4, 4, 6) if references else None,
    )
    return draw(2, 4, 4, 6), torch.tensor([0.2, 0.9]), condition, 1.0


def tiny_config(stage: Stage, **values: Any) -> TrainConfig:
    """The configuration of a stage, with nothing in it that a model alone needs."""
    data = {"datasets": [{"path": "nowhere"}]}
    needed = {"name": "tiny", "model": "nowhere", "steps": 1, "global_batch": 2, "micro_batch": 2, "data": data}
    return TrainConfig.model_validate({**needed, "stage": stage, **values})
