"""The trainer of editors. Everything it needs is built in `__init__`; `losses_of` reads top down."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor

from editfoundry.core.errors import EditFoundryError
from editfoundry.models.checkpoint import checkpoint_digest
from editfoundry.models.editor import latents
from editfoundry.models.editor.types import Condition
from editfoundry.training import flow
from editfoundry.training.config import TrainConfig
from editfoundry.training.data.batch import Features, MicroBatch
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.cache import open_cache
from editfoundry.training.data.index import build_index
from editfoundry.training.data.loader import build_loader
from editfoundry.training.data.micro import MicroBatchBuilder
from editfoundry.training.data.order import Order, Positions
from editfoundry.training.flops import Flops, Lengths, peak_flops
from editfoundry.training.loading import open_editor
from editfoundry.training.loop import TrainingLoop
from editfoundry.training.parameters import precision, prepare_parameters
from editfoundry.training.rundir import INDEX
from editfoundry.training.validation import Validator

SIGMA_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
Samples = np.ndarray[Any, np.dtype[np.float64]]
"""[G, 7], of a step's global batch: sigma, loss per token, mean weight, whether it counts, edit type, tokens that FLUX

reads (padding left out), and operations (its share of a micro-batch's).
"""


class Trainer(TrainingLoop[MicroBatch]):
    """Trains one stage of an editor in a run's folder, from the newest checkpoint there is.

    `Trainer(...)` loads the editor and looks at the data; `prepare` builds what trains; `fit` trains.
    Raises UsageError for a global batch that the ranks do not divide, ModelMissing for an editor that cannot be loaded,
    and what index and checkpoints raise.
    """

    def __init__(self, config: TrainConfig, run: Path, accelerator: Accelerator) -> None:
        super().__init__(config, run, accelerator)
        with accelerator.main_process_first():
            base = checkpoint_digest(config.model)
        self.pipeline = open_editor(config, accelerator.device)
        self.model = self.pipeline.model()
        self.parameters = prepare_parameters(self.model, config, accelerator.device)
        self.pipeline.to(accelerator.device)
        self.encoders, self.processor = self.pipeline.encoders(), self.pipeline.editor_processor()
        with accelerator.main_process_first():
            self.index = build_index(config.data.datasets, "train", run / INDEX)
        self.origin = {"data": self.index.digest, "editor": base}
        self.buckets = Buckets(config.data.size, config.data.aspect_ratios)
        with accelerator.main_process_first():
            self.order = Order(
                self.index, self.buckets, config.data, config.global_batch, config.seed, self.index.folder
            )

    def prepare(self) -> None:
        """Build what trains and what validates, and take up the newest checkpoint."""
        config, accelerator = self.config, self.accelerator
        self.flops = Flops(self.model)
        self.validator = (
            Validator(config, self.run, accelerator, self.pipeline, self.encoders, self.processor, self.buckets)
            if config.validation.every
            else None
        )
        self.begin()

    def losses_of(self, batches: list[MicroBatch], backward: Callable[[Tensor], None]) -> Samples:
        """The weighted squared error per image token of the global batch."""
        tokens = self._valid_tokens(batches)
        rows = []
        for number, batch in enumerate(batches, start=1):
            with self.engine.accumulate(last=number == len(batches)):
                sums, lengths, read = self.losses(batch)
                backward(sums.sum() / tokens)
            rows.append(self._rows(batch, sums, lengths, read))
        gathered: Samples = self.accelerator.gather(torch.cat(rows)).cpu().double().numpy()
        return gathered

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

    def forward_again(self, batch: MicroBatch) -> Any:
        """The forward pass of a micro-batch."""
        return self.losses(batch)

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

    def row(self, batches: list[MicroBatch], made: Samples, seconds: float) -> Mapping[str, Any]:
        """What a step measured: see `metrics.TrainRow`."""
        valid = made[made[:, 3] > 0]
        sigma, loss, weight, _, kind, _, _ = valid.T
        bins = np.digitize(sigma, SIGMA_EDGES[1:-1])
        by_sigma = {f"{low:.1f}-{high:.1f}": loss[bins == n] for n, (low, high) in enumerate(pairwise(SIGMA_EDGES))}
        by_type = {name: loss[kind == number] for number, name in enumerate(self.index.types)}
        tokens, operations = made[:, 5:].sum(0)
        problems = []
        if len(valid) < len(made):
            problems = gather_object([problem for batch in batches for problem in batch.problems])
        row = {
            "epoch": self.order.epoch(self.step),
            "loss": float(loss.mean()),
            "mean_weight": float(weight.mean()),
            "loss_by_sigma": means(by_sigma),
            "loss_by_type": means(by_type),
            "samples": len(valid),
            "tokens": int(tokens),
            "skipped_samples": len(made) - len(valid),
            "samples_per_s": len(made) / seconds,
            "tokens_per_s": float(tokens / seconds),
            "flops": float(operations),
            "mfu": self._utilisation(operations / seconds),
        }
        return row | ({"problems": problems} if problems else {})

    def measure(self) -> Mapping[str, Any]:
        """The validation loss beside that of an edit that gives its input back, and pictures."""
        assert self.validator is not None
        with self.autocast():
            row: Mapping[str, Any] = self.validator.run(self.step, self.engine.forward)
        return row

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
        """A micro-batch's rows of `Samples`, float32 [B, 7]."""
        kinds = sums.new_tensor([self.index.types.index(name) for name in batch.types])
        operations = torch.full_like(sums, self.flops.step(lengths) / len(sums))
        loss = sums.detach() / batch.weight.shape[1]
        tokens = read + lengths.visual + lengths.image
        columns = (batch.sigma, loss, batch.weight.mean(1), batch.valid, kinds, tokens, operations)
        return torch.stack([column.float() for column in columns], 1)

    def _utilisation(self, flops_per_second: float) -> float | None:
        """Share of what the GPUs could do at best; None on a CPU and for a GPU that is not known."""
        if self.accelerator.device.type != "cuda":
            return None
        peak = peak_flops(torch.cuda.get_device_name(self.accelerator.device))
        return peak and flops_per_second / (peak * self.accelerator.num_processes)


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
