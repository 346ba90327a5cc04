"""The editor as a pipeline: same call, same bytes; every argument matters; what is no editor's folder is refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.editor import tiny_editor

from editfoundry.core.errors import ConfigError, EditFoundryError, ModelMissing, UsageError
from editfoundry.core.geometry import Grid, to_grid
from editfoundry.models.editor import latents
from editfoundry.models.editor.encoders import Encoders
from editfoundry.models.editor.loading import change_settings
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.pipeline import EditorPipeline, load_editor
from editfoundry.models.editor.prompt import InstructionTooLong, pictures, pixels
from editfoundry.models.editor.sampling import schedule
from editfoundry.models.editor.types import EditRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_editor(tmp_path_factory.mktemp("editor") / "editor", reference_latents="kontext")


@pytest.fixture(scope="module")
def editor(folder: Path) -> EditorPipeline:
    return load_editor(folder, device="cpu")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def photo(width: int = 64, height: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def edited(editor: EditorPipeline, instruction: str = "make it red", **options: Any) -> np.ndarray:
    return editor(options.pop("image", photo()), instruction, **{"steps": 2, **options}).images[0]


def index(folder: Path, **changes: Any) -> None:
    file = folder / "model_index.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_the_same_call_gives_the_same_bytes_and_another_seed_others(editor: EditorPipeline) -> None:
    first, state = edited(editor, seed=3), torch.get_rng_state()
    assert first.dtype == np.uint8 and first.shape == (64, 64, 3)
    torch.rand(5)
    assert np.array_equal(first, edited(editor, seed=3))
    assert not np.array_equal(first, edited(editor, seed=4))
    torch.set_rng_state(state)
    edited(editor, seed=5)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("visual", "reference_latents"), [(True, "kontext"), (False, "none")])
def test_an_editor_written_and_read_again_gives_the_same_bytes(
    visual: bool, reference_latents: Any, tmp_path: Path
) -> None:
    tiny = tiny_editor(tmp_path / "tiny", visual=visual, reference_latents=reference_latents)
    first = EditorPipeline.from_pretrained(tiny)
    first.save_pretrained(tmp_path / "first")
    second = EditorPipeline.from_pretrained(tmp_path / "first")
    second.save_pretrained(tmp_path / "second")
    assert np.array_equal(edited(first), edited(second))
    assert first.sees_latents == (reference_latents == "kontext") and (first.visual_encoder is not None) == visual
    files = sorted(path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*") if path.is_file())
    assert len(files) > 10
    for name in files:
        written = (tmp_path / "first" / name).read_bytes()
        assert written == (tmp_path / "second" / name).read_bytes(), name
        assert str(tmp_path).encode() not in written, name
    assert files == sorted(
        path.relative_to(tmp_path / "second") for path in (tmp_path / "second").rglob("*") if path.is_file()
    )


def test_the_result_is_the_sampler_written_out(editor: EditorPipeline) -> None:
    """Noise of the seed, Euler steps of the model's velocity, and the VAE: nothing else."""
    request = EditRequest("make it red", (photo(),), ("add a cat",))
    condition, model = editor.condition([request]), editor.model()
    x = torch.randn((1, 4, 32, 32), generator=torch.Generator().manual_seed(7))
    sigmas = schedule(editor.scheduler, 3, 256).sigmas
    with torch.no_grad():
        for now, then in pairwise(sigmas):
            velocity = latents.unpack(model(x, now[None], condition, 2.5), 32, 32)
            x = x + (then - now) * velocity
        expected = pictures(latents.decode(editor.vae, x))[0]
    result = edited(editor, history=["add a cat"], seed=7, steps=3, guidance=2.5)
    assert np.abs(result.astype(int) - expected).max() <= 1


def test_inference_builds_the_tensors_that_training_builds(
    editor: EditorPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the encoders are given for one edit is a row of what the processor gives for a batch, bit for bit."""
    seen: list[tuple[Any, Any]] = []
    original = Encoders.condition

    def spy(self: Encoders, inputs: Any, references: Any = None) -> Any:
        seen.append((inputs, references))
        return original(self, inputs, references)

    monkeypatch.setattr(Encoders, "condition", spy)
    source, other = photo(100, 75), photo(50, 90, 1)
    edited(editor, image=source, references=[other], history=["add a cat"], size=80)
    ((inputs, references),) = seen
    grid = editor.grid(100, 75, 80)
    images = to_grid(source, grid), to_grid(other, grid)
    longer = EditRequest("another one, quite a bit longer than that", images, ("x", "y"))
    batch = editor.editor_processor()([longer, EditRequest("make it red", images, ("add a cat",))])
    length = inputs.input_ids.shape[1]
    assert batch.input_ids.shape[1] > length
    padding = {"input_ids": editor.processor.tokenizer.pad_token_id, "attention_mask": 0, "mm_token_type_ids": 0}
    for name, value in padding.items():
        row = getattr(batch, name)[1]
        assert torch.equal(row[:length], getattr(inputs, name)[0]), name
        assert row[length:].unique().tolist() == [value], name
    patches = len(inputs.pixel_values)
    assert torch.equal(batch.pixel_values[patches:], inputs.pixel_values)
    assert torch.equal(batch.image_grid_thw[2:], inputs.image_grid_thw)
    assert torch.equal(batch.vision_end[1:], inputs.vision_end)
    assert torch.equal(batch.visual_pixels[1:], inputs.visual_pixels)
    assert torch.equal(references, torch.stack([pixels(images)]))


CHANGES: dict[str, dict[str, Any]] = {
    "instruction": {"instruction": "make it blue and add seven tall trees"},
    "empty instruction": {"instruction": ""},
    "picture": {"image": photo(seed=9)},
    "history": {"history": ["add a cat"]},
    "reference": {"references": [photo(seed=5)]},
    "guidance": {"guidance": 9.0},
    "cfg": {"cfg": 6.0},
    "negative": {"cfg": 6.0, "negative": "blurred and ugly, low quality, many artefacts"},
    "steps": {"steps": 3},
}


def test_every_argument_changes_the_result(folder: Path) -> None:
    editor = load_editor(folder, device="cpu")
    with torch.no_grad():  # loud conditions, so that a changed word is worth more than one level of a pixel
        editor.connector.down.weight.mul_(30)
        editor.visual_connector.down.weight.mul_(30)
        editor.transformer.context_embedder.weight.mul_(10)
    results = {"as it is": edited(editor)} | {name: edited(editor, **change) for name, change in CHANGES.items()}
    names = list(results)
    same = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if np.array_equal(results[a], results[b])]
    assert same == []


def test_cfg_is_a_second_pass_and_1_is_none(editor: EditorPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions: list[int] = []
    original = EditorModel.forward

    def spy(self: EditorModel, noisy: Any, sigma: Any, condition: Any, guidance: float) -> Any:
        conditions.append(int(condition.text_mask.sum()))
        return original(self, noisy, sigma, condition, guidance)

    monkeypatch.setattr(EditorModel, "forward", spy)
    passes: list[int] = []
    plain = edited(editor, on_pass=lambda: passes.append(1))
    assert len(conditions) == len(passes) == 2 and len(set(conditions)) == 1
    assert np.array_equal(plain, edited(editor, negative="ugly"))  # without cfg there is no negative
    conditions.clear()
    passes.clear()
    edited(editor, cfg=3.0, history=["add a cat"], on_pass=lambda: passes.append(1))
    assert len(conditions) == len(passes) == 4
    empty = int(editor.condition([EditRequest("", (photo(),))]).text_mask.sum())
    assert conditions[1::2] == [empty, empty] and min(conditions[::2]) > empty


def test_the_grid_keeps_shape_and_size_and_stays(editor: EditorPipeline) -> None:
    assert editor.grid(640, 480, 128) == Grid(144, 112)
    assert editor.grid(144, 112, 128) == Grid(144, 112)
    assert editor.grid(64, 64, 1024) == Grid(64, 64)
    assert editor.grid(4000, 4000) == Grid(256, 256)  # 4096 tokens of 4 x 4 pixels
    first = edited(editor, image=photo(200, 150), size=96, steps=1)
    again = edited(editor, image=first, size=96, steps=1)
    assert first.shape == again.shape == (80, 112, 3)


@pytest.mark.parametrize("size", [(1, 1), (9, 900), (5000, 20)])
def test_pictures_without_a_grid_are_refused(editor: EditorPipeline, size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="too small or too elongated"):
        edited(editor, image=photo(*size))


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"guidance": -1.0}, {"guidance": float("nan")}, {"cfg": float("inf")}]
)
def test_settings_out_of_range_are_refused(editor: EditorPipeline, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        edited(editor, **options)


def test_too_long_an_instruction_is_refused(editor: EditorPipeline) -> None:
    with pytest.raises(InstructionTooLong, match="takes 256"):
        edited(editor, "red green blue " * 200)


def test_weights_that_break_the_result_are_named_as_such(folder: Path) -> None:
    editor = load_editor(folder, device="cpu")
    with torch.no_grad():
        editor.transformer.proj_out.weight.fill_(torch.nan)
    with pytest.raises(EditFoundryError, match="not finite"):
        edited(editor)


def test_the_vae_and_the_connectors_stay_float32(folder: Path) -> None:
    low = load_editor(folder, device="cpu", dtype="bfloat16")
    kinds = {name: part.dtype for name, part in low.components.items() if isinstance(part, torch.nn.Module)}
    exact = {name for name, dtype in kinds.items() if dtype == torch.float32}
    assert exact == {"vae", "connector", "visual_connector"}
    assert edited(low).shape == (64, 64, 3)
    named = EditorPipeline.from_pretrained(folder, dtype={"transformer": torch.bfloat16, "vae": torch.bfloat16})
    assert (named.transformer.dtype, named.vae.dtype, named.vlm.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_an_editor_has_all_of_siglip_or_none(editor: EditorPipeline) -> None:
    parts = {name: part for name, part in editor.components.items() if name != "visual_processor"}
    with pytest.raises(ValueError, match="all three of them, or none"):
        EditorPipeline(**parts)


def test_an_editor_trained_without_siglip_does_not_use_it(copy: Path, editor: EditorPipeline) -> None:
    change_settings(copy, details=False)
    plain = load_editor(copy, device="cpu")
    condition = plain.condition([EditRequest("make it red", (photo(),))])
    assert condition.visual_states is None and condition.text_states.shape[2] == 64
    result = edited(plain)
    assert not np.array_equal(result, edited(editor))
    with torch.no_grad():
        plain.visual_connector.down.weight.fill_(torch.nan)
    assert np.array_equal(result, edited(plain))
    change_settings(copy, details=True)
    assert np.array_equal(edited(load_editor(copy, device="cpu")), edited(editor))


def test_changed_settings_are_checked_and_leave_the_rest(copy: Path) -> None:
    before = json.loads((copy / "model_index.json").read_text())
    with pytest.raises(ConfigError, match="detail: unknown key; did you mean details"):
        change_settings(copy, detail=False)
    assert json.loads((copy / "model_index.json").read_text()) == before
    change_settings(copy, max_text_tokens=9)
    assert json.loads((copy / "model_index.json").read_text()) == before | {"max_text_tokens": 9, "details": True}


HOSTILE: dict[str, dict[str, Any]] = {
    "another pipeline": {"_class_name": "FluxPipeline"},
    "a pipeline of its own": {"_class_name": ["pipeline", "EditorPipeline"]},
    "os": {"vlm": ["os", "system"]},
    "another class": {"transformer": ["diffusers", "SD3Transformer2DModel"]},
    "another library": {"transformer": ["evil", "FluxTransformer2DModel"]},
    "a module of the folder": {"connector": ["connector", "Connector"]},
    "a path": {"connector": ["../../evil", "Connector"]},
    "no list": {"vae": "diffusers.AutoencoderKL"},
    "nothing": {"vae": [None, None]},
    "too long": {"scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler", "x"]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_index_that_names_anything_else_is_refused(copy: Path, name: str) -> None:
    index(copy, **HOSTILE[name])
    with pytest.raises(ModelMissing, match=r"model_index\.json: .*expected "):
        load_editor(copy)


@pytest.mark.parametrize(
    ("key", "value"),
    [("../evil", ["os", "system"]), ("custom_pipeline", "evil"), ("_module", "evil"), ("vlm_pixels", 0),
     ("vlm_pixels", "many"), ("reference_latents", "all"), ("max_text_tokens", -1), ("vlm_pixel", 5)],
)  # fmt: skip
def test_wrong_settings_of_an_index_are_refused(copy: Path, key: str, value: Any) -> None:
    index(copy, **{key: value})
    with pytest.raises(ConfigError, match=key):
        load_editor(copy)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"_class_name": 1e999}', "\ud800"])
def test_an_index_that_is_no_index_is_refused(copy: Path, text: str) -> None:
    (copy / "model_index.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelMissing, match=r"model_index\.json"):
        load_editor(copy)


def test_nothing_of_a_refused_folder_is_imported(copy: Path) -> None:
    """In a process of its own, where modules of the folder could be found if anything looked for them."""
    (copy / "evil.py").write_text("print('imported')")
    (copy / "pipeline.py").write_text("print('imported')")
    index(copy, connector=["evil", "Connector"])
    code = (
        "import sys\nfrom pathlib import Path\nfrom editfoundry.core.errors import ModelMissing\n"
        "from editfoundry.models.editor.loading import read_index\n"
        "try:\n    read_index(Path('.'))\nexcept ModelMissing as error:\n    print(error)\n"
        "print(sorted({'evil', 'pipeline', 'diffusers', 'transformers', 'torch'} & set(sys.modules)))\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True)
    assert 'connector is ["evil", "Connector"]' in answer.stdout
    assert answer.stdout.splitlines()[-1] == "[]"


def _only_pickled(folder: Path) -> None:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    torch.save(load_file(file), folder / "vae" / "diffusion_pytorch_model.bin")
    file.unlink()


def _without(part: str, key: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (file,) = (folder / part).glob("*.safetensors")
        weights = load_file(file)
        del weights[key]
        save_file(weights, file, metadata={"format": "pt"})

    return change


def _shards_elsewhere(folder: Path) -> None:
    part = folder / "transformer"
    (part / "diffusion_pytorch_model.safetensors").rename(folder / "elsewhere.safetensors")
    (part / "x.safetensors").write_bytes((folder / "elsewhere.safetensors").read_bytes())
    weight_map = dict.fromkeys(load_file(folder / "elsewhere.safetensors"), "../elsewhere.safetensors")
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (part / "diffusion_pytorch_model.safetensors.index.json").write_text(text)


def _truncated(folder: Path) -> None:
    file = folder / "visual_encoder" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickled": (_only_pickled, r"vae: holds diffusion_pytorch_model\.bin and no safetensors; nothing else is loaded"),
    "no weights": (lambda f: (f / "vlm" / "model.safetensors").unlink(), "vlm: holds no weights"),
    "no component": (lambda f: shutil.rmtree(f / "processor"), "processor: the editor lacks this component"),
    "vlm": (_without("vlm", "language_model.norm.weight"), r"vlm: lacks 1 weights of Qwen2_5_VLModel, .*norm\.weight"),
    "connector": (_without("connector", "up.weight"), r"connector: lacks 1 weights of Connector, .* up\.weight"),
    "pooled": (_without("connector", "pooled_projection"), r"connector: lacks 1 weights of Connector, .*pooled_proj"),
    "transformer": (_without("transformer", "x_embedder.bias"), r"transformer: lacks 1 .* x_embedder\.bias"),
    "shards elsewhere": (_shards_elsewhere, r"names \.\./elsewhere\.safetensors, which is no file of that folder"),
    "truncated": (_truncated, "visual_encoder: not a checkpoint that SiglipVisionModel can load"),
    "no config": (lambda f: (f / "vae" / "config.json").unlink(), "vae: not a checkpoint that AutoencoderKL"),
    "config": (lambda f: (f / "vlm" / "config.json").write_text("[1]"), "vlm: not a checkpoint that Qwen2_5_VLModel"),
    "scheduler": (lambda f: (f / "scheduler" / "scheduler_config.json").write_text("{"), "scheduler: not one that"),
    "tokenizer": (lambda f: (f / "processor" / "tokenizer.json").write_text("{}"), "processor: not one that"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_folders_that_lack_something_are_refused_by_name(copy: Path, name: str) -> None:
    change, message = BROKEN[name]
    change(copy)
    with pytest.raises(ModelMissing, match=message):
        load_editor(copy)


def test_code_beside_a_processor_is_never_run(copy: Path) -> None:
    settings = json.loads((copy / "processor" / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}, "tokenizer_class": "Evil"}
    (copy / "processor" / "tokenizer_config.json").write_text(json.dumps(settings))
    (copy / "processor" / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelMissing, match="processor: "):
        load_editor(copy)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ModelMissing, match="no folder of an editor"):
            load_editor(place)
