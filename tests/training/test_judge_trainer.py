"""The judge's trainer end to end on the tiny judge: what a step is made of, resuming, failing, and what comes out."""

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from judge_data import rating, ten_points, write_judged_dataset, write_lines
from judge_run import MODULE, judge_in_process, judge_settings, write_judge_settings, write_judged
from safetensors.torch import load_file, save_file
from tiny.language import qwen_vl
from training_data import edits
from training_run import finished, forked, launched, rows, wait_until

from editfoundry.core.errors import UsageError
from editfoundry.models.judge.spec import JudgeOptions, open_judge
from editfoundry.models.judge.types import Case, Comparison, Scored
from editfoundry.models.protocols import Image
from editfoundry.training.checkpoint import complete
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.export import export_judge
from editfoundry.training.judge.pictures import BadPicture, Pictures, look
from editfoundry.training.judge.records import PictureRef, Record
from editfoundry.training.judge.sources import BadRecord
from editfoundry.training.judge.trainer import JudgeTrainer
from editfoundry.training.loop import Interrupted, NonFinite


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def vivid(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny judge with larger weights, so that its scores depend on the pictures."""
    copy = tmp_path_factory.mktemp("vivid") / "qwen"
    shutil.copytree(model, copy)
    weights = load_file(copy / "model.safetensors")
    larger = {
        name: weight * (30 if "lm_head" in name else 5 if weight.ndim > 1 else 1) for name, weight in weights.items()
    }
    save_file(larger, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 ratings and 12 preferences of 12 photographs, of which two thirds are trained on: 18 rows an epoch."""
    return write_judged(tmp_path_factory.mktemp("judged"))


def trained(run: Path) -> dict[str, torch.Tensor]:
    """The weights in a run's newest checkpoint."""
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    return load_file(newest / "trained.safetensors")


def copied(trainer: JudgeTrainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def gradients(trainer: JudgeTrainer, batches: list[Row]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    trainer.engine.zero_grad()
    made = trainer.losses_of(batches, trainer.engine.backward)
    return made, {name: one.grad.clone() for name, one in trainer.parameters.items() if one.grad is not None}


def test_a_global_batch_is_the_same_however_it_is_cut(model: Path, folder: Path, tmp_path: Path) -> None:
    """Four rows one after the other, and all their sequences in one row; the ranking is of what stands in one row."""
    plain = judge_settings(model, folder, heads={"ranking": 0}, data={"balance": "inverse"})
    trainer = judge_in_process(plain, tmp_path / "run")
    stream = trainer.batches()
    batches = [next(stream) for _ in range(4)]
    planned = [trainer.order.row(0, slot) for slot in range(4)]
    members = [trainer.plan.parts[member] for row in planned for member in row.members]
    whole = trainer.builder.row(members)
    assert whole.ids.shape[1] == sum(row.ids.shape[1] for row in batches)
    assert len({row.ids.shape[1] for row in batches}) > 1
    assert whole.score_weights.unique().numel() > 1
    with torch.no_grad():
        for name, parameter in trainer.parameters.items():
            if name.startswith("regression.") or "lora_B" in name:
                parameter.normal_(std=0.1)
    losses, parts = gradients(trainer, batches)
    expected, together = gradients(trainer, [whole])
    assert losses == pytest.approx(expected, rel=1e-5)
    assert set(losses) == {"generate", "expected", "regression", "preference"}
    assert parts.keys() == together.keys()
    for name, gradient in parts.items():
        scale = float(together[name].abs().max())
        torch.testing.assert_close(gradient, together[name], rtol=1e-3, atol=1e-5 + 1e-4 * scale)


def test_what_is_told_is_the_weighted_sum_of_the_heads(model: Path, folder: Path, tmp_path: Path) -> None:
    heads = {"generate": 0.5, "expected": 2, "regression": 0.25, "ranking": 0, "preference": 3}
    trainer = judge_in_process(judge_settings(model, folder, heads=heads, steps=2), tmp_path / "run")
    trainer.fit()
    for row in rows(tmp_path / "run", "judge"):
        assert row["loss"] == pytest.approx(sum(heads[name] * loss for name, loss in row["loss_by_head"].items()))
        assert set(row["loss_by_head"]) == {name for name, weight in heads.items() if weight}


@pytest.mark.parametrize("trains", ["lora", "language"])
def test_what_is_frozen_stays_as_it_was_and_all_else_moves(
    model: Path, folder: Path, tmp_path: Path, trains: str
) -> None:
    trainer = judge_in_process(judge_settings(model, folder, trains=trains, steps=3), tmp_path / "run")
    before = copied(trainer)
    trainer.fit()
    after = copied(trainer)
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert moved == set(trainer.parameters)
    assert not any(name.startswith("vlm.model.visual.") for name in moved)
    assert trained(tmp_path / "run").keys() == trainer.parameters.keys()


def test_an_interrupted_run_goes_on_bit_by_bit(model: Path, folder: Path, tmp_path: Path) -> None:
    """Over the end of an epoch, which is within the fifth global batch; with an average, and validations."""
    plain = judge_settings(model, folder, steps=7, ema={"decay": 0.5}, validation={"every": 3},
                           optimiser={"warmup": 2, "schedule": "cosine"})  # fmt: skip
    judge_in_process(plain, tmp_path / "whole").fit()
    stopped = tmp_path / "stopped"
    for at in (1, 4, 5):
        trainer = judge_in_process(plain, stopped)
        step = trainer.train_step

        def watched(batches: Any, at: int = at, step: Any = step, trainer: JudgeTrainer = trainer) -> Any:
            trainer._told_to_end |= trainer.step + 1 == at
            return step(batches)

        trainer.train_step = watched  # type: ignore[method-assign]
        with pytest.raises(Interrupted, match=f"after step {at}; a checkpoint was written"):
            trainer.fit()
    judge_in_process(plain, stopped).fit()
    assert [row["step"] for row in rows(stopped, "judge")] == list(range(1, 8))
    assert rows(stopped, "judge") == rows(tmp_path / "whole", "judge")
    assert rows(stopped, "judge_validation") == rows(tmp_path / "whole", "judge_validation")
    for name in ("trained.safetensors", "ema.safetensors"):
        mine, theirs = (load_file(run / "checkpoints/step-00000007" / name) for run in (stopped, tmp_path / "whole"))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.slow
def test_killed_at_several_moments_a_run_ends_in_the_same_losses_and_weights(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    plain = judge_settings(
        model, folder, steps=16, ema={"decay": 0.9}, checkpoints={"every": 3, "keep": 2},
        validation={"every": 5, "samples": 4}, data={"workers": 1},
    )  # fmt: skip
    config = write_judge_settings(tmp_path, plain)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finished(forked(config, whole, module=MODULE)) == 0, (tmp_path / "whole.log").read_text()

    def steps_done() -> int:
        file = killed / "metrics.jsonl"
        return file.read_bytes().count(b'"kind":"judge",') if file.exists() else 0

    chance = random.Random(5)
    hits = 0
    for moment in ("step", "writing", "validating", "writing"):
        pid = forked(config, killed, module=MODULE)
        target = steps_done() + chance.randint(1, 3)
        reached = {
            "step": lambda target=target: steps_done() >= target,
            "writing": lambda: any((killed / "checkpoints").glob("*.tmp*")),
            "validating": lambda target=target: steps_done() >= target and steps_done() % 5 == 0,
        }[moment]
        hits += wait_until(pid, reached)
        os.kill(pid, signal.SIGKILL)
        finished(pid)
    assert hits >= 3
    assert finished(forked(config, killed, module=MODULE)) == 0
    for kind in ("judge", "judge_validation"):
        assert rows(killed, kind) == rows(whole, kind)
    mine, theirs = trained(killed), trained(whole)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_two_processes_equal_one_with_accumulation(model: Path, folder: Path, tmp_path: Path) -> None:
    """All heads, of which some have nothing in some rows; validation is shared too."""
    plain = judge_settings(model, folder, steps=4, validation={"every": 2})
    config = write_judge_settings(tmp_path, plain)
    assert finished(forked(config, tmp_path / "one", module=MODULE)) == 0, (tmp_path / "one.log").read_text()
    done = launched(config, tmp_path / "two", module=MODULE)
    assert done.returncode == 0, done.stderr[-2000:]
    state = json.loads((tmp_path / "two/checkpoints/step-00000004/state.json").read_text())
    assert (state["ranks"], state["kind"]) == (2, "ddp")
    for mine, other in zip(rows(tmp_path / "one", "judge"), rows(tmp_path / "two", "judge"), strict=True):
        assert mine["loss_by_head"] == pytest.approx(other["loss_by_head"], rel=1e-4)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
        assert (mine["samples"], mine["tokens"], mine["lr"]) == (other["samples"], other["tokens"], other["lr"])
    one, two = (rows(tmp_path / run, "judge_validation") for run in ("one", "two"))
    for mine, other in zip(one, two, strict=True):
        assert mine["preference"] == other["preference"]
        for name, report in mine["heads"].items():
            assert report["error"] == pytest.approx(other["heads"][name]["error"], abs=1e-4)
    weights, others = trained(tmp_path / "one"), trained(tmp_path / "two")
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=1e-3, atol=1e-4)


def poison(trainer: JudgeTrainer, step: int) -> None:
    """Makes one module of the language model give NaN at a step."""
    block = trainer.model.vlm.model.language_model.layers[1].mlp
    block.register_forward_hook(lambda *passed: passed[2] * float("nan") if trainer.step == step else passed[2])


def test_nan_in_a_module_is_named_with_its_step(model: Path, folder: Path, tmp_path: Path) -> None:
    trainer = judge_in_process(judge_settings(model, folder), tmp_path / "run")
    poison(trainer, step=2)
    with pytest.raises(NonFinite, match=r"step 2: .*vlm\.model\.language_model\.layers\.1\.mlp \(Qwen2MLP\) on rank 0"):
        trainer.fit()
    assert len(rows(tmp_path / "run", "judge")) == 2


def test_the_skip_policy_skips_exactly_that_step(model: Path, folder: Path, tmp_path: Path) -> None:
    trainer = judge_in_process(judge_settings(model, folder, nonfinite="skip"), tmp_path / "run")
    poison(trainer, step=1)
    trainer.fit()
    found = rows(tmp_path / "run", "judge")
    assert [row["skipped_step"] for row in found] == [False, True, False, False]
    assert [row["loss"] is None for row in found] == [False, True, False, False]
    assert all(bool(weight.isfinite().all()) for weight in trained(tmp_path / "run").values())


def cases(records: list[Record]) -> list[Case]:
    def shown(record: Record) -> tuple[Image, Image]:
        pictures = Pictures().of(record)
        return pictures["source"], pictures["result"]

    return [Case(record.id, *shown(record), record.instruction, record.type) for record in records]


@pytest.mark.parametrize(
    ("trains", "rubric", "order"), [("lora", "short", "compat"), ("language", "edit", "fast"), ("lora", "ten", "fast")]
)
def test_the_exported_judge_scores_as_validation_did(
    vivid: Path, folder: Path, tmp_path: Path, trains: str, rubric: str, order: str
) -> None:
    """By both heads, and in what it prefers; on a scale to ten too, whose scores are read in two steps."""
    if rubric == "ten":
        ten_points(tmp_path)
        rubric = str(tmp_path / "ten.yaml")
    plain = judge_settings(
        vivid, folder, trains=trains, rubric=rubric, order=order, steps=2,
        optimiser={"lr": 5e-3}, data={"pack": 2400}, lora={"rank": 8, "alpha": 32},
    )  # fmt: skip
    trainer = judge_in_process(plain, tmp_path / "run")
    trainer.fit()
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.validator._scores(trainer.engine.forward)
    out = export_judge(tmp_path / "run", tmp_path / "judge")
    settings = json.loads((out / "judge.json").read_text())
    assert (settings["head"], settings["order"], settings["rubric"]) == ("expected", order, rubric)
    kept = trainer.kept.records
    for head in ("expected", "regression"):
        judge = open_judge(f"local:{out}", JudgeOptions(head=head, device="cpu"))  # type: ignore[arg-type]
        found = [one for one in judge.score(cases(kept)) if isinstance(one, Scored)]
        assert len(found) == len(kept) > 4
        for record, one in zip(kept, found, strict=True):
            assert list(one.scores.values()) == pytest.approx(expected[head][record.id], abs=2e-5)
        following = [one.scores["following"] for one in found]
        assert max(following) - min(following) > 1e-3
    comparisons = []
    for choice in trainer.kept.choices:
        pictures = Pictures().of(choice)
        shown = (pictures["source"], pictures["first"], pictures["second"])
        comparisons.append(Comparison(choice.id, *shown, choice.instruction, choice.type))
    assert len([one.first for one in judge.prefer(comparisons)]) == len(comparisons) > 1


def test_an_exported_judge_is_its_base_but_for_what_was_trained(model: Path, folder: Path, tmp_path: Path) -> None:
    """Files, names, shapes and precision of the base; another rubric or model is not mistaken for it."""
    judge_in_process(judge_settings(model, folder, steps=2), tmp_path / "run").fit()
    out = export_judge(tmp_path / "run", tmp_path / "judge")
    files = {path.name for path in model.iterdir()}
    assert {path.name for path in out.iterdir()} == files | {"judge.json", "regression.safetensors"}
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert {name: (one.shape, one.dtype) for name, one in before.items()} == {
        name: (one.shape, one.dtype) for name, one in after.items()
    }
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("model.layers." in name or "language_model.layers." in name for name in changed)
    again = judge_in_process(judge_settings(out, folder, steps=1), tmp_path / "again")  # trains on from there
    assert torch.equal(again.model.regression.weight, load_file(out / "regression.safetensors")["weight"])
    shutil.copytree(model, tmp_path / "other")
    (tmp_path / "run/config.json").write_text(
        (tmp_path / "run/config.json").read_text().replace(str(model), str(tmp_path / "other"))
    )
    settings = json.loads((tmp_path / "other/config.json").read_text())
    (tmp_path / "other/config.json").write_text(json.dumps({**settings, "more": 1}))
    with pytest.raises(UsageError, match="began with changed since; restore it, then export"):
        export_judge(tmp_path / "run", tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_no_photograph_is_trained_on_and_validated_on(model: Path, folder: Path, tmp_path: Path) -> None:
    drawn = [*edits(8), *edits(10, split="val")[8:]]
    dataset = write_judged_dataset(tmp_path / "data", drawn)
    plain = judge_settings(model, folder, steps=1, data={"pack": 1400, "max_pixels": 4 * 28 * 28})
    plain["data"]["sources"] += [{"kind": "graded", "path": str(dataset)}]
    trainer = judge_in_process(plain, tmp_path / "run")
    sides = [{one.photograph for one in (*side.records, *side.choices)} for side in (trainer.train, trainer.kept)]
    assert not sides[0] & sides[1]
    assert len(sides[0]) > len(sides[1]) > 2
    assert not any(one.held_out for one in trainer.train.records)
    assert {part.shown.id for part in trainer.plan.parts} == {
        one.id for one in (*trainer.train.records, *trainer.train.choices)
    }
    validated = {*trainer.validator.records, *(one.id for one in trainer.validator.choices)}
    assert validated == {one.id for one in (*trainer.kept.records, *trainer.kept.choices)}
    assert any("edit00009" in id for id in validated)  # of the dataset's own split


def test_moved_data_are_the_same_and_changed_data_are_refused(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(folder, here / "data")
    plain = judge_settings(model, Path("data"), steps=2)
    monkeypatch.chdir(here)
    judge_in_process(plain, tmp_path / "run").fit()
    shutil.move(here, there)
    monkeypatch.chdir(there)
    assert judge_in_process({**plain, "steps": 3}, tmp_path / "run").step == 2
    lines = (there / "data/ratings.jsonl").read_text().replace('"following": 5', '"following": 4')
    (there / "data/ratings.jsonl").write_text(lines)
    with pytest.raises(UsageError, match="the data that it was trained with changed since"):
        judge_in_process({**plain, "steps": 3}, tmp_path / "run")


def test_other_settings_are_refused_on_resuming_with_the_keys_that_differ(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    judge_in_process(judge_settings(model, folder, steps=2), tmp_path / "run").fit()
    changed = judge_settings(model, folder, steps=4, heads={"expected": 2}, data={"balance": "none"}, lora={"rank": 8})
    with pytest.raises(
        UsageError, match=r"data\.balance: was \"sqrt\", is \"none\", heads\.expected: was 1.*lora\.rank"
    ):
        judge_in_process(changed, tmp_path / "run")
    may = judge_settings(model, folder, steps=4, validation={"every": 2}, data={"workers": 1})
    assert judge_in_process(may, tmp_path / "run").step == 2


def test_what_cannot_be_trained_on_is_refused_and_named(model: Path, folder: Path, tmp_path: Path) -> None:
    def refused(kind: type[Exception], words: str, **changes: Any) -> None:
        sources = changes.pop("sources", None)
        plain = judge_settings(model, folder, **changes)
        if sources:
            plain["data"]["sources"] = sources
        with pytest.raises(kind, match=words):
            judge_in_process(plain, tmp_path / "run")

    def ratings(*lines: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"kind": "ratings", "path": str(write_lines(folder / "bad.jsonl", lines)), "images": str(folder)}]

    refused(UsageError, "rubric 'nonsense': no such file; packaged are", rubric="nonsense")
    refused(UsageError, "not a dataset", sources=[{"kind": "graded", "path": str(folder)}])
    dataset = write_judged_dataset(tmp_path / "data", edits(2))
    refused(UsageError, r"no usable record \(no_verdict 2\)", rubric="edit",
            sources=[{"kind": "verification", "path": str(dataset)}])  # fmt: skip
    refused(UsageError, "leaves one side without an edit", sources=ratings(rating(0)))
    refused(BadRecord, "line 2: result: .*none.jpg: no file", sources=ratings(rating(0), rating(1, result="none.jpg")))
    refused(BadRecord, "line 1: no 'source'", sources=ratings({k: v for k, v in rating(0).items() if k != "source"}))
    out = rating(0, scores={"following": 6})
    refused(BadRecord, "line 1: scores.following: 6 is no number from 1 to 5", sources=ratings(out))
    refused(UsageError, r"\d+ tokens, and a row has 100; raise data.pack", data={"pack": 100})
    refused(UsageError, "nothing in them for the heads", heads={"preference": 1} | dict.fromkeys(
        ("generate", "expected", "regression", "ranking"), 0), sources=ratings(*map(rating, range(12))))  # fmt: skip


def test_a_picture_that_breaks_during_the_run_is_named_and_the_run_goes_on_once_it_is_back(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    plain = judge_settings(model, data, steps=4, checkpoints={"every": 1})
    whole = judge_in_process(plain, tmp_path / "whole")
    parts = [whole.plan.parts[member] for slot in range(4) for member in whole.order.row(2, slot).members]
    seen = {stored.path for row in range(2) for slot in range(4) for member in whole.order.row(row, slot).members
            for stored in vars(whole.plan.parts[member].shown).values() if isinstance(stored, PictureRef)}  # fmt: skip
    late = [stored.path for part in parts for stored in vars(part.shown).values()
            if isinstance(stored, PictureRef) and stored.path not in seen]  # fmt: skip
    assert late
    content = late[0].read_bytes()
    trainer = judge_in_process(plain, tmp_path / "run")
    late[0].write_bytes(content[: len(content) // 2])
    with pytest.raises(BadPicture, match=rf"\d:\w+: .*{late[0].name}: "):
        trainer.fit()
    assert complete(tmp_path / "run/checkpoints")[-1].name == "step-00000002"
    late[0].write_bytes(content)
    look.cache_clear()
    judge_in_process(plain, tmp_path / "run").fit()
    whole.fit()
    assert rows(tmp_path / "run", "judge") == rows(tmp_path / "whole", "judge")
