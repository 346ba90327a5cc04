"""visual: replace with the object a reference image shows; the reference is stored with the pair."""

from collections.abc import Iterator
from dataclasses import replace

from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, on_donor, plain_reference
from editfoundry.data_engine.recipes.replace import Replace, find_swap
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Placement, Turn
from editfoundry.data_engine.scene import Scene


class Visual(Recipe):
    """The instruction never says what the new object is: only the reference does."""

    type = "visual"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        while True:
            old, placement = plan.place()
            new, placed = find_swap(plan, old, placement)
            yield on_donor(plan, old, placement, placed.model_dump(mode="json"), phrase=new.label, others=(new,))

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        edited = await Replace().render(scene, turn, tools)
        cutout = tools.cutout(Placement.model_validate(turn.operation).donor)
        return replace(edited, reference=plain_reference(cutout))
