"""The trainer end to end on the tiny editor: resuming, failing, averaging, and what a step is made of."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny.editor import tiny_editor
from training_data import edits, write_dataset
from training_run import finished, forked, launched, rows, settings, wait_until, write_settings

from editfoundry.core.errors import UsageError
from editfoundry.training.checkpoint import Checkpoints, complete
from editfoundry.training.config import TrainConfig
from editfoundry.training.flow import GUIDANCE
from editfoundry.training.loop import NonFinite
from editfoundry.training.sharding import make_accelerator
from editfoundry.training.trainer import Trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_editor(tmp_path_factory.mktemp("model") / "editor")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten samples to train on, so that epochs end within global batches of four, and two to validate on."""
    drawn = edits(10) + edits(12, split="val")[10:]
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", drawn)


def trained(run: Path) -> dict[str, torch.Tensor]:
    """The weights in a run's newest checkpoint."""
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    return load_file(newest / "trained.safetensors")


def in_process(plain: dict[str, Any], run: Path) -> Trainer:
    """A trainer that is ready to fit, in this process."""
    config = TrainConfig.model_validate(plain)
    run.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(config, run, make_accelerator(project_dir=run))
    trainer.prepare()
    return trainer


@pytest.mark.slow
def test_killed_at_ten_moments_a_run_ends_in_the_same_losses_and_weights(
    model: Path, dataset: Path, tmp_path: Path
) -> None:
    plain = settings(
        model,
        dataset,
        steps=60,
        checkpoints={"every": 3, "keep": 2},
        ema={"decay": 0.9},
        validation={"every": 5, "samples": 2, "grid": 1, "steps": 2, "sigmas": [0.3, 0.7]},
        data={"dropout": {"text": 0.2, "visual": 0.2, "all": 0.1}},
    )
    config = write_settings(tmp_path, plain)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finished(forked(config, whole)) == 0

    def steps_done() -> int:
        file = killed / "metrics.jsonl"
        return file.read_bytes().count(b'"kind":"train"') if file.exists() else 0

    chance = random.Random(5)
    moments = ["step", "writing", "validating", "epoch", "step", "writing", "step", "validating", "writing", "step"]
    hits = 0
    for moment in moments:
        pid = forked(config, killed)
        target = steps_done() + chance.randint(1, 3)
        reached = {
            "step": lambda target=target: steps_done() >= target,
            "epoch": lambda target=target: steps_done() >= target and steps_done() % 5 == 2,
            "writing": lambda: any((killed / "checkpoints").glob("*.tmp*")),
            "validating": lambda target=target: steps_done() >= target and steps_done() % 5 == 0,
        }[moment]
        if wait_until(pid, reached):
            hits += 1
        os.kill(pid, signal.SIGKILL)
        finished(pid)
    assert hits >= 8
    assert finished(forked(config, killed)) == 0
    assert rows(killed) == rows(whole)
    assert rows(killed, "validation") == rows(whole, "validation")
    mine, theirs = trained(killed), trained(whole)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    averaged = [load_file(run / "checkpoints/step-00000060/ema.safetensors") for run in (killed, whole)]
    assert all(torch.equal(averaged[0][name], averaged[1][name]) for name in averaged[1])


@pytest.mark.slow
def test_two_processes_equal_one_with_accumulation(model: Path, dataset: Path, tmp_path: Path) -> None:
    plain = settings(model, dataset, steps=4, optimiser={"lr": 1e-3, "warmup": 3})
    config = write_settings(tmp_path, plain)
    assert finished(forked(config, tmp_path / "one")) == 0
    done = launched(config, tmp_path / "two")
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert [row["lr"] for row in one] == [row["lr"] for row in two] == pytest.approx([0, 1e-3 / 3, 2e-3 / 3, 1e-3])
    for mine, other in zip(one, two, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    state = json.loads((tmp_path / "two/checkpoints/step-00000004/state.json").read_text())
    assert (state["ranks"], state["kind"]) == (2, "ddp")
    mine, theirs = trained(tmp_path / "one"), trained(tmp_path / "two")
    for name, weight in mine.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks_in_the_same_order(
    model: Path, dataset: Path, tmp_path: Path
) -> None:
    half = write_settings(tmp_path, settings(model, dataset, steps=3, data={"workers": 1}), "half")
    whole = write_settings(tmp_path, settings(model, dataset, steps=6), "whole")
    done = launched(half, tmp_path / "run")
    assert done.returncode == 0, done.stderr[-2000:]
    assert finished(forked(whole, tmp_path / "run")) == 0
    assert finished(forked(whole, tmp_path / "alone")) == 0
    for mine, other in zip(rows(tmp_path / "run"), rows(tmp_path / "alone"), strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert mine["epoch"] == other["epoch"]


def test_nan_in_a_module_is_named_with_its_step(model: Path, dataset: Path, tmp_path: Path) -> None:
    trainer = in_process(settings(model, dataset, steps=4), tmp_path / "run")
    poison(trainer, step=2)
    with pytest.raises(NonFinite, match=r"step 2: .*transformer\.single_transformer_blocks\.0"):
        trainer.fit()


def test_the_skip_policy_skips_exactly_that_step(model: Path, dataset: Path, tmp_path: Path) -> None:
    plain = settings(model, dataset, steps=4, nonfinite="skip", ema={"decay": 0.5}, optimiser={"lr": 1e-3, "warmup": 2})
    trainer = in_process(plain, tmp_path / "run")
    poison(trainer, step=2)
    assert trainer.ema is not None
    averages, weights = [copied(trainer.ema.state())], [copied(trainer.parameters)]
    step = trainer.train_step

    def watched(micro_batches: Any) -> Any:
        result = step(micro_batches)
        weights.append(copied(trainer.parameters))
        averages.append(copied(trainer.ema.state()))  # type: ignore[union-attr]
        return result

    trainer.train_step = watched  # type: ignore[method-assign]
    trainer.fit()
    found = rows(tmp_path / "run")
    assert [row["skipped_step"] for row in found] == [False, False, True, False]
    assert [row["loss"] is None for row in found] == [False, False, True, False]
    assert [row["lr"] for row in found] == [0, 5e-4, 1e-3, 1e-3]
    for number, taken in enumerate([False, True, False, True]):  # the first is taken at a rate of 0
        before, after = weights[number : number + 2]
        assert all(torch.equal(before[name], after[name]) for name in before) is not taken
        for name, average in averages[number + 1].items():
            past = averages[number][name]
            expected = past if number == 2 else (past + after[name]) / 2
            torch.testing.assert_close(average, expected, rtol=1e-6, atol=1e-7)


def copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def test_a_sample_that_cannot_be_used_counts_neither_in_the_gradient_nor_in_the_metrics(
    model: Path, tmp_path: Path
) -> None:
    dataset = write_dataset(tmp_path / "dataset", edits(4))
    tar = dataset / "train-000000.tar"
    content = bytearray(tar.read_bytes())
    start = content.index(b"edit00002.source.jpg") + 512
    content[start : start + 64] = bytes(64)
    tar.write_bytes(content)
    trainer = in_process(settings(model, dataset, steps=1, data={"bad_samples": "skip"}), tmp_path / "run")
    losses = []
    backward = trainer.engine.backward

    def watched(loss: torch.Tensor) -> None:
        losses.append(float(loss.detach()))
        backward(loss)

    trainer.engine.backward = watched  # type: ignore[method-assign]
    trainer.fit()
    (row,) = rows(tmp_path / "run")
    assert (row["samples"], row["skipped_samples"]) == (3, 1)
    assert "the source of edit00002" in row["problems"][0]
    assert len(losses) == 2
    assert row["loss"] == pytest.approx(sum(losses), rel=1e-6)


@pytest.mark.parametrize("changes", [{"ema": {"decay": 0.5}}, {"lora": {"rank": 4}}])
def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    model: Path, dataset: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    plain = settings(model, dataset, steps=4, checkpoints={"every": 2}, **changes)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    in_process(plain, whole).fit()
    in_process({**plain, "steps": 3}, stopped).fit()
    shutil.rmtree(stopped / "checkpoints/step-00000003")  # as if killed before it was written
    resumed = in_process(plain, stopped)
    assert resumed.step == 2
    resumed.fit()
    assert rows(stopped) == rows(whole)
    mine, theirs = trained(stopped), trained(whole)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_datasets_that_changed_since_are_refused(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plain = settings(model, write_dataset(tmp_path / "dataset", edits(4)), steps=1)
    in_process(plain, run).fit()
    shutil.rmtree(tmp_path / "dataset")
    write_dataset(tmp_path / "dataset", edits(5))
    shutil.rmtree(run / "index")
    with pytest.raises(UsageError, match="step-00000001: the data that it was trained with changed since"):
        in_process({**plain, "steps": 2}, run)


def test_an_editor_that_changed_since_is_refused(dataset: Path, tmp_path: Path) -> None:
    base, run = tiny_editor(tmp_path / "editor"), tmp_path / "run"
    in_process(settings(base, dataset, steps=1, stage="connector"), run).fit()
    shutil.rmtree(base)
    tiny_editor(base, seed=1)
    with pytest.raises(UsageError, match="step-00000001: the editor that it was trained with changed since"):
        in_process(settings(base, dataset, steps=2, stage="connector"), run)


def test_a_checkpoint_that_is_being_written_is_finished_before_an_error_ends_the_run(
    model: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Checkpoints._write

    def slow(*arguments: Any) -> None:
        time.sleep(1)
        write(*arguments)

    monkeypatch.setattr(Checkpoints, "_write", slow)
    trainer = in_process(settings(model, dataset, steps=4), tmp_path / "run")
    poison(trainer, step=2)
    with pytest.raises(NonFinite):
        trainer.fit()
    assert [path.name for path in complete(tmp_path / "run" / "checkpoints")] == ["step-00000002"]


def test_a_signal_in_the_last_step_finds_a_finished_run(model: Path, dataset: Path, tmp_path: Path) -> None:
    trainer = in_process(settings(model, dataset, steps=1), tmp_path / "run")
    trainer._told_to_end = True
    trainer.fit()
    assert [path.name for path in complete(tmp_path / "run" / "checkpoints")] == ["step-00000001"]


def poison(trainer: Trainer, step: int) -> None:
    """Makes one module of the transformer give NaN at a step."""
    block = trainer.model.transformer.single_transformer_blocks[0].proj_mlp

    def hook(*passed: Any) -> torch.Tensor:
        return passed[2] * float("nan") if trainer.step == step else passed[2]

    block.register_forward_hook(hook)


def test_a_batch_of_a_bucket_equals_its_samples_one_by_one(model: Path, dataset: Path, tmp_path: Path) -> None:
    """Instructions of different length are padded together; a bucket's batch is cut at will."""
    found = []
    for micro_batch in (4, 1):
        run = tmp_path / f"of{micro_batch}"
        in_process(settings(model, dataset, steps=2, micro_batch=micro_batch), run).fit()
        found.append((rows(run), trained(run)))
    (together, weights), (alone, others) = found
    for mine, other in zip(together, alone, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert mine["loss_by_type"] == pytest.approx(other["loss_by_type"], rel=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=1e-4, atol=1e-5)


def test_guidance_is_one_in_training(model: Path, dataset: Path, tmp_path: Path) -> None:
    trainer = in_process(settings(model, dataset, steps=1), tmp_path / "run")
    seen = []
    trainer.model.transformer.time_text_embed.register_forward_pre_hook(lambda *passed: seen.append(passed[1][1]))
    trainer.fit()
    assert GUIDANCE == 1.0
    assert seen
    assert all(torch.equal(guidance, torch.full_like(guidance, 1000.0)) for guidance in seen)


def test_ranks_that_do_not_divide_the_global_batch_are_refused(model: Path, dataset: Path) -> None:
    config = TrainConfig.model_validate(settings(model, dataset, global_batch=12, micro_batch=2))
    assert [config.accumulation(ranks) for ranks in (1, 2, 3)] == [6, 3, 2]
    with pytest.raises(UsageError, match="global_batch 12 is not a multiple of 4 ranks x micro_batch 2"):
        config.accumulation(4)


def test_the_connector_stage_trains_the_connector_alone(model: Path, dataset: Path, tmp_path: Path) -> None:
    trainer = in_process(settings(model, dataset, stage="connector", steps=2), tmp_path / "run")
    frozen = {name: weight.clone() for name, weight in trainer.model.named_parameters() if not weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in trainer.parameters.items()}
    trainer.fit()
    assert {name.split(".")[0] for name in trainer.parameters} == {"connector"}
    assert all(not torch.equal(before[name], weight) for name, weight in trainer.parameters.items())
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(weight, now[name]) for name, weight in frozen.items())


def test_another_stage_or_other_settings_are_refused(model: Path, dataset: Path, tmp_path: Path) -> None:
    from editfoundry.training.rundir import claim, held

    def config(**changes: Any) -> TrainConfig:
        return TrainConfig.model_validate(settings(model, dataset, **changes))

    run = tmp_path / "run"
    claim(run, config())
    with held(run, config()):
        pass
    claim(run, config(steps=60, data={"workers": 2}, checkpoints={"every": 9}))
    with pytest.raises(UsageError, match="holds a run of stage `joint`; give stage `connector` a folder of its own"):
        claim(run, config(stage="connector"))
    with pytest.raises(UsageError, match=r"data\.size: was 64, is 80, optimiser\.lr: was 0\.001, is 0\.002"):
        claim(run, config(data={"size": 80}, optimiser={"lr": 2e-3}))
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other files and no training run"):
        claim(other, config())


def test_two_trainings_in_one_folder_are_refused(model: Path, dataset: Path, tmp_path: Path) -> None:
    config = write_settings(tmp_path, settings(model, dataset, steps=200, checkpoints={"every": 1000}))
    first = forked(config, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert wait_until(first, lambda: metrics.exists() and bool(metrics.read_bytes().count(b"\n")))
    assert finished(forked(config, tmp_path / "run")) == 2
    assert "another process trains in this folder" in (tmp_path / "run.log").read_text()
    os.kill(first, signal.SIGKILL)
    finished(first)
    again = forked(config, tmp_path / "run")
    assert wait_until(again, lambda: metrics.read_bytes().count(b"\n") >= 3)
    os.kill(again, signal.SIGKILL)
    finished(again)


def test_a_signal_ends_the_run_with_a_checkpoint(model: Path, dataset: Path, tmp_path: Path) -> None:
    config = write_settings(tmp_path, settings(model, dataset, steps=200, checkpoints={"every": 1000}))
    pid = forked(config, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert wait_until(pid, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 2)
    os.kill(pid, signal.SIGTERM)
    assert finished(pid) == 1
    done = len(rows(tmp_path / "run"))
    assert 2 <= done < 200
    assert (tmp_path / "run/checkpoints" / f"step-{done:08d}" / "MANIFEST.json").is_file()
    assert "told to end" in (tmp_path / "run.log").read_text()
