"""visual: replace with the object a reference image shows; the reference is stored with the pair."""

from collections.abc import Iterator
from dataclasses import replace

from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, change_mask, on_donor, plain_reference
from editfoundry.data_engine.recipes.generated import described, in_context, on_generated, proposals
from editfoundry.data_engine.recipes.replace import Replace, find_swap
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Placement, Turn
from editfoundry.data_engine.scene import Image, Scene

MAX_DRAWN_SIDE = 512
"""Side in pixels of a drawn reference, which is square; smaller pictures get one of their own short side."""


class Visual(Recipe):
    """The instruction never says what the new object is: only the reference does.

    The reference is a donor's cut-out, which is placed; or a drawing, which a generative model inserts.
    """

    type = "visual"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin == "generated":
            for region, noun in proposals(plan, "visual", plan.lone_objects()):
                yield on_generated(plan, region, phrase=noun)
            return
        while True:
            old, placement = plan.place()
            new, placed = find_swap(plan, old, placement)
            yield on_donor(plan, old, placement, placed.model_dump(mode="json"), phrase=new.label, others=(new,))

    async def references(self, turn: Turn, tools: Tools) -> tuple[Image, ...]:
        if turn.operation.get("generated"):
            side = min(MAX_DRAWN_SIDE, *tools.source.grid)
            return (await tools.draw(described(turn.result_phrase), (side, side)),)
        return (plain_reference(tools.cutout(Placement.model_validate(turn.operation).donor)),)

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        [reference] = await self.references(turn, tools)
        if not turn.operation.get("generated"):
            return replace(await Replace().render(scene, turn, tools), reference=reference)
        area = tools.cover("inserter", tools.object_mask(turn.target))
        pixels = await tools.insert(scene.pixels, area, reference, in_context(turn.result_phrase, tools.source))
        after = scene.painted_over(turn.target, pixels, area)
        return Edited(after, change_mask(scene, after, area), reference)
