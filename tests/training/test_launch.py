"""The launcher: the exact command for every accelerate file, what accelerate makes of it, signals and exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

from editfoundry.core.config import find_config
from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.training.launch import GRACE, Command, command, usable_cores

FILES = ("cpu", "ddp", "zero1", "zero2", "zero3", "fsdp2")
ARGUMENTS = ["train/tiny.yaml", "-o", "run", "--set", "seed=7", "--dry-run"]
PROGRAM = ["editfoundry.training.train_editor", *ARGUMENTS]
MODULE = ["-m", *PROGRAM]


@pytest.fixture(autouse=True)
def _no_threads_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")


def launched(name: str) -> list[str]:
    file = str(find_config(f"accelerate/{name}.yaml"))
    return [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--quiet", "--config_file", file]


@pytest.mark.parametrize("name", FILES[1:])
def test_on_gpus_the_command_is_accelerate_launch(name: str) -> None:
    made = command(PROGRAM, f"accelerate/{name}.yaml", gpus=8, cores=64)
    assert list(made.arguments) == [*launched(name), *MODULE]
    assert made.environment == GRACE


def test_the_number_of_processes_is_passed_on() -> None:
    made = command(PROGRAM, "accelerate/zero2.yaml", gpus=4, cores=64, processes=4)
    assert list(made.arguments) == [*launched("zero2"), "--num_processes", "4", *MODULE]


def test_one_process_on_a_cpu_needs_no_launcher() -> None:
    made = command(PROGRAM, "accelerate/cpu.yaml", gpus=2, cores=6)
    assert list(made.arguments) == [sys.executable, *MODULE]
    assert made.environment == {**GRACE, "OMP_NUM_THREADS": "6", "ACCELERATE_USE_CPU": "true"}


def test_several_processes_on_a_cpu_go_through_torchrun() -> None:
    made = command(PROGRAM, "accelerate/cpu.yaml", gpus=0, cores=6, processes=2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    assert list(made.arguments) == [*torchrun, *MODULE]
    assert made.environment == {**GRACE, "OMP_NUM_THREADS": "3", "ACCELERATE_USE_CPU": "true"}


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_without_a_gpu_torch_shards_on_the_cpu(name: str) -> None:
    made = command(PROGRAM, f"accelerate/{name}.yaml", gpus=0, cores=1, processes=2)
    assert list(made.arguments) == [*launched(name), "--num_processes", "2", *MODULE]
    assert made.environment == {**GRACE, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
def test_without_a_gpu_deepspeed_is_told_so_itself(name: str) -> None:
    made = command(PROGRAM, f"accelerate/{name}.yaml", gpus=0, cores=4, processes=2)
    assert list(made.arguments) == [*launched(name), "--num_processes", "2", *MODULE]
    assert made.environment == {**GRACE, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}


def test_threads_that_are_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert command(PROGRAM, "accelerate/cpu.yaml", gpus=0, cores=64).environment["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize("name", FILES)
def test_accelerate_reads_the_files(name: str) -> None:
    """Its own reader refuses unknown keys; its parser takes the command line and leaves the trainer's arguments."""
    file = str(find_config(f"accelerate/{name}.yaml"))
    settings = load_config_from_file(file)
    parsed = launch_command_parser().parse_args(["--quiet", "--config_file", file, "--num_processes", "2", *MODULE])
    kinds = {"cpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP"}
    assert settings.distributed_type.value == kinds.get(name, "DEEPSPEED")
    assert settings.mixed_precision == "no"
    assert settings.deepspeed_config.get("zero_stage") == {"zero1": 1, "zero2": 2, "zero3": 3}.get(name)
    assert settings.fsdp_config.get("fsdp_version") == (2 if name == "fsdp2" else None)
    options = {option for action in launch_command_parser()._actions for option in action.option_strings}
    assert {f"--{key}" for key in (*settings.deepspeed_config, *settings.fsdp_config)} <= options
    assert (parsed.training_script, parsed.training_script_args) == (PROGRAM[0], ARGUMENTS)
    assert (parsed.module, parsed.num_processes) == (True, 2)


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match=r"ddp\.yaml: 8 processes, but this machine has 2 GPU.*--processes 2"):
        command(PROGRAM, "accelerate/ddp.yaml", gpus=2, cores=8)


def test_files_for_gpus_need_a_number_of_processes_without_one() -> None:
    with pytest.raises(UsageError, match=r"zero2\.yaml: there is no GPU here; pass --processes N"):
        command(PROGRAM, "accelerate/zero2.yaml", gpus=0, cores=8)


def test_processes_on_several_machines_are_not_counted_against_this_one(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("{distributed_type: MULTI_GPU, num_machines: 2, num_processes: 16}")
    made = command(PROGRAM, file, gpus=8, cores=8)
    assert list(made.arguments) == [*launched("ddp")[:-1], str(file), *MODULE]


def test_a_missing_file_is_named_with_the_packaged_ones() -> None:
    with pytest.raises(ConfigError, match=r"accelerate/zero4\.yaml: no such config file.*accelerate/zero3\.yaml"):
        command(PROGRAM, "accelerate/zero4.yaml", gpus=0, cores=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("distributed_type: TPU", "distributed_type must be one of NO, MULTI_CPU, MULTI_GPU, DEEPSPEED, FSDP"),
        ("[1, 2]", "distributed_type must be one of"),
        ("{distributed_type: NO, mixed_precision: bf16}", "distributed_type must be one of"),
        ('{distributed_type: "NO", mixed_precision: bf16}', "mixed_precision must be `no`"),
        ('{distributed_type: "NO", num_processes: many}', "whole numbers from 1"),
        ('{distributed_type: "NO", num_processes: 0}', "whole numbers from 1"),
        ('{distributed_type: "NO", use_cpu: maybe}', "use_cpu must be true or false"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"{file}: .*{told}"):
        command(PROGRAM, file, gpus=0, cores=1)


def test_a_command_is_shown_as_a_shell_takes_it() -> None:
    made = Command(("/usr/bin/python", "-m", "a", "--set", "data.datasets=[{path: a b}]"), 1, {"A": "1"})
    assert str(made) == "A=1 /usr/bin/python -m a --set 'data.datasets=[{path: a b}]'"


def replaced(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A process that becomes `python -c code` as the launcher does."""
    program = (
        "import json, sys\nfrom editfoundry.training.launch import Command\n"
        "print('before')\n"
        "Command((sys.executable, '-c', sys.argv[1]), 1, json.loads(sys.argv[2])).replace_process()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, code, json.dumps(environment)], stdout=subprocess.PIPE, text=True
    )


def test_the_exit_code_and_environment_of_the_command_are_those_of_the_process() -> None:
    process = replaced("import os, sys; print(os.getpid(), os.environ['GIVEN']); sys.exit(7)", {"GIVEN": "this"})
    out, _ = process.communicate(timeout=60)
    assert out.splitlines() == ["before", f"{process.pid} this"]
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_command(number: int) -> None:
    code = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    process = replaced(code, {})
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["before\n", "ready\n"]
    process.send_signal(number)
    assert process.wait(timeout=60) == 9


def test_cores_are_those_this_process_may_use() -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))


def test_the_launcher_imports_no_torch() -> None:
    code = "import editfoundry.training.launch, editfoundry.training.cli, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


PROBE = """
import json, os, sys
from accelerate import Accelerator
accelerator = Accelerator()
told = [accelerator.process_index, accelerator.num_processes, str(accelerator.distributed_type.value), sys.argv[1:]]
os.write(1, (json.dumps(told) + "\\n").encode())
accelerator.end_training()
"""


@pytest.mark.slow
def test_two_processes_on_a_cpu_find_each_other(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    made = command(PROGRAM, "accelerate/cpu.yaml", gpus=0, cores=2, processes=2)
    arguments = [*made.arguments[: -len(MODULE)], str(tmp_path / "probe.py"), *ARGUMENTS]
    run = subprocess.run(
        arguments, env={**os.environ, **made.environment}, capture_output=True, text=True, check=True, timeout=120
    )
    told = sorted(json.loads(line) for line in run.stdout.splitlines())
    assert told == [[rank, 2, "MULTI_CPU", ARGUMENTS] for rank in (0, 1)]


def test_the_files_are_plain_yaml() -> None:
    for name in FILES:
        assert yaml.safe_load(find_config(f"accelerate/{name}.yaml").read_text())["num_machines"] == 1
