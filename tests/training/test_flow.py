import math

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from editfoundry.training import flow
from editfoundry.training.config import Timesteps

OPTIONS = Timesteps()


@pytest.mark.parametrize(("tokens", "expected"), [(256, 0.5), (1024, 0.63), (4096, 1.15)])
def test_mu_is_linear_in_image_tokens(tokens: int, expected: float) -> None:
    assert flow.mu(tokens, OPTIONS) == pytest.approx(expected, abs=1e-12)
    assert flow.mu(tokens, OPTIONS) == pytest.approx(calculate_shift(tokens), abs=1e-12)


@pytest.mark.parametrize("tokens", [64, 256, 1024, 4096])
def test_the_scheduler_gives_the_same_sigma_for_the_same_u(tokens: int) -> None:
    """What is drawn in training lies on the path that inference walks."""
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15)
    u = torch.linspace(1, 1 / 28, 28, dtype=torch.float64)
    scheduler.set_timesteps(sigmas=u.tolist(), mu=calculate_shift(tokens))
    expected = scheduler.sigmas[:-1].double()
    torch.testing.assert_close(flow.shift(u, flow.mu(tokens, OPTIONS)), expected, rtol=0, atol=1e-7)


def test_shift_of_known_levels() -> None:
    u = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(flow.shift(u, 0.0), u)
    odds = math.e**1.15
    expected = torch.tensor([0, odds / (odds + 3), odds / (odds + 1), 1], dtype=torch.float64)
    torch.testing.assert_close(flow.shift(u, 1.15), expected)


@pytest.mark.parametrize(("mean", "std", "tokens"), [(0.0, 1.0, 1024), (0.5, 0.6, 4096)])
def test_drawn_levels_have_the_quantiles_of_the_closed_form(mean: float, std: float, tokens: int) -> None:
    """logit(sigma) = logit(u) + mu, so sigma is logit-normal around mean + mu."""
    options = Timesteps(mean=mean, std=std)
    drawn = flow.draw_sigma(tokens, options, torch.Generator().manual_seed(3), 100_000)
    assert drawn.dtype == torch.float32 and drawn.min() > 0 and drawn.max() < 1
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    normal = torch.distributions.Normal(mean + flow.mu(tokens, options), std)
    torch.testing.assert_close(drawn.quantile(levels), normal.icdf(levels).sigmoid(), rtol=0, atol=5e-3)


def test_levels_follow_the_generator_alone() -> None:
    torch.manual_seed(1)
    first = flow.draw_sigma(256, OPTIONS, torch.Generator().manual_seed(7), 4)
    torch.manual_seed(2)
    assert torch.equal(first, flow.draw_sigma(256, OPTIONS, torch.Generator().manual_seed(7), 4))


def test_the_path_runs_from_picture_to_noise_along_the_velocity() -> None:
    x0, noise = torch.full((2, 1, 1, 1), 3.0), torch.full((2, 1, 1, 1), -1.0)
    sigma = torch.tensor([0.25, 1.0])
    assert flow.noised(x0, noise, sigma).flatten().tolist() == [2.0, -1.0]
    assert flow.target(x0, noise).flatten().tolist() == [-4.0, -4.0]
    step = flow.noised(x0, noise, sigma) - sigma.view(-1, 1, 1, 1) * flow.target(x0, noise)
    assert torch.equal(step, x0)


def test_identity_error_is_that_of_a_model_which_copies_its_source() -> None:
    generator = torch.Generator().manual_seed(0)
    x0, source, noise = torch.randn(3, 2, 4, 4, 4, generator=generator, dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.9], dtype=torch.float64)
    copied = (flow.noised(x0, noise, sigma) - source) / sigma.view(-1, 1, 1, 1)
    torch.testing.assert_close(flow.identity_error(x0, source, sigma), copied - flow.target(x0, noise))


def test_weighted_squares_are_sums_over_tokens_of_means_over_channels() -> None:
    prediction = torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[2.0, 2.0], [4.0, 0.0]]])
    weight = torch.tensor([[2.0, 1.0], [0.0, 0.5]])
    # means over channels: 5 and 0, 4 and 8
    assert flow.weighted_squares(prediction, torch.zeros_like(prediction), weight).tolist() == [10.0, 4.0]
    assert flow.weighted_squares(prediction.bfloat16(), torch.zeros(2, 2, 2), weight).dtype == torch.float32
