"""The one sequence that FLUX attends to in place of a T5 prompt: text states with each picture's details inside."""

import torch
from torch import Tensor
from torch.nn import functional as F


def join(text: Tensor, text_mask: Tensor, vision_end: Tensor, visual: Tensor | None) -> tuple[Tensor, Tensor]:
    """Put the visual states of each picture just before the token that ends the picture in the text.

    text: [B, L, E]. text_mask: bool [B, L], False is padding. vision_end: int64 [B, R], positions in the text. visual:
    [B, R, S, E] or None. Returns the sequence [B, T, E], T = L + R * S, and its mask bool [B, T].
    """
    if visual is None:
        return text, text_mask
    batch, length = text_mask.shape
    states = visual.shape[2]
    # Sorted by these keys, a picture's states land between the token before its end (odd, smaller) and its end.
    text_keys = 2 * torch.arange(length, device=text.device).expand(batch, -1) + 1
    keys = torch.cat([text_keys, (2 * vision_end).repeat_interleave(states, dim=1)], dim=1)
    order = keys.argsort(dim=1, stable=True)
    rows = torch.arange(batch, device=text.device)[:, None]
    mask = F.pad(text_mask, (0, visual.shape[1] * states), value=True)
    return torch.cat([text, visual.flatten(1, 2).to(text.dtype)], dim=1)[rows, order], mask[rows, order]


def attention_mask(mask: Tensor, image_tokens: int) -> Tensor:
    """Which keys FLUX's joint attention may see: bool [B, 1, 1, T + image_tokens], the text first, as FLUX has it."""
    return F.pad(mask, (0, image_tokens), value=True)[:, None, None]
