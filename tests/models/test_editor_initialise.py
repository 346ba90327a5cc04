"""Building an editor from released parts, on tiny folders in the released layouts."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from safetensors.torch import load_file
from tiny import diffusion, language, perception
from transformers import CLIPTextModel, CLIPTokenizer, Qwen2_5_VLModel, SiglipVisionModel

from editfoundry.core.config import load_config
from editfoundry.core.errors import ConfigError, ModelMissing, UsageError
from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.initialise import InitConfig, init_editor
from editfoundry.models.editor.pipeline import load_editor
from editfoundry.models.manifest import packaged_manifest

REDUX_HIDDEN = 3 * diffusion.TEXT
"""Features between the layers of Redux's projection: three times the width of the text that it gives."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The released folders: FLUX's transformer and autoencoder in bfloat16 as released, the rest in float32."""
    root = tmp_path_factory.mktemp("released")
    flux = diffusion.flux(root / "flux")
    for kind, name in ((FluxTransformer2DModel, "transformer"), (AutoencoderKL, "vae")):
        model = kind.from_pretrained(flux / name)
        shutil.rmtree(flux / name)
        model.to(torch.bfloat16).save_pretrained(flux / name)
    folders = {
        "vlm": language.qwen_vl(root / "vlm"),
        "flux": flux,
        "siglip": perception.siglip(root / "siglip"),
        "redux": diffusion.flux_redux(root / "redux"),
    }
    return {key: str(folder) for key, folder in folders.items()} | {"hidden_features": REDUX_HIDDEN}


@pytest.fixture(scope="module")
def editor(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init_editor(InitConfig(**parts, vlm_pixels=56 * 56), tmp_path_factory.mktemp("editor") / "init")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("kind", "component", "source", "dtype"),
    [
        (Qwen2_5_VLModel, "vlm", ("vlm", ""), torch.float32),
        (SiglipVisionModel, "visual_encoder", ("siglip", ""), torch.float32),
        (FluxTransformer2DModel, "transformer", ("flux", "transformer"), torch.bfloat16),
        (AutoencoderKL, "vae", ("flux", "vae"), torch.bfloat16),
    ],
)
def test_released_weights_arrive_unchanged_and_in_their_precision(
    editor: Path, parts: dict[str, Any], kind: Any, component: str, source: tuple[str, str], dtype: torch.dtype
) -> None:
    released = kind.from_pretrained(Path(parts[source[0]]) / source[1], dtype=dtype).state_dict()
    written = kind.from_pretrained(editor / component, dtype=dtype).state_dict()
    assert written.keys() == released.keys()
    assert all(torch.equal(written[name], released[name]) for name in released)
    assert {tensor.dtype for tensor in weights(editor / component).values()} == {dtype}


def test_connectors_join_the_parts_widths_and_redux_starts_the_visual_one(editor: Path, parts: dict[str, Any]) -> None:
    connector = Connector.from_pretrained(editor / "connector")
    visual = Connector.from_pretrained(editor / "visual_connector")
    assert (connector.config.in_features, connector.config.hidden_features, connector.config.out_features) == (
        64,
        REDUX_HIDDEN,
        diffusion.TEXT,
    )
    redux = ReduxImageEncoder.from_pretrained(Path(parts["redux"]) / "image_embedder")
    states = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(visual(states), redux(states).image_embeds)
    assert connector.dtype == visual.dtype == torch.float32


def test_pooled_projection_is_clips_embedding_of_the_empty_text(editor: Path, parts: dict[str, Any]) -> None:
    from diffusers import FluxPipeline

    pipeline = FluxPipeline(
        scheduler=None,
        vae=None,
        transformer=None,
        text_encoder=CLIPTextModel.from_pretrained(Path(parts["flux"]) / "text_encoder"),
        tokenizer=CLIPTokenizer.from_pretrained(Path(parts["flux"]) / "tokenizer"),
        text_encoder_2=None,
        tokenizer_2=None,
    )
    pooled = pipeline._get_clip_prompt_embeds("")  # how FLUX itself pools a prompt
    connector = Connector.from_pretrained(editor / "connector")
    torch.testing.assert_close(connector.pooled_projection, pooled[0], rtol=0, atol=1e-6)


def test_index_names_the_parts_and_says_how_requests_are_read(editor: Path) -> None:
    index = json.loads((editor / "model_index.json").read_text())
    assert index["connector"] == ["editfoundry.models.editor.connector", "Connector"]
    assert index["transformer"] == ["diffusers", "FluxTransformer2DModel"]
    assert index["vlm"] == ["transformers", "Qwen2_5_VLModel"]
    assert (index["vlm_pixels"], index["max_text_tokens"], index["reference_latents"]) == (3136, 256, "none")


def test_the_pipeline_loads_it_and_saves_the_same_index(editor: Path, tmp_path: Path) -> None:
    pipeline = load_editor(editor, device="cpu")
    pipeline.save_pretrained(tmp_path)
    saved, written = (json.loads((folder / "model_index.json").read_text()) for folder in (tmp_path, editor))
    assert {**saved, "_name_or_path": ""} == {**written, "_name_or_path": ""}
    picture = np.full((64, 64, 3), 128, np.uint8)
    edited = pipeline(picture, "make it red", steps=1).images[0]
    assert edited.shape == (64, 64, 3)
    assert edited.std() > 1


def test_same_parts_and_seed_give_the_same_bytes_and_no_paths(
    editor: Path, parts: dict[str, Any], tmp_path: Path
) -> None:
    config = InitConfig(**parts, vlm_pixels=56 * 56)
    again = contents(init_editor(config, tmp_path / "again"))
    assert again == contents(editor)
    assert not [name for name, data in again.items() if str(Path(parts["flux"]).parent).encode() in data]
    other = contents(init_editor(config.model_copy(update={"seed": 1}), tmp_path / "other"))
    assert [name for name in again if again[name] != other[name]] == [
        "connector/diffusion_pytorch_model.safetensors"  # Redux's projection is no matter of the seed
    ]


def test_an_editor_without_siglip_has_no_visual_parts(parts: dict[str, Any], tmp_path: Path) -> None:
    bare = {key: parts[key] for key in ("vlm", "flux")}
    folder = init_editor(InitConfig(**bare, visual=False, hidden_features=48), tmp_path / "bare")
    index = json.loads((folder / "model_index.json").read_text())
    assert [index[name] for name in ("visual_encoder", "visual_processor", "visual_connector")] == [[None, None]] * 3
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "connector",
        "processor",
        "scheduler",
        "transformer",
        "vae",
        "vlm",
    ]


def test_an_existing_folder_is_never_written_over(parts: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "editor"
    out.mkdir()
    with pytest.raises(UsageError, match="editor: already exists"):
        init_editor(InitConfig(**parts), out)
    assert list(out.iterdir()) == []


def test_redux_of_another_shape_is_refused_with_both_shapes(parts: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"32 -> 96 where the visual connector has 32 -> 48.*hidden_features"):
        init_editor(InitConfig(**parts | {"hidden_features": 48}), tmp_path / "editor")
    assert list(tmp_path.iterdir()) == []


def test_missing_parts_are_all_named_with_their_remedy(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITFOUNDRY_CACHE", str(tmp_path / "cache"))
    named = {"siglip": "siglip2-so400m-patch16-512", "redux": "flux1-redux-dev"}
    with pytest.raises(ModelMissing) as caught:
        init_editor(InitConfig(**parts | named), tmp_path / "editor")
    for model in named.values():
        assert f"run `editfoundry models pull {model}`" in str(caught.value)


def test_weights_that_a_part_lacks_are_refused_and_leave_nothing(parts: dict[str, Any], tmp_path: Path) -> None:
    flux = Path(shutil.copytree(parts["flux"], tmp_path / "flux"))
    vlm = Path(shutil.copytree(parts["vlm"], tmp_path / "vlm"))
    (vlm / "model.safetensors").unlink()
    with pytest.raises(ModelMissing, match=r"vlm: not a checkpoint that Qwen2_5_VLModel"):
        init_editor(InitConfig(**parts | {"vlm": str(vlm)}), tmp_path / "out" / "editor")
    assert list((tmp_path / "out").iterdir()) == []
    (flux / "transformer" / "config.json").write_text("[]")
    with pytest.raises(ModelMissing, match=r"transformer/config\.json: not the config of a released part"):
        init_editor(InitConfig(**parts | {"flux": str(flux)}), tmp_path / "out" / "editor")


def test_a_flux_that_fills_is_no_start_of_an_editor(parts: dict[str, Any], tmp_path: Path) -> None:
    fill = diffusion.flux_fill(tmp_path / "fill")
    with pytest.raises(ConfigError, match=r"takes 48 channels a token where its latents have 16.*FLUX\.1-dev"):
        init_editor(InitConfig(**parts | {"flux": str(fill)}), tmp_path / "editor")


@pytest.mark.parametrize("name", ["init-editor", "init-editor-kontext"])
def test_production_configs_name_models_of_the_store(name: str) -> None:
    config = load_config(InitConfig, f"train/{name}.yaml")
    entries = [packaged_manifest().entry(one) for one in (config.vlm, config.flux, config.siglip, config.redux) if one]
    assert [entry.stack for entry in entries] == ["full"] * 4
    assert config.reference_latents == ("kontext" if name.endswith("kontext") else "none")
    assert (config.vlm_pixels, config.hidden_features) == (448 * 448, 12288)
