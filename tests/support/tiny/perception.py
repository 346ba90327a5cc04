"""Tiny checkpoints of the perception models' own classes, with random weights, written as the released ones are.

Each function fills a folder that `from_pretrained` reads, the same bytes on every call with the same versions.
"""

import json
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

WIDTH = 32
"""Numbers in an embedding of the tiny CLIP, SigLIP and DINOv2; what the tiny aesthetic head takes."""
WORDS = ("a", "an", "the", "of", "on", "in", "red", "cup", "dog", "cat", "car", "table", "tree", "plate", "person")
BERT_IDS = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, ".": 1012, "?": 1029}
"""Where BERT keeps its specials. Grounding DINO's code splits phrases at the ids 101, 102, 1012 and 1029."""
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


@contextmanager
def random_weights() -> Iterator[None]:
    """Draws weights from a fixed seed and leaves torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def spread(model: torch.nn.Module, factor: float) -> torch.nn.Module:
    """The model with its matrices multiplied: fresh weights are so small that every input would look the same."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.mul_(factor)
    return model


def bert_tokenizer() -> Any:
    """A WordPiece tokenizer of a few words and every printable ASCII character, with BERT's special ids."""
    from transformers import BertTokenizer

    characters = [one for one in string.printable if one.isprintable() and one not in " .?" and one == one.lower()]
    pieces = iter([*WORDS, *(one for one in characters if one not in WORDS), *(f"##{one}" for one in characters)])
    fixed = {number: word for word, number in BERT_IDS.items()}
    vocabulary: dict[str, int] = {}
    for number in range(max(fixed) + 1):
        piece = fixed.get(number) or (next(pieces, None) if number > 103 else None) or f"[unused{number}]"
        vocabulary[piece] = number
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=256)


def grounding_dino(folder: Path) -> Path:
    """Grounding DINO: 20 queries, images at 96 pixels' short side (a square of 64 would leave one feature)."""
    from transformers import (
        BertConfig,
        GroundingDinoConfig,
        GroundingDinoForObjectDetection,
        GroundingDinoImageProcessor,
        GroundingDinoProcessor,
        SwinConfig,
    )

    tokenizer = bert_tokenizer()
    config = GroundingDinoConfig(
        backbone_config=SwinConfig(
            image_size=64,
            patch_size=4,
            window_size=4,
            embed_dim=16,
            depths=[1] * 4,
            num_heads=[1, 2, 2, 2],
            out_features=["stage2", "stage3", "stage4"],
        ),
        text_config=BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=256,
            pad_token_id=0,
        ),
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_queries=20,
        num_feature_levels=4,
        max_text_len=256,
        fusion_droppath=0.0,
        dropout=0.0,
        disable_custom_kernels=True,
    )
    with random_weights():
        GroundingDinoForObjectDetection(config).save_pretrained(folder)
    images = GroundingDinoImageProcessor(size={"shortest_edge": 96, "longest_edge": 192})
    GroundingDinoProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def sam2(folder: Path, video: bool = False, side: int = 128) -> Path:
    """SAM 2; with `video` the class that the released checkpoints are saved as, memory weights included."""
    from transformers import (
        Sam2Config,
        Sam2HieraDetConfig,
        Sam2ImageProcessor,
        Sam2MaskDecoderConfig,
        Sam2Model,
        Sam2Processor,
        Sam2PromptEncoderConfig,
        Sam2VideoConfig,
        Sam2VideoModel,
        Sam2VisionConfig,
    )

    backbone = Sam2HieraDetConfig(
        hidden_size=16,
        num_attention_heads=1,
        image_size=[side, side],
        blocks_per_stage=[1, 1, 2, 1],
        embed_dim_per_stage=[16, 32, 64, 128],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        window_size_per_stage=[8, 4, 4, 4],
        global_attention_blocks=[3],
    )  # never the first block of a stage
    parts = {
        "vision_config": Sam2VisionConfig(
            backbone_config=backbone,
            backbone_channel_list=[128, 64, 32, 16],
            fpn_hidden_size=32,
            backbone_feature_sizes=[[side // 4] * 2, [side // 8] * 2, [side // 16] * 2],
        ),
        "prompt_encoder_config": Sam2PromptEncoderConfig(hidden_size=32, image_size=side, patch_size=16),
        "mask_decoder_config": Sam2MaskDecoderConfig(
            hidden_size=32, mlp_dim=64, num_attention_heads=2, iou_head_hidden_dim=32
        ),
    }
    if video:
        memory = {
            "memory_attention_hidden_size": 32,
            "memory_attention_num_layers": 1,
            "memory_attention_feed_forward_hidden_size": 64,
            "memory_attention_num_attention_heads": 1,
            "memory_encoder_hidden_size": 32,
            "memory_encoder_output_channels": 16,
            "mask_downsampler_embed_dim": 32,
            "memory_fuser_embed_dim": 32,
            "memory_fuser_intermediate_dim": 64,
            "memory_fuser_num_layers": 1,
            "memory_attention_rope_feat_sizes": [side // 16] * 2,
        }
        whole, config = Sam2VideoModel, Sam2VideoConfig(image_size=side, **parts, **memory)
    else:
        whole, config = Sam2Model, Sam2Config(**parts)
    with random_weights():
        spread(whole(config), 10).save_pretrained(folder)
    size = {"height": side, "width": side}
    images = Sam2ImageProcessor(size=size, mask_size={"height": side // 4, "width": side // 4})
    Sam2Processor(image_processor=images).save_pretrained(folder)
    return folder


def sam2_video(folder: Path) -> Path:
    """SAM 2 as the released checkpoints are saved."""
    return sam2(folder, video=True)


def open_clip(folder: Path) -> Path:
    """An open_clip checkpoint folder: images at 32 pixels, embeddings of `WIDTH` numbers."""
    import open_clip as library
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model = {
        "embed_dim": WIDTH,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 16, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
    }
    images = {"mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    text = json.dumps({"model_cfg": model, "preprocess_cfg": images}, indent=2)
    (folder / "open_clip_config.json").write_text(text, encoding="utf-8")
    with random_weights():
        state = spread(library.create_model(f"local-dir:{folder}", load_weights=False), 3).state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "open_clip_model.safetensors")
    return folder


def aesthetic_head(folder: Path, width: int = WIDTH) -> Path:
    """The LAION aesthetic head over embeddings of `width` numbers (the released one takes 768)."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    sizes = [width, 64, 32, 16, 8, 1]
    state = {}
    for place, before, after in zip((0, 2, 4, 6, 7), sizes, sizes[1:], strict=False):
        state[f"layers.{place}.weight"] = torch.randn(after, before, generator=generator) / before**0.5
        state[f"layers.{place}.bias"] = torch.randn(after, generator=generator)
    save_file(state, folder / "model.safetensors")
    return folder


def siglip(folder: Path) -> Path:
    """The whole SigLIP, both towers, as it is released; images at 32 pixels."""
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel, SiglipTextConfig, SiglipVisionConfig

    tower = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = SiglipTextConfig(**tower, vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    config = SiglipConfig(
        text_config=text.to_dict(), vision_config=SiglipVisionConfig(**tower, image_size=32, patch_size=8).to_dict()
    )
    with random_weights():
        SiglipModel(config).save_pretrained(folder)
    SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def dinov2(folder: Path) -> Path:
    """DINOv2: images cropped to 28 pixels."""
    from transformers import BitImageProcessor, Dinov2Model

    with random_weights():
        Dinov2Model(_dinov2_config(image_size=28)).save_pretrained(folder)
    BitImageProcessor(
        size={"shortest_edge": 32},
        crop_size={"height": 28, "width": 28},
        do_center_crop=True,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)
    return folder


def depth(folder: Path) -> Path:
    """Depth Anything V2 on a tiny DINOv2: images at about 252 pixels."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, DPTImageProcessor

    stages = [f"stage{number}" for number in (1, 2, 3, 4)]
    backbone = _dinov2_config(image_size=252, num_hidden_layers=4, out_features=stages, reshape_hidden_states=False)
    config = DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=14,
        reassemble_hidden_size=WIDTH,
        neck_hidden_sizes=[8, 16, 32, 32],
        fusion_hidden_size=16,
        head_hidden_size=8,
        head_in_index=-1,
    )
    with random_weights():
        DepthAnythingForDepthEstimation(config).save_pretrained(folder)
    DPTImageProcessor(
        size={"height": 252, "width": 252},
        keep_aspect_ratio=True,
        ensure_multiple_of=14,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.252, 0.225],
    ).save_pretrained(folder)
    return folder


def _dinov2_config(**settings: Any) -> Any:
    from transformers import Dinov2Config

    shape = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    return Dinov2Config(**{**shape, **settings})
