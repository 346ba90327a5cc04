"""count: more or fewer of one kind of object."""

from collections.abc import Iterator

from editfoundry.core.english import plural
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, change_mask, only
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Placement, Turn
from editfoundry.data_engine.scene import Scene
from editfoundry.data_engine.wording import NUMBERS

CHANGES = ((1, 2), (1, 3), (2, 3), (2, 1), (3, 1), (3, 2))


class Count(Recipe):
    """The first `before` copies stand in the source, the first `after` in the result."""

    type = "count"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        for _ in range(12):
            before, after = CHANGES[int(plan.rng.integers(len(CHANGES)))]
            donor, first = plan.place()
            copies = [first]
            try:
                while len(copies) < max(before, after):
                    _, placement = plan.place(
                        name=f"o{len(copies) + 1}",
                        avoid=copies,
                        accept=only(donor),
                    )
                    copies.append(placement.model_copy(update={"flip": len(copies) % 2 == 1}))
            except Refused:
                continue
            fields = {
                "object": donor.label,
                "objects": plural(donor.label),
                "before": NUMBERS[before],
                "objects_after": donor.label if after == 1 else plural(donor.label),
                "after": NUMBERS[after],
            }
            operation = {"copies": [c.model_dump(mode="json") for c in copies], "before": before, "after": after}
            yield Draft(
                operation,
                fields,
                initial=tuple(copies[:before]),
                target="o1",
                target_label=donor.label,
                result_phrase=f"{NUMBERS[after]} {fields['objects_after']}",
                donors=(donor.sha256,),
                names=(NUMBERS[before], NUMBERS[after]),
            )
        raise Refused("no_room", "no donor fits here several times")

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        copies = [Placement.model_validate(copy) for copy in turn.operation["copies"]]
        after, names = scene, []
        for index, copy in enumerate(copies):
            if turn.operation["after"] <= index < turn.operation["before"]:
                names.append(copy.object)
                after = after.without(copy.object)
            if turn.operation["before"] <= index < turn.operation["after"]:
                names.append(copy.object)
                after = tools.place(after, copy)
        return Edited(after, change_mask(scene, after, scene.touched(names) | after.touched(names)))
