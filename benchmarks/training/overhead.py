"""The trainer against a bare torch loop: the same model, batches and seed, and losses that have to be identical.

Per optimiser step, without start-up and with batches that are there already: the trainer checks finiteness, clips,
gathers its numbers from all ranks, writes a metrics row, and asks whether it was told to end. The bare loop does only
the mathematics, clipping included.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import torch
from _measure import Case, arguments, measure, report
from loader import photographs_in, write_dataset

from editfoundry.core.config import cache_root
from editfoundry.models.editor import latents
from editfoundry.models.editor.miniature import write_miniature
from editfoundry.training import flow
from editfoundry.training.config import TrainConfig
from editfoundry.training.data.batch import MicroBatch, Pictures
from editfoundry.training.metrics import read_metrics
from editfoundry.training.sharding import make_accelerator
from editfoundry.training.trainer import Trainer

Started = TypeVar("Started", bound=Trainer)
WARM_UP = 3
"""Steps before the clock starts."""


class Watched(Trainer):
    """A trainer that takes given batches, notes when its steps end, and writes no checkpoint."""

    given: list[MicroBatch]
    ends: list[float]

    def batches(self) -> Iterator[MicroBatch]:
        return iter(self.given)

    def _validate_and_save(self, ending: bool) -> None:
        self.ends.append(time.perf_counter())


class Contenders:
    """Both loops, each from its own fresh start, and the losses of their last run."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        self.config, self.folder, self.runs = config, folder, 0
        self.losses: dict[str, list[float]] = {}
        self.batches = list(self._new(Trainer).batches())

    def trainer(self) -> float:
        """Seconds of the trainer's steps after the warm-up."""
        trainer = self._new(Watched)
        trainer.given, trainer.ends = self.batches, []
        trainer.fit()
        self.losses["trainer"] = [row.loss for row in read_metrics(trainer.run) if row.kind == "train"]
        return trainer.ends[-1] - trainer.ends[WARM_UP - 1]

    def bare(self) -> float:
        """The same of a loop that does nothing else."""
        made = self._new(Trainer)  # builds the model the same way; its loop is not used
        model, vae, encoders = made.model, made.pipeline.vae, made.encoders
        optimiser = torch.optim.AdamW(
            made.parameters.values(), lr=self.config.optimiser.lr, betas=self.config.optimiser.betas, weight_decay=0,
            fused=True,
        )  # fmt: skip
        losses, started = [], 0.0
        for step, batch in enumerate(self.batches):
            if step == WARM_UP:
                started = time.perf_counter()
            content = batch.content
            assert isinstance(content, Pictures)
            with torch.no_grad():
                condition = encoders.condition(content.inputs, content.references)
                x0 = latents.sample(vae, encoders.moments(content.target), batch.posterior_noise)
            prediction = model(flow.noised(x0, batch.noise, batch.sigma), batch.sigma, condition, flow.GUIDANCE)
            sums = flow.weighted_squares(prediction, latents.pack(flow.target(x0, batch.noise)), batch.weight)
            (sums.sum() / batch.weight.numel()).backward()
            torch.nn.utils.clip_grad_norm_(made.parameters.values(), self.config.optimiser.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            losses.append(float((sums.detach() / batch.weight.shape[1]).double().mean()))
        self.losses["bare"] = losses
        return time.perf_counter() - started

    def _new(self, kind: type[Started]) -> Started:
        self.runs += 1
        run = self.folder / f"run{self.runs}"
        run.mkdir()
        trainer = kind(self.config, run, make_accelerator())
        trainer.prepare()
        return trainer


def main(options: argparse.Namespace) -> None:
    photographs = photographs_in(options.photographs)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        dataset = write_dataset(folder / "dataset", photographs, options.samples, options.samples)
        config = TrainConfig.model_validate({
            "name": "overhead", "model": str(write_miniature(folder / "editor")), "stage": "joint", "seed": 1,
            "steps": options.steps + WARM_UP, "global_batch": options.batch, "micro_batch": options.batch,
            "data": {"datasets": [{"path": str(dataset)}], "size": 64, "workers": 0,
                     "dropout": {"text": 0, "visual": 0, "all": 0}},
            "validation": {"every": 0}, "trackers": [],
        })  # fmt: skip
        contenders = Contenders(config, folder)
        results = measure(
            Case("training step, miniature", options.steps, contenders.trainer, {"bare torch loop": contenders.bare}),
            options.rounds, warm_ups=0,
        )  # fmt: skip
        if contenders.losses["trainer"] != contenders.losses["bare"]:
            sys.exit(f"the losses differ: {json.dumps(contenders.losses)}")
        ours, bare = (results[0][side]["median"] / options.steps for side in ("ours_seconds", "peer_seconds"))
        report(options.json, "training/overhead", rounds=options.rounds, results=results,
               facts={"losses": "identical", "overhead_ms_per_step": round(1e3 * (ours - bare), 3)},
               data={"steps": options.steps, "batch": options.batch},
               packages=("torch", "accelerate", "diffusers"))  # fmt: skip


if __name__ == "__main__":
    parser = arguments("The trainer's overhead over a bare loop.", rounds=5)
    parser.add_argument("--steps", type=int, default=40, help="steps of a round (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="samples of a step (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=16, help="edit pairs (default: %(default)s)")
    parser.add_argument("--photographs", type=Path, default=cache_root() / "photographs" / "photographs",
                        help="folder of JPEGs (default: those of the quickstart)")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    main(parser.parse_args())
