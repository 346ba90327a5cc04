"""The trainer of judges: the shared loop over packed rows."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import fingerprint, sha256
from editfoundry.models.checkpoint import checkpoint_digest
from editfoundry.models.judge.encode import PromptEncoder
from editfoundry.models.judge.rubric import load_rubric
from editfoundry.training.data.order import Positions
from editfoundry.training.judge.balance import weighting
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import JudgeTrainConfig
from editfoundry.training.judge.loader import row_loader
from editfoundry.training.judge.losses import Alphabet, losses, totals
from editfoundry.training.judge.model import open_judge, prepare_parameters
from editfoundry.training.judge.packing import RowOrder
from editfoundry.training.judge.rows import RowBuilder
from editfoundry.training.judge.sources import read_sources
from editfoundry.training.judge.split import sample, split
from editfoundry.training.judge.validation import JudgeValidator
from editfoundry.training.loop import TrainingLoop
from editfoundry.training.parameters import precision

LEAST_WEIGHT = 1e-12
"""Instead of the weight of a head that has nothing in a global batch, and a loss of 0."""


class JudgeTrainer(TrainingLoop[Row]):
    """Trains a judge in a run's folder, from the newest checkpoint there is.

    `JudgeTrainer(...)` loads the model, reads the data and plans the rows; `prepare` builds what trains; `fit` trains.
    Raises UsageError for a global batch that the ranks do not divide, and what sources, pictures and rows raise.
    """

    config: JudgeTrainConfig

    def __init__(self, config: JudgeTrainConfig, run: Path, accelerator: Accelerator) -> None:
        super().__init__(config, run, accelerator)
        device, data = accelerator.device, config.data
        with accelerator.main_process_first():
            base = checkpoint_digest(config.model)
        self.rubric = load_rubric(config.rubric)
        self.model, held = open_judge(config, self.rubric.scale, device)
        self.parameters = prepare_parameters(self.model, config, device)
        control = held.control_tokens
        encoder = PromptEncoder(held.processor, held.model.config, data.min_pixels, data.max_pixels, control)
        self.judged = read_sources(data.sources, self.rubric)
        self.train, kept = split(self.judged.records, self.judged.choices, data.holdout)
        self.kept = sample(kept, config.validation.samples)
        weights = weighting(self.train.records, self.rubric, data.balance)
        self.builder = RowBuilder(self.rubric, encoder, config.order, config.heads, weights)
        self.plan = self.builder.sequences.plan(*self.train, data.pack)
        if not self.plan.items:
            raise UsageError("data.sources: nothing in them for the heads that have a weight, once some is kept apart")
        self.order = RowOrder(self.plan.items, data.pack, config.global_batch, config.seed)
        dimensions = self.rubric.section(self.rubric.types[0]).dimensions
        self.alphabet = Alphabet(self.builder.layout(dimensions), tuple(self.builder.choice_ids), held.end)
        digests = [[sha256(repr(one)) for one in side] for side in self.train]
        self.origin = {"data": fingerprint(digests, self.rubric.digest), "model": base}

    def prepare(self) -> None:
        """Build what trains and what validates, and take up the newest checkpoint."""
        config = self.config
        self.model.train()
        self.validator = JudgeValidator(self.builder, self.kept, self.alphabet, self.accelerator, config.data.pack)
        self.begin()

    def losses_of(self, batches: list[Row], backward: Callable[[Tensor], None]) -> dict[str, float]:
        """The loss of every head that has something in the global batch, per unit of its weight there."""
        heads = self.config.heads
        own = [totals(row, heads) for row in batches]
        names = list(own[0])
        weights = torch.stack([torch.stack([one[name] for name in names]) for one in own]).sum(0)
        whole = self.accelerator.reduce(weights, "sum")
        made = torch.zeros_like(whole)
        for number, row in enumerate(batches, start=1):
            with self.engine.accumulate(last=number == len(batches)):
                sums = self.losses(row)
                shares = torch.stack([sums[name] for name in names]) / whole.clamp_min(LEAST_WEIGHT)
                backward((shares * shares.new_tensor([getattr(heads, name) for name in names])).sum())
            made += shares.detach()
        reduced = zip(names, self.accelerator.reduce(made, "sum").tolist(), whole.tolist(), strict=True)
        return {name: loss for name, loss, weight in reduced if weight}

    def losses(self, row: Row) -> dict[str, Tensor]:
        """The weighted sum of every head over a row."""
        with self.autocast():
            outputs = self.engine.forward(row)
        return losses(outputs, row, self.config.heads, self.alphabet)

    def forward_again(self, batch: Row) -> Any:
        """The forward pass of a row."""
        return self.losses(batch)

    def autocast(self) -> Any:
        """The precision of forward passes; trained weights stay float32 under it."""
        reduced = precision(self.config, self.accelerator.device) == torch.bfloat16
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=reduced)

    def batches(self) -> Iterator[Row]:
        """This rank's rows from the current step on, on its device."""
        accelerator, data = self.accelerator, self.config.data
        ranks = accelerator.process_index, accelerator.num_processes
        positions = Positions(self.order, *ranks, self.accumulation, 1, self.step, self.config.steps)
        for row in row_loader(self.builder, self.order, self.plan.parts, positions, data.workers, data.prefetch):
            yield send_to_device(row, accelerator.device, non_blocking=True)

    def row(self, batches: list[Row], made: dict[str, float], seconds: float) -> Mapping[str, Any]:
        """What a step measured: see `metrics.JudgeRow`."""
        own = [[len(one.records) + len(one.choices), one.ids.shape[1]] for one in batches]
        counts = torch.tensor(own, device=self.accelerator.device).sum(0)
        samples, tokens = self.accelerator.reduce(counts, "sum").tolist()
        return {
            "kind": "judge",
            "epoch": self.order.epoch(self.step),
            "loss": sum(getattr(self.config.heads, name) * value for name, value in made.items()),
            "loss_by_head": made,
            "samples": int(samples),
            "tokens": int(tokens),
            "samples_per_s": samples / seconds,
            "tokens_per_s": tokens / seconds,
        }

    def measure(self) -> Mapping[str, Any]:
        """Agreement with the given scores on photographs kept apart."""
        self.model.eval()
        with self.autocast():
            row: Mapping[str, Any] = self.validator.run(self.engine.forward)
        self.model.train()
        return row
