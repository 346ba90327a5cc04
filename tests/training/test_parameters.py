from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel
from tiny.editor import tiny_editor
from tiny.trained_model import tiny_config, tiny_inputs, tiny_model
from torch import Tensor, nn

from editfoundry.core.errors import UsageError
from editfoundry.models.editor import stages
from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.pipeline import load_editor
from editfoundry.models.editor.types import EditRequest
from editfoundry.training.parameters import (
    frozen_dtype,
    merge_lora,
    prepare_parameters,
    store_float8,
    summarise,
)
from editfoundry.training.sharding import Kind

CPU = torch.device("cpu")
Stage = Literal["connector", "joint"]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients(model: EditorModel, named: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    model(*tiny_inputs()).square().mean().backward()
    return {name: parameter.grad for name, parameter in named.items()}


@pytest.mark.parametrize("stage", ["connector", "joint"])
def test_exactly_a_stages_parameters_train_and_in_float32(stage: Stage) -> None:
    model = tiny_model()
    before = weights(model)
    named = prepare_parameters(model, tiny_config(stage, frozen="bfloat16", precision="bfloat16"), CPU)
    assert list(named) == stages.trainable(model, stage)
    for name, parameter in model.named_parameters():
        if name in named:
            assert named[name] is parameter and parameter.requires_grad
            assert parameter.dtype == torch.float32 and torch.equal(parameter, before[name])
        else:
            assert not parameter.requires_grad
            assert parameter.dtype == torch.bfloat16 and torch.equal(parameter, before[name].bfloat16())


@pytest.mark.parametrize(
    ("frozen", "dtype"),
    [
        ("auto", torch.float32),
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float8", torch.bfloat16),
    ],
)
def test_frozen_weights_of_flux_are_stored_as_asked(frozen: str, dtype: torch.dtype) -> None:
    model = tiny_model()
    prepare_parameters(model, tiny_config("connector", frozen=frozen), CPU)
    assert {parameter.dtype for parameter in model.transformer.parameters()} == {dtype}


def test_frozen_weights_follow_the_forward_pass_and_are_refused_where_they_cannot_be_mixed() -> None:
    cuda = torch.device("cuda")
    assert frozen_dtype(tiny_config("joint"), cuda) == torch.bfloat16
    assert frozen_dtype(tiny_config("joint", precision="float32"), cuda) == torch.float32
    assert frozen_dtype(tiny_config("joint", precision="bfloat16"), CPU) == torch.bfloat16
    for frozen in ("bfloat16", "float8"):
        with pytest.raises(
            UsageError, match=f"frozen `{frozen}` stores FLUX in bfloat16, and the forward pass is float32"
        ):
            prepare_parameters(tiny_model(), tiny_config("joint", frozen=frozen), CPU)
        assert frozen_dtype(tiny_config("joint", frozen=frozen, lora={"rank": 4}), CPU) == torch.bfloat16


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_mixed_dtypes_train_under_autocast(lora: dict[str, int] | None) -> None:
    """Every trained parameter has a float32 gradient, near that of a model that is float32 throughout."""
    exact, mixed = tiny_model(), tiny_model()
    expected = gradients(exact, prepare_parameters(exact, tiny_config("joint", lora=lora), CPU))
    named = prepare_parameters(mixed, tiny_config("joint", lora=lora, frozen="bfloat16", precision="bfloat16"), CPU)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(mixed, named)
    assert set(got) == set(expected)
    for name, gradient in got.items():
        assert gradient is not None and gradient.dtype == torch.float32
        assert (gradient - expected[name]).norm() <= 0.05 * expected[name].norm() + 1e-6, name


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_checkpointing_gives_the_same_gradients(lora: dict[str, int] | None) -> None:
    counts, found = [], []
    for checkpointing in (False, True):
        model = tiny_model()
        named = prepare_parameters(model, tiny_config("joint", lora=lora, gradient_checkpointing=checkpointing), CPU)
        calls: list[int] = []
        model.transformer.transformer_blocks[1].ff.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found.append(gradients(model, named))
        counts.append(len(calls))
    assert counts == [1, 2]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_compilation_is_of_each_block() -> None:
    model = tiny_model()
    prepare_parameters(model, tiny_config("connector", compile=True), CPU)
    compiled = {name for name, module in model.named_modules() if module._compiled_call_impl is not None}
    assert compiled == {
        f"transformer.{kind}.{number}"
        for kind in ("transformer_blocks", "single_transformer_blocks")
        for number in range(2)
    }


def test_a_lora_trains_with_the_connectors_instead_of_the_image_branch() -> None:
    model, base = tiny_model(), tiny_model()
    state = torch.get_rng_state()
    named = prepare_parameters(model, tiny_config("joint", lora={"rank": 4, "alpha": 8}), CPU)
    assert torch.equal(torch.get_rng_state(), state)
    linear = {name.rpartition(".")[0] for name in stages.trainable(base, "joint") if "transformer." in name}
    linear = {name for name in linear if not name.rpartition(".")[2].startswith("norm_")}
    lora = {f"{name}.lora_{half}.default.weight" for name in linear for half in "AB"}
    connectors = {
        f"{part}.{name}" for part in ("connector", "visual_connector") for name, _ in base.connector.named_parameters()
    }
    assert set(named) == lora | connectors and len(lora) == 2 * (2 * 5 + 2 * 4)
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == set(named)
    layer = model.transformer.transformer_blocks[0].attn.to_q
    assert layer.lora_A["default"].weight.shape == (4, 32) and layer.scaling["default"] == 2
    assert torch.equal(model(*tiny_inputs()), base(*tiny_inputs()))  # it begins as no change


def test_a_lora_is_drawn_from_the_seed_alone() -> None:
    drawn = []
    for seed, noise in ((3, 1), (3, 2), (4, 1)):
        torch.manual_seed(noise)
        named = prepare_parameters(tiny_model(), tiny_config("joint", lora={"rank": 4}, seed=seed), CPU)
        drawn.append(torch.cat([value.detach().flatten() for name, value in named.items() if "lora_A" in name]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_merged_lora_is_the_same_function_of_plain_modules() -> None:
    model, base = tiny_model(), tiny_model()
    named = prepare_parameters(model, tiny_config("joint", lora={"rank": 4, "alpha": 8}), CPU)
    with torch.no_grad():
        for name, parameter in named.items():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    trained = model(*tiny_inputs()).detach()
    merge_lora(model)
    merged, plain = weights(model), weights(base)
    assert list(merged) == list(plain)
    torch.testing.assert_close(model(*tiny_inputs()).detach(), trained, rtol=1e-4, atol=1e-5)
    changed = {name for name in plain if not torch.equal(plain[name], merged[name])}
    assert changed == {
        name
        for name in stages.trainable(base, "joint")
        if "transformer." in name and "bias" not in name and "norm_" not in name
    }


def test_float8_holds_encoders_in_half_and_computes_nearly_the_same(tmp_path: Path) -> None:
    pipeline = load_editor(tiny_editor(tmp_path), device="cpu", dtype="bfloat16")
    vlm, visual = pipeline.vlm, pipeline.visual_encoder
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    request = EditRequest("make it blue", (picture,))
    exact = pipeline.condition([request])
    held = [sum(parameter.nbytes for parameter in encoder.parameters()) for encoder in (vlm, visual)]
    store_float8(vlm, visual)
    low = pipeline.condition([request])
    for before, after in ((exact.text_states, low.text_states), (exact.visual_states, low.visual_states)):
        assert after.dtype == torch.bfloat16
        assert 0 < (after.float() - before.float()).norm() < 0.1 * before.float().norm()
    linear = 0
    for encoder in (vlm, visual):
        assert encoder.dtype == torch.bfloat16
        for name, module in encoder.named_modules():
            stored = torch.float8_e4m3fn if type(module) is nn.Linear else torch.bfloat16
            for parameter in module.parameters(recurse=False):
                assert parameter.dtype == stored, name
                linear += parameter.numel() * (stored == torch.float8_e4m3fn)
    assert (
        sum(held) - sum(parameter.nbytes for encoder in (vlm, visual) for parameter in encoder.parameters()) == linear
    )


def flux() -> EditorModel:
    """At the size of the real one, without any storage."""
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(guidance_embeds=True)
        return EditorModel(Connector(3584, 12288, 4096, 768), Connector(1152, 12288, 4096), transformer)


def rows(kind: Kind, ranks: int, stage: Stage = "joint", **values: Any) -> list[tuple[int, ...]]:
    """Bytes of weights, gradients, optimiser and average of both connectors and of FLUX, frozen in bfloat16."""
    model = flux()
    config = tiny_config(stage, frozen="bfloat16", **values)
    named = prepare_parameters(model, config, torch.device("meta"))
    table = summarise(dict(model.named_children()) | {"visual_encoder": None}, named, config, kind, ranks)
    assert [row.module for row in table] == ["connector", "visual_connector", "transformer"]
    assert [row.parameters for row in table][:2] == [94_388_224, 64_503_808]
    return [(row.weight_bytes, row.gradient_bytes, row.optimiser_bytes, row.average_bytes) for row in table]


CONNECTOR, VISUAL, FLUX = 94_388_224, 64_503_808, 11_901_408_320
BRANCH = 19 * (10 * (3072**2 + 3072) + 2 * 128) + 38 * (6 * (3072**2 + 3072) + 2 * 128)
"""3.95 G: q, k, v, out and six modulations of double blocks, q, k, v and three of single ones, and the norms."""


def test_memory_of_the_real_model_in_stage_1() -> None:
    frozen = [(2 * VISUAL, 0, 0, 0), (2 * FLUX, 0, 0, 0)]
    assert rows("none", 1, "connector") == [(4 * CONNECTOR, 4 * CONNECTOR, 8 * CONNECTOR, 0), *frozen]
    assert rows("zero1", 8, "connector") == [(4 * CONNECTOR, 4 * CONNECTOR, 12 * CONNECTOR // 8, 0), *frozen]
    prodigy = rows("ddp", 8, "connector", optimiser={"name": "prodigy", "lr": 1})
    assert prodigy[0] == (4 * CONNECTOR, 4 * CONNECTOR, 16 * CONNECTOR, 0)


@pytest.mark.parametrize(
    ("kind", "weights", "gradients", "optimiser", "average"),
    [
        ("ddp", 4, 4, 8, 4),
        ("zero1", 4, 4, 1.5, 0.5),
        ("zero2", 4, 0.5, 1.5, 0.5),
        ("zero3", 0.5, 0.5, 1.5, 0.5),
        ("fsdp2", 0.5, 0.5, 1, 0.5),
    ],
)
def test_memory_of_the_real_model_in_stage_2(
    kind: Kind, weights: float, gradients: float, optimiser: float, average: float
) -> None:
    """Bytes for each trained weight on one of 8 ranks; frozen ones take two."""
    connector, _, transformer = rows(kind, 8, ema={"decay": 0.999})
    each = (weights, gradients, optimiser, average)
    assert connector == tuple(round(count * CONNECTOR) for count in each)
    expected = [round(count * BRANCH) for count in each]
    frozen = 2 * (FLUX - BRANCH) // (8 if kind == "zero3" else 1)
    assert transformer == (frozen + expected[0], *expected[1:])


@pytest.mark.slow
def test_memory_of_a_lora_with_8bit_adam() -> None:
    _, _, (held, gradient, optimiser, average) = rows(
        "ddp", 8, lora={"rank": 64}, optimiser={"name": "adamw8bit"}, ema={"decay": 0.999}
    )
    inner, double, single = 3072, 19, 38
    lora = 64 * (double * (4 * 2 * inner + 7 * inner) + single * (3 * 2 * inner + 4 * inner))
    assert (held, gradient, average) == (2 * FLUX + 4 * lora, 4 * lora, 4 * lora)
    assert optimiser == round(lora * (2 + 8 / 256))
