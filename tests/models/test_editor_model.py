"""The editor's trained parts: masked padding, exact noise levels, Kontext's positions, gradients everywhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.editor_model import LATENTS, TEXT, VISUAL, random_condition, row, small_model
from torch import Tensor
from torch.nn import functional as F

from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.latents import image_ids, pack
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.stages import trainable
from editfoundry.models.editor.types import Condition

SIGMA = torch.tensor([0.7, 0.123])
HEIGHT, WIDTH = 4, 6


@pytest.fixture(scope="module")
def model() -> EditorModel:
    return small_model()


@pytest.fixture(scope="module")
def noisy() -> Tensor:
    return torch.randn(2, LATENTS, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(3))


def answer(model: EditorModel, noisy: Tensor, condition: Condition, guidance: float = 1.0) -> Tensor:
    with torch.no_grad():
        return model(noisy, SIGMA[: len(noisy)], condition, guidance)


def inputs_of(module: Any, calls: list[tuple[Tensor, ...]]) -> Any:
    """Records what a module is called with, until removed."""
    return module.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))


def test_it_is_flux_on_the_joint_sequence(model: EditorModel, noisy: Tensor) -> None:
    condition = random_condition((7, 7))
    sequence, _ = model.embed(condition)
    with torch.no_grad():
        expected = model.transformer(
            hidden_states=pack(noisy),
            encoder_hidden_states=sequence,
            pooled_projections=torch.stack([model.connector.pooled_projection] * 2),
            timestep=SIGMA,
            guidance=torch.tensor([3.5, 3.5]),
            img_ids=image_ids(HEIGHT, WIDTH),
            txt_ids=torch.zeros(7 + 5, 3),
        ).sample
    found = answer(model, noisy, condition, 3.5)
    assert torch.equal(found, expected)
    assert not torch.equal(found, answer(model, noisy, condition, 1.0))


@pytest.mark.parametrize("references", [None, (HEIGHT, WIDTH)])
def test_a_padded_batch_equals_its_rows_alone(
    model: EditorModel, noisy: Tensor, references: tuple[int, int] | None
) -> None:
    condition = random_condition((4, 9), references=references)
    together = answer(model, noisy, condition)
    for index in range(2):
        with torch.no_grad():
            alone = model(noisy[index : index + 1], SIGMA[index : index + 1], row(condition, index), 1.0)
        assert (together[index] - alone[0]).abs().max() < 2e-6


@pytest.mark.parametrize("garbage", [1e4, float("inf"), float("nan")])
def test_padding_has_no_effect_bit_for_bit(noisy: Tensor, garbage: float) -> None:
    condition = random_condition((4, 9))
    padding = ~condition.text_mask[..., None]
    outcomes = []
    for states in (condition.text_states, condition.text_states.masked_fill(padding, garbage)):
        model = small_model()
        velocity = model(noisy, SIGMA, condition._replace(text_states=states), 1.0)
        velocity.square().mean().backward()
        outcomes.append([velocity, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*outcomes, strict=True))


def test_without_the_mask_padding_would_be_attended_to(model: EditorModel, noisy: Tensor) -> None:
    sequence, mask = model.embed(random_condition((4, 9)))
    with torch.no_grad():
        masked = model.velocity(noisy, SIGMA, sequence, mask, 1.0, None)
        attended = model.velocity(noisy, SIGMA, sequence, torch.ones_like(mask), 1.0, None)
    assert (masked[0] - attended[0]).abs().max() > 1e-3
    assert (masked[1] - attended[1]).abs().max() < 2e-6


def test_padded_text_has_no_gradient_and_valid_text_has(model: EditorModel, noisy: Tensor) -> None:
    condition = random_condition((4, 9))
    states = condition.text_states.clone().requires_grad_()
    model(noisy, SIGMA, condition._replace(text_states=states), 1.0).square().sum().backward()
    size = states.grad.abs().sum(-1)
    assert torch.equal(size > 0, condition.text_mask)
    model.zero_grad(set_to_none=True)


def test_reference_latents_join_the_image_tokens_and_their_answers_are_dropped(
    model: EditorModel, noisy: Tensor
) -> None:
    condition = random_condition((5, 5), pictures=2, references=(HEIGHT, WIDTH))
    calls: list[tuple[Tensor, ...]] = []
    ids, tokens = inputs_of(model.transformer.pos_embed, calls), []
    embedder = model.transformer.x_embedder.register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0]))
    found = answer(model, noisy, condition)
    ids.remove()
    embedder.remove()
    count = HEIGHT * WIDTH // 4
    assert found.shape == (2, count, 4 * LATENTS)
    text = torch.zeros(5 + 2 * 5, 3)
    pictures = [image_ids(HEIGHT, WIDTH, number) for number in range(3)]
    assert torch.equal(calls[0][0], torch.cat([text, *pictures]))
    assert condition.reference_latents is not None
    packed = [pack(noisy), pack(condition.reference_latents[:, 0]), pack(condition.reference_latents[:, 1])]
    assert torch.equal(tokens[0], torch.cat(packed, dim=1))
    without = answer(model, noisy, condition._replace(reference_latents=None))
    assert (found - without).abs().max() > 1e-3


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_noise_level_and_guidance_are_embedded_unrounded(noisy: Tensor, precision: str) -> None:
    model = small_model().to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    calls: list[tuple[Tensor, ...]] = []
    hook = inputs_of(model.transformer.time_text_embed.time_proj, calls)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        found = answer(model, noisy, random_condition((5, 5)), guidance=3.7)
    hook.remove()
    assert found.dtype == torch.float32
    assert torch.equal(calls[0][0], SIGMA * 1000)
    assert torch.equal(calls[1][0], torch.full((2,), 3.7) * 1000)


def test_flux_itself_rounds_the_noise_level_to_bfloat16(noisy: Tensor) -> None:
    transformer = small_model().transformer.to(torch.bfloat16)
    calls: list[tuple[Tensor, ...]] = []
    inputs_of(transformer.time_text_embed, calls)
    with torch.no_grad():
        transformer(
            hidden_states=pack(noisy).bfloat16(),
            encoder_hidden_states=torch.zeros(2, 3, 32, dtype=torch.bfloat16),
            pooled_projections=torch.zeros(2, 16, dtype=torch.bfloat16),
            timestep=SIGMA,
            guidance=torch.full((2,), 3.5),
            img_ids=image_ids(HEIGHT, WIDTH),
            txt_ids=torch.zeros(3, 3),
        )
    assert calls[0][0].tolist() == [700.0, 123.0]
    assert calls[0][1].tolist() == [3504.0] * 2


def test_bfloat16_is_near_float32(noisy: Tensor) -> None:
    condition = random_condition((4, 9), references=(HEIGHT, WIDTH))
    exact = answer(small_model(), noisy, condition)
    rounded = answer(small_model().to(torch.bfloat16), noisy, condition)
    with torch.autocast("cpu", torch.bfloat16):
        cast = answer(small_model(), noisy, condition)
    for found in (rounded, cast):
        assert 0 < (found - exact).abs().max() < 0.03 * exact.abs().max()


def test_only_a_guidance_distilled_flux_is_given_guidance(noisy: Tensor) -> None:
    model = small_model(guidance=False)
    calls: list[tuple[Tensor, ...]] = []
    inputs_of(model.transformer.time_text_embed, calls)
    condition = random_condition((5, 5))
    assert torch.equal(answer(model, noisy, condition, 1.0), answer(model, noisy, condition, 4.0))
    assert [len(inputs) for inputs in calls] == [2, 2]
    assert torch.equal(calls[0][1], torch.stack([model.connector.pooled_projection] * 2))


def test_no_hook_stays_behind_even_after_an_error(model: EditorModel, noisy: Tensor) -> None:
    with pytest.raises(RuntimeError):
        answer(model, noisy[:, :-1], random_condition((5, 5)))
    assert not model.transformer.time_text_embed._forward_pre_hooks


@pytest.mark.parametrize("given", ["states", "zeros", "none"])
@pytest.mark.parametrize("autocast", [False, True])
def test_every_trained_parameter_has_a_gradient(noisy: Tensor, given: str, autocast: bool) -> None:
    model = small_model()
    condition = random_condition((4, 9))
    states = {"states": condition.visual_states, "zeros": torch.zeros(2, 1, 5, VISUAL), "none": None}[given]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        velocity = model(noisy, SIGMA, condition._replace(visual_states=states), 1.0)
    velocity.square().mean().backward()
    parameters = dict(model.named_parameters())
    lacking = [name for name in trainable(model, "joint") if parameters[name].grad is None]
    assert lacking == []
    of_details = parameters["visual_connector.down.bias"].grad.abs().sum()
    assert (of_details == 0) == (given == "none")


def test_a_condition_without_states_is_text_alone(model: EditorModel) -> None:
    condition = random_condition((4, 9))
    sequence, mask = model.embed(condition._replace(visual_states=None))
    text = model.connector(condition.text_states)
    assert torch.equal(sequence[mask], text[mask])
    assert sequence.shape == text.shape
    assert torch.equal(mask, condition.text_mask)


def test_states_without_a_visual_connector_are_refused() -> None:
    with pytest.raises(ValueError, match="the editor has no visual connector"):
        small_model(visual=False).embed(random_condition((3,)))


def test_gradient_checkpointing_changes_nothing(noisy: Tensor) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = small_model()
        if checkpointing:
            model.transformer.enable_gradient_checkpointing()
        model(noisy, SIGMA, random_condition((4, 9)), 1.0).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_a_connector_is_linear_silu_linear() -> None:
    connector = Connector(TEXT, 48, 32)
    states = torch.randn(2, 3, TEXT, generator=torch.Generator().manual_seed(0))
    hidden = states @ connector.up.weight.T + connector.up.bias
    expected = (hidden * torch.sigmoid(hidden)) @ connector.down.weight.T + connector.down.bias
    assert (connector(states) - expected).abs().max() < 1e-6
    assert torch.equal(connector(states), connector.down(F.silu(connector.up(states))))


def test_a_connector_is_saved_with_its_pooled_projection(tmp_path: Path) -> None:
    connector = small_model().connector
    connector.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "diffusion_pytorch_model.safetensors"]
    loaded = Connector.from_pretrained(tmp_path)
    assert torch.equal(loaded.pooled_projection, connector.pooled_projection)
    assert all(torch.equal(*pair) for pair in zip(loaded.parameters(), connector.parameters(), strict=True))
    assert {name for name, _ in loaded.named_parameters()} == {"up.weight", "up.bias", "down.weight", "down.bias"}
    assert Connector.from_pretrained(tmp_path, dtype=torch.bfloat16)(torch.zeros(1, TEXT)).dtype == torch.bfloat16
