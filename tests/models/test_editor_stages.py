"""What each stage trains: by name, counted on a model of FLUX.1-dev's size that has no memory."""

import re
from collections import Counter
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel
from peft import LoraConfig, inject_adapter_in_model
from tiny.editor_model import small_model

from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.stages import LORA_TARGETS, trainable

CONNECTOR, VISUAL_CONNECTOR, IMAGE_BRANCH = 94_388_224, 64_503_808, 3_946_041_600


@pytest.fixture(scope="module")
def production() -> EditorModel:
    """Qwen2.5-VL-7B, SigLIP2-so400m and FLUX.1-dev: the connectors between them and the transformer."""
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(
            num_layers=19,
            num_single_layers=38,
            attention_head_dim=128,
            num_attention_heads=24,
            joint_attention_dim=4096,
            pooled_projection_dim=768,
            guidance_embeds=True,
        )
        return EditorModel(Connector(3584, 12288, 4096, 768), Connector(1152, 12288, 4096), transformer)


def size(model: EditorModel, names: list[str]) -> int:
    parameters = dict(model.named_parameters())
    return sum(parameters[name].numel() for name in names)


def test_the_connector_stage_trains_the_connector_alone(production: EditorModel) -> None:
    names = trainable(production, "connector")
    assert names == ["connector.up.weight", "connector.up.bias", "connector.down.weight", "connector.down.bias"]
    assert size(production, names) == CONNECTOR


def test_the_joint_stage_trains_both_connectors_and_the_image_branch(production: EditorModel) -> None:
    names = trainable(production, "joint")
    kinds = Counter(re.sub(r"\.\d+\.", ".#.", name, count=1) for name in names)
    double, single = "transformer.transformer_blocks.#.", "transformer.single_transformer_blocks.#."
    linear = ("attn.to_q", "attn.to_k", "attn.to_v")
    norms = ("attn.norm_q.weight", "attn.norm_k.weight")
    expected = {
        f"{part}.{layer}.{kind}": 1
        for part in ("connector", "visual_connector")
        for layer in ("up", "down")
        for kind in ("weight", "bias")
    }
    for prefix, modules, blocks in (
        (double, (*linear, "attn.to_out.0", "norm1.linear"), 19),
        (single, (*linear, "norm.linear"), 38),
    ):
        expected |= {f"{prefix}{module}.{kind}": blocks for module in modules for kind in ("weight", "bias")}
        expected |= {f"{prefix}{norm}": blocks for norm in norms}
    assert kinds == expected
    flux = [name for name in names if name.startswith("transformer.")]
    assert size(production, flux) == IMAGE_BRANCH
    assert size(production, names) == CONNECTOR + VISUAL_CONNECTOR + IMAGE_BRANCH
    assert size(production, [name for name, _ in production.transformer.named_parameters(prefix="transformer")]) == (
        11_901_408_320
    )


def test_the_full_stage_trains_everything() -> None:
    model = small_model()
    assert trainable(model, "full") == [name for name, _ in model.named_parameters()]


def test_an_editor_without_siglip_has_no_visual_connector_to_train() -> None:
    model = small_model(visual=False)
    assert {name.split(".")[0] for name in trainable(model, "joint")} == {"connector", "transformer"}


@pytest.mark.parametrize("inside", ["transformer", "editor"])
def test_lora_adapts_the_linear_layers_of_the_same_modules(inside: str) -> None:
    model = small_model()
    names = trainable(model, "joint")
    linear = {
        name.removesuffix(".weight")
        for name, parameter in model.named_parameters()
        if name in names and name.startswith("transformer.") and parameter.ndim == 2
    }
    host: Any = model if inside == "editor" else model.transformer
    inject_adapter_in_model(LoraConfig(r=2, target_modules=LORA_TARGETS), host)
    adapted = {name.split(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A" in name}
    assert adapted == linear
    assert len(adapted) == 2 * 5 + 2 * 4
