"""The render stage over the world of recipes: its configuration, samples planned for it, and what comes out."""

from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import pytest
from recipe_world import (
    CUTOUTS,
    DONORS,
    large_cup,
    photograph,
    plan,
    region,
    region_mask,
    source,
    turn_of,
)

from editfoundry.core.geometry import Grid, to_grid
from editfoundry.core.images import decode, decode_jpeg, encode_jpeg
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.recipes.base import Draft, recipe
from editfoundry.data_engine.recipes.generated import generated_add, generated_adjust, generated_remove
from editfoundry.data_engine.records import Reject, Sample
from editfoundry.data_engine.stages.base import Artifacts, Item
from editfoundry.data_engine.stages.render import Render
from editfoundry.models.registry import REGISTRY

FAKES = {
    "inpainter": "MeanFiller",
    "painter": "FlatPainter",
    "adjuster": "FlatPainter",
    "inserter": "FlatPainter",
    "reference": "DiscDrawer",
    "style": "Inverter",
    "editor": "Inverter",
    "judge": "ScriptedJudge",
}
SEED = 7


def register_fakes(patch: pytest.MonkeyPatch) -> None:
    """Let every role of rendering have an implementation "fake", the world's own."""
    for role, name in FAKES.items():
        patch.setitem(REGISTRY[role], "fake", f"recipe_world:{name}")


class MemoryArtifacts(Artifacts):
    """The catalogue's rows and cut-outs, in memory."""

    def rows(self, stage: str) -> Iterator[dict[str, Any]]:
        assert stage == "catalogue"
        return (donor.model_dump(mode="json") for donor in DONORS)

    def blob(self, stage: str, shard: int, record_id: str, member: str) -> bytes:
        return cv2.imencode(".png", cv2.cvtColor(CUTOUTS[record_id], cv2.COLOR_RGBA2BGRA))[1].tobytes()


def config(instruct: dict[str, Any] | None = None, without: Sequence[str] = (), **render: Any) -> RunConfig:
    models = {role: "fake" for role in FAKES if role not in without}
    return RunConfig.model_validate(
        {
            "seed": SEED,
            "models": models,
            "ingest": {"sources": [{"path": "/photographs"}]},
            "instruct": instruct or {},
            "render": render,
        }
    )


def everything(**render: Any) -> Render:
    """A stage with every generative model, set up."""
    rates = dict.fromkeys(("replace", "adjust", "background", "visual", "extract", "compose"), 1)
    stage = Render(config({"generated_rates": rates}, **render))
    stage.setup(MemoryArtifacts())
    return stage


def item_of(sample: Sample) -> Item:
    number = int(sample.source.id, 16) % 97
    return Item(sample, {"original": encode_jpeg(photograph(number), quality=95)})


def sample_of(name: str, number: int = 0, origin: str = "generated", instruction: str = "Edit it.") -> Sample:
    """The first sample that the recipe plans for one of many photographs."""
    cup = large_cup() if name == "background" else region("r0", "cup", region_mask())
    of = source(id=f"{number:016x}", regions=(cup,))
    draft = next(recipe(name).plan(plan(of, origin, number)))
    return planned_sample(of, f"{of.id}_{name}_g0", "single", [turn_of(name, draft)], draft, instruction)


def conversation_of(number: int = 0) -> Sample:
    of = source(id=f"{number:016x}")
    planned = plan(of, "generated", number)
    drafts = [make(planned, of.regions[0]) for make in (generated_add, generated_adjust, generated_remove)]
    steps = zip(("add", "adjust", "remove"), drafts, strict=True)
    turns = [turn_of(name, draft, index + 1, index) for index, (name, draft) in enumerate(steps)]
    return planned_sample(
        of, f"{of.id}_content_understanding_0", "content_understanding", turns, drafts[0], "Change it."
    )


def planned_sample(of: Any, name: str, kind: Any, turns: list[Any], draft: Draft, instruction: str) -> Sample:
    worded = tuple(turn.model_copy(update={"instruction": instruction}) for turn in turns)
    return Sample(id=name, kind=kind, source=of, initial=draft.initial, turns=worded, donors=draft.donors)


def render(stage: Render, *samples: Sample) -> list[Item | Reject]:
    return [outcome for [outcome] in stage.process([stage.prepare(item_of(sample)) for sample in samples])]


def contents(outcome: Item | Reject) -> tuple[str, dict[str, bytes]]:
    return (outcome.record.to_json(), outcome.blobs) if isinstance(outcome, Item) else (outcome.to_json(), {})


def node(item: Item, index: int) -> np.ndarray:
    return decode_jpeg(item.blobs[f"node{index}.jpg"])


def calls(stage: Render, role: str) -> list[int]:
    """How many requests each call of a role's model carried."""
    return [len(call) for call in stage.models[role].calls]


def photographed(number: int) -> np.ndarray:
    """What the stage starts from: the photograph as its member decodes."""
    grid = Grid(*source().grid)
    return to_grid(decode(encode_jpeg(photograph(number), quality=95)), grid)
