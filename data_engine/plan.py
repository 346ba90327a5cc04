"""What a run would need before it is started: models, GPU memory, GPU-hours, API cost and storage for N images.

Every number is either counted from the configuration and the model store, measured on a finished run, or an assumption
that is listed by name with its basis. Memory is what a stage's models hold together, since a worker keeps them all
loaded: weights at the configured precision (see `footprint`), plus the largest working set.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from pydantic import Field

from editfoundry.core.config import Config, load_config
from editfoundry.core.errors import UsageError
from editfoundry.data_engine.audit import funnel
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.footprint import Weights, resident_gb, weights_of
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.stages.base import Stage
from editfoundry.models.registry import ModelSpec, implementation, stack_of

ASSUMPTIONS = "data/assumptions.yaml"
REMEDIES = {"offload": "model", "quantisation": "nf4"}
"""Options that make a model take less memory."""
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
    """A model of a stage. checkpoints: id or folder, licence, number of weights. memory_gb: of its weights alone, at

    the configured precision and with its offloading. calls: of the model. basis: of the seconds a call takes.
    """

    role: str
    name: str
    checkpoints: tuple[tuple[str, str, int | None], ...]
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
    samples: int
    gpu_hours: float
    api_usd: float
    storage_gb: float
    fits: bool
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]


def plan(config: RunConfig, images: int, gpu_memory_gb: float, measured: RunDir | None = None,
         assumptions: str = ASSUMPTIONS) -> DataPlan:  # fmt: skip
    """Work out a plan. `measured`: a finished run whose shares and seconds replace the assumed ones.

    Raises UsageError when a model of the configuration has no assumed cost.
    """
    from editfoundry.data_engine.pipeline import STAGES

    if images < 1:
        raise UsageError(f"--images {images}: at least one")
    if not math.isfinite(gpu_memory_gb):
        raise UsageError(f"--gpu-memory {gpu_memory_gb}: a number of GB")
    for stage in STAGES:
        stage(config)  # as a run would: raises ConfigError for a role that is needed and not named
    assumed = load_config(Assumptions, assumptions)
    known = Measured.of(measured) if measured else None
    survives = known.survives if known else assumed.survives
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
    if known:
        stages = [_timed(stage, known.seconds) for stage in stages]
    notes = _sources(assumed, measured)
    served = {f"{model.role}/{model.name}" for stage in stages for model in stage.models if _is_served(config, model)}
    timed = set(known.seconds) if known else set()
    used = {f"{model.role}/{model.name}" for stage in stages if stage.stage not in timed for model in stage.models}
    notes += [f"{name} is served elsewhere: its GPU-hours are not counted" for name in sorted(served)]
    notes += [f"seconds of {name}: {cost.seconds:g} per {cost.per} on {assumed.machine} ({cost.basis})"
              for name, cost in sorted(assumed.models.items()) if name in used - served]  # fmt: skip
    notes += [
        f"qualified objects per photograph: {assumed.regions:g} ({assumed.basis})",
        f"share of the configured edits that a photograph can carry: {assumed.feasible:g} ({assumed.basis})",
        f"stored per edit: {assumed.edit_bytes / 1e6:g} MB ({assumed.basis})",
    ]
    problems = tuple(_problems(stages, gpu_memory_gb))
    return DataPlan(
        images=images, machine=assumed.machine, gpu_memory_gb=gpu_memory_gb, stages=tuple(stages), samples=round(edits),
        gpu_hours=round(sum(stage.gpu_hours for stage in stages), 2),
        api_usd=round(sum(stage.api_usd for stage in stages), 2),
        storage_gb=round(edits * assumed.edit_bytes / 1e9, 1), fits=not problems, problems=problems,
        assumptions=tuple(notes),
    )  # fmt: skip


def _is_served(config: RunConfig, model: PlannedModel) -> bool:
    return "base_url" in _options(model.role, config.models[model.role])


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


def _stage(
    config: RunConfig, assumed: Assumptions, stage: type[Stage], inputs: float, units: Mapping[str, float]
) -> PlannedStage:
    specs = {role: config.models[role] for role in stage.needs(config)}
    costs = {role: _cost(assumed, role, spec) for role, spec in specs.items()}
    options = {role: _options(role, spec) for role, spec in specs.items()}
    weights = {role: weights_of(options[role]) for role in specs}
    models = tuple(
        _model(role, spec.name, costs[role], options[role], weights[role], units) for role, spec in specs.items()
    )
    working = max((cost.working_gb for cost in costs.values()), default=0.0)
    return PlannedStage(
        stage=stage.name,
        inputs=round(inputs),
        models=models,
        memory_gb=round(resident_gb(chain.from_iterable(weights.values())) + working, 1),
        gpu_hours=round(sum(model.gpu_hours for model in models), 3),
        api_usd=round(sum(model.api_usd for model in models), 2),
    )


def _cost(assumed: Assumptions, role: str, spec: ModelSpec) -> ModelCost:
    if stack_of(role, spec.name) == "embedded":
        return ModelCost(seconds=0, per="image", basis="runs on the CPU beside the GPU's work")
    cost = assumed.models.get(f"{role}/{spec.name}")
    if cost is None:
        raise UsageError(f"assumptions: models.{role}/{spec.name} is missing; add its seconds and their basis")
    return cost


def _model(
    role: str,
    name: str,
    cost: ModelCost,
    options: Mapping[str, Any],
    weights: Sequence[Weights],
    units: Mapping[str, float],
) -> PlannedModel:
    calls = units.get(role, 0.0) if cost.per == "call" else units[cost.per]
    remote = "base_url" in options
    usd = sum(
        tokens * options.get(price, 0.0) / 1e6
        for tokens, price in ((cost.prompt_tokens, "price_input"), (cost.completion_tokens, "price_output"))
    )
    return PlannedModel(
        role=role,
        name=name,
        checkpoints=tuple((one.checkpoint, one.licence, one.parameters) for one in weights),
        memory_gb=round(resident_gb(weights), 2),
        calls=round(calls, 1),
        gpu_hours=0.0 if remote else round(calls * cost.seconds / 3600, 3),
        api_usd=round(calls * usd, 2) if remote else 0.0,
        basis=cost.basis,
    )


def _options(role: str, spec: ModelSpec) -> dict[str, Any]:
    found = implementation(role, spec.name)
    if not hasattr(found, "Options"):
        return {}
    options: dict[str, Any] = found.Options.model_validate(spec.options).model_dump()
    if found.__module__.startswith("editfoundry.models.perception."):
        options["dtype"] = "float32"  # their weights stay so; a lower precision is that of the computation
    return options


def _problems(stages: list[PlannedStage], gpu_memory_gb: float) -> Iterator[str]:
    for stage in stages:
        if stage.memory_gb > gpu_memory_gb:
            largest = max(stage.models, key=lambda model: model.memory_gb)
            offered = implementation(largest.role, largest.name).Options.model_fields
            settings = [f"{name}={value}" for name, value in REMEDIES.items() if name in offered]
            set_them = f"set models.{largest.role}.{' or .'.join(settings)}" if settings else "serve it by URL (openai)"
            yield (
                f"{stage.stage} needs {stage.memory_gb:.1f} GB of GPU memory, there are {gpu_memory_gb:g}; its largest "
                f"model, {largest.role}: {largest.name}, takes {largest.memory_gb:.1f} GB: {set_them}, plan fewer "
                "kinds of edits per run, or name a larger GPU"
            )


def _sources(assumed: Assumptions, measured: RunDir | None) -> list[str]:
    if measured is not None:
        return [
            f"shares that pass a stage and seconds per input: measured on {measured.path}, with its machine and models"
        ]
    return [f"share that passes {name}: {share:g} ({assumed.basis})" for name, share in assumed.survives.items()]


def _timed(stage: PlannedStage, seconds: Mapping[str, float]) -> PlannedStage:
    """The stage with measured worker time, where the run had the stage; the models' own shares of it stay assumed."""
    if stage.stage not in seconds:
        return stage
    return stage.model_copy(update={"gpu_hours": round(stage.inputs * seconds[stage.stage] / 3600, 3)})


class Measured(Record):
    """Of a finished run, by stage: the share of inputs that went on, and worker seconds per input."""

    survives: dict[str, float]
    seconds: dict[str, float]

    @classmethod
    def of(cls, run: RunDir) -> "Measured":
        """Read its commit records."""
        rows = [row for row in funnel(run).rows if row.inputs and not row.barrier]
        return cls(
            survives={row.stage: row.accepted / row.inputs for row in rows},
            seconds={row.stage: row.elapsed_s / row.inputs for row in rows},
        )


def plan_rows(plan: DataPlan) -> Iterator[tuple[str, ...]]:
    """The plan as table rows: one per stage, then one per model of it that takes GPU memory, time or money.

    Columns: stage, inputs, model, checkpoints, weights (billions), licence, GB, calls, GPU-hours, USD.
    """
    for stage in plan.stages:
        yield (stage.stage, f"{stage.inputs:,}", "", "", "", "", f"{stage.memory_gb:.1f}", "",
               f"{stage.gpu_hours:,.1f}", f"{stage.api_usd:,.2f}")  # fmt: skip
        for model in stage.models:
            if not (model.memory_gb or model.gpu_hours or model.api_usd):
                continue
            weights = sum(parameters or 0 for _, _, parameters in model.checkpoints) / 1e9
            licences = dict.fromkeys(licence for _, licence, _ in model.checkpoints)
            yield ("", "", f"{model.role}: {model.name}", ", ".join(name for name, _, _ in model.checkpoints),
                   f"{weights:.2f} B" if weights else "", ", ".join(licences), f"{model.memory_gb:.1f}",
                   f"{model.calls:,.0f}", f"{model.gpu_hours:,.1f}", f"{model.api_usd:,.2f}")  # fmt: skip
