"""add: a donor object placed into the photograph, or a real object put back where inpainting took it away."""

from collections.abc import Iterator
from typing import Any

from editfoundry.data_engine.paint import PAINTS
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, change_mask, on_donor
from editfoundry.data_engine.recipes.generated import generated_add
from editfoundry.data_engine.recipes.remove import removable, without_region
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Placement, Turn
from editfoundry.data_engine.scene import Scene


def adding(placement: Placement, paint: str = "") -> dict[str, Any]:
    """The operation of an addition, in a given paint if any."""
    return {"placement": placement.model_dump(mode="json")} | ({"paint": paint} if paint else {})


class Add(Recipe):
    """The photograph is the source (donor) or the result (a removal of a real object, reversed)."""

    type = "add"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin != "donor":
            for region in removable(plan):
                yield generated_add(plan, region)
            return
        while True:
            donor, placement = plan.place()
            yield on_donor(plan, donor, placement, adding(placement), phrase=donor.label, initial=False)

    async def start(self, scene: Scene, turn: Turn, tools: Tools) -> Scene:
        return await without_region(scene, turn.target, tools) if turn.operation.get("reversed") else scene

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        if turn.operation.get("reversed"):
            gone = tools.cover("inpainter", tools.object_mask(turn.target))
            after = scene.painted_over(turn.target, tools.original, gone)
            return Edited(after, change_mask(scene, after, tools.region_mask(turn.target)))
        placement = Placement.model_validate(turn.operation["placement"])
        after = tools.place(scene, placement, PAINTS.get(turn.operation.get("paint", "")))
        return Edited(after, change_mask(scene, after, after.touched((placement.object,))))
