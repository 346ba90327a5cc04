"""What a run is about to do: said before it starts, and all that `--dry-run` does."""

from collections import Counter
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table

from editfoundry.core.hashing import canonical_json
from editfoundry.training.parameters import precision, summarise
from editfoundry.training.sharding import engine_kind
from editfoundry.training.trainer import Trainer


def describe(trainer: Trainer) -> dict[str, Any]:
    """Batches, data, parameters and memory of a run, as plain values. Memory is an estimate, without activations."""
    config, accelerator, pipeline = trainer.config, trainer.accelerator, trainer.pipeline
    kind, ranks = engine_kind(accelerator), accelerator.num_processes
    modules = {
        **dict(trainer.model.named_children()),
        "vlm": pipeline.vlm,
        "visual_encoder": trainer.encoders.visual_encoder,
        "vae": pipeline.vae,
    }
    items: Counter[int] = Counter()
    for share in trainer.order.shares:
        items[share.group.bucket] += share.items
    rows = summarise(modules, trainer.parameters, config, kind, ranks)
    return {
        "name": config.name,
        "stage": config.stage,
        "miniature": bool(pipeline.config.miniature),
        "ranks": ranks,
        "sharding": kind,
        "device": str(accelerator.device),
        "precision": str(precision(config, accelerator.device)).removeprefix("torch."),
        "steps": config.steps,
        "global_batch": config.global_batch,
        "micro_batch": config.micro_batch,
        "accumulation": trainer.accumulation,
        "samples": len(trainer.index),
        "samples_per_epoch": trainer.order.items,
        "epochs": trainer.order.epoch(config.steps),
        "buckets": len(items),
        "thin_buckets": [
            [*reversed(trainer.buckets.grid(bucket).shape), count]
            for bucket, count in sorted(items.items())
            if count < config.global_batch
        ],
        "parameters": sum(row.parameters for row in rows),
        "trained_parameters": sum(row.trained for row in rows),
        "estimated_bytes_per_rank": sum(row.total_bytes for row in rows),
        "modules": [
            {
                "module": row.module,
                "parameters": row.parameters,
                "trained": row.trained,
                "dtypes": list(row.dtypes),
                "bytes_per_rank": row.total_bytes,
            }
            for row in rows
        ],
    }


def show(trainer: Trainer, as_json: bool = False) -> None:
    """Print it: JSON on stdout for machines, tables on stderr otherwise."""
    facts = describe(trainer)
    if as_json:
        print(canonical_json(facts), flush=True)
        return
    console = Console(stderr=True, highlight=False)
    if facts["miniature"]:
        console.print("a miniature: random weights of the real classes, for trying out; it edits nothing well")
    console.print(
        "stage {stage}: {steps} steps of {global_batch} samples = {ranks} ranks x {accumulation} accumulation steps x "
        "{micro_batch}; sharding {sharding}, on {device}, forward in {precision}, trained weights float32".format_map(
            facts
        )
    )
    console.print(
        f"data: {facts['samples']:,} samples in {facts['buckets']} buckets, {facts['samples_per_epoch']:,} per epoch, "
        f"{facts['epochs']:.2f} epochs"
    )
    if thin := facts["thin_buckets"]:
        listed = ", ".join(f"{width}x{height} ({count})" for width, height, count in thin)
        console.print(
            f"warning: {len(thin)} buckets have fewer samples an epoch than a global batch, so that their batches "
            f"repeat samples: {listed}; name fewer data.aspect_ratios, or lower global_batch (samples with a reference "
            "picture have buckets of their own)"
        )
    table = Table(
        "module", *(Column(name, justify="right") for name in ("parameters", "trained")), "dtype",
        Column("memory per rank", justify="right"), box=None, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for row in facts["modules"]:
        table.add_row(
            row["module"], f"{row['parameters']:,}", f"{row['trained']:,}", ", ".join(row["dtypes"]),
            decimal(row["bytes_per_rank"]),
        )  # fmt: skip
    table.add_row(
        "all", f"{facts['parameters']:,}", f"{facts['trained_parameters']:,}", "",
        decimal(facts["estimated_bytes_per_rank"]),
    )  # fmt: skip
    console.print(table)
    console.print("memory: weights, gradients, optimiser and average; an estimate that leaves activations out")
