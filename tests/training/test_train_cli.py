"""`editfoundry train`, called as a user calls it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from train_run import train_row, write_run
from training_data import edits, write_dataset
from training_run import ENVIRONMENT, settings, write_settings
from typer.testing import CliRunner

from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.training import cli
from editfoundry.training.launch import Command

TINY = ["train/tiny.yaml", "-o", "run"]


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "editfoundry", "train", *arguments],
        cwd=cwd, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def invoked(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def test_the_editor_is_trained_by_the_module_that_accelerate_launches(started: list[Command]) -> None:
    result = invoked("editor", *TINY, "--set", "seed=1", "--set", "data.size=64", "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    (command,) = started
    assert list(command.arguments) == [
        sys.executable, "-m", "editfoundry.training.train_editor", *TINY,
        "--set", "seed=1", "--set", "data.size=64", "--dry-run", "--json",
    ]  # fmt: skip
    assert command.environment["ACCELERATE_USE_CPU"] == "true"
    assert result.stderr == f"starting {command}\n"
    assert result.stdout == ""


def test_a_cache_is_built_by_as_many_processes_as_told(started: list[Command]) -> None:
    assert invoked("cache", "train/tiny.yaml", "-o", "kept", "--processes", "2").exit_code == 0
    (command,) = started
    assert list(command.arguments[-9:]) == [
        "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "editfoundry.training.caching",
        "train/tiny.yaml", "-o", "kept",
    ]  # fmt: skip


def test_what_can_be_known_before_is_refused_before_anything_starts(
    started: list[Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    refused = {
        ("editor", *TINY, "--processes", "3"): "global_batch 8 is not a multiple of 3 ranks x micro_batch 4",
        ("editor", "train/tiny.yaml", "-o", "full"): "holds other files and no training run",
        ("editor", *TINY, "--set", "validation.sigmas=[0,2]"): "validation.sigmas.0",
        ("editor", *TINY, "--set", "data.aspect_ratios=[]"): "data.aspect_ratios",
        ("miniature", "full"): "full: already exists",
        ("init-editor", "-c", "train/init-editor.yaml", "full"): "full: already exists",
        ("export", "nowhere", "full"): "full: already exists",
        ("export", "nowhere", "new"): "nowhere: not a training run",
    }
    for arguments, message in refused.items():
        result = invoked(*arguments)
        assert isinstance(result.exception, UsageError)
        assert message in str(result.exception)
    assert started == []
    assert {path.name for path in tmp_path.iterdir()} == {"full"}


def test_all_gpus_train_data_parallel_unless_told_otherwise(
    started: list[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "visible_gpus", lambda: 4)
    twelve = (*TINY, "--set", "global_batch=12", "--set", "micro_batch=1")
    invoked("editor", *twelve)
    invoked("editor", *twelve, "--processes", "2")
    invoked("editor", *twelve, "--accelerate", "accelerate/zero2.yaml", "--processes", "3")
    told = []
    for command in started:
        words = list(command.arguments)
        told.append((Path(words[words.index("--config_file") + 1]).stem, words[words.index("--num_processes") + 1]))
    assert told == [("ddp", "4"), ("ddp", "2"), ("zero2", "3")]


def test_what_is_wrong_in_the_settings_is_said_before_anything_starts(started: list[Command]) -> None:
    result = invoked("editor", *TINY, "--set", "optimizer.lr=1")
    assert isinstance(result.exception, ConfigError)
    assert "optimizer: unknown key; did you mean optimiser?" in str(result.exception)
    assert started == []


def test_a_wrong_call_exits_2_in_one_line(tmp_path: Path) -> None:
    answer = call("editor", "train/none.yaml", "-o", "run", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: train/none.yaml: no such config file")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["report", "nowhere"], "nowhere: not a training run"),
        (["export", "nowhere", "out"], "nowhere: not a training run"),
        (["init-editor", "out", "-c", "train/tiny.yaml"], "train/tiny.yaml: "),
    ],
)
def test_what_cannot_be_done_is_told(arguments: list[str], told: str) -> None:
    result = invoked(*arguments)
    assert isinstance(result.exception, UsageError) and told in str(result.exception)
    assert result.stdout == ""


def test_the_report_prints_its_path(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [train_row(1)])
    result = invoked("report", str(tmp_path / "run"))
    page = tmp_path / "run" / "report" / "index.html"
    assert (result.exit_code, result.stdout) == (0, f"{page}\n")
    assert page.stat().st_size > 10_000


@pytest.mark.slow
def test_an_editor_is_trained_reported_exported_and_edits(tmp_path: Path, tiny_editor_folder: Path) -> None:
    model = shutil.copytree(tiny_editor_folder, tmp_path / "model")
    dataset = write_dataset(tmp_path / "dataset", edits(8))
    plain = settings(model, dataset, steps=2, validation={"every": 2, "samples": 2, "grid": 1, "steps": 2})
    config = str(write_settings(tmp_path, plain))

    dry = call("editor", config, "-o", "run", "--dry-run", "--json", cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    facts = json.loads(dry.stdout)
    assert (facts["steps"], facts["global_batch"], facts["ranks"], facts["samples"]) == (2, 4, 1, 8)
    assert not (tmp_path / "run").exists()

    trained = call("editor", config, "-o", "run", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert kinds == ["validation", "train", "train", "validation"]

    assert invoked("report", str(tmp_path / "run")).exit_code == 0
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert page.count('class="compare"') == 3 and "Validation loss" in page and "random-weight miniature" in page

    exported = str(tmp_path / "exported")
    result = invoked("export", str(tmp_path / "run"), exported)
    assert (result.exit_code, result.stdout) == (0, f"{exported}\n"), result.output
    assert (tmp_path / "exported" / "model_index.json").is_file()
    again = invoked("export", str(tmp_path / "run"), exported, "--weights", "trained")
    assert isinstance(again.exception, UsageError) and "exported: already exists" in str(again.exception)


@pytest.fixture(scope="module")
def tiny_editor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny.editor import tiny_editor

    return tiny_editor(tmp_path_factory.mktemp("editor") / "model")
