"""Models of the full stack with random weights, built on any device from the sizes in `_configurations`.

Each function of RELEASED gives one checkpoint's parts by name, as its release holds them.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from _configurations import Sizes

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from tiny.diffusion import clip_tokenizer, t5_tokenizer
from tiny.language import CHAT_TEMPLATE, qwen_tokenizer
from tiny.perception import CLIP_MEAN, CLIP_STD, bert_tokenizer

from editfoundry.models.editor.miniature import flux_scheduler

Parts = dict[str, Any]


@contextmanager
def building(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Whatever is constructed inside is drawn on that device, in that precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def weights(parts: Parts) -> int:
    """How many numbers the parts hold; shared ones once."""
    return sum(parameter.numel() for part in parts.values() for parameter in part.parameters())


def frozen(parts: Parts) -> Parts:
    """The parts for inference."""
    return {name: part.eval().requires_grad_(False) for name, part in parts.items()}


def _clip_text(kind: Any, size: dict[str, Any]) -> Any:
    from transformers import CLIPTextConfig

    tokenizer = clip_tokenizer()
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return kind(CLIPTextConfig(**{"vocab_size": len(tokenizer), **size}, max_position_embeddings=77, **ids))


def sdxl(sizes: Sizes) -> Parts:
    """Stable Diffusion XL inpainting."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    return {
        "unet": UNet2DConditionModel(**sizes["sdxl_unet"]),
        "vae": AutoencoderKL(**sizes["sdxl_vae"]),
        "text_encoder": _clip_text(CLIPTextModel, sizes["sdxl_text"]),
        "text_encoder_2": _clip_text(CLIPTextModelWithProjection, sizes["sdxl_text_2"]),
    }


def sdxl_controlnet(sizes: Sizes) -> Parts:
    """A ControlNet of Stable Diffusion XL."""
    from diffusers import ControlNetModel

    return {"controlnet": ControlNetModel(**sizes["sdxl_controlnet"])}


def flux_fill(sizes: Sizes) -> Parts:
    """FLUX.1-Fill-dev."""
    from diffusers import AutoencoderKL, FluxTransformer2DModel
    from transformers import CLIPTextModel, T5Config, T5EncoderModel

    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = T5Config(**{"vocab_size": len(t5_tokenizer()), **sizes["flux_text_2"], **ids})
    return {
        "transformer": FluxTransformer2DModel(**sizes["flux_transformer"]),
        "vae": AutoencoderKL(**sizes["flux_vae"]),
        "text_encoder": _clip_text(CLIPTextModel, sizes["flux_text"]),
        "text_encoder_2": T5EncoderModel(config),
    }


def sam2(sizes: Sizes) -> Parts:
    """SAM 2.1, its memory for videos included, as released."""
    from transformers import (
        Sam2HieraDetConfig,
        Sam2VideoConfig,
        Sam2VideoMaskDecoderConfig,
        Sam2VideoModel,
        Sam2VideoPromptEncoderConfig,
        Sam2VisionConfig,
    )

    backbone, width = sizes["sam2_backbone"], sizes["sam2_neck"]["fpn_hidden_size"]
    side = backbone["image_size"][0]
    vision = Sam2VisionConfig(
        backbone_config=Sam2HieraDetConfig(**backbone),
        backbone_channel_list=backbone["embed_dim_per_stage"][::-1],
        backbone_feature_sizes=[[side // 4] * 2, [side // 8] * 2, [side // 16] * 2],
        fpn_hidden_size=width,
    )
    config = Sam2VideoConfig(
        vision_config=vision,
        prompt_encoder_config=Sam2VideoPromptEncoderConfig(hidden_size=width, image_size=side),
        mask_decoder_config=Sam2VideoMaskDecoderConfig(hidden_size=width, iou_head_hidden_dim=width),
        image_size=side,
        **sizes["sam2_memory"],
    )
    return {"model": Sam2VideoModel(config)}


def grounding_dino(sizes: Sizes) -> Parts:
    """Grounding DINO."""
    from transformers import BertConfig, GroundingDinoConfig, GroundingDinoForObjectDetection, SwinConfig

    config = GroundingDinoConfig(
        backbone_config=SwinConfig(**sizes["dino_backbone"], out_features=["stage2", "stage3", "stage4"]),
        text_config=BertConfig(**sizes["dino_text"], pad_token_id=0),
        **sizes["dino"],
    )
    return {"model": GroundingDinoForObjectDetection(config)}


def clip(sizes: Sizes) -> Parts:
    """CLIP as open_clip builds it."""
    from open_clip.model import CLIP

    return {"model": CLIP(**sizes["clip"])}


def qwen(sizes: Sizes) -> Parts:
    """Qwen2.5-VL."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    identify = qwen_tokenizer().convert_tokens_to_ids
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>",
             "vision_end": "<|vision_end|>"}  # fmt: skip
    specials = {"bos": "<|endoftext|>", "eos": "<|im_end|>", "pad": "<|endoftext|>"}
    config = Qwen2_5_VLConfig(
        text_config=sizes["qwen_text"] | {f"{name}_token_id": identify(token) for name, token in specials.items()},
        vision_config=sizes["qwen_vision"],
        tie_word_embeddings=False,
        **{f"{name}_token_id": identify(token) for name, token in names.items()},
    )
    return {"model": Qwen2_5_VLForConditionalGeneration(config)}


def siglip2(sizes: Sizes) -> Parts:
    """The image encoder of SigLIP 2."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    return {"model": SiglipVisionModel(SiglipVisionConfig(**sizes["siglip2"]))}


def editor(sizes: Sizes) -> Parts:
    """The editor before training, as `init-editor` makes it of Qwen2.5-VL, FLUX.1-dev and SigLIP 2.

    Connectors and autoencoder are float32; the other parts have the dtype that things are built in.
    """
    from diffusers import AutoencoderKL, FluxTransformer2DModel

    from editfoundry.models.editor.connector import Connector

    device = torch.get_default_device().type
    flux, visual, hidden = sizes["flux_transformer"], sizes["siglip2"], sizes["editor"]["hidden_features"]
    text_width = flux["joint_attention_dim"]
    with building(device, torch.float32):
        connector = Connector(sizes["qwen_text"]["hidden_size"], hidden, text_width, flux["pooled_projection_dim"])
        visual_connector = Connector(visual["hidden_size"], hidden, text_width)
        vae = AutoencoderKL(**sizes["flux_vae"])
    return {
        "vlm": qwen(sizes)["model"].model,
        "visual_encoder": siglip2(sizes)["model"],
        "connector": connector,
        "visual_connector": visual_connector,
        "transformer": FluxTransformer2DModel(**flux | {"in_channels": 4 * vae.config.latent_channels}),
        "vae": vae,
    }


RELEASED: dict[str, Callable[[Sizes], Parts]] = {
    "sdxl-inpainting": sdxl,
    "sdxl-controlnet-canny": sdxl_controlnet,
    "flux1-fill-dev": flux_fill,
    "sam2.1-hiera-large": sam2,
    "grounding-dino-base": grounding_dino,
    "clip-vit-l14": clip,
    "qwen2.5-vl-7b-instruct": qwen,
}
"""Builder by id of the model store."""


def sdxl_pipelines(base: Parts, control: Parts) -> tuple[Any, Any]:
    """The inpainting pipeline, and the one with a ControlNet around the same parts, with the renderers' sampler."""
    from diffusers import (
        DPMSolverMultistepScheduler,
        StableDiffusionXLControlNetInpaintPipeline,
        StableDiffusionXLInpaintPipeline,
    )

    scheduler = DPMSolverMultistepScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        timestep_spacing="leading",
        steps_offset=1,
        algorithm_type="dpmsolver++",
        solver_order=2,
        use_karras_sigmas=True,
    )
    tokenizer = clip_tokenizer()
    parts = {**base, "scheduler": scheduler, "tokenizer": tokenizer, "tokenizer_2": tokenizer}
    plain = StableDiffusionXLInpaintPipeline(**parts)
    controlled = StableDiffusionXLControlNetInpaintPipeline(**parts, **control)
    for pipe in (plain, controlled):
        pipe.set_progress_bar_config(disable=True)
    return plain, controlled


def flux_pipeline(parts: Parts) -> Any:
    """The fill pipeline around its parts."""
    from diffusers import FluxFillPipeline

    pipe = FluxFillPipeline(**parts, scheduler=flux_scheduler(), tokenizer=clip_tokenizer(), tokenizer_2=t5_tokenizer())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def qwen_processor() -> Any:
    """The processor of Qwen2.5-VL, with a small tokenizer: texts have about twice the released one's tokens."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    tokenizer = qwen_tokenizer()
    tokenizer.padding_side = "left"
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )


def editor_pipeline(parts: Parts, sizes: Sizes, details: bool) -> Any:
    """The editor's pipeline around its parts; `details`: with SigLIP."""
    from transformers import SiglipImageProcessor

    from editfoundry.models.editor.pipeline import EditorPipeline

    side = sizes["siglip2"]["image_size"]
    return EditorPipeline(
        **parts,
        processor=qwen_processor(),
        scheduler=flux_scheduler(),
        visual_processor=SiglipImageProcessor(size={"height": side, "width": side}),
        vlm_pixels=sizes["editor"]["vlm_pixels"],
        details=details,
    )


def save_sam2(parts: Parts, sizes: Sizes, folder: Path) -> None:
    """A checkpoint folder as the released one, which the project's own class loads."""
    from transformers import Sam2ImageProcessor, Sam2Processor

    parts["model"].save_pretrained(folder)
    side = sizes["sam2_backbone"]["image_size"][0]
    quarter = {"height": side // 4, "width": side // 4}
    images = Sam2ImageProcessor(size={"height": side, "width": side}, mask_size=quarter)
    Sam2Processor(image_processor=images).save_pretrained(folder)


def save_grounding_dino(parts: Parts, sizes: Sizes, folder: Path) -> None:
    """As `save_sam2`. Its tokenizer knows few words."""
    from transformers import GroundingDinoImageProcessor, GroundingDinoProcessor

    parts["model"].save_pretrained(folder)
    images = GroundingDinoImageProcessor(size=sizes["dino_images"])
    GroundingDinoProcessor(images, bert_tokenizer()).save_pretrained(folder)


def save_clip(parts: Parts, sizes: Sizes, folder: Path) -> None:
    """As `save_sam2`, in open_clip's layout."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    images = {"mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    text = json.dumps({"model_cfg": sizes["clip"], "preprocess_cfg": images}, indent=2)
    (folder / "open_clip_config.json").write_text(text, encoding="utf-8")
    state = {name: value.contiguous() for name, value in parts["model"].state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
