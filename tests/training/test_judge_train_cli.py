"""`editfoundry train judge` and what goes with it, called as a user calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from judge_run import ALL, MODULE, judge_settings, write_judge_settings, write_judged
from tiny.language import qwen_vl
from training_run import ENVIRONMENT, rows
from typer.testing import CliRunner

from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.models.judge.folder import read_settings
from editfoundry.training import cli, train_judge
from editfoundry.training.judge.config import JudgeTrainConfig
from editfoundry.training.launch import Command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_judged(tmp_path_factory.mktemp("judged"))


def invoked(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def trained(*arguments: str) -> None:
    """What accelerate's launcher runs, in this process."""
    train_judge.train(train_judge.parse(list(arguments)))


def test_a_judge_is_trained_by_the_module_that_accelerate_launches(started: list[Command]) -> None:
    arguments = ["train/judge.yaml", "-o", "run", "--set", "data.sources.0.path=scores.json", "--dry-run", "--json"]
    assert invoked("judge", *arguments).exit_code == 0
    [command] = started
    assert list(command.arguments) == [sys.executable, "-m", MODULE, *arguments]
    assert invoked("judge", "train/judge.yaml", "-o", "run", "--processes", "2").exit_code == 0
    assert list(started[1].arguments[-6:]) == ["2", "-m", MODULE, "train/judge.yaml", "-o", "run"]


def test_what_can_be_known_before_is_refused_before_anything_starts(
    started: list[Command], model: Path, folder: Path, tmp_path: Path
) -> None:
    plain = judge_settings(model, folder)
    config, run = str(write_judge_settings(tmp_path, plain)), tmp_path / "run"
    run.mkdir()
    other = JudgeTrainConfig.model_validate(judge_settings(model, folder, seed=4, heads={"expected": 2}))
    (run / "config.json").write_text(other.model_dump_json())
    editor = tmp_path / "editor"
    editor.mkdir()
    (editor / "config.json").write_text(json.dumps({"name": "e", "stage": "joint"}))
    refused = {
        ("-o", "new", "--processes", "3"): (UsageError, "global_batch 4 is not a multiple of 3 ranks"),
        ("-o", "new", "--set", "heads.expectd=1"): (ConfigError, "heads.expectd"),
        ("-o", "new", "--set", "data.max_pixels=3136", "--set", "data.min_pixels=4000"): (
            ConfigError, "max_pixels 3136 is below min_pixels 4000"),
        ("-o", "new", "--set", f"heads={json.dumps(dict.fromkeys(ALL, 0))}"): (ConfigError, "every weight is 0"),
        ("-o", str(run)): (UsageError, r"other settings \(heads.expected: was 2.0, is 1.0, seed: was 4, is 3\)"),
        ("-o", str(editor)): (UsageError, "holds a run of stage `joint`; give a judge a folder of its own"),
    }  # fmt: skip
    for arguments, (kind, words) in refused.items():
        result = invoked("judge", config, *arguments)
        assert isinstance(result.exception, kind), result.output
        with pytest.raises(kind, match=words):
            raise result.exception
    assert not started
    assert not (tmp_path / "new").exists()


def test_a_dry_run_says_what_would_be_trained_and_leaves_nothing(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = str(write_judge_settings(tmp_path, judge_settings(model, folder))), tmp_path / "run"
    trained(config, "-o", str(run), "--dry-run", "--json", "--set", "steps=9", "--set", "data.holdout=0.4")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["steps"], facts["global_batch"], facts["accumulation"], facts["ranks"]) == (9, 4, 4, 1)
    assert facts["records"] + facts["kept_for_validation"] + facts["choices"] == 24 + 12
    assert facts["sequences"] == facts["records"] + facts["choices"]  # none has a reason
    assert sum(facts["scores"]["following"].values()) == facts["records"]
    assert set(facts["scores"]["naturalness"]) <= {"1", "2", "3", "4", "5"}  # fractions count as the nearest
    assert 0 < facts["trained_parameters"] < facts["parameters"]
    trained(config, "-o", str(run), "--dry-run")
    said = " ".join(capsys.readouterr().err.split())
    assert "4 steps of 4 rows = 1 ranks x 4 accumulation steps, up to 700 tokens each" in said
    assert f"trains {facts['trained_parameters']:,} of {facts['parameters']:,} parameters" in said
    assert not run.exists()


def test_a_run_is_reported_on_and_exported(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = judge_settings(model, folder, steps=2, validation={"every": 1}, name="<b>judge</b>")
    config, run = str(write_judge_settings(tmp_path, plain)), tmp_path / "run"
    trained(config, "-o", str(run))
    assert f"take the judge with `editfoundry train export {run} OUT`" in capsys.readouterr().err
    assert [row["step"] for row in rows(run, "judge_validation")] == [0, 1, 2]
    trained(config, "-o", str(run))  # nothing is left to do
    assert [row["step"] for row in rows(run, "judge")] == [1, 2]
    report = invoked("report", str(run))
    assert report.exit_code == 0, report.output
    page = Path(report.stdout.strip()).read_text()
    for shown in (
        "untuned (step 0)",
        "Spearman, regression",
        "Spearman by dimension, expected",
        "Training loss, ranking",
    ):
        assert shown in page
    assert "trained for expected, generate, preference, ranking, regression: 2 of 2 steps" in page
    assert "<b>judge</b>" not in page
    result = invoked("export", str(run), str(tmp_path / "judge"), "--step", "2", "--weights", "trained")
    assert result.stdout.strip() == str(tmp_path / "judge"), result.output
    settings = read_settings(tmp_path / "judge")
    assert settings is not None
    assert (settings.rubric, settings.head, settings.miniature) == ("short", "expected", False)
    assert settings.heads == ("generate", "expected", "regression", "ranking", "preference")
    assert isinstance(invoked("export", str(run), str(tmp_path / "judge")).exception, UsageError)


@pytest.mark.slow
def test_accelerate_launches_it(model: Path, folder: Path, tmp_path: Path) -> None:
    config = write_judge_settings(tmp_path, judge_settings(model, folder, steps=1))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file",
         str(root / "configs/accelerate/cpu.yaml"), "-m", MODULE, str(config), "-o", str(tmp_path / "run")],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert [row["step"] for row in rows(tmp_path / "run", "judge")] == [1]
