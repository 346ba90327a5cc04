"""Validation on all ranks: loss on fixed noise at fixed noise levels, the identity baseline, and generated edits.

The identity baseline is the loss of answering with the source picture: an editor that only copies sits on it. The
same samples, noise and levels are used every time, so that two validations differ by the weights alone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor

from editfoundry.core.hashing import canonical_json, seed_for
from editfoundry.core.images import decode, encode_jpeg
from editfoundry.data_engine.ledger import replace_file
from editfoundry.models.editor import latents
from editfoundry.models.editor.encoders import Encoders
from editfoundry.models.editor.pipeline import EditorPipeline
from editfoundry.models.editor.prompt import EditorProcessor, pictures
from editfoundry.models.editor.sampling import generate
from editfoundry.models.editor.types import Condition
from editfoundry.training import flow
from editfoundry.training.config import Dropout, TrainConfig
from editfoundry.training.data.batch import MicroBatch, Pictures
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.examples import read_description
from editfoundry.training.data.index import NoSamples, ShardIndex, build_index
from editfoundry.training.data.micro import MicroBatchBuilder
from editfoundry.training.rundir import INDEX, VALIDATION

Forward = Callable[[Tensor, Tensor, Condition, float], Tensor]
POSITION = -1
"""Stands for the global batch in the seeds of validation's noise."""
CANDIDATES = 10_000
"""Rows among which validation's samples are chosen."""


@dataclass(frozen=True)
class Group:
    """Samples validated together: all of one bucket. first: where the group begins among all samples."""

    bucket: int
    rows: tuple[int, ...]
    first: int


class Validator:
    """Measures an editor in training on fixed samples: those of the split `val`, or of `train` where it has none."""

    def __init__(
        self,
        config: TrainConfig,
        run: Path,
        accelerator: Accelerator,
        pipeline: EditorPipeline,
        encoders: Encoders,
        processor: EditorProcessor,
        buckets: Buckets,
    ) -> None:
        self.options, self.accelerator = config.validation, accelerator
        self.folder, self.pipeline, self.encoders = run / VALIDATION, pipeline, encoders
        self.kontext = pipeline.sees_latents
        with accelerator.main_process_first():
            self.index, self.split = validation_index(config, run)
        data = config.data.model_copy(update={"dropout": Dropout(text=0, visual=0, all=0), "feature_cache": None})
        self.builder = MicroBatchBuilder(
            self.index,
            data,
            buckets,
            processor,
            int(pipeline.vae.config.latent_channels),
            latents.factor(pipeline.vae),
            config.timesteps,
            config.seed,
            references=True,
        )
        rows = chosen(self.index, self.options.samples, config.seed)
        self.groups = in_groups(rows, self.index, buckets, config.micro_batch)
        self.grid = in_groups(rows[: self.options.grid], self.index, buckets, 1)
        if self.grid and accelerator.is_main_process:
            self.describe()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, step: int, forward: Forward) -> dict[str, Any]:
        """A row of kind `validation` for the metrics; writes the grid's pictures. `forward` is that of EditorModel."""
        started = perf_counter()
        measured = [
            entry for batch, source in self._batches(self.groups) for entry in self._losses(batch, source, forward)
        ]
        edits = self._edits(step, forward) if self.grid else []
        row = summarise(gather_object(measured)) | areas(gather_object(edits))
        self.accelerator.wait_for_everyone()
        grid = None
        if self.grid and self.accelerator.is_main_process:
            grid = self._sheet(step)
        return {"kind": "validation", "split": self.split, "grid": grid, "seconds": perf_counter() - started, **row}

    def _batches(self, groups: Sequence[Group]) -> Iterator[tuple[MicroBatch, Group | None]]:
        """This rank's groups, each with its batch. Every rank gets equally many, since sharded forward passes are

        collective: the last ones are repeats, marked by None.
        """
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        for start in range(0, len(groups), ranks):
            mine = min(start + rank, len(groups) - 1)
            group = groups[mine]
            batch = self.builder.build(
                group.rows, group.bucket, POSITION, range(group.first, group.first + len(group.rows))
            )
            yield send_to_device(batch, self.accelerator.device), group if mine == start + rank else None

    def _encode(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Condition]:
        """Latents of the target and of the picture to edit, [B, C, h, w], and the condition."""
        content = batch.content
        assert isinstance(content, Pictures) and content.references is not None
        vae = self.pipeline.vae
        condition = self.encoders.condition(content.inputs, content.references if self.kontext else None)
        target = latents.sample(vae, self.encoders.moments(content.target), None)
        source = latents.sample(vae, self.encoders.moments(content.references[:, 0]), None)
        return target, source, condition

    def _losses(
        self, batch: MicroBatch, group: Group | None, forward: Forward
    ) -> list[tuple[str, float, float, float]]:
        """(type, sigma, loss, identity loss) of each sample at each noise level."""
        x0, source, condition = self._encode(batch)
        tokens = batch.weight.shape[1]
        found: list[tuple[str, float, float, float]] = []
        for level in self.options.sigmas:
            sigma = torch.full_like(batch.sigma, level)
            prediction = forward(flow.noised(x0, batch.noise, sigma), sigma, condition, flow.GUIDANCE)
            target = latents.pack(flow.target(x0, batch.noise))
            loss = flow.weighted_squares(prediction, target, batch.weight) / tokens
            copied = latents.pack(flow.identity_error(x0, source, sigma))
            identity = flow.weighted_squares(copied, torch.zeros_like(copied), batch.weight) / tokens
            if group is not None:
                found += [
                    (kind, level, float(one), float(other))
                    for kind, one, other, valid in zip(batch.types, loss, identity, batch.valid, strict=True)
                    if valid
                ]
        return found

    def _edits(self, step: int, forward: Forward) -> list[tuple[float, float]]:
        """Edit the grid's samples, write the pictures, and give the mean squared pixel error of each edit and of its

        source over the edited area, pixels in [-1, 1]; for samples whose weights mark an area.
        """
        errors = []
        folder = self.folder / "edits" / f"{step:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        for batch, group in self._batches(self.grid):
            _, _, condition = self._encode(batch)
            made = generate(
                forward,
                self.pipeline.scheduler,
                batch.noise,
                condition,
                steps=self.options.steps,
                guidance=self.options.guidance,
            )
            pixels = latents.decode(self.pipeline.vae, made)
            if group is None:
                continue
            replace_file(folder / f"{group.first}.jpg", encode_jpeg(pictures(pixels)[0]))
            content = batch.content
            assert isinstance(content, Pictures) and content.references is not None
            area = edited_area(batch.weight[0], pixels.shape[-2:], batch.noise.shape[-2:])
            if area is not None:
                wanted = latents.unit(content.target[0])[:, area]
                pairs = (pixels[0][:, area], latents.unit(content.references[0, 0])[:, area])
                edit, identity = (float((made.float() - wanted).square().mean()) for made in pairs)
                errors.append((edit, identity))
        return errors

    def describe(self) -> None:
        """Write the grid's samples, their sources and targets, once; on the main process."""
        (self.folder / "samples").mkdir(parents=True, exist_ok=True)
        entries = []
        for group in self.grid:
            batch = self.builder.build(group.rows, group.bucket, POSITION, range(group.first, group.first + 1))
            content = batch.content
            assert isinstance(content, Pictures) and content.references is not None
            names = {}
            for name, pixels in (("source", content.references[0, 0]), ("target", content.target[0])):
                names[name] = f"samples/{group.first}-{name}.jpg"
                replace_file(self.folder / names[name], encode_jpeg(pixels.permute(1, 2, 0).contiguous().numpy()))
            problem = next(iter(batch.problems), None)
            said = f"cannot be used: {problem}" if problem else read_description(self.index, group.rows[0]).instruction
            entries.append(
                {"key": batch.keys[0], "type": batch.types[0], "instruction": said, "number": group.first, **names}
            )
        replace_file(self.folder / "samples.json", (canonical_json(entries) + "\n").encode())

    def _sheet(self, step: int) -> str:
        """Write the grid as one picture, a row per sample: source, target, edit. Returns its name in the run."""
        rows = []
        for group in self.grid:
            files = [self.folder / "samples" / f"{group.first}-{name}.jpg" for name in ("source", "target")]
            files.append(self.folder / "edits" / f"{step:08d}" / f"{group.first}.jpg")
            rows.append(np.concatenate([decode(file.read_bytes()) for file in files], axis=1))
        width = max(row.shape[1] for row in rows)
        sheet = np.concatenate(
            [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
        )
        name = f"grid-{step:08d}.jpg"
        replace_file(self.folder / name, encode_jpeg(sheet))
        return f"{VALIDATION}/{name}"


def validation_index(config: TrainConfig, run: Path) -> tuple[ShardIndex, str]:
    """The index of the samples kept for validation, and their split; `train` where no dataset has a `val`."""
    for split in ("val", "train"):
        try:
            folder = INDEX if split == "train" else f"{INDEX}-{split}"
            return build_index(config.data.datasets, split, run / folder), split
        except NoSamples:
            if split == "train":
                raise
    raise AssertionError


def chosen(index: ShardIndex, count: int, seed: int) -> list[int]:
    """At most `count` rows, taken in turn from every edit type, in an order that only the seed decides.

    Of a large index only some rows are looked at, so that a run begins as fast as with a small one.
    """
    random, looked_at = np.random.default_rng(seed_for(seed, "validation")), max(CANDIDATES, 16 * count)
    few = len(index) <= looked_at
    rows = random.permutation(len(index)) if few else random.choice(len(index), looked_at, replace=False)
    by_type: dict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        by_type[int(index.rows[row]["type"])].append(row)
    turns = zip_longest(*(by_type[kind] for kind in sorted(by_type)))
    return [row for turn in turns for row in turn if row is not None][:count]


def in_groups(rows: Sequence[int], index: ShardIndex, buckets: Buckets, most: int) -> list[Group]:
    """The rows by bucket, at most `most` together."""
    by_bucket: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        by_bucket[int(buckets.of_rows(index.rows[row]))].append(row)
    groups, first = [], 0
    for bucket in sorted(by_bucket):
        members = by_bucket[bucket]
        for start in range(0, len(members), most):
            together = tuple(members[start : start + most])
            groups.append(Group(bucket, together, first))
            first += len(together)
    return groups


def summarise(entries: Sequence[tuple[str, float, float, float]]) -> dict[str, Any]:
    """Mean losses over all samples and levels, by level and by type, beside the identity baseline's."""
    by_sigma, by_type, identity = defaultdict(list), defaultdict(list), defaultdict(list)
    for kind, sigma, loss, copied in entries:
        by_sigma[f"{sigma:g}"].append(loss)
        by_type[kind].append(loss)
        identity[kind].append(copied)
    levels = max(len(by_sigma), 1)
    return {
        "samples": len(entries) // levels,
        "loss": mean([loss for _, _, loss, _ in entries]),
        "identity_loss": mean([copied for *_, copied in entries]),
        "loss_by_sigma": {name: mean(values) for name, values in by_sigma.items()},
        "loss_by_type": {name: mean(values) for name, values in sorted(by_type.items())},
        "identity_by_type": {name: mean(values) for name, values in sorted(identity.items())},
    }


def areas(errors: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """Mean errors over the edited areas of the grid, or None where no sample marks one."""
    edit, identity = zip(*errors, strict=True) if errors else ((), ())
    return {"edited_area_error": mean(edit), "identity_area_error": mean(identity)}


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean in float64; None of nothing."""
    return float(np.mean(values)) if len(values) else None


def edited_area(weight: Tensor, pixels: Sequence[int], latent: Sequence[int]) -> Tensor | None:
    """Bool [H, W] of the image tokens that weigh more than the others, or None where all weigh the same."""
    if weight.max() == weight.min():
        return None
    tokens = (weight > weight.min()).view(1, 1, latent[0] // 2, latent[1] // 2).float()
    return torch.nn.functional.interpolate(tokens, size=tuple(pixels), mode="nearest")[0, 0] > 0
