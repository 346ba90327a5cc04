"""A judge small enough for a laptop: random weights in the classes and the layout of Qwen2.5-VL."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from editfoundry.models.editor.initialise import drawn, new_folder
from editfoundry.models.editor.miniature import FACE, vlm_config, vlm_processor
from editfoundry.models.judge.folder import JudgeSettings, write_settings
from editfoundry.models.judge.rubric import load_rubric

WIDTH = 128
LEAST_PIXELS, MOST_PIXELS = 4 * FACE**2, 16 * FACE**2
RUBRIC = "short"
_COLOURS = ((1, 1, 1), (1, 0, -1), (1, -2, 1))
RESIDUAL = 0.1
"""How much the tower's blocks add to what they are given."""


def write_miniature_judge(folder: Path, *, seed: int = 0) -> Path:
    """Write a judge of about 1.5 M weights that sees pictures of 16 tokens, and says that it is a miniature.

    All weights are random but those by which the tower takes up patches: see `patch_frequencies`.

    The same seed gives the same bytes on the same machine and versions. Raises UsageError when `folder` exists.
    """
    from transformers import Qwen2_5_VLForConditionalGeneration

    processor = vlm_processor(LEAST_PIXELS, MOST_PIXELS)
    config = vlm_config(WIDTH, processor.tokenizer)
    for part in (config, config.text_config, config.vision_config):
        part.initializer_range = WIDTH**-0.5  # layers keep the size of what they are given, or pictures are hardly seen
    with drawn(seed, "judge"):
        model = Qwen2_5_VLForConditionalGeneration(config).eval()
    model.model.visual.patch_embed.proj.weight.data.copy_(patch_frequencies(model.config.vision_config))
    for block in model.model.visual.blocks:  # what random layers mix, two layers do not learn to unmix
        for layer in (block.attn.proj, block.mlp.down_proj):
            layer.weight.data.mul_(RESIDUAL)
    settings = JudgeSettings(
        rubric=RUBRIC,
        rubric_digest=load_rubric(RUBRIC).digest,
        order="compat",
        head="expected",
        heads=(),
        min_pixels=LEAST_PIXELS,
        max_pixels=MOST_PIXELS,
        base="",
        miniature=True,
    )
    with new_folder(folder) as staging:
        processor.save_pretrained(staging)
        model.save_pretrained(staging)
        write_settings(staging, settings)
    return folder


def patch_frequencies(config: Any) -> Tensor:
    """Weights [hidden, 3, frames, side, side] of a patch embedding: the lowest frequencies of the cosine transform.

    Three quarters of them are of brightness, the rest of two opposed colours. Photographs have energy in inverse
    proportion to frequency, and each weight grows with its own, so that details, by which damage shows, count as much
    as shades do. A released tower has learnt such weights; random ones see hardly more than the mean of a patch.
    """
    side, frames, hidden = config.patch_size, config.temporal_patch_size, config.hidden_size
    steps = np.arange(side)
    waves = np.cos(np.pi * np.outer(steps, steps + 0.5) / side) * np.sqrt(2 / side)
    waves[0] /= np.sqrt(2)
    lowest = sorted(((row, column) for row in steps for column in steps), key=lambda at: (np.hypot(*at), at))
    brightness, blueness, greenness = (np.array(one) / np.linalg.norm(one) for one in _COLOURS)
    of_colour = hidden // 8
    channels = [brightness] * (hidden - 2 * of_colour) + [blueness] * of_colour + [greenness] * of_colour
    places = lowest[: hidden - 2 * of_colour] + lowest[:of_colour] * 2
    made = [
        (1 + np.hypot(row, column)) * np.multiply.outer(channel, np.outer(waves[row], waves[column]))
        for channel, (row, column) in zip(channels, places, strict=True)
    ]
    return torch.from_numpy(np.stack([np.stack([one] * frames, 1) for one in made]) / frames).float()
