"""compose: two different operations on two objects that stand well apart, in one instruction."""

from collections.abc import Iterator
from typing import Any

from editfoundry.core.english import a
from editfoundry.core.geometry import Box
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
from editfoundry.data_engine.recipes.replace import find_swap
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Donor, Placement, Turn
from editfoundry.data_engine.scene import Scene

MIN_GAP_AT_1024 = 100
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


class Compose(Recipe):
    """Each step is the recipe of its own type; the mask is the union of theirs."""

    type = "compose"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        for _ in range(24):
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
            gap = Box.from_list(one.box).distance(Box.from_list(two.box))
            if gap < MIN_GAP_AT_1024 * min(plan.source.grid) / 1024:
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
