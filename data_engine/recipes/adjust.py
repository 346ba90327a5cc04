"""adjust: colour or material of one object; its shape stays. In Lab inside its matte, or by a generative model."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from editfoundry.core.geometry import Mask
from editfoundry.data_engine.paint import PAINTS, Paint, choices, colour_distance, repaint
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, change_mask, on_donor, on_region
from editfoundry.data_engine.recipes.generated import adjusting, in_context, proposals
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Turn
from editfoundry.data_engine.scene import Scene

MIN_COLOUR_DISTANCE = 18.0
NEVER_PAINTED = frozenset({"person"})


def painted(scene: Scene, target: str, paint: Paint, tools: Tools) -> tuple[Scene, Mask]:
    """The scene with the paint on one object, and the pixels the paint may touch. Refused when nobody would see it."""
    if scene.has(target):
        layer = scene.layer(target)
        after = scene.with_layer(
            target, replace(layer, rgb=repaint(layer.rgb, (layer.alpha > 0).astype(np.float32), paint))
        )
        inside = after.touched((target,))
    else:
        inside = tools.region_mask(target)
        weight = inside.erode(1).feather(2)
        after = scene.with_base(repaint(scene.base, weight, paint))
    check_visible(scene, after, inside)
    return after, inside


async def redone(scene: Scene, turn: Turn, tools: Tools) -> tuple[Scene, Mask]:
    """The scene with one real object as the turn's result phrase says, and the pixels painted for it."""
    area = tools.cover("adjuster", tools.region_mask(turn.target))
    pixels = await tools.adjust(scene.pixels, area, in_context(turn.result_phrase, tools.source))
    after = scene.painted_over(turn.target, pixels, area)
    check_visible(scene, after, tools.region_mask(turn.target))
    return after, area


def check_visible(before: Scene, after: Scene, inside: Mask) -> None:
    """Raises Refused when nobody would see that the object inside the mask changed."""
    distance = colour_distance(before.pixels, after.pixels, inside.erode(3).array)
    if distance < MIN_COLOUR_DISTANCE:
        raise Refused("barely_visible", f"mean colour difference {distance:.1f}, below {MIN_COLOUR_DISTANCE}")


class Adjust(Recipe):
    """One colour or material from `paint.PAINTS`, or any look that a generative model can give."""

    type = "adjust"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin == "generated":
            for region, look in proposals(plan, "adjust", plan.lone_objects()):
                yield adjusting(plan, region, look)
            return
        if plan.origin == "photograph":
            lone = [r for r in plan.lone_objects() if r.label not in NEVER_PAINTED]
            if not lone:
                raise Refused("no_object", "no lone object of this photograph is surely known and may be painted")
            for name in plan.rng.permutation(list(PAINTS)).tolist():
                for region in lone:
                    words, phrase = PAINTS[name].words, f"{name} {region.label}"
                    yield on_region(plan, region, {"paint": name}, result=words, phrase=phrase)
            return
        while True:
            donor, placement = plan.place()
            name = str(plan.rng.choice(choices(donor.colour)))
            words, phrase = PAINTS[name].words, f"{name} {donor.label}"
            yield on_donor(plan, donor, placement, {"paint": name}, result=words, phrase=phrase)

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        if turn.operation.get("generated"):
            after, inside = await redone(scene, turn, tools)
            return Edited(after, change_mask(scene, after, inside))
        after, inside = painted(scene, turn.target, PAINTS[turn.operation["paint"]], tools)
        return Edited(after, change_mask(scene, after, inside))
