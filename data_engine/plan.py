"""What a run would need before it is started: models, GPU memory, GPU-hours, API cost and storage for N images.

Every number is either counted from the configuration and the model store, measured on a finished run, or an assumption
that is listed by name with its basis. Memory is what a stage's models hold together, since a worker keeps them all
loaded: weights at the configured precision, less what offloading leaves on the CPU, plus the largest working set.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from editfoundry.core.config import Config, load_config
from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.data_engine.audit import funnel
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.stages.base import Stage
from editfoundry.models.manifest import packaged_manifest
from editfoundry.models.registry import ModelSpec, implementation, stack_of

ASSUMPTIONS = "data/assumptions.yaml"
BYTES_PER_WEIGHT = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 2.0}
QUANTISED = {"int8": 1.0, "nf4": 0.55}
"""Bytes a weight takes after quantisation; 4-bit weights with their scales."""
ROLE_CALLS: dict[str, dict[str, float]] = {
    "add": {"inpainter": 1},
    "remove": {"inpainter": 1},
    "replace": {"painter": 1},
    "background": {"painter": 1},
    "adjust": {"adjuster": 1},
    "visual": {"reference": 1, "inserter": 1},
    "extract": {"reference": 1, "inserter": 1},
    "style": {"style": 1},
    "compose": {"inpainter": 2 / 3, "painter": 2 / 3, "adjuster": 2 / 3},
    "conversation": {"inpainter": 1, "painter": 1, "adjuster": 1},
}
"""Model calls one generated edit takes in the render stage; compositions and conversations on average."""


class ModelCost(Config):
    """seconds: of one call on the assumed machine. per: what a call is for. working_gb: memory beside the weights.

    prompt_tokens, completion_tokens: of one call, for language models. basis: where the figures come from.
    """

    seconds: float = Field(ge=0)
    per: Literal["image", "region", "edit", "call"]
    working_gb: float = Field(default=0.0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    basis: str


class Assumptions(Config):
    """machine: what the seconds are for. survives: share of a stage's inputs that go on. basis: of these shares.

    regions: qualified objects per photograph. feasible: share of the configured edits that a photograph can carry.
    edit_bytes: stored per edge. models: costs by role/name.
    """

    machine: str
    basis: str
    survives: dict[str, float]
    regions: float = Field(gt=0)
    feasible: float = Field(gt=0, le=1)
    edit_bytes: int = Field(gt=0)
    models: dict[str, ModelCost]


class PlannedModel(Record):
    """A model of a stage. parameters and bytes are of its checkpoints together; memory_gb at the configured precision.

    checkpoints: id or folder, licence, parameters of each.
    """

    role: str
    name: str
    checkpoints: tuple[tuple[str, str, int | None], ...]
    parameters: int | None
    memory_gb: float
    calls: float
    gpu_hours: float
    api_usd: float
    basis: str


class PlannedStage(Record):
    """A stage: its inputs, models, what they hold together, and what they take."""

    stage: str
    inputs: int
    models: tuple[PlannedModel, ...]
    memory_gb: float
    gpu_hours: float
    api_usd: float


class DataPlan(Record):
    """The whole. assumptions: every figure that was neither counted nor measured, as `name: value (basis)`."""

    images: int
    machine: str
    gpu_memory_gb: float
    stages: tuple[PlannedStage, ...]
    edits: int
    gpu_hours: float
    api_usd: float
    storage_gb: float
    fits: bool
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]


def plan(config: RunConfig, images: int, gpu_memory_gb: float, measured: RunDir | None = None,
         assumptions: str = ASSUMPTIONS) -> DataPlan:  # fmt: skip
    """Work out a plan. `measured`: a finished run whose survival replaces the assumed one.

    Raises UsageError when a model of the configuration has no assumed cost.
    """
    from editfoundry.data_engine.pipeline import STAGES

    if images < 1:
        raise UsageError(f"--images {images}: at least one")
    assumed = load_config(Assumptions, assumptions)
    survives, notes = _survival(assumed, measured)
    stages = []
    inputs, edits = float(images), 0.0
    for stage in STAGES:
        if not stage.barrier:
            units = _units(config, assumed, stage.name, inputs)
            stages.append(_stage(config, assumed, stage, inputs, units))
            inputs *= survives.get(stage.name, 1.0)
            if stage.name == "instruct":
                inputs *= planned_per_image(config) * assumed.feasible
            edits = inputs
        elif stage.needs(config):
            stages.append(_stage(config, assumed, stage, inputs, {"image": inputs, "region": 0.0, "edit": 0.0}))
    used = {f"{model.role}/{model.name}" for stage in stages for model in stage.models}
    notes += [f"seconds of {name}: {cost.seconds:g} per {cost.per} on {assumed.machine} ({cost.basis})"
              for name, cost in sorted(assumed.models.items()) if name in used]  # fmt: skip
    notes += [
        f"qualified objects per photograph: {assumed.regions:g} ({assumed.basis})",
        f"share of the configured edits that a photograph can carry: {assumed.feasible:g} ({assumed.basis})",
        f"stored per edit: {assumed.edit_bytes / 1e6:g} MB ({assumed.basis})",
    ]
    problems = tuple(_problems(stages, gpu_memory_gb))
    return DataPlan(
        images=images, machine=assumed.machine, gpu_memory_gb=gpu_memory_gb, stages=tuple(stages), edits=round(edits),
        gpu_hours=round(sum(stage.gpu_hours for stage in stages), 2),
        api_usd=round(sum(stage.api_usd for stage in stages), 2),
        storage_gb=round(edits * assumed.edit_bytes / 1e9, 1), fits=not problems, problems=problems,
        assumptions=tuple(notes),
    )  # fmt: skip


def planned_per_image(config: RunConfig) -> float:
    """Samples that instruct plans for one photograph that can carry them all."""
    rates = config.instruct
    singles = sum(sum(group.values()) for group in (rates.donor_rates, rates.photograph_rates, rates.generated_rates))
    return float(singles + sum(rates.conversation_rates.values()))


def _units(config: RunConfig, assumed: Assumptions, stage: str, inputs: float) -> dict[str, float]:
    """How many images, regions, edits and calls per role the stage works on."""
    units = {"image": inputs, "region": inputs * assumed.regions, "edit": inputs}
    if stage == "instruct":
        units["edit"] = inputs * planned_per_image(config) * assumed.feasible
    if stage == "render":
        units |= {role: inputs * calls for role, calls in _render_calls(config).items()}
    return units


def _render_calls(config: RunConfig) -> dict[str, float]:
    """Calls of each role per rendered sample, over the mixture of types that the rates give."""
    rates = config.instruct
    total = planned_per_image(config)
    mixture: dict[str, float] = defaultdict(float, rates.generated_rates)
    for name in ("add", "remove", "style"):
        mixture[name] += rates.photograph_rates.get(name, 0)
    if rates.generated_conversations:
        mixture["conversation"] += sum(rates.conversation_rates.values())
    calls: dict[str, float] = defaultdict(float)
    editors = set(config.render.editors)
    for name, rate in mixture.items():
        if not rate:
            continue
        attempts = config.render.best_of.get(name, 1)
        roles = {"editor": 1.0} if name in editors else ROLE_CALLS.get(name, {})
        for role, number in roles.items():
            calls[role] += rate * number * attempts / total
        if attempts > 1:
            calls["judge"] += rate * attempts / total
    return dict(calls)


def _stage(config: RunConfig, assumed: Assumptions, stage: type[Stage], inputs: float, units: Mapping[str, float],
           ) -> PlannedStage:  # fmt: skip
    models = tuple(_model(role, config.models[role], assumed, units) for role in stage.needs(config))
    working = [_cost(assumed, role, config.models[role]).working_gb for role in stage.needs(config)]
    return PlannedStage(
        stage=stage.name, inputs=round(inputs), models=models,
        memory_gb=round(sum(model.memory_gb for model in models) + max(working, default=0.0), 1),
        gpu_hours=round(sum(model.gpu_hours for model in models), 3),
        api_usd=round(sum(model.api_usd for model in models), 2),
    )  # fmt: skip


def _cost(assumed: Assumptions, role: str, spec: ModelSpec) -> ModelCost:
    if stack_of(role, spec.name) == "embedded":
        return ModelCost(seconds=0, per="image", basis="runs on the CPU beside the GPU's work")
    cost = assumed.models.get(f"{role}/{spec.name}")
    if cost is None:
        raise UsageError(f"assumptions: models.{role}/{spec.name} is missing; add its seconds and their basis")
    return cost


def _model(role: str, spec: ModelSpec, assumed: Assumptions, units: Mapping[str, float]) -> PlannedModel:
    cost, options = _cost(assumed, role, spec), _options(role, spec)
    checkpoints = tuple(_checkpoints(options))
    counts = [parameters for _, _, parameters in checkpoints]
    calls = units.get(role, 0.0) if cost.per == "call" else units[cost.per]
    remote = "base_url" in options
    tokens = cost.prompt_tokens * options.get("price_input", 0.0) + cost.completion_tokens * options.get(
        "price_output", 0.0
    )
    return PlannedModel(
        role=role, name=spec.name, checkpoints=checkpoints,
        parameters=sum(count or 0 for count in counts) if any(counts) else None,
        memory_gb=0.0 if remote else round(sum(_memory(options, *found) for found in checkpoints) / 1e9, 2),
        calls=round(calls, 1), gpu_hours=0.0 if remote else round(calls * cost.seconds / 3600, 3),
        api_usd=round(calls * tokens / 1e6, 2) if remote else 0.0, basis=cost.basis,
    )  # fmt: skip


def _options(role: str, spec: ModelSpec) -> dict[str, Any]:
    found = implementation(role, spec.name)
    if not hasattr(found, "Options"):
        return {}
    options: dict[str, Any] = found.Options.model_validate(spec.options).model_dump()
    return options


def _checkpoints(options: Mapping[str, Any]) -> Iterator[tuple[str, str, int | None]]:
    """(id or folder, licence, number of weights) of every checkpoint that the options name."""
    known = packaged_manifest().models
    for value in options.values():
        if not isinstance(value, str):
            continue
        if value in known:
            yield value, known[value].licence, known[value].parameters
        elif Path(value).is_dir():
            yield value, "as its folder says", _counted(Path(value))


def _counted(folder: Path) -> int:
    """Number of weights in a folder's safetensors files, from their headers."""
    total = 0
    for path in sorted(folder.rglob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise EditFoundryError(f"{path}: not a safetensors file")
            header = json.loads(file.read(size))
        for name, tensor in header.items():
            if name != "__metadata__":
                number = 1
                for length in tensor["shape"]:
                    number *= length
                total += number
    return total


def _memory(options: Mapping[str, Any], checkpoint: str, licence: str, parameters: int | None) -> float:
    """Bytes that a checkpoint's weights take on the GPU."""
    del licence
    entry = packaged_manifest().models.get(checkpoint)
    width = BYTES_PER_WEIGHT[options.get("dtype", "auto")]
    width = QUANTISED.get(options.get("quantisation", "none"), width)
    resident = parameters or 0
    if options.get("offload", "none") != "none" and entry is not None:
        resident = entry.largest_part or resident
    return resident * width


def _problems(stages: list[PlannedStage], gpu_memory_gb: float) -> Iterator[str]:
    for stage in stages:
        if stage.memory_gb > gpu_memory_gb:
            largest = max(stage.models, key=lambda model: model.memory_gb)
            yield (
                f"{stage.stage} needs {stage.memory_gb:.1f} GB of GPU memory, there are {gpu_memory_gb:g}: set "
                f"models.{largest.role}.offload=model or .quantisation=nf4 (it takes {largest.memory_gb:.1f} GB), "
                "render fewer kinds of edits in one run, or name a larger GPU"
            )


def _survival(assumed: Assumptions, measured: RunDir | None) -> tuple[dict[str, float], list[str]]:
    """Share of inputs that go on per stage, and what of it is assumed."""
    if measured is None:
        notes = [f"share that passes {name}: {share:g} ({assumed.basis})" for name, share in assumed.survives.items()]
        return dict(assumed.survives), notes
    rows = funnel(measured).rows
    shares = {row.stage: row.accepted / row.inputs for row in rows if row.inputs and not row.barrier}
    return shares, [f"share that passes each stage: measured on {measured.path}"]
