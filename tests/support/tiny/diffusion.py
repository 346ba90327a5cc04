"""Tiny checkpoints of the diffusion pipelines' own classes, with random weights, in the released folders' layout.

Each function fills a folder that `from_pretrained` reads and returns it; the same bytes on every call with the same
versions. Their autoencoders halve an image (the released ones divide it by 8), so a work size of 64 is plenty.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from editfoundry.models.editor.miniature import flux_scheduler

TOKENIZERS = Path(__file__).parents[2] / "assets" / "tokenizers"
TEXT, LATENT, TOKENS = 32, 4, 4
"""Width of the text towers, channels of the latents, image tokens of the IP-Adapter."""
FLUX = {
    "patch_size": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": TEXT,
    "pooled_projection_dim": TEXT,
    "axes_dims_rope": (4, 4, 8),
}
UNET = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "attention_head_dim": (2, 4),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "transformer_layers_per_block": (1, 1),
    "projection_class_embeddings_input_dim": 6 * 8 + TEXT,
    "cross_attention_dim": 2 * TEXT,
    "norm_num_groups": 4,
}


@contextmanager
def random_weights(seed: int = 0) -> Iterator[None]:
    """Draws weights from a fixed seed and leaves torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def clip_tokenizer() -> Any:
    """A byte-level BPE tokenizer of 735 tokens, trained once on a few captions; its special tokens are the last."""
    from transformers import CLIPTokenizer

    model = json.loads((TOKENIZERS / "clip.json").read_text("utf-8"))["model"]
    return CLIPTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], model_max_length=77)


def t5_tokenizer() -> Any:
    """A unigram tokenizer of 188 tokens, trained once on the same captions."""
    from transformers import T5Tokenizer

    model = json.loads((TOKENIZERS / "t5.json").read_text("utf-8"))["model"]
    return T5Tokenizer(vocab=[tuple(piece) for piece in model["vocab"]], extra_ids=0, model_max_length=512)


def sdxl_inpaint(folder: Path) -> Path:
    """Stable Diffusion XL inpainting: a UNet that also takes the mask and the masked image (9 channels)."""
    from diffusers import StableDiffusionXLInpaintPipeline

    return _save(StableDiffusionXLInpaintPipeline(unet=_unet(9), **_sdxl_parts()), folder)


def sdxl_base(folder: Path) -> Path:
    """Stable Diffusion XL, text to image; as turbo-class checkpoints are, which the inpainting pipeline takes too."""
    from diffusers import StableDiffusionXLPipeline

    return _save(StableDiffusionXLPipeline(unet=_unet(4), **_sdxl_parts()), folder)


def sdxl_controlnet_canny(folder: Path) -> Path:
    """A ControlNet for Stable Diffusion XL. Its closing layers are not zero, so it has an effect."""
    from diffusers import ControlNetModel

    with random_weights():
        controlnet = ControlNetModel(in_channels=4, conditioning_embedding_out_channels=(4, 8), **UNET)
        _awaken(controlnet)
    return _save(controlnet, folder)


def ip_adapter(folder: Path) -> Path:
    """An IP-Adapter for `sdxl_base` with its image encoder, in the released repository's `sdxl_models` folder."""
    from safetensors.torch import save_file
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    inner = folder / "sdxl_models"
    config = CLIPVisionConfig(
        hidden_size=32,
        projection_dim=TEXT,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        intermediate_size=64,
        patch_size=8,
    )
    width = int(UNET["cross_attention_dim"])
    with random_weights():
        _save(CLIPVisionModelWithProjection(config), inner / "image_encoder")
        weights = {
            "image_proj.proj.weight": torch.randn(TOKENS * width, TEXT),
            "image_proj.proj.bias": torch.zeros(TOKENS * width),
            "image_proj.norm.weight": torch.ones(width),
            "image_proj.norm.bias": torch.zeros(width),
        }
        layers = [layer for layer in _unet(4).attn_processors if not layer.endswith("attn1.processor")]
        for index, _ in enumerate(layers):  # every cross-attention of the tiny UNet is 16 wide
            for part in ("to_k_ip", "to_v_ip"):
                weights[f"ip_adapter.{2 * index + 1}.{part}.weight"] = torch.randn(
                    UNET["block_out_channels"][-1], width
                )
    save_file(weights, inner / "ip-adapter_sdxl.safetensors")
    return folder


def flux(folder: Path) -> Path:
    """FLUX.1-dev: guidance-distilled, text to image."""
    from diffusers import FluxPipeline

    return _save(FluxPipeline(transformer=_transformer(), **_flux_parts()), folder)


def flux_fill(folder: Path) -> Path:
    """FLUX.1-Fill-dev: its transformer also takes the masked image's latents and the mask of each latent's pixels."""
    from diffusers import FluxFillPipeline

    mask_channels = 4 * 2**2
    transformer = _transformer(in_channels=4 * LATENT + 4 * LATENT + mask_channels, out_channels=4 * LATENT)
    return _save(FluxFillPipeline(transformer=transformer, **_flux_parts()), folder)


def flux_kontext(folder: Path) -> Path:
    """FLUX.1-Kontext-dev: the picture to edit is a second sequence of image tokens."""
    from diffusers import FluxKontextPipeline

    return _save(FluxKontextPipeline(transformer=_transformer(), **_flux_parts()), folder)


def flux_controlnet_canny(folder: Path) -> Path:
    """A ControlNet for FLUX.1-dev with both kinds of blocks, as InstantX released one."""
    from diffusers import FluxControlNetModel

    with random_weights():
        controlnet = FluxControlNetModel(
            in_channels=4 * LATENT, num_layers=1, num_single_layers=1, guidance_embeds=True, **FLUX
        )
        _awaken(controlnet)
    return _save(controlnet, folder)


def flux_controlnet_inpaint(folder: Path) -> Path:
    """An inpainting ControlNet for FLUX.1-dev as alimama released one: two double blocks, no single ones, and a mask

    channel beside the masked image's latents. Diffusers' class has no such channel, so the embedder is widened by hand.
    """
    from diffusers import FluxControlNetModel

    with random_weights():
        controlnet = FluxControlNetModel(
            in_channels=4 * LATENT, num_layers=2, num_single_layers=0, guidance_embeds=True, **FLUX
        )
        controlnet.controlnet_x_embedder = torch.nn.Linear(4 * LATENT + 4, controlnet.inner_dim)
        _awaken(controlnet)
    return _save(controlnet, folder)


def flux_redux(folder: Path) -> Path:
    """FLUX.1-Redux-dev: a SigLIP tower and the projection of its patches to text tokens, without text encoders."""
    from diffusers import FluxPriorReduxPipeline
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
    from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
    )
    with random_weights():
        encoder, embedder = SiglipVisionModel(config), ReduxImageEncoder(redux_dim=32, txt_in_features=TEXT)
        encoder.get_input_embeddings().weight.data.mul_(30)  # so that other pictures give other tokens
        torch.nn.init.normal_(embedder.redux_down.weight)
        torch.nn.init.normal_(embedder.redux_up.weight)
    processor = SiglipImageProcessor(size={"height": 32, "width": 32})
    pipeline = FluxPriorReduxPipeline(image_encoder=encoder, feature_extractor=processor, image_embedder=embedder)
    index = _save(pipeline, folder) / "model_index.json"
    present = {key: value for key, value in json.loads(index.read_text()).items() if value != [None, None]}
    index.write_text(json.dumps(present, indent=2, sort_keys=True))  # the release does not mention text encoders
    return folder


def qwen_image_edit(folder: Path) -> Path:
    """Qwen-Image-Edit: edits one picture."""
    from diffusers import QwenImageEditPipeline

    return _save(QwenImageEditPipeline(**_qwen_parts()), folder)


def qwen_image_edit_plus(folder: Path) -> Path:
    """Qwen-Image-Edit as released since version 2509: edits a picture with further ones at hand."""
    from diffusers import QwenImageEditPlusPipeline

    return _save(QwenImageEditPlusPipeline(**_qwen_parts()), folder)


def _save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder, safe_serialization=True)
    return folder


def _awaken(module: torch.nn.Module) -> None:
    """Redraw the layers that a ControlNet begins at zero."""
    for parameter in module.parameters():
        if not parameter.any() and parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)


def _vae(**options: Any) -> Any:
    from diffusers import AutoencoderKL

    with random_weights():
        return AutoencoderKL(
            sample_size=32,
            block_out_channels=(8, 16),
            layers_per_block=1,
            latent_channels=LATENT,
            norm_num_groups=4,
            down_block_types=["DownEncoderBlock2D"] * 2,
            up_block_types=["UpDecoderBlock2D"] * 2,
            force_upcast=False,
            **options,
        )


def _clip_text(kind: str, tokenizer: Any) -> Any:
    import transformers

    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=TEXT,
        hidden_act="gelu",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with random_weights():
        return _spread(getattr(transformers, kind)(config))


def _spread(model: Any) -> Any:
    """Scale the token embeddings up, so that other words give clearly other pictures."""
    model.get_input_embeddings().weight.data.mul_(50)
    return model


def _unet(channels: int) -> Any:
    from diffusers import UNet2DConditionModel

    with random_weights():
        return UNet2DConditionModel(
            sample_size=32,
            in_channels=channels,
            out_channels=LATENT,
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            **UNET,
        )


def _sdxl_parts() -> dict[str, Any]:
    from diffusers import EulerDiscreteScheduler

    tokenizer = clip_tokenizer()
    return {
        "vae": _vae(),
        "text_encoder": _clip_text("CLIPTextModel", tokenizer),
        "text_encoder_2": _clip_text("CLIPTextModelWithProjection", tokenizer),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer,
        "scheduler": EulerDiscreteScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            timestep_spacing="leading",
            steps_offset=1,
        ),
    }


def _transformer(in_channels: int = 4 * LATENT, out_channels: int | None = None) -> Any:
    from diffusers import FluxTransformer2DModel

    with random_weights():
        transformer = FluxTransformer2DModel(
            in_channels=in_channels,
            out_channels=out_channels,
            num_layers=2,
            num_single_layers=2,
            guidance_embeds=True,
            **FLUX,
        )
    transformer.context_embedder.weight.data.mul_(20)  # so that words and references show
    return transformer


def _flux_parts() -> dict[str, Any]:
    from transformers import T5Config, T5EncoderModel

    clip, t5 = clip_tokenizer(), t5_tokenizer()
    config = T5Config(
        vocab_size=len(t5),
        d_model=TEXT,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    with random_weights():
        encoder = T5EncoderModel(config)
    return {
        "scheduler": flux_scheduler(),
        "vae": _vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5035),
        "text_encoder": _clip_text("CLIPTextModel", clip),
        "tokenizer": clip,
        "text_encoder_2": encoder,
        "tokenizer_2": t5,
    }


def _qwen_parts() -> dict[str, Any]:
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel

    tokenizer, processor, text_encoder = _qwen_vl()
    with random_weights():
        vae = AutoencoderKLQwenImage(
            base_dim=4,
            z_dim=LATENT,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
            latents_mean=[0.0] * LATENT,
            latents_std=[1.0] * LATENT,
        )
        transformer = QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=4 * LATENT,
            out_channels=LATENT,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=TEXT,
            axes_dims_rope=(4, 6, 6),
        )
    return {
        "scheduler": flux_scheduler(),
        "vae": vae,
        "text_encoder": text_encoder,
        "tokenizer": tokenizer,
        "processor": processor,
        "transformer": transformer,
    }


def _qwen_vl() -> tuple[Any, Any, Any]:
    """Tokenizer of single bytes, processor and model of a tiny Qwen2.5-VL."""
    from tokenizers import AddedToken
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2Tokenizer,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    specials = (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|image_pad|>",
        "<|video_pad|>",
    )
    tokenizer = Qwen2Tokenizer(
        vocab={byte: i for i, byte in enumerate(sorted(ByteLevel.alphabet()))},
        merges=[],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
    )
    tokenizer.add_tokens([AddedToken(one, special=True, normalized=False) for one in specials])
    ids = {one: tokenizer.convert_tokens_to_ids(one) for one in specials}
    pixels: Any = {
        "min_pixels": 28 * 28,
        "max_pixels": 28 * 28 * 4,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**pixels),
    )
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": TEXT,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "out_hidden_size": TEXT,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    with random_weights():
        return tokenizer, processor, _spread(Qwen2_5_VLForConditionalGeneration(config))
