"""The miniature: what is fitted and set in it, and the tiny editor of the tests."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.editor import tiny_editor

from editfoundry.core.errors import UsageError
from editfoundry.models.editor import latents
from editfoundry.models.editor.miniature import MINIATURE, drawn_pictures, miniature_parts, write_miniature
from editfoundry.models.editor.miniature_weights import FACTOR, fit_autoencoder, pass_through
from editfoundry.models.editor.pipeline import EditorPipeline, load_editor
from editfoundry.models.editor.prompt import HEAD, TAIL, pictures, pixels


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


PICTURES = pictures(drawn_pictures(32, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_miniature(tmp_path_factory.mktemp("miniature") / "editor", photographs=PICTURES)


@pytest.fixture(scope="module")
def editor(folder: Path) -> EditorPipeline:
    return load_editor(folder, device="cpu")


@pytest.mark.parametrize("visual", [True, False])
def test_tiny_editor_is_an_editor_and_the_same_bytes_twice(tmp_path: Path, visual: bool) -> None:
    first, second = (tiny_editor(tmp_path / name, visual=visual) for name in ("first", "second"))
    assert contents(first) == contents(second)
    assert contents(first) != contents(tiny_editor(tmp_path / "other", visual=visual, seed=1))
    pipeline = load_editor(first, device="cpu")
    assert (pipeline.visual_encoder is not None) == visual
    assert pipeline.config.miniature is True
    image = np.full((64, 64, 3), 90, np.uint8)
    red, cat = (pipeline(image, text, steps=2).images[0] for text in ("Make it red.", "Add a cat."))
    assert red.shape == (64, 64, 3)
    assert not np.array_equal(red, cat)


def test_autoencoder_gives_pictures_back(editor: EditorPipeline) -> None:
    shown = drawn_pictures(16, 6)  # not those it was fitted to
    moments = latents.moments(editor.vae, shown)
    assert latents.factor(editor.vae) == FACTOR
    assert moments.shape == (16, 2 * MINIATURE.latents, 16, 16)
    error = (latents.decode(editor.vae, latents.sample(editor.vae, moments, None)) - shown).square().mean()
    assert error < 0.03 * shown.square().mean()


def test_latents_have_mean_zero_and_variance_one(editor: EditorPipeline) -> None:
    fitted_to = pixels(PICTURES)
    scaled = latents.sample(editor.vae, latents.moments(editor.vae, fitted_to), None)
    assert scaled.mean().abs() < 0.01
    assert scaled.std() == pytest.approx(1, abs=0.01)
    noisy = latents.sample(editor.vae, latents.moments(editor.vae, fitted_to), torch.ones_like(scaled))
    assert (noisy - scaled).abs().max() < 0.02  # the posterior is narrow


def test_encoder_is_the_principal_components_of_blocks(editor: EditorPipeline) -> None:
    shown = pixels(PICTURES)
    blocks = torch.nn.functional.pixel_unshuffle(shown, FACTOR).movedim(1, -1).flatten(0, 2).double()
    blocks -= blocks.mean(0)
    strongest = torch.linalg.svdvals(blocks)[: MINIATURE.latents].square() / len(blocks)
    mean = latents.moments(editor.vae, shown)[:, : MINIATURE.latents]
    found = mean.movedim(1, -1).flatten(0, 2).double()
    torch.testing.assert_close(found.T @ found / len(found), torch.diag(strongest), rtol=0.01, atol=0.01)


def test_tokens_pass_through_the_transformer_before_training() -> None:
    transformer = miniature_parts(MINIATURE, seed=0, visual=False)["transformer"]
    pass_through(transformer, seed=0, gate=0.0, gain=1.0)
    tokens = torch.randn(1, 16, 4 * MINIATURE.latents, generator=torch.Generator().manual_seed(0))
    places = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0))
    with torch.no_grad():
        (given_back,) = transformer(
            hidden_states=tokens,
            encoder_hidden_states=torch.randn(1, 3, MINIATURE.width, generator=torch.Generator().manual_seed(1)),
            pooled_projections=torch.zeros(1, MINIATURE.pooled),
            timestep=torch.tensor([0.5]),
            guidance=torch.tensor([1.0]),
            img_ids=places,
            txt_ids=torch.zeros(3, 3),
            return_dict=False,
        )
    assert torch.cosine_similarity(given_back, tokens, dim=-1).min() > 0.95


@pytest.mark.slow
def test_miniature_is_the_same_for_its_seed_and_pictures_and_never_written_over(folder: Path, tmp_path: Path) -> None:
    again = write_miniature(tmp_path / "again", photographs=PICTURES)
    assert contents(again) == contents(folder)
    with pytest.raises(UsageError, match="already exists"):
        write_miniature(again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"]


def test_fit_leaves_torchs_generator_alone() -> None:
    vae = miniature_parts(MINIATURE, seed=0, visual=False)["vae"]
    before = torch.random.get_rng_state()
    fit_autoencoder(vae, drawn_pictures(4, 0), seed=3, steps=2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_prompt_is_short_in_the_miniatures_tokens(editor: EditorPipeline) -> None:
    text = HEAD + "Replace the wooden chair in the lower left with a bicycle." + TAIL
    tokens = editor.processor.tokenizer(text).input_ids
    assert len(tokens) < 50
    assert editor.processor.tokenizer.decode(tokens) == text
    odd = "Peins le zèbre en 紫, s'il te plaît!"
    assert editor.processor.tokenizer.decode(editor.processor.tokenizer(odd).input_ids) == odd
