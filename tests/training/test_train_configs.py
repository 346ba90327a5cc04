"""The packaged configurations of training: each is valid and says what the documents say of it."""

import re
import shlex
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser

from editfoundry.core.config import CONFIG_ROOT, find_config, load_config
from editfoundry.models.editor.initialise import InitConfig
from editfoundry.training.config import TrainConfig
from editfoundry.training.judge.config import JudgeTrainConfig
from editfoundry.training.train_editor import parse

NAMES = ("stage1", "stage2", "lora", "tiny")


def loaded(name: str, *overrides: str) -> TrainConfig:
    return load_config(TrainConfig, f"train/{name}.yaml", overrides)


def test_every_packaged_configuration_of_training_is_known_here() -> None:
    packaged = {path.stem for path in (CONFIG_ROOT / "train").glob("*.yaml")}
    assert packaged == {*NAMES, "init-editor", "init-editor-kontext", "judge", "judge-tiny"}


def test_the_judge_is_a_lora_with_the_vision_tower_frozen() -> None:
    config = load_config(JudgeTrainConfig, "train/judge.yaml")
    assert (config.model, config.trains, config.vision) == ("qwen2.5-vl-7b-instruct", "lora", False)
    assert (config.data.min_pixels, config.data.max_pixels) == (1_016_064, 1_354_752)
    assert config.data.balance == "sqrt" and config.heads.generate and config.heads.expected


def test_the_tiny_judge_grades_the_quickstart() -> None:
    config = load_config(JudgeTrainConfig, "train/judge-tiny.yaml")
    [source] = config.data.sources
    assert (source.kind, source.path) == ("graded", "runs/quickstart/dataset")
    assert (config.trains, config.vision, config.trackers) == ("language", False, ())


def test_stage_1_trains_the_connector() -> None:
    config = loaded("stage1")
    assert (config.stage, config.data.size, config.lora, config.ema) == ("connector", 512, None, None)
    optimiser = config.optimiser
    assert (optimiser.name, optimiser.lr, optimiser.betas, optimiser.weight_decay) == ("adamw", 1e-3, (0.9, 0.99), 0)
    assert (optimiser.schedule, optimiser.warmup) == ("constant", 0)


def test_stage_2_trains_both_connectors_and_the_image_branch() -> None:
    config = loaded("stage2")
    assert (config.stage, config.data.size, config.lora) == ("joint", 512, None)
    assert (config.optimiser.lr, config.optimiser.warmup, config.optimiser.schedule) == (1e-6, 5000, "constant")
    assert config.ema is not None and config.ema.decay == 0.9999
    assert config.gradient_checkpointing
    text = find_config("train/stage2.yaml").read_text()
    assert "accelerate/zero2.yaml" in text and "accelerate/fsdp2.yaml" in text


def test_the_lora_is_stage_2_on_the_same_data() -> None:
    config, full = loaded("lora"), loaded("stage2")
    assert config.lora is not None and config.lora.rank == 64
    assert (config.stage, config.data, config.model) == (full.stage, full.data, full.model)
    assert config.optimiser.lr == 1e-4


def test_the_tiny_run_fits_a_laptop() -> None:
    config = loaded("tiny", "model=models/mine")
    assert (config.model, config.stage, config.data.size) == ("models/mine", "full", 64)
    assert config.steps <= 100 and config.global_batch == 8 and config.micro_batch <= 8
    assert config.validation.every and config.steps % config.validation.every == 0
    assert config.trackers == ()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_global_batch_is_divided_by_common_numbers_of_gpus(name: str, ranks: int) -> None:
    config = loaded(name)
    if name != "tiny" or ranks <= 2:
        assert config.global_batch % (config.micro_batch * ranks) == 0


@pytest.mark.parametrize("name", ["init-editor", "init-editor-kontext"])
def test_the_editors_to_begin_with_are_valid(name: str) -> None:
    assert load_config(InitConfig, f"train/{name}.yaml").hidden_features == 12288


def documented(repository: Path) -> list[list[str]]:
    """The command lines of docs/training.md that are for programs of others."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (repository / "docs" / "training.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks]


def test_the_documented_commands_of_others_are_understood(repository: Path) -> None:
    """accelerate's own parser takes the first, and names what the second does of this checkout."""
    (accelerate, sbatch) = documented(repository)
    parsed = launch_command_parser().parse_args(accelerate[2:])
    assert accelerate[:2] == ["accelerate", "launch"]
    assert (parsed.module, parsed.training_script) == (True, "editfoundry.training.train_editor")
    assert (repository / parsed.config_file).is_file()
    given = parse(parsed.training_script_args)
    assert load_config(TrainConfig, given.config, given.set).seed == 1
    assert sbatch[0] == "sbatch"
    assert all((repository / name).is_file() for name in sbatch[2:4])
    assert load_config(TrainConfig, sbatch[4]).name == "stage2"


def test_the_documented_configuration_is_valid(repository: Path, tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (repository / "docs" / "training.md").read_text(), re.DOTALL)
    (tmp_path / "mine.yaml").write_text(text)
    config = load_config(TrainConfig, tmp_path / "mine.yaml")
    assert [dataset.weight for dataset in config.data.datasets] == [2, 1]
    assert config.data.types == {"style": 0.5, "extract": 0}
    assert config.optimiser.warmup == 5000
