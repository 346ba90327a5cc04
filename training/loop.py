"""The loop that all trainers share: steps, signals, validation, checkpoints and what a run resumes from.

Position is the step: global batch `p` of the order is optimiser step `p`, so resuming needs no state but the weights,
the optimiser's, and one integer.
"""

import resource
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.progress import progress
from editfoundry.training.checkpoint import Checkpoints, check_settings
from editfoundry.training.ema import Ema
from editfoundry.training.finite import first_nonfinite
from editfoundry.training.metrics import Metrics
from editfoundry.training.optimiser import learning_rate
from editfoundry.training.sharding import build_engine

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
B = TypeVar("B")


class NonFinite(EditFoundryError):
    """A loss or gradient that is not finite; names the module and the step."""


class Interrupted(EditFoundryError):
    """The process was told to end; a checkpoint was written."""


class TrainingLoop(ABC, Generic[B]):
    """A training run in its folder, from the newest checkpoint there is. B: a micro-batch.

    A trainer sets `model`, `parameters` (trained, by name) and `origin` (digests of what a resumed run must find
    unchanged, by name), supplies the abstract methods, and calls `begin` once all is built.
    Raises UsageError for a global batch that the ranks do not divide.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    origin: dict[str, str]

    def __init__(self, config: Any, run: Path, accelerator: Accelerator) -> None:
        self.config, self.run, self.accelerator = config, run, accelerator
        self.accumulation: int = config.accumulation(accelerator.num_processes)
        self.step = 0
        self._told_to_end = False

    @abstractmethod
    def prepare(self) -> None:
        """Build what trains and what validates, and take up the newest checkpoint."""

    @abstractmethod
    def batches(self) -> Iterator[B]:
        """This rank's micro-batches from the current step on, on its device."""

    @abstractmethod
    def losses_of(self, batches: list[B], backward: Callable[[Any], None]) -> Any:
        """Forward and backward of this rank's micro-batches, `backward` called with each one's share of the loss; gives

        what `row` needs.
        """

    @abstractmethod
    def row(self, batches: list[B], made: Any, seconds: float) -> Mapping[str, Any]:
        """What the step before `self.step`, which took so long, measured; on all ranks."""

    @abstractmethod
    def measure(self) -> Mapping[str, Any]:
        """One validation of the weights as they are."""

    @abstractmethod
    def forward_again(self, batch: B) -> Any:
        """The forward pass of a micro-batch, for the search of what is not finite."""

    def begin(self) -> None:
        """Build engine, average, checkpoints and metrics, and take up the newest checkpoint."""
        config, accelerator = self.config, self.accelerator
        self.engine = build_engine(accelerator, self.model, self.parameters, config.optimiser)
        self.ema = Ema(self.engine.local_parameters(), config.ema.decay) if config.ema else None
        self.checkpoints = Checkpoints(
            self.run, config.checkpoints.keep, accelerator.process_index, accelerator.num_processes
        )
        self.step = self._resumed()
        self.metrics = Metrics(self.run, accelerator, config.trackers)
        self.metrics.truncate(self.step or -1)  # a run from the start validates first

    def fit(self) -> None:
        """Train to the last step. Raises NonFinite, Interrupted, what reading data raises, and what the disk raises."""
        main = self.accelerator.is_main_process
        with ExitStack() as stack:
            for number in SIGNALS:
                stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
            advance = stack.enter_context(progress("training", self.config.steps)) if main else lambda _: None
            advance(self.step)
            stack.enter_context(self._checkpoint_written())
            if self.config.validation.every and self.step == 0:
                self.validate()
            batches = self.batches()
            while self.step < self.config.steps:
                started = time.perf_counter()
                micro_batches = [next(batches) for _ in range(self.accumulation)]
                waited = time.perf_counter() - started
                made, row = self.train_step(micro_batches)
                self.step += 1
                seconds = time.perf_counter() - started
                self._log({**row, **self.row(micro_batches, made, seconds)}, seconds, waited)
                ending = self._should_end() and self.step < self.config.steps
                self._validate_and_save(ending)
                advance(1)
                if ending:
                    raise Interrupted(
                        f"{self.run}: told to end after step {self.step}; a checkpoint was written, run "
                        "the same command to go on"
                    )
        self.metrics.close()

    def train_step(self, micro_batches: list[B]) -> tuple[Any, dict[str, Any]]:
        """One optimiser step over one global batch: this rank's micro-batches of it. Gives what `losses_of` did, and

        what became of the step.
        """
        rate = learning_rate(self.config.optimiser, self.step, self.config.steps)
        self.engine.zero_grad()
        made = self.losses_of(micro_batches, self.engine.backward)
        norm = self.engine.clip(self.config.optimiser.clip)
        finite = bool(np.isfinite(norm))
        if finite:
            self.engine.step(rate)
            if self.ema:
                self.ema.update()
        elif self.config.nonfinite == "stop":
            raise NonFinite(self._blame(micro_batches))
        return made, {"lr": rate, "grad_norm": norm, "skipped_step": not finite}

    def validate(self) -> None:
        """Measure the averaged weights if there are any, else the trained ones; the weights stay as they are."""
        with self.engine.averaged(self.ema):
            row = self.measure()
        self.metrics.log(self.step, {**row, "averaged": self.ema is not None})

    def _log(self, row: Mapping[str, Any], seconds: float, waited: float) -> None:
        measured = {
            "kind": "train",
            "seconds": seconds,
            "data_wait": waited / seconds,
            "peak_memory_bytes": peak_memory(self.accelerator.device),
        }
        self.metrics.log(self.step, {**measured, **row})

    def _validate_and_save(self, ending: bool) -> None:
        config, last = self.config, self.step == self.config.steps
        if config.validation.every and (last or self.step % config.validation.every == 0):
            self.validate()
        if ending or last or self.step % config.checkpoints.every == 0:
            state = {
                "step": self.step,
                "config": config.model_dump(mode="json"),
                **self.origin,
                "kind": self.engine.kind,
                "ranks": self.accelerator.num_processes,
            }
            self.checkpoints.save(self.step, state, self.engine, self.ema)

    def _resumed(self) -> int:
        """The step of the newest checkpoint, once it is loaded; 0 without one."""
        newest = self.checkpoints.latest()
        if newest is None:
            return 0
        check_settings(newest, self.config.model_dump(mode="json"))
        state = self.checkpoints.load(newest, self.engine, self.ema)
        if changed := [f"the {what}" for what, digest in self.origin.items() if state[what] != digest]:
            raise UsageError(
                f"{newest}: {' and '.join(changed)} that it was trained with changed since, under the same path; "
                "restore that, or start a new run"
            )
        return int(state["step"])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _blame(self, micro_batches: list[B]) -> str:
        """Which module of which rank first gave something that is not finite, at this step."""
        rank = self.accelerator.process_index
        found = [first_nonfinite(self.model, partial(self.forward_again, batch)) for batch in micro_batches]
        names = [f"{name} on rank {place}" for place, name in gather_object([(rank, name) for name in found]) if name]
        where = names[0] if names else "no module of the forward pass, so the gradient"
        return f"step {self.step}: the loss or its gradient is not finite; first not finite: {where}"

    @contextmanager
    def _checkpoint_written(self) -> Iterator[None]:
        """Ends with the last checkpoint on the disk, also where the user has to act before training can go on."""
        try:
            yield
        except EditFoundryError:
            self.checkpoints.wait()
            raise
        self.checkpoints.wait()

    def _on_signal(self, number: int, frame: Any) -> None:
        self._told_to_end = True

    def _should_end(self) -> bool:
        """Whether any rank was told to end."""
        told = torch.tensor([float(self._told_to_end)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(told, "sum").item())


def peak_memory(device: torch.device) -> int:
    """Most memory so far in bytes: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
