"""From `editfoundry train …` to the command that trains: accelerate's launcher, and on a CPU what it leaves out.

accelerate's launcher starts one process where its file names no GPUs, whatever the number asked for, and does not pass
signals on to it. So there one process is started as it is and several are started by torchrun; every other file goes to
the launcher, which starts torchrun itself.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from editfoundry.core.config import find_config, read_yaml
from editfoundry.core.errors import ConfigError, UsageError

TRAINER = "editfoundry.training.train_editor"
JUDGE_TRAINER = "editfoundry.training.train_judge"
CACHER = "editfoundry.training.caching"
LAUNCHER = ("-m", "accelerate.commands.accelerate_cli", "launch", "--quiet")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
GRACE = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600", "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"}
"""What torchrun passes on, and seconds until it kills what does not end: enough to write a checkpoint."""
ALONE = ("NO", "MULTI_CPU")
TYPES = (*ALONE, "MULTI_GPU", "DEEPSPEED", "FSDP")


@dataclass(frozen=True)
class Command:
    """A command line, how many processes it will be, and what it adds to the environment."""

    arguments: tuple[str, ...]
    processes: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.arguments])

    def replace_process(self) -> NoReturn:
        """Become the command: its signals are this process's, and so is its exit code."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.arguments[0], self.arguments, {**os.environ, **self.environment})


def command(
    program: Sequence[str], accelerate: str | Path, *, gpus: int, cores: int, processes: int | None = None
) -> Command:
    """The command that runs `program` (a module and its arguments) as an accelerate file says.

    accelerate: the file, or the name of a packaged one (`accelerate/zero2.yaml`). gpus: how many there are; without
    one, every file trains on the CPU. cores: of the CPU, shared by its processes. processes: instead of the file's
    number.
    Raises ConfigError for a file that is missing or cannot be used; UsageError for more processes than GPUs, and for a
    file for GPUs without one and without a number of processes.
    """
    file = find_config(accelerate)
    kind, on_cpu, machines, wanted = _settings(file)
    cpu, count = on_cpu or gpus == 0, processes or wanted
    if not cpu and machines == 1 and count > gpus:
        raise UsageError(f"{file}: {count} processes, but this machine has {gpus} GPU(s); pass --processes {gpus}")
    if cpu and not on_cpu and not processes:
        raise UsageError(f"{file}: there is no GPU here; pass --processes N to train in N processes on the CPU")
    launched: tuple[str, ...] = (sys.executable, *LAUNCHER, "--config_file", str(file))
    if processes:
        launched += ("--num_processes", str(processes))
    if not cpu:
        return Command((*launched, "-m", *program), count, _unless_set(GRACE))
    environment = _unless_set({**GRACE, "OMP_NUM_THREADS": str(max(1, cores // count))})
    if kind == "DEEPSPEED":  # accelerate leaves DeepSpeed out where ACCELERATE_USE_CPU is set
        environment |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    else:
        environment["ACCELERATE_USE_CPU"] = "true"
    if kind in ALONE:
        torchrun = (*TORCHRUN, "--nproc_per_node", str(count)) if count > 1 else ()
        launched = (sys.executable, *torchrun)
    return Command((*launched, "-m", *program), count, environment)


def _unless_set(wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ.get(name) or value for name, value in wanted.items()}


def visible_gpus() -> int:
    """How many GPUs torch can use. Imports torch."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _settings(file: Path) -> tuple[str, bool, int, int]:
    """distributed_type, use_cpu, num_machines and num_processes of an accelerate file."""
    plain: Any = read_yaml(file)
    if not isinstance(plain, dict) or plain.get("distributed_type") not in TYPES:
        raise ConfigError(
            f"{file}: not a file of `accelerate config` for this trainer; distributed_type must be one of "
            f"{', '.join(TYPES)}"
        )
    if plain.get("mixed_precision", "no") != "no":
        raise ConfigError(
            f"{file}: mixed_precision must be `no`: the trainer's own setting `precision` says in what the "
            "forward pass runs, and trained weights stay float32"
        )
    cpu, numbers = plain.get("use_cpu", False), [plain.get(name, 1) for name in ("num_machines", "num_processes")]
    if not isinstance(cpu, bool) or not all(type(number) is int and number >= 1 for number in numbers):
        raise ConfigError(f"{file}: use_cpu must be true or false, num_machines and num_processes whole numbers from 1")
    return plain["distributed_type"], cpu, numbers[0], numbers[1]
