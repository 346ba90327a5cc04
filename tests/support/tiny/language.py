"""A tiny Qwen2.5-VL with random weights and a real byte-level BPE tokenizer, written as the released one is."""

from pathlib import Path
from typing import Any

import torch

TOKENIZER = Path(__file__).parents[2] / "assets" / "tokenizers" / "qwen.json"
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
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
"""Gives the released template's layout: turns between im_start and im_end, a picture as vision start, pad, end."""


def train_tokenizer(sentences: list[str], size: int = 512) -> str:
    """The JSON of a byte-level BPE as Qwen2's, trained on sentences: how `qwen.json` was made.

    Kept as a file, because two trainings may order merges of equal counts differently.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return str(tokenizer.to_str())


def qwen_tokenizer() -> Any:
    """The committed tokenizer as the class that `AutoProcessor` loads."""
    from transformers import Qwen2TokenizerFast

    return Qwen2TokenizerFast(
        tokenizer_file=str(TOKENIZER),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        model_max_length=32768,
    )


def qwen_vl(folder: Path, layers: int = 2) -> Path:
    """Fills a folder that `AutoModelForImageTextToText` and `AutoProcessor` read: about 1 MB, hidden size 64."""
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    tokenizer = qwen_tokenizer()
    identify = tokenizer.convert_tokens_to_ids
    pixels = {"min_pixels": 4 * 28 * 28, "max_pixels": 64 * 28 * 28}
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
            "bos_token_id": identify("<|endoftext|>"),
            "eos_token_id": identify("<|im_end|>"),
            "pad_token_id": identify("<|endoftext|>"),
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
            "tokens_per_second": 2,
        },
        image_token_id=identify("<|image_pad|>"),
        video_token_id=identify("<|video_pad|>"),
        vision_start_token_id=identify("<|vision_start|>"),
        vision_end_token_id=identify("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2_5_VLForConditionalGeneration(config)
    # As released: settings that sample, which a greedy reader has to override.
    model.generation_config.update(do_sample=True, temperature=0.1, top_k=1, top_p=0.001, repetition_penalty=1.05)
    model.save_pretrained(folder)
    return folder


def teach(model: Any, inputs: Any, reply: list[int]) -> None:
    """Solves the output layer so that, greedily, the model continues `inputs` (one row) with these tokens.

    At most as many tokens as the hidden size (64): the hidden states after them are then independent.
    """
    taught = torch.tensor([reply], device=inputs["input_ids"].device)
    shown = dict(inputs)
    shown["input_ids"] = torch.cat([inputs["input_ids"], taught], dim=1)
    shown["attention_mask"] = torch.ones_like(shown["input_ids"])
    shown["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(taught)], dim=1)
    with torch.inference_mode():
        hidden = model.model(**shown).last_hidden_state[0, -len(reply) - 1 : -1].double()
        wanted = torch.nn.functional.one_hot(taught[0], model.lm_head.out_features).double()
        model.lm_head.weight.copy_((torch.linalg.pinv(hidden) @ wanted).T)
