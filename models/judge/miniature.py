"""A judge small enough for a laptop: random weights in the classes and the layout of Qwen2.5-VL."""

from pathlib import Path

from editfoundry.models.editor.initialise import drawn, new_folder
from editfoundry.models.editor.miniature import FACE, vlm_config, vlm_processor
from editfoundry.models.judge.folder import JudgeSettings, write_settings
from editfoundry.models.judge.rubric import load_rubric

WIDTH = 128
LEAST_PIXELS, MOST_PIXELS = 4 * FACE**2, 16 * FACE**2
RUBRIC = "short"


def write_miniature_judge(folder: Path, *, seed: int = 0) -> Path:
    """Write a judge of about 1.5 M random weights that sees pictures of 16 tokens, and says that it is a miniature.

    The same seed gives the same bytes on the same machine and versions. Raises UsageError when `folder` exists.
    """
    from transformers import Qwen2_5_VLForConditionalGeneration

    processor = vlm_processor(LEAST_PIXELS, MOST_PIXELS)
    config = vlm_config(WIDTH, processor.tokenizer)
    for part in (config, config.text_config, config.vision_config):
        part.initializer_range = WIDTH**-0.5  # layers keep the size of what they are given, or pictures are hardly seen
    with drawn(seed, "judge"):
        model = Qwen2_5_VLForConditionalGeneration(config).eval()
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
