"""adjust: colour or material of one object, in Lab inside its matte; shape, light and shade stay."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from editfoundry.core.geometry import Mask
from editfoundry.data_engine.paint import PAINTS, Paint, choices, colour_distance, repaint
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, change_mask, on_donor, on_region
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
    distance = colour_distance(scene.pixels, after.pixels, inside.erode(3).array)
    if distance < MIN_COLOUR_DISTANCE:
        raise Refused("barely_visible", f"mean colour difference {distance:.1f}, below {MIN_COLOUR_DISTANCE}")
    return after, inside


class Adjust(Recipe):
    """One colour or material from `paint.PAINTS`."""

    type = "adjust"

    def plan(self, plan: Plan) -> Iterator[Draft]:
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
        after, inside = painted(scene, turn.target, PAINTS[turn.operation["paint"]], tools)
        return Edited(after, change_mask(scene, after, inside))
