"""The Slurm script, run with programs of this test in place of Slurm's and accelerate's."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser

SRUN = """#!{python}
import json, os, signal, subprocess, sys
folder = "{folder}"
nodes, arguments = int(os.environ["SLURM_JOB_NUM_NODES"]), sys.argv[1:]
command = arguments[arguments.index("bash"):]
json.dump(arguments[:arguments.index("bash")], open(folder + "/srun.json", "w"))
children = []
signal.signal(signal.SIGUSR1, lambda *_: [child.send_signal(signal.SIGUSR1) for child in children])
for node in range(nodes):
    children.append(subprocess.Popen(command, env={{**os.environ, "SLURM_NODEID": str(node)}}))
sys.exit(max(child.wait() for child in children))
"""
ACCELERATE = """#!{python}
import json, os, signal, sys
if os.environ.get("UNTIL_TOLD"):
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(int(os.environ["UNTIL_TOLD"])))
node = os.environ["SLURM_NODEID"]
told = [sys.argv[1:], {{name: os.environ.get(name) for name in
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "PET_SIGNALS_TO_HANDLE")}}]
json.dump(told, open("{folder}/node-" + node + ".part", "w"))
os.rename("{folder}/node-" + node + ".part", "{folder}/node-" + node + ".json")
if os.environ.get("UNTIL_TOLD"):
    signal.pause()
sys.exit(int(os.environ.get("CODE", "0")))
"""
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then printf 'node-a\\nnode-b\\n'; else echo "$@" >> "{folder}/scontrol.txt"; fi
"""
OVERRIDE = "data.datasets=[{path: a b}]"


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on two nodes of four GPUs, with the programs on its path."""
    for name, text in (("srun", SRUN), ("accelerate", ACCELERATE), ("scontrol", SCONTROL)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text.format(python=sys.executable, folder=tmp_path))
        program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_JOB_ID": "30042",
        "SLURM_CPUS_PER_TASK": "64",
    }


def command(repository: Path, *arguments: str) -> list[str]:
    return ["bash", str(repository / "scripts" / "slurm" / "train.sbatch"), *arguments]


def told(folder: Path, node: int) -> tuple[list[str], dict[str, str]]:
    arguments, environment = json.loads((folder / f"node-{node}.json").read_text())
    return arguments, environment


def test_every_node_launches_its_gpus_and_meets_the_others(
    repository: Path, tmp_path: Path, job: dict[str, str]
) -> None:
    file = repository / "configs" / "accelerate" / "zero2.yaml"
    arguments = [str(file), "train/stage2.yaml", "runs/two words", "--set", OVERRIDE]
    subprocess.run(command(repository, *arguments), env=job, check=True, timeout=60, cwd=tmp_path)
    assert json.loads((tmp_path / "srun.json").read_text()) == [
        "--ntasks-per-node=1",
        "--cpus-per-task=64",
        "--wait=120",
    ]
    for node in (0, 1):
        given, environment = told(tmp_path, node)
        assert given == [
            "launch", "--config_file", str(file), "--num_machines", "2", "--num_processes", "8", "--main_process_ip",
            "node-a", "--main_process_port", "30042", "--machine_rank", str(node), "-m",
            "editfoundry.training.train_editor", "train/stage2.yaml", "-o", "runs/two words", "--set", OVERRIDE,
        ]  # fmt: skip
        assert environment == {
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600",
            "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        }
        parsed = launch_command_parser().parse_args(given[1:])
        assert (parsed.training_script, parsed.machine_rank) == ("editfoundry.training.train_editor", node)
        assert parsed.training_script_args == ["train/stage2.yaml", "-o", "runs/two words", "--set", OVERRIDE]
    assert not (tmp_path / "scontrol.txt").exists()


def test_a_failure_ends_the_job_with_its_code(repository: Path, tmp_path: Path, job: dict[str, str]) -> None:
    ended = subprocess.run(command(repository, "a", "b", "c"), env=job | {"CODE": "3"}, check=False, timeout=60)
    assert ended.returncode == 3
    assert not (tmp_path / "scontrol.txt").exists()


def signalled(repository: Path, tmp_path: Path, job: dict[str, str], code: int) -> int:
    """The exit code of a job whose trainer ends with `code` when it is told that the time is nearly up."""
    process = subprocess.Popen(command(repository, "a", "b", "c"), env=job | {"UNTIL_TOLD": str(code)})
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"node-{node}.json").exists() for node in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    return process.wait(timeout=60)


def test_a_job_whose_time_is_up_is_queued_again(repository: Path, tmp_path: Path, job: dict[str, str]) -> None:
    assert signalled(repository, tmp_path, job, code=1) == 0
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 30042\n"


def test_a_run_that_ends_while_it_is_told_so_is_not_queued_again(
    repository: Path, tmp_path: Path, job: dict[str, str]
) -> None:
    assert signalled(repository, tmp_path, job, code=0) == 0
    assert not (tmp_path / "scontrol.txt").exists()


@pytest.mark.parametrize("arguments", [(), ("accelerate.yaml",), ("accelerate.yaml", "config.yaml")])
def test_missing_arguments_are_told(repository: Path, job: dict[str, str], arguments: tuple[str, ...]) -> None:
    ended = subprocess.run(
        command(repository, *arguments), env=job, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "usage: sbatch train.sbatch ACCELERATE-FILE CONFIG RUN [--set KEY=VALUE]...\n"


def test_a_job_without_gpus_is_told_so(repository: Path, job: dict[str, str]) -> None:
    environment = {name: value for name, value in job.items() if name != "SLURM_GPUS_ON_NODE"}
    ended = subprocess.run(
        command(repository, "a", "b", "c"), env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode != 0
    assert "no GPUs: ask for some with --gpus-per-node" in ended.stderr


def test_the_script_asks_for_what_it_needs(repository: Path) -> None:
    script = repository / "scripts" / "slurm" / "train.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    options = {line.removeprefix("#SBATCH ") for line in script.read_text().splitlines() if line.startswith("#SBATCH")}
    assert {"--ntasks-per-node=1", "--requeue", "--signal=B:USR1@900", "--open-mode=append"} <= options
