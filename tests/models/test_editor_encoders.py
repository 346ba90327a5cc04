"""The frozen encoders: what they give against the released models' own forward passes, one by one and in batches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.editor import tiny_editor
from tiny.language import qwen_vl
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from editfoundry.models.editor import latents
from editfoundry.models.editor.encoders import Encoders
from editfoundry.models.editor.loading import load_parts
from editfoundry.models.editor.pipeline import EditorPipeline, load_editor
from editfoundry.models.editor.prompt import EditorProcessor, pixels
from editfoundry.models.editor.types import EditRequest

FLAT = ("rope_parameters", "layer_types", "model_type", "pad_token_id")
"""Keys of the text model's settings that the released configuration does not have."""


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> EditorPipeline:
    return load_editor(tiny_editor(tmp_path_factory.mktemp("editor") / "editor", reference_latents="kontext"))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2.5-VL in the layout of the released 7B: written with its output layer, settings of the text flat."""
    folder = qwen_vl(tmp_path_factory.mktemp("released") / "vlm")
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text["rope_parameters"]
    config |= {key: value for key, value in text.items() if key not in FLAT}
    config |= {"rope_theta": rope["rope_theta"], "torch_dtype": config.pop("dtype")}
    config["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    config["vision_config"]["in_chans"] = config["vision_config"].pop("in_channels")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def photo(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def requests() -> list[EditRequest]:
    return [
        EditRequest("make the sky red and the grass very blue", (photo(64, 64), photo(64, 64, 1)), ("add a cat",)),
        EditRequest("x", (photo(64, 64, 2), photo(64, 64, 3))),
    ]


def references(batch: list[EditRequest]) -> torch.Tensor:
    return torch.stack([pixels(request.images) for request in batch])


@pytest.mark.parametrize("layout", ["released", "nested"])
def test_the_released_layout_loads_without_its_output_layer(
    layout: str, released: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = released if layout == "released" else qwen_vl(tmp_path / "vlm")
    full = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
    assert full.config.text_config.rope_parameters["mrope_section"] == [2, 3, 3]
    capfd.readouterr()
    vlm = load_parts(folder.parent, ["vlm"], {"default": "float32"})["vlm"]
    assert "lm_head" not in capfd.readouterr().err
    assert [name for name, _ in vlm.named_modules() if "lm_head" in name] == []
    processor = EditorProcessor(Qwen2_5_VLProcessor.from_pretrained(folder), None, vlm_pixels=84 * 84)
    inputs = processor(requests())
    states = Encoders(vlm, None, None).condition(inputs).text_states
    given = {name: value for name, value in inputs._asdict().items() if name not in ("vision_end", "visual_pixels")}
    with torch.no_grad():
        answer = full(**given, output_hidden_states=True)
        assert torch.equal(states, answer.hidden_states[-1])
        assert torch.allclose(full.lm_head(states), answer.logits)


def test_a_batch_of_two_gives_what_batches_of_one_give(editor: EditorPipeline) -> None:
    batch = requests()
    together = editor.condition(batch)
    for index, request in enumerate(batch):
        alone = editor.condition([request])
        length = alone.text_states.shape[1]
        kept = together.text_mask[index]
        assert kept.tolist() == [True] * length + [False] * (len(kept) - length)
        assert torch.allclose(together.text_states[index, :length], alone.text_states[0], atol=1e-5)
        assert torch.allclose(together.visual_states[index], alone.visual_states[0], atol=1e-5)
        assert torch.allclose(together.reference_latents[index], alone.reference_latents[0], atol=1e-5)
        assert torch.equal(together.vision_end[index], alone.vision_end[0])


def test_siglip_gives_the_last_hidden_state_of_each_picture(editor: EditorPipeline) -> None:
    inputs = editor.editor_processor()(requests())
    states = editor.encoders().condition(inputs).visual_states
    config = editor.visual_encoder.config
    assert states.shape == (2, 2, (config.image_size // config.patch_size) ** 2, config.hidden_size)
    with torch.no_grad():
        for index in np.ndindex(2, 2):
            expected = editor.visual_encoder(inputs.visual_pixels[index][None]).last_hidden_state[0]
            assert torch.allclose(states[index], expected, atol=1e-6)
    assert not torch.allclose(states[0, 0], states[0, 1], atol=1e-3)


def test_reference_latents_are_the_scaled_means_of_each_picture(editor: EditorPipeline) -> None:
    shown = references(requests())
    inputs = editor.editor_processor()(requests())
    made = editor.encoders().condition(inputs, shown).reference_latents
    assert made.shape == (2, 2, 4, 32, 32)
    with torch.no_grad():
        mean = editor.vae.encode(shown[1, 0][None]).latent_dist.mode()[0]
    expected = (mean - editor.vae.config.shift_factor) * editor.vae.config.scaling_factor
    assert torch.allclose(made[1, 0], expected, atol=1e-6)
    assert torch.equal(editor.encoders().moments(shown[0]), latents.moments(editor.vae, shown[0]))


def test_what_an_editor_lacks_is_not_in_its_condition(editor: EditorPipeline) -> None:
    inputs = editor.editor_processor()(requests())
    condition = Encoders(editor.vlm, None, editor.vae).condition(inputs)
    assert condition.visual_states is None and condition.reference_latents is None
    assert torch.equal(condition.text_states, editor.encoders().condition(inputs).text_states)
    with pytest.raises(ValueError, match="made no pixels"):
        editor.encoders().condition(inputs._replace(visual_pixels=None))


def test_conditions_have_no_gradient(editor: EditorPipeline) -> None:
    condition = editor.condition(requests())
    assert all(not tensor.requires_grad for tensor in condition if tensor is not None)


def test_states_have_the_dtype_of_their_model_and_latents_float32(tmp_path: Path) -> None:
    folder = tiny_editor(tmp_path / "editor", reference_latents="kontext")
    condition = load_editor(folder, device="cpu", dtype="bfloat16").condition(requests())
    dtypes = [condition.text_states.dtype, condition.visual_states.dtype, condition.reference_latents.dtype]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float32]


def test_the_digest_names_weights_and_settings(editor: EditorPipeline, tmp_path: Path) -> None:
    digest = editor.encoders().digest
    editor.save_pretrained(tmp_path / "again")
    again = load_editor(tmp_path / "again")
    assert again.encoders().digest == digest
    assert Encoders(editor.vlm, None, editor.vae).digest != digest
    weight = again.vlm.language_model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        weight[0, 0] += 1e-3
    assert again.encoders().digest != digest
    with torch.no_grad():
        weight.copy_(editor.vlm.language_model.layers[0].mlp.up_proj.weight)
    assert again.encoders().digest == digest
    again.vae.register_to_config(scaling_factor=0.5)
    assert again.encoders().digest != digest
