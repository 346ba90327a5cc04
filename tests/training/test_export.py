"""From a checkpoint to an editor's folder that loads."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from tiny.editor import tiny_editor
from torch import Tensor

from editfoundry.core.errors import UsageError
from editfoundry.models.checkpoint import checkpoint_digest
from editfoundry.models.editor.pipeline import EditorPipeline, load_editor
from editfoundry.training.checkpoint import CheckpointError, Checkpoints, complete
from editfoundry.training.config import TrainConfig
from editfoundry.training.ema import Ema
from editfoundry.training.export import export, stored_precision
from editfoundry.training.parameters import merge_lora, prepare_parameters
from editfoundry.training.sharding import Engine, build_engine

LORA = {"rank": 2, "alpha": 4}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An editor whose transformer is stored in bfloat16, as released ones are."""
    folder = tiny_editor(tmp_path_factory.mktemp("export") / "base")
    file = next((folder / "transformer").glob("*.safetensors"))
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return folder


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Accelerator]:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator()
    AcceleratorState._reset_state(reset_partial_state=True)


def trained_run(run: Path, base: Path, accelerator: Accelerator, ema: bool = False, **settings: Any) -> Engine:
    """A run whose weights moved by what a seed draws; its average did not move."""
    plain = {
        "name": "test",
        "model": str(base),
        "stage": "joint",
        "steps": 4,
        "global_batch": 1,
        "micro_batch": 1,
        "data": {"datasets": [{"path": "unused"}]},
        **settings,
    }
    config = TrainConfig.model_validate(plain)
    model = EditorPipeline.from_pretrained(base).model()
    engine = build_engine(accelerator, model, prepare_parameters(model, config, accelerator.device), config.optimiser)
    average = Ema(engine.local_parameters(), 0.9) if ema else None
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for tensor in engine.local_parameters().values():
            tensor += torch.randn(tensor.shape, generator=generator) / 50
    run.mkdir(parents=True)
    (run / "config.json").write_text(config.model_dump_json())
    checkpoints = Checkpoints(run, 3, 0, 1)
    for step in (2, 4):
        checkpoints.save(step, {"step": step, "config": {}, "editor": checkpoint_digest(str(base))}, engine, average)
    checkpoints.wait()
    return engine


def weights(folder: Path, component: str) -> dict[str, Tensor]:
    return {
        name: tensor for file in (folder / component).glob("*.safetensors") for name, tensor in load_file(file).items()
    }


def test_trained_weights_are_written_exactly_and_the_rest_is_copied(
    tmp_path: Path, base: Path, accelerator: Accelerator
) -> None:
    engine = trained_run(tmp_path / "run", base, accelerator)
    out = export(tmp_path / "run", tmp_path / "out")
    before, after = weights(base, "transformer"), weights(out, "transformer")
    assert before.keys() == after.keys()
    trained = {name.removeprefix("transformer.") for name in engine.named if name.startswith("transformer.")}
    for name, tensor in after.items():
        expected = engine.named[f"transformer.{name}"].detach() if name in trained else before[name]
        assert tensor.dtype == (torch.float32 if name in trained else torch.bfloat16), name
        assert torch.equal(tensor, expected), name
    for component in ("connector", "visual_connector"):
        for name, tensor in weights(out, component).items():
            module = engine.model.get_submodule(component)
            assert torch.equal(tensor, module.state_dict()[name]), name
    for path in base.rglob("*"):
        copied = path.relative_to(base)
        if path.is_file() and copied.parts[0] not in ("connector", "visual_connector", "transformer"):
            assert (out / copied).read_bytes() == path.read_bytes(), copied
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    pipeline = load_editor(out, device="cpu", dtype="float32")
    assert torch.equal(pipeline.connector.up.weight, engine.named["connector.up.weight"])


def test_a_fully_trained_editor_is_exported_whole(tmp_path: Path, base: Path, accelerator: Accelerator) -> None:
    engine = trained_run(tmp_path / "run", base, accelerator, stage="full")
    written = weights(export(tmp_path / "run", tmp_path / "out"), "transformer")
    assert all(torch.equal(tensor, engine.named[f"transformer.{name}"]) for name, tensor in written.items())
    assert len(written) == sum(name.startswith("transformer.") for name in engine.named)


def test_the_connector_stage_leaves_the_transformer_as_it_is(
    tmp_path: Path, base: Path, accelerator: Accelerator
) -> None:
    engine = trained_run(tmp_path / "run", base, accelerator, stage="connector")
    out = export(tmp_path / "run", tmp_path / "out", step=2)
    file = next((base / "transformer").glob("*.safetensors")).relative_to(base)
    assert (out / file).read_bytes() == (base / file).read_bytes()
    assert torch.equal(weights(out, "connector")["up.weight"], engine.named["connector.up.weight"])
    before = weights(base, "visual_connector")
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(out, "visual_connector").items())


def test_a_lora_is_added_to_the_weights_in_float32(tmp_path: Path, base: Path, accelerator: Accelerator) -> None:
    engine = trained_run(tmp_path / "run", base, accelerator, lora=LORA)
    out = export(tmp_path / "run", tmp_path / "out")
    before, after = weights(base, "transformer"), weights(out, "transformer")
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name].float(), after[name].float())]
    name = "transformer_blocks.0.attn.to_q"
    assert f"{name}.weight" in changed
    assert not any("ff" in name or "add_" in name for name in changed)
    down, up = (engine.named[f"transformer.{name}.lora_{part}.default.weight"].detach() for part in "AB")
    expected = before[f"{name}.weight"].float() + 2 * up @ down
    torch.testing.assert_close(after[f"{name}.weight"], expected, rtol=0, atol=1e-6)
    merge_lora(engine.model)
    assert load_editor(out, device="cpu", dtype="float32").transformer.state_dict().keys() == before.keys()


def test_averaged_weights_are_taken_where_there_are_any(tmp_path: Path, base: Path, accelerator: Accelerator) -> None:
    engine = trained_run(tmp_path / "run", base, accelerator, ema=True, stage="connector")
    begun, moved = weights(base, "connector")["up.weight"], engine.named["connector.up.weight"]
    for choice, expected in ((None, begun), (True, begun), (False, moved)):
        out = export(tmp_path / "run", tmp_path / f"out-{choice}", ema=choice)
        assert torch.equal(weights(out, "connector")["up.weight"], expected)


def test_what_cannot_be_exported_is_said_and_leaves_nothing(
    tmp_path: Path, base: Path, accelerator: Accelerator
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    trained_run(run, base, accelerator, stage="connector")
    with pytest.raises(UsageError, match="no checkpoint of step 3"):
        export(run, out, step=3)
    with pytest.raises(UsageError, match="holds no averaged weights"):
        export(run, out, ema=True)
    with pytest.raises(UsageError, match="not a training run"):
        export(tmp_path, out)
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match="taken: already exists"):
        export(run, tmp_path / "taken")
    config = json.loads((run / "config.json").read_text())
    other = tiny_editor(tmp_path / "wide", width=64)
    (run / "config.json").write_text(json.dumps({**config, "model": str(other)}))
    with pytest.raises(UsageError, match=r"wide: the editor that .*run began with changed since"):
        export(run, out)
    (run / "config.json").write_text(json.dumps({**config, "stage": "joint"}))
    with pytest.raises(CheckpointError, match=r"missing, e.g. transformer|missing, e.g. visual_connector"):
        export(run, out)
    (run / "config.json").write_text(json.dumps(config))
    shutil.rmtree(complete(run / "checkpoints")[0])
    file = complete(run / "checkpoints")[0] / "trained.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="not the file that was written"):
        export(run, out)
    assert not out.exists()


def test_the_stored_precision_is_that_of_most_weights(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(9, dtype=torch.bfloat16), "b": torch.zeros(8)}, tmp_path / "x.safetensors")
    assert stored_precision(tmp_path) == "bfloat16"
    save_file({"a": torch.zeros(9, dtype=torch.bfloat16), "b": torch.zeros(10)}, tmp_path / "x.safetensors")
    assert stored_precision(tmp_path) == "float32"
