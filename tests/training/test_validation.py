"""Validation: what its numbers are, of which weights, and the same on any number of ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.editor import tiny_editor
from training_data import edits, members, scene, write_dataset
from training_run import finished, forked, launched, rows, settings, write_settings

from editfoundry.core.images import decode
from editfoundry.models.editor.latents import pack
from editfoundry.models.editor.types import Condition
from editfoundry.training.config import DatasetSpec, TrainConfig
from editfoundry.training.data import index as index_module
from editfoundry.training.data.index import build_index
from editfoundry.training.sharding import make_accelerator
from editfoundry.training.trainer import Trainer
from editfoundry.training.validation import Validator, chosen


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_editor(tmp_path_factory.mktemp("model") / "editor", reference_latents="kontext")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Four samples to train on and three to validate on."""
    return write_dataset(tmp_path / "dataset", edits(4) + edits(7, split="val")[4:])


def plain_settings(model: Path, dataset: Path, **changes: Any) -> dict[str, Any]:
    validation = {"every": 2, "samples": 3, "grid": 3, "steps": 2, "sigmas": [0.3, 0.7]}
    return settings(model, dataset, steps=2, validation=validation, **changes)


def ready(plain: dict[str, Any], run: Path) -> tuple[Trainer, Validator]:
    """A trainer that is ready to fit, and its validator."""
    run.mkdir()
    trainer = Trainer(TrainConfig.model_validate(plain), run, make_accelerator(project_dir=run))
    trainer.prepare()
    assert trainer.validator is not None
    return trainer, trainer.validator


def test_an_editor_that_gives_back_its_source_is_at_the_identity_baseline(
    model: Path, dataset: Path, tmp_path: Path
) -> None:
    _, validator = ready(plain_settings(model, dataset), tmp_path / "run")

    def copies(noisy: torch.Tensor, sigma: torch.Tensor, condition: Condition, _: float) -> torch.Tensor:
        assert condition.reference_latents is not None
        return pack((noisy - condition.reference_latents[:, 0]) / sigma.view(-1, 1, 1, 1))

    row = validator.run(0, copies)
    assert (row["split"], row["samples"]) == ("val", 3)
    assert row["identity_loss"] > 0.1
    assert row["loss"] == pytest.approx(row["identity_loss"], rel=1e-4)
    assert row["loss_by_type"] == pytest.approx(row["identity_by_type"], rel=1e-4)
    assert row["loss_by_sigma"]["0.3"] == pytest.approx(row["loss_by_sigma"]["0.7"] * (0.7 / 0.3) ** 2, rel=1e-3)


def test_the_error_of_giving_the_source_back_is_that_of_the_stored_pictures_where_the_mask_is(
    model: Path, dataset: Path, tmp_path: Path
) -> None:
    trainer, validator = ready(plain_settings(model, dataset), tmp_path / "run")
    errors = []
    for edit in edits(7)[4:]:
        stored, (_, _, area) = members(edit), scene(edit)
        source, result = (decode(stored[f"{name}.jpg"]) / 127.5 - 1 for name in ("source", "result"))
        tokens = area.reshape(16, 4, 16, 4).any((1, 3)).repeat(4, 0).repeat(4, 1)  # a token is 4 x 4 pixels
        errors.append(float(np.square(source - result)[tokens].mean()))
    row = validator.run(0, trainer.engine.forward)
    assert row["identity_area_error"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert row["edited_area_error"] != row["identity_area_error"]


def test_it_is_of_the_averaged_weights(model: Path, dataset: Path, tmp_path: Path) -> None:
    trainer, validator = ready(plain_settings(model, dataset, ema={"decay": 0.9}), tmp_path / "run")
    trainer.fit()
    _, logged = rows(tmp_path / "run", "validation")
    assert trainer.ema is not None
    trained = validator.run(2, trainer.engine.forward)["loss"]
    with trainer.ema.swap():
        averaged = validator.run(2, trainer.engine.forward)["loss"]
    assert logged["averaged"] is True
    assert logged["loss"] == averaged != trained


def test_a_sample_that_cannot_be_used_is_left_out_and_said(model: Path, dataset: Path, tmp_path: Path) -> None:
    tar = dataset / "val-000000.tar"
    content = bytearray(tar.read_bytes())
    start = content.index(b"edit00005.result.jpg") + 512
    content[start : start + 64] = bytes(64)
    tar.write_bytes(content)
    trainer, validator = ready(plain_settings(model, dataset, data={"bad_samples": "skip"}), tmp_path / "run")
    assert validator.run(0, trainer.engine.forward)["samples"] == 2
    shown = json.loads((tmp_path / "run/validation/samples.json").read_text())
    instructions = sorted(sample["instruction"] for sample in shown)
    assert instructions[:2] == ["add a blue square, number 6", "add a red square, number 4"]
    assert instructions[2].startswith("cannot be used: ") and "the result of edit00005" in instructions[2]


def test_without_a_split_for_it_samples_of_training_are_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no rank reads the tables for them again, at the start or when it resumes."""
    plain = plain_settings(model, write_dataset(tmp_path / "dataset", edits(4)))
    run, written = tmp_path / "run", []
    write = index_module.write_rows
    monkeypatch.setattr(index_module, "write_rows", lambda *given: written.append(given[1]) or write(*given))
    trainer, validator = ready(plain, run)
    row = validator.run(0, trainer.engine.forward)
    assert (row["split"], row["samples"]) == ("train", 3)
    assert validator.index.digest == trainer.index.digest
    assert written == ["train"]
    assert sorted(path.name for path in run.iterdir() if "index" in path.name) == ["index"]


def test_samples_are_taken_in_turn_from_every_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [*edits(40), *edits(44, type="remove")[40:]]
    index = build_index(
        [DatasetSpec(path=str(write_dataset(tmp_path / "dataset", drawn)))], "train", tmp_path / "index"
    )
    found = chosen(index, 8, 3)
    assert [index.types[index.rows[row]["type"]] for row in found] == ["add", "remove"] * 4
    assert len(set(found)) == 8
    assert found == chosen(index, 8, 3) != chosen(index, 8, 4)
    monkeypatch.setattr("editfoundry.training.validation.CANDIDATES", 20)  # fewer than there are
    few = chosen(index, 1, 3)
    assert len(few) == 1 and few == chosen(index, 1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_measure_what_one_does(model: Path, dataset: Path, tmp_path: Path, kind: str) -> None:
    """Three samples one by one: the second process has a group less than the first."""
    plain = plain_settings(model, dataset, micro_batch=1, ema={"decay": 0.5})
    config = write_settings(tmp_path, plain)
    assert finished(forked(config, tmp_path / "one")) == 0, (tmp_path / "one.log").read_text()
    sharded = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if kind == "fsdp2" else {}
    done = launched(config, tmp_path / "two", environment=sharded)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "two/checkpoints/step-00000002/state.json").read_text())["kind"] == kind
    mine, theirs = (rows(tmp_path / run, "validation") for run in ("one", "two"))
    assert [row["samples"] for row in theirs] == [3, 3]
    for one, two in zip(mine, theirs, strict=True):
        for name in ("loss", "identity_loss", "loss_by_sigma", "loss_by_type", "edited_area_error"):
            assert two[name] == pytest.approx(one[name], rel=1e-4), name
    names = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one/validation").rglob("*.jpg"))
    assert names == sorted(path.relative_to(tmp_path / "two") for path in (tmp_path / "two/validation").rglob("*.jpg"))
    assert len(names) == 3 * 2 + 2 * 3 + 2
