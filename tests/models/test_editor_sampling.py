"""Euler sampling: FLUX's noise levels, exact on straight paths, and classifier-free guidance."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from tiny.editor_model import LATENTS, random_condition, row, small_model
from torch import Tensor

from editfoundry.models.editor.latents import pack
from editfoundry.models.editor.sampling import generate, schedule
from editfoundry.models.editor.types import Condition

HEIGHT, WIDTH = 4, 6
Forward = Callable[[Tensor, Tensor, Condition, float], Tensor]


@pytest.fixture
def scheduler() -> Any:
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


@pytest.fixture(scope="module")
def noise() -> Tensor:
    return torch.randn(2, LATENTS, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(3))


def straight_to(picture: Tensor) -> Forward:
    """The exact velocity of the straight path from any noise to a picture."""
    return lambda noisy, sigma, _condition, _guidance: pack((noisy - picture) / sigma[:, None, None, None])


@pytest.mark.parametrize(("tokens", "mu"), [(256, 0.5), (1024, 0.63), (4096, 1.15)])
def test_noise_levels_are_shifted_by_the_picture_s_size(scheduler: Any, tokens: int, mu: float) -> None:
    levels = schedule(scheduler, 4, tokens).sigmas.tolist()
    even = [1, 0.75, 0.5, 0.25]
    expected = [math.exp(mu) * t / (1 + (math.exp(mu) - 1) * t) for t in even]
    assert levels == pytest.approx([*expected, 0], abs=1e-6)


def test_a_scheduler_without_dynamic_shifting_is_followed() -> None:
    fixed = FlowMatchEulerDiscreteScheduler(shift=3.0)
    assert schedule(fixed, 2, 256).sigmas.tolist() == pytest.approx([1, 0.75, 0])


def test_a_straight_path_ends_at_the_picture(scheduler: Any, noise: Tensor) -> None:
    picture = torch.linspace(-2, 2, noise.numel()).reshape(noise.shape)
    before = scheduler.sigmas.clone()
    for steps in (1, 5):
        found = generate(straight_to(picture), scheduler, noise, random_condition((3, 3)), steps=steps, guidance=1.0)
        assert (found - picture).abs().max() < 1e-5
    assert torch.equal(scheduler.sigmas, before)
    assert scheduler.step_index is None


def test_the_model_is_asked_at_each_level_with_what_was_given(scheduler: Any, noise: Tensor) -> None:
    seen: list[tuple[list[float], Condition, float]] = []
    condition = random_condition((3, 3))

    def forward(noisy: Tensor, sigma: Tensor, condition: Condition, guidance: float) -> Tensor:
        assert not torch.is_grad_enabled()
        seen.append((sigma.tolist(), condition, guidance))
        return pack(torch.zeros_like(noisy))

    found = generate(forward, scheduler, noise, condition, steps=3, guidance=3.5, negative=condition)
    assert torch.equal(found, noise)
    levels = schedule(scheduler, 3, HEIGHT * WIDTH // 4).sigmas[:-1].tolist()
    assert [levels_ for levels_, _, _ in seen] == [[level, level] for level in levels]
    assert all(given is condition and guidance == 3.5 for _, given, guidance in seen)


def test_classifier_free_guidance_leads_away_from_the_negative(scheduler: Any, noise: Tensor) -> None:
    wanted, unwanted = random_condition((3, 3)), random_condition((2, 2))

    def forward(noisy: Tensor, _sigma: Tensor, condition: Condition, _guidance: float) -> Tensor:
        return pack(torch.full_like(noisy, 1.0 if condition is wanted else 0.25))

    def end(cfg: float) -> Tensor:
        return generate(forward, scheduler, noise, wanted, steps=4, guidance=1.0, negative=unwanted, cfg=cfg)

    assert (end(1.0) - (noise - 1.0)).abs().max() < 1e-6
    assert (end(3.0) - (noise - (0.25 + 3 * 0.75))).abs().max() < 1e-6
    assert (end(0.0) - (noise - 0.25)).abs().max() < 1e-6
    with pytest.raises(ValueError, match=r"cfg 2.0 needs a negative condition"):
        generate(forward, scheduler, noise, wanted, steps=4, guidance=1.0, cfg=2.0)


def test_pictures_made_together_are_those_made_alone(scheduler: Any, noise: Tensor) -> None:
    model = small_model()
    condition = random_condition((4, 9), references=(HEIGHT, WIDTH))

    def make(noise: Tensor, condition: Condition) -> Tensor:
        return generate(model, scheduler, noise, condition, steps=3, guidance=3.5)

    together = make(noise, condition)
    assert torch.equal(together, make(noise, condition))
    assert together.dtype == torch.float32
    for index in range(2):
        assert (together[index] - make(noise[index : index + 1], row(condition, index))[0]).abs().max() < 1e-5
