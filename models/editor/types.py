"""What flows through the editor: a request, the tensors its frozen encoders take, and what they give.

Letters of shapes: B batch, R pictures of a request, L tokens of the prompt, S states of one picture, C channels of the
latents, h and w their size, N = h/2 * w/2 image tokens, H and W pixels.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from editfoundry.models.protocols import Image


@dataclass(frozen=True)
class EditRequest:
    """One edit: the instruction, the picture to edit (uint8 sRGB [H, W, 3]) and any reference pictures after it.

    history: the instructions of the turns before this one, oldest first.
    """

    instruction: str
    images: tuple[Image, ...]
    history: tuple[str, ...] = ()


class EncoderInputs(NamedTuple):
    """What the vision-language model and SigLIP read; rows are padded on the right.

    input_ids, attention_mask, mm_token_type_ids: int64 [B, L]. pixel_values: float [patches, D], all pictures in order.
    image_grid_thw: int64 [B * R, 3]. vision_end: int64 [B, R], where each picture ends in its row.
    visual_pixels: float [B, R, 3, H, W] for SigLIP, None for an editor without it.
    """

    input_ids: Tensor
    attention_mask: Tensor
    mm_token_type_ids: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    vision_end: Tensor
    visual_pixels: Tensor | None


class Condition(NamedTuple):
    """What the frozen encoders give, before the connectors.

    text_states: [B, L, D], the last hidden state after the final norm. text_mask: bool [B, L], False is padding.
    vision_end: int64 [B, R]. visual_states: [B, R, S, D] of SigLIP, or None. reference_latents: [B, R, C, h, w],
    scaled, or None for an editor that does not see the pictures' latents.
    """

    text_states: Tensor
    text_mask: Tensor
    vision_end: Tensor
    visual_states: Tensor | None
    reference_latents: Tensor | None
