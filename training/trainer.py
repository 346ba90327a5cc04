"""The trainer: one loop over global batches. Everything it needs is built in `__init__`; `train_step` reads top down.

Position is the step: global batch `p` of the order is optimiser step `p`, so resuming needs no state but the weights,
the optimiser's, and one integer.
"""

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.progress import progress
from editfoundry.models.checkpoint import checkpoint_digest
from editfoundry.models.editor import latents
from editfoundry.models.editor.types import Condition
from editfoundry.training import flow
from editfoundry.training.checkpoint import Checkpoints, check_settings
from editfoundry.training.config import TrainConfig
from editfoundry.training.data.batch import Features, MicroBatch
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.cache import open_cache
from editfoundry.training.data.index import build_index
from editfoundry.training.data.loader import build_loader
from editfoundry.training.data.micro import MicroBatchBuilder
from editfoundry.training.data.order import Order, Positions
from editfoundry.training.ema import Ema
from editfoundry.training.finite import first_nonfinite
from editfoundry.training.flops import Flops, Lengths, peak_flops
from editfoundry.training.loading import open_editor
from editfoundry.training.metrics import Metrics
from editfoundry.training.optimiser import learning_rate
from editfoundry.training.parameters import precision, prepare_parameters
from editfoundry.training.rundir import INDEX
from editfoundry.training.sharding import build_engine
from editfoundry.training.validation import Validator

SIGMA_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class NonFinite(EditFoundryError):
    """A loss or gradient that is not finite; names the module and the step."""


class Interrupted(EditFoundryError):
    """The process was told to end; a checkpoint was written."""


@dataclass(frozen=True)
class Step:
    """What one optimiser step gave. samples: float64 [G, 7] of all ranks: sigma, loss per token, mean weight, whether

    it counts, edit type, tokens that FLUX reads (padding left out), and operations (its share of a micro-batch's).
    """

    samples: np.ndarray[Any, np.dtype[np.float64]]
    grad_norm: float
    lr: float
    skipped: bool


class Trainer:
    """Trains one stage in a run's folder, from the newest checkpoint there is.

    `Trainer(...)` loads the editor and looks at the data; `prepare` builds what trains; `fit` trains.
    Raises UsageError for a global batch that the ranks do not divide, ModelMissing for an editor that cannot be loaded,
    and what index and checkpoints raise.
    """

    def __init__(self, config: TrainConfig, run: Path, accelerator: Accelerator) -> None:
        self.config, self.run, self.accelerator = config, run, accelerator
        self.accumulation = config.accumulation(accelerator.num_processes)
        with accelerator.main_process_first():
            self.base = checkpoint_digest(config.model)
        self.pipeline = open_editor(config, accelerator.device)
        self.model = self.pipeline.model()
        self.parameters = prepare_parameters(self.model, config, accelerator.device)
        self.pipeline.to(accelerator.device)
        self.encoders, self.processor = self.pipeline.encoders(), self.pipeline.editor_processor()
        with accelerator.main_process_first():
            self.index = build_index(config.data.datasets, "train", run / INDEX)
        self.buckets = Buckets(config.data.size, config.data.aspect_ratios)
        with accelerator.main_process_first():
            self.order = Order(
                self.index, self.buckets, config.data, config.global_batch, config.seed, self.index.folder
            )
        self.step = 0
        self._told_to_end = False

    def prepare(self) -> None:
        """Build engine, average, loader, validation and metrics, and take up the newest checkpoint."""
        config, accelerator = self.config, self.accelerator
        self.flops = Flops(self.model)
        self.engine = build_engine(accelerator, self.model, self.parameters, config.optimiser)
        self.ema = Ema(self.engine.local_parameters(), config.ema.decay) if config.ema else None
        self.validator = (
            Validator(config, self.run, accelerator, self.pipeline, self.encoders, self.processor, self.buckets)
            if config.validation.every
            else None
        )
        self.checkpoints = Checkpoints(
            self.run, config.checkpoints.keep, accelerator.process_index, accelerator.num_processes
        )
        self.step = self._resumed()
        self.metrics = Metrics(self.run, accelerator, config.trackers)
        self.metrics.truncate(self.step or -1)  # a run from the start validates first

    def fit(self) -> None:
        """Train to the last step. Raises NonFinite, Interrupted, BadSample, and what the disk raises."""
        main = self.accelerator.is_main_process
        with ExitStack() as stack:
            for number in SIGNALS:
                stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
            advance = stack.enter_context(progress("training", self.config.steps)) if main else lambda _: None
            advance(self.step)
            stack.enter_context(self._checkpoint_written())
            if self.validator and self.step == 0:
                self.validate(self.validator)
            batches = self.batches()
            while self.step < self.config.steps:
                started = time.perf_counter()
                micro_batches = [next(batches) for _ in range(self.accumulation)]
                waited = time.perf_counter() - started
                step = self.train_step(micro_batches)
                self.step += 1
                self._log(step, micro_batches, time.perf_counter() - started, waited)
                ending = self._should_end() and self.step < self.config.steps
                self._validate_and_save(ending)
                advance(1)
                if ending:
                    raise Interrupted(
                        f"{self.run}: told to end after step {self.step}; a checkpoint was written, run "
                        "the same command to go on"
                    )
        self.metrics.close()

    @contextmanager
    def _checkpoint_written(self) -> Iterator[None]:
        """Ends with the last checkpoint on the disk, also where the user has to act before training can go on."""
        try:
            yield
        except EditFoundryError:
            self.checkpoints.wait()
            raise
        self.checkpoints.wait()

    def train_step(self, micro_batches: list[MicroBatch]) -> Step:
        """One optimiser step over one global batch: this rank's micro-batches of it."""
        rate = learning_rate(self.config.optimiser, self.step, self.config.steps)
        tokens = self._valid_tokens(micro_batches)
        self.engine.zero_grad()
        rows = []
        for number, batch in enumerate(micro_batches, start=1):
            with self.engine.accumulate(last=number == len(micro_batches)):
                sums, lengths, read = self.losses(batch)
                self.engine.backward(sums.sum() / tokens)
            rows.append(self._rows(batch, sums, lengths, read))
        norm = self.engine.clip(self.config.optimiser.clip)
        finite = bool(np.isfinite(norm))
        if finite:
            self.engine.step(rate)
            if self.ema:
                self.ema.update()
        elif self.config.nonfinite == "stop":
            raise NonFinite(self._blame(micro_batches))
        samples = self.accelerator.gather(torch.cat(rows)).cpu().double().numpy()
        return Step(samples, norm, rate, skipped=not finite)

    def losses(self, batch: MicroBatch) -> tuple[Tensor, Lengths, Tensor]:
        """Weighted squared errors of a micro-batch, summed over each sample's tokens: float32 [B]; its lengths; and how

        many tokens of the prompt each sample has.
        """
        with self.autocast():
            x0, condition = self.encode(batch)
            noisy = flow.noised(x0, batch.noise, batch.sigma)
            prediction = self.engine.forward(noisy, batch.sigma, condition, flow.GUIDANCE)
        target = latents.pack(flow.target(x0, batch.noise))
        sums = flow.weighted_squares(prediction, target, batch.weight)
        return sums, Lengths.of(noisy.shape, condition), condition.text_mask.sum(1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def encode(self, batch: MicroBatch) -> tuple[Tensor, Condition]:
        """The target's scaled latents, float32 [B, C, h, w], and the condition after dropout."""
        content = batch.content
        if isinstance(content, Features):
            features = content
        else:
            condition = self.encoders.condition(content.inputs, content.references)
            features = Features(condition, self.encoders.moments(content.target))
        x0 = latents.sample(self.pipeline.vae, features.moments, batch.posterior_noise)
        return x0, without_details(features.condition, batch.visual_kept)

    def autocast(self) -> Any:
        """The precision of forward passes; trained weights stay float32 under it."""
        reduced = precision(self.config, self.accelerator.device) == torch.bfloat16
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=reduced)

    def batches(self) -> Iterator[MicroBatch]:
        """This rank's micro-batches from the current step on, on its device."""
        config, accelerator, vae = self.config, self.accelerator, self.pipeline.vae
        data, kontext = config.data, self.pipeline.sees_latents
        dtype = str(precision(config, accelerator.device))
        cache = open_cache(data, self.index, self.buckets, self.processor, self.encoders, kontext, dtype)
        builder = MicroBatchBuilder(
            self.index,
            data,
            self.buckets,
            self.processor,
            int(vae.config.latent_channels),
            latents.factor(vae),
            config.timesteps,
            config.seed,
            references=kontext,
            cache=cache,
        )
        ranks = accelerator.process_index, accelerator.num_processes
        positions = Positions(self.order, *ranks, self.accumulation, config.micro_batch, self.step, config.steps)
        for batch in build_loader(builder, self.order, positions, data.workers, data.prefetch):
            yield send_to_device(batch, accelerator.device, non_blocking=True)

    def _valid_tokens(self, micro_batches: list[MicroBatch]) -> float:
        """Image tokens of the global batch whose samples count. Raises EditFoundryError if there is none."""
        own = torch.stack([batch.valid.sum() * batch.weight.shape[1] for batch in micro_batches]).sum()
        tokens = float(self.accelerator.reduce(own.float(), "sum"))
        if tokens == 0:
            raise EditFoundryError(
                f"step {self.step}: no sample of the global batch can be used: "
                + "; ".join(problem for batch in micro_batches for problem in batch.problems)[:500]
            )
        return tokens

    def _rows(self, batch: MicroBatch, sums: Tensor, lengths: Lengths, read: Tensor) -> Tensor:
        """The columns of `Step.samples`, float32 [B, 7]."""
        kinds = sums.new_tensor([self.index.types.index(name) for name in batch.types])
        operations = torch.full_like(sums, self.flops.step(lengths) / len(sums))
        loss = sums.detach() / batch.weight.shape[1]
        tokens = read + lengths.visual + lengths.image
        columns = (batch.sigma, loss, batch.weight.mean(1), batch.valid, kinds, tokens, operations)
        return torch.stack([column.float() for column in columns], 1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _blame(self, micro_batches: list[MicroBatch]) -> str:
        """Which module of which rank first gave something that is not finite, at this step."""
        rank = self.accelerator.process_index
        found = [first_nonfinite(self.model, partial(self.losses, batch)) for batch in micro_batches]
        names = [f"{name} on rank {place}" for place, name in gather_object([(rank, name) for name in found]) if name]
        where = names[0] if names else "no module of the forward pass, so the gradient"
        return f"step {self.step}: the loss or its gradient is not finite; first not finite: {where}"

    def _log(self, step: Step, micro_batches: list[MicroBatch], seconds: float, waited: float) -> None:
        valid = step.samples[step.samples[:, 3] > 0]
        sigma, loss, weight, _, kind, _, _ = valid.T
        bins = np.digitize(sigma, SIGMA_EDGES[1:-1])
        by_sigma = {f"{low:.1f}-{high:.1f}": loss[bins == n] for n, (low, high) in enumerate(pairwise(SIGMA_EDGES))}
        by_type = {name: loss[kind == number] for number, name in enumerate(self.index.types)}
        tokens, operations = step.samples[:, 5:].sum(0)
        problems = []
        if len(valid) < len(step.samples):
            problems = gather_object([problem for batch in micro_batches for problem in batch.problems])
        row = {
            "kind": "train",
            "epoch": self.order.epoch(self.step),
            "loss": float(loss.mean()),
            "lr": step.lr,
            "grad_norm": step.grad_norm,
            "mean_weight": float(weight.mean()),
            "loss_by_sigma": means(by_sigma),
            "loss_by_type": means(by_type),
            "samples": len(valid),
            "tokens": int(tokens),
            "skipped_samples": len(step.samples) - len(valid),
            "skipped_step": step.skipped,
            "seconds": seconds,
            "data_wait": waited / seconds,
            "samples_per_s": len(step.samples) / seconds,
            "tokens_per_s": float(tokens / seconds),
            "flops": float(operations),
            "mfu": self._utilisation(operations / seconds),
            "peak_memory_bytes": peak_memory(self.accelerator.device),
        }
        self.metrics.log(self.step, row | ({"problems": problems} if problems else {}))

    def _utilisation(self, flops_per_second: float) -> float | None:
        """Share of what the GPUs could do at best; None on a CPU and for a GPU that is not known."""
        if self.accelerator.device.type != "cuda":
            return None
        peak = peak_flops(torch.cuda.get_device_name(self.accelerator.device))
        return peak and flops_per_second / (peak * self.accelerator.num_processes)

    def _validate_and_save(self, ending: bool) -> None:
        config, last = self.config, self.step == self.config.steps
        if self.validator and (last or self.step % config.validation.every == 0):
            self.validate(self.validator)
        if ending or last or self.step % config.checkpoints.every == 0:
            state = {
                "step": self.step,
                "config": config.model_dump(mode="json"),
                "data": self.index.digest,
                "editor": self.base,
                "kind": self.engine.kind,
                "ranks": self.accelerator.num_processes,
            }
            self.checkpoints.save(self.step, state, self.engine, self.ema)

    def validate(self, validator: Validator) -> None:
        """Measure the averaged weights if there are any, else the trained ones; the weights stay as they are."""
        with self.engine.averaged(self.ema), self.autocast():
            row = validator.run(self.step, self.engine.forward)
        self.metrics.log(self.step, {**row, "averaged": self.ema is not None})

    def _resumed(self) -> int:
        """The step of the newest checkpoint, once it is loaded; 0 without one."""
        newest = self.checkpoints.latest()
        if newest is None:
            return 0
        check_settings(newest, self.config.model_dump(mode="json"))
        state = self.checkpoints.load(newest, self.engine, self.ema)
        now = {"data": self.index.digest, "editor": self.base}
        if changed := [f"the {what}" for what, digest in now.items() if state[what] != digest]:
            raise UsageError(
                f"{newest}: {' and '.join(changed)} that it was trained with changed since, under the same path; "
                "restore that, or start a new run"
            )
        return int(state["step"])

    def _on_signal(self, number: int, frame: Any) -> None:
        self._told_to_end = True

    def _should_end(self) -> bool:
        """Whether any rank was told to end."""
        told = torch.tensor([float(self._told_to_end)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(told, "sum").item())


def without_details(condition: Condition, kept: Tensor) -> Condition:
    """The condition, its SigLIP states and reference latents zero for samples that are not `kept` (bool [B])."""

    def masked(states: Tensor | None) -> Tensor | None:
        return None if states is None else states * kept.view(-1, *[1] * (states.ndim - 1)).to(states.dtype)

    return condition._replace(
        visual_states=masked(condition.visual_states), reference_latents=masked(condition.reference_latents)
    )


def means(groups: dict[str, np.ndarray[Any, np.dtype[np.float64]]]) -> dict[str, float]:
    """The mean of each group that has samples."""
    return {name: float(values.mean()) for name, values in groups.items() if len(values)}


def peak_memory(device: torch.device) -> int:
    """Most memory so far in bytes: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
