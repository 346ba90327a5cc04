"""The VAE's shift and scale, FLUX's packing, and rotary positions: exact values against hand-written ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.models.editor.latents import decode, factor, image_ids, moments, pack, sample, unpack

SHIFT, SCALE = 0.1159, 0.3611


@pytest.fixture(scope="module")
def vae() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            latent_channels=4,
            scaling_factor=SCALE,
            shift_factor=SHIFT,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ).eval()


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.rand(2, 3, 16, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_moments_are_the_encoders_mean_and_log_variance(vae: Any, pixels: torch.Tensor) -> None:
    found = moments(vae, pixels)
    with torch.no_grad():
        assert torch.equal(found, vae.encoder(pixels))
    assert found.shape == (2, 8, 8, 16)
    assert factor(vae) == 2


def test_sample_is_shifted_then_scaled(vae: Any, pixels: torch.Tensor) -> None:
    mean, log_variance = moments(vae, pixels).chunk(2, dim=1)
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(2))
    drawn = (mean + torch.exp(0.5 * log_variance) * noise - SHIFT) * SCALE
    assert torch.equal(sample(vae, moments(vae, pixels), noise), drawn)
    assert torch.equal(sample(vae, moments(vae, pixels), None), (mean - SHIFT) * SCALE)


def test_decode_takes_shift_and_scale_back(vae: Any, pixels: torch.Tensor) -> None:
    found = moments(vae, pixels)
    with torch.no_grad():
        expected = vae.decoder(found.chunk(2, dim=1)[0]).clamp(-1, 1)
    assert (decode(vae, sample(vae, found, None)) - expected).abs().max() < 1e-5
    assert decode(vae, 1e4 * sample(vae, found, None)).abs().max() == 1


def test_a_vae_without_a_shift_is_only_scaled(vae: Any, pixels: torch.Tensor) -> None:
    plain = AutoencoderKL.from_config(vae.config, shift_factor=None)
    plain.load_state_dict(vae.state_dict())
    found = moments(plain, pixels)
    assert torch.equal(sample(plain, found, None), found.chunk(2, dim=1)[0] * SCALE)


def test_autocast_does_not_reach_the_vae(vae: Any, pixels: torch.Tensor) -> None:
    plain = moments(vae, pixels)
    with torch.autocast("cpu", torch.bfloat16):
        found = moments(vae, pixels)
        shown = decode(vae, sample(vae, found, None))
    assert torch.equal(found, plain)
    assert torch.equal(shown, decode(vae, sample(vae, plain, None)))


def test_a_vae_in_another_precision_is_refused(vae: Any, pixels: torch.Tensor) -> None:
    half = AutoencoderKL.from_config(vae.config).to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"the VAE is in torch.bfloat16; load it in float32"):
        moments(half, pixels)
    with pytest.raises(ValueError, match=r"load it in float32"):
        decode(half, torch.zeros(1, 4, 8, 8))


def test_shift_and_scale_are_known_in_one_place(repository: Path) -> None:
    files = [file for area in ("models/editor", "training", "eval") for file in (repository / area).rglob("*.py")]
    users = {file.name for file in files if "vae.config.scaling_factor" in file.read_text("utf-8")}
    users |= {file.name for file in files if "config.shift_factor" in file.read_text("utf-8")}
    assert users == {"latents.py"}


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 2), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_packing_is_that_of_flux(batch: int, channels: int, rows: int, columns: int) -> None:
    shape = (batch, channels, 2 * rows, 2 * columns)
    latents = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    tokens = pack(latents)
    assert torch.equal(tokens, FluxPipeline._pack_latents(latents, *shape))
    assert torch.equal(unpack(tokens, *shape[-2:]), latents)


def test_latents_of_odd_size_are_refused() -> None:
    with pytest.raises(RuntimeError, match="divisible"):
        pack(torch.zeros(1, 4, 3, 4))


def test_positions_are_those_of_flux_and_kontext() -> None:
    ids = image_ids(4, 6)
    assert ids.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 1, 2]]
    assert torch.equal(ids, FluxPipeline._prepare_latent_image_ids(1, 2, 3, "cpu", torch.float32))
    reference = image_ids(4, 6, picture=2)
    assert torch.equal(reference[:, 1:], ids[:, 1:])
    assert reference[:, 0].tolist() == [2] * 6
