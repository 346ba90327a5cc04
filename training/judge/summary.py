"""What a judge's run is about to do: said before it starts, and all that `--dry-run` does."""

from collections import Counter
from typing import Any

from rich.console import Console

from editfoundry.core.hashing import canonical_json
from editfoundry.models.checkpoint import checkpoint_path
from editfoundry.models.judge.folder import read_settings
from editfoundry.training.judge.balance import nearest
from editfoundry.training.judge.trainer import JudgeTrainer
from editfoundry.training.parameters import precision
from editfoundry.training.sharding import engine_kind

MOST_SHOWN = 5
"""Records left out that are named before a run begins; `--json` has more of them."""


def describe(trainer: JudgeTrainer) -> dict[str, Any]:
    """Batches, data, and parameters of a run, as plain values."""
    config, accelerator = trainer.config, trainer.accelerator
    settings = read_settings(checkpoint_path(config.model))
    given: dict[str, Counter[int]] = {}
    for record in trainer.train.records:
        for key, score in record.scores.items():
            given.setdefault(key, Counter())[nearest(score)] += 1
    parameters = list(trainer.model.parameters())
    return {
        "name": config.name,
        "miniature": settings is not None and settings.miniature,
        "ranks": accelerator.num_processes,
        "sharding": engine_kind(accelerator),
        "device": str(accelerator.device),
        "precision": str(precision(config, accelerator.device)).removeprefix("torch."),
        "steps": config.steps,
        "global_batch": config.global_batch,
        "accumulation": trainer.accumulation,
        "heads": {name: weight for name, weight in config.heads.model_dump().items() if weight},
        "rubric": trainer.rubric.name,
        "records": len(trainer.train.records),
        "choices": len(trainer.train.choices),
        "kept_for_validation": len(trainer.kept.records) + len(trainer.kept.choices),
        "left_out": dict(trainer.judged.left_out),
        "left_out_records": trainer.judged.listed,
        "scores": {key: {str(one): counts[one] for one in sorted(counts)} for key, counts in sorted(given.items())},
        "sequences": len(trainer.plan.parts),
        "tokens_per_row": config.data.pack,
        "fill": round(trainer.order.fill(), 4),
        "epochs": round(trainer.order.epoch(config.steps), 4),
        "trained_parameters": sum(parameter.numel() for parameter in trainer.parameters.values()),
        "parameters": sum(parameter.numel() for parameter in parameters),
    }


def show(trainer: JudgeTrainer, as_json: bool = False) -> None:
    """Print it: JSON on stdout for machines, lines on stderr otherwise."""
    facts = describe(trainer)
    if as_json:
        print(canonical_json(facts), flush=True)
        return
    console = Console(stderr=True, highlight=False, markup=False)
    if facts["miniature"]:
        console.print("a miniature: random weights of the real classes, for trying out; it judges nothing well")
    console.print(
        "{steps} steps of {global_batch} rows = {ranks} ranks x {accumulation} accumulation steps, up to "
        "{tokens_per_row} tokens each; sharding {sharding}, on {device}, forward in {precision}, trained weights "
        "float32".format_map(facts)
    )
    console.print(
        "data: {records:,} judged edits and {choices:,} comparisons in {sequences:,} sequences that fill {fill:.0%} of "
        "their rows, {epochs:.2f} epochs; {kept_for_validation:,} more are kept for validation".format_map(facts)
    )
    for reason, count in sorted(facts["left_out"].items()):
        console.print(f"left out: {count:,} records ({reason})")
    for listed in trainer.judged.listed[:MOST_SHOWN]:
        console.print(f"  {listed}")
    for key, counts in facts["scores"].items():
        console.print(f"scores of {key}: " + ", ".join(f"{score}: {count:,}" for score, count in counts.items()))
    console.print("trains {trained_parameters:,} of {parameters:,} parameters".format_map(facts))
