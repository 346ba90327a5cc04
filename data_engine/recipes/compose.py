"""compose: two different operations on two objects that stand well apart, in one instruction."""

from collections.abc import Iterator
from typing import Any

from editfoundry.core.english import a
from editfoundry.data_engine.paint import PAINTS, choices
from editfoundry.data_engine.recipes.add import adding
from editfoundry.data_engine.recipes.base import (
    Draft,
    Edited,
    Plan,
    Recipe,
    Refused,
    change_mask,
    object_fields,
    recipe,
    unlike,
)
from editfoundry.data_engine.recipes.generated import (
    apart,
    generated_add,
    generated_adjust,
    generated_remove,
    generated_replace,
)
from editfoundry.data_engine.recipes.remove import removable
from editfoundry.data_engine.recipes.replace import find_swap
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Donor, Placement, Region, Turn
from editfoundry.data_engine.scene import Scene

TRIES = 24
PHRASES = {
    "add": "add {a_object} {position}",
    "remove": "remove {the_object} {position}",
    "replace": "replace {the_object} {position} with {result}",
    "adjust": "make {the_object} {position} {result}",
}
PAIRS = (
    ("remove", "adjust"),
    ("add", "remove"),
    ("replace", "remove"),
    ("adjust", "replace"),
    ("add", "adjust"),
    ("replace", "add"),
)
GENERATED = {
    "add": generated_add,
    "remove": generated_remove,
    "replace": generated_replace,
    "adjust": generated_adjust,
}


class Compose(Recipe):
    """Each step is the recipe of its own type; the mask is the union of theirs."""

    type = "compose"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin == "generated":
            yield from _on_real_objects(plan)
            return
        for _ in range(TRIES):
            kinds = PAIRS[int(plan.rng.integers(len(PAIRS)))]
            first, one = plan.place(name="o1")
            try:
                second, two = plan.place(name="o2", avoid=(one,), accept=unlike(first))
                steps: list[dict[str, Any]] = [
                    _step(plan, kind, donor, placement)
                    for kind, donor, placement in zip(kinds, (first, second), (one, two), strict=True)
                ]
            except Refused:
                continue
            if not apart(plan, one.box, two.box):
                continue
            initial = tuple(p for kind, p in zip(kinds, (one, two), strict=True) if kind != "add")
            phrases = [PHRASES[kind].format_map(step["fields"]) for kind, step in zip(kinds, steps, strict=True)]
            donors = tuple(dict.fromkeys(sha for step in steps for sha in step["donors"]))
            operation = {"steps": [{k: step[k] for k in ("type", "target", "operation")} for step in steps]}
            yield Draft(
                operation,
                {"first": phrases[0], "second": phrases[1]},
                initial=initial,
                target="o1",
                target_label=f"{first.label}, {second.label}",
                names=(first.label, second.label),
                donors=donors,
                result_phrase="; ".join(phrases),
            )
        raise Refused("no_room", "no two objects fit far enough apart")

    async def start(self, scene: Scene, turn: Turn, tools: Tools) -> Scene:
        for step in turn.operation["steps"]:
            scene = await recipe(step["type"]).start(scene, turn.model_copy(update=step), tools)
        return scene

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        after, planned = scene, None
        for step in turn.operation["steps"]:
            part = turn.model_copy(update=step)
            edited = await recipe(step["type"]).render(after, part, tools)
            after = edited.scene
            assert edited.mask is not None
            planned = edited.mask if planned is None else planned | edited.mask
        assert planned is not None
        return Edited(after, change_mask(scene, after, planned, margin=0))


def _on_real_objects(plan: Plan) -> Iterator[Draft]:
    """Two operations on two real objects of different classes; each step carries the result that its model paints."""
    regions = plan.lone_objects()
    pairs = [(r, s) for r in regions for s in regions if r.label != s.label and apart(plan, r.box, s.box)]
    if not pairs:
        raise Refused("no_pair", "no two lone objects of this photograph stand far enough apart")
    for _ in range(TRIES):
        kinds = PAIRS[int(plan.rng.integers(len(PAIRS)))]
        chosen = pairs[int(plan.rng.integers(len(pairs)))]
        try:
            drafts = [_generated(plan, kind, region) for kind, region in zip(kinds, chosen, strict=True)]
        except Refused:
            continue
        phrases = [PHRASES[kind].format_map(draft.fields) for kind, draft in zip(kinds, drafts, strict=True)]
        steps = [
            {"type": kind, "target": draft.target, "operation": draft.operation, "result_phrase": draft.result_phrase}
            for kind, draft in zip(kinds, drafts, strict=True)
        ]
        yield Draft(
            {"generated": True, "steps": steps},
            {"first": phrases[0], "second": phrases[1]},
            target=drafts[0].target,
            target_label=", ".join(draft.target_label for draft in drafts),
            names=tuple(draft.target_label for draft in drafts),
            result_phrase="; ".join(phrases),
            origin="generated",
        )
    raise Refused("no_room", "no two operations fit the objects that stand far enough apart")


def _generated(plan: Plan, kind: str, region: Region) -> Draft:
    if kind in ("add", "remove") and region not in removable(plan):
        raise Refused("no_removable_object", f"the {region.label} is too large or cut off")
    return GENERATED[kind](plan, region)


def _step(plan: Plan, kind: str, donor: Donor, placement: Placement) -> dict[str, Any]:
    position, donors = plan.where(placement.box), [donor.sha256]
    operation: dict[str, Any] = {}
    result = ""
    if kind == "add":
        operation = adding(placement)
    elif kind == "replace":
        new, placed = find_swap(plan, donor, placement)
        operation, result = placed.model_dump(mode="json"), a(new.label)
        donors.append(new.sha256)
    elif kind == "adjust":
        name = str(plan.rng.choice(choices(donor.colour)))
        operation, result = {"paint": name}, PAINTS[name].words
    return {
        "type": kind,
        "target": placement.object,
        "operation": operation,
        "donors": donors,
        "fields": object_fields(donor.label, position, result),
    }
