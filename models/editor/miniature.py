"""An editor small enough for a laptop: the real classes with random weights, in the folder layout of the real one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from editfoundry.core.config import CONFIG_ROOT
from editfoundry.core.geometry import Grid, to_grid
from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.initialise import drawn, new_folder
from editfoundry.models.editor.miniature_weights import fit_autoencoder, pass_through
from editfoundry.models.editor.prompt import pixels
from editfoundry.models.protocols import Image

TOKENIZER = CONFIG_ROOT / "train" / "miniature" / "tokenizer.json"
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}{{ '\\n' }}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
<|im_end|>{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}
"""
"""The layout of Qwen2.5-VL's own: turns between im_start and im_end, a picture as vision start, pad, vision end."""
FACE = 28
"""Pixels along one merged token of Qwen2.5-VL."""


PICTURE = 64
"""Pixels along a side of the pictures that the autoencoder is fitted to."""


@dataclass(frozen=True)
class Size:
    """How large the parts are.

    heads, axes: of the transformer, whose heads are sum(axes) wide and whose width is also that of the text it takes.
    blocks: double and single ones, of each. pooled: width of the CLIP embedding. vlm, visual: widths of the encoders.
    vlm_pixels: of a picture for the vision-language model. picture: pixels along a side for SigLIP, in 2 x 2 patches.
    hidden: between the layers of a connector. latents: channels. autoencoder: channels at each resolution, every one
    after the first at half the size of the one before.
    """

    heads: int
    axes: tuple[int, int, int]
    blocks: int
    pooled: int
    vlm: int
    visual: int
    vlm_pixels: int
    picture: int
    hidden: int
    latents: int
    autoencoder: tuple[int, ...]

    @property
    def width(self) -> int:
        """Of the transformer."""
        return self.heads * sum(self.axes)


MINIATURE = Size(
    heads=4,
    axes=(8, 12, 12),
    blocks=2,
    pooled=32,
    vlm=64,
    visual=32,
    vlm_pixels=4 * FACE**2,
    picture=32,
    hidden=256,
    latents=16,
    autoencoder=(16, 24, 32),
)


def write_miniature(
    folder: Path,
    *,
    seed: int = 0,
    reference_latents: Literal["none", "kontext"] = "kontext",
    visual: bool = True,
    photographs: Sequence[Image] = (),
) -> Path:
    """Write an editor of 2.5 M weights that learns a handful of edits of 64 x 64 pictures in minutes on a CPU.

    Its encoders and the blocks of its transformer are random; `miniature_weights` says what is not. The autoencoder
    (16 channels at a quarter of the size) is fitted to the photographs, uint8 [H, W, 3], or to drawn pictures.
    The same arguments give the same bytes on the same machine and versions. Raises UsageError when `folder` exists.
    """
    parts = miniature_parts(MINIATURE, seed=seed, visual=visual)
    grid = Grid(PICTURE, PICTURE)
    shown = pixels([to_grid(one, grid) for one in photographs]) if photographs else drawn_pictures(64, seed)
    fit_autoencoder(parts["vae"], shown, seed=seed)
    pass_through(parts["transformer"], seed=seed)
    with new_folder(folder) as staging:
        save_editor(parts, staging, size=MINIATURE, reference_latents=reference_latents)
    return folder


def drawn_pictures(count: int, seed: int) -> Tensor:
    """Pictures with shades and an edge, float32 [count, 3, 64, 64] in [-1, 1]: noise of several sizes, and a disc of

    other such noise in it.
    """
    generator = torch.Generator().manual_seed(seed)

    def shades() -> Tensor:
        sides = (2, 4, 8, 16, 32)
        layers = [torch.randn(count, 3, side, side, generator=generator) / side for side in sides]
        return sum(functional.interpolate(layer, PICTURE, mode="bicubic") for layer in layers)

    row, column, radius = torch.rand(3, count, 1, 1, generator=generator) * PICTURE
    line = torch.arange(PICTURE)
    disc = (line[:, None] - row) ** 2 + (line - column) ** 2 < (radius / 2) ** 2
    return torch.where(disc[:, None], shades(), shades()).clamp(-1, 1)


def miniature_parts(size: Size, *, seed: int, visual: bool) -> dict[str, Any]:
    """The components of an `EditorPipeline`, float32; the same weights for the same arguments."""
    processor = vlm_processor(FACE**2, max(size.vlm_pixels, FACE**2))
    return {
        "vlm": _vlm(size, seed, processor.tokenizer),
        "processor": processor,
        "visual_encoder": _visual_encoder(size, seed) if visual else None,
        "visual_processor": _visual_processor(size) if visual else None,
        "connector": _connector(size, seed),
        "visual_connector": _visual_connector(size, seed) if visual else None,
        "transformer": _transformer(size, seed),
        "vae": _vae(size, seed),
        "scheduler": flux_scheduler(),
    }


def save_editor(
    parts: dict[str, Any], folder: Path, *, size: Size, reference_latents: Literal["none", "kontext"]
) -> Path:
    """Write the folder of an editor of these components, marked as a miniature."""
    from transformers.utils import logging

    from editfoundry.models.editor.pipeline import EditorPipeline

    logging.disable_progress_bar()
    settings: Any = {"vlm_pixels": size.vlm_pixels, "reference_latents": reference_latents, "miniature": True}
    EditorPipeline(**parts, **settings).save_pretrained(folder)
    return folder


def vlm_processor(min_pixels: int, max_pixels: int) -> Any:
    """A processor of Qwen2.5-VL with the miniatures' tokenizer."""
    from transformers import Qwen2_5_VLProcessor, Qwen2TokenizerFast, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    tokenizer = Qwen2TokenizerFast(
        tokenizer_file=str(TOKENIZER),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        model_max_length=32768,
    )
    pixels = {"min_pixels": min_pixels, "max_pixels": max_pixels}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=CHAT_TEMPLATE,
    )


def _vlm(size: Size, seed: int, tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLModel

    with drawn(seed, "vlm"):
        return Qwen2_5_VLModel(vlm_config(size.vlm, tokenizer)).eval()


def vlm_config(width: int, tokenizer: Any) -> Any:
    """Settings of a Qwen2.5-VL of two layers and that width, a multiple of 32, in the tower and the language model."""
    from transformers import Qwen2_5_VLConfig

    identify = tokenizer.convert_tokens_to_ids
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": width // 16,
            "num_key_value_heads": width // 32,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
            "bos_token_id": identify("<|endoftext|>"),
            "eos_token_id": identify("<|im_end|>"),
            "pad_token_id": identify("<|endoftext|>"),
        },
        vision_config={
            "depth": 2,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_heads": width // 16,
            "window_size": 2 * FACE,
            "fullatt_block_indexes": [1],
            "out_hidden_size": width,
            "tokens_per_second": 2,
        },
        image_token_id=identify("<|image_pad|>"),
        video_token_id=identify("<|video_pad|>"),
        vision_start_token_id=identify("<|vision_start|>"),
        vision_end_token_id=identify("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def _visual_encoder(size: Size, seed: int) -> Any:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=size.visual,
        intermediate_size=2 * size.visual,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=size.picture,
        patch_size=size.picture // 2,
    )
    with drawn(seed, "visual_encoder"):
        return SiglipVisionModel(config).eval()


def _visual_processor(size: Size) -> Any:
    from transformers import SiglipImageProcessor

    return SiglipImageProcessor(size={"height": size.picture, "width": size.picture})


def _connector(size: Size, seed: int) -> Connector:
    with drawn(seed, "connector"):
        connector: Connector = Connector(size.vlm, size.hidden, size.width, pooled_features=size.pooled)
        connector.pooled_projection.normal_()
    return connector


def _visual_connector(size: Size, seed: int) -> Connector:
    with drawn(seed, "visual_connector"):
        connector: Connector = Connector(size.visual, size.hidden, size.width)
    return connector


def _transformer(size: Size, seed: int) -> Any:
    from diffusers import FluxTransformer2DModel

    with drawn(seed, "transformer"):
        return FluxTransformer2DModel(
            patch_size=1,
            in_channels=4 * size.latents,
            num_layers=size.blocks,
            num_single_layers=size.blocks,
            attention_head_dim=sum(size.axes),
            num_attention_heads=size.heads,
            joint_attention_dim=size.width,
            pooled_projection_dim=size.pooled,
            guidance_embeds=True,
            axes_dims_rope=size.axes,
        ).eval()


def _vae(size: Size, seed: int) -> Any:
    from diffusers import AutoencoderKL

    levels = len(size.autoencoder)
    with drawn(seed, "vae"):
        return AutoencoderKL(
            sample_size=64,
            block_out_channels=size.autoencoder,
            layers_per_block=1,
            latent_channels=size.latents,
            norm_num_groups=1,
            down_block_types=["DownEncoderBlock2D"] * levels,
            up_block_types=["UpDecoderBlock2D"] * levels,
            mid_block_add_attention=False,
            force_upcast=False,
            use_quant_conv=False,
            use_post_quant_conv=False,
            shift_factor=0.0609,
            scaling_factor=1.5035,
        ).eval()


def flux_scheduler() -> Any:
    """The sampler of FLUX.1-dev and FLUX.1-Fill-dev."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        shift=3.0,
        use_dynamic_shifting=True,
        base_image_seq_len=256,
        max_image_seq_len=4096,
        base_shift=0.5,
        max_shift=1.15,
    )
