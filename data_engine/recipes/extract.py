"""extract: one object on pure white, cut out along its matte."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, on_donor, on_region
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Turn
from editfoundry.data_engine.scene import Scene
from editfoundry.models.embedded.compositing import composite


class Extract(Recipe):
    """The object keeps its place and size; everything else is 255."""

    type = "extract"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin == "photograph":
            regions = plan.lone_objects()
            if not regions:
                raise Refused("no_object", "no lone object of this photograph is surely known")
            for region in regions:
                yield on_region(plan, region, {}, phrase=f"{region.label} on white")
            return
        while True:
            donor, placement = plan.place()
            yield on_donor(plan, donor, placement, {}, phrase=f"{donor.label} on white")

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        white = np.full_like(scene.base, 255)
        if scene.has(turn.target):
            layer = scene.layer(turn.target)
            return Edited(Scene(composite(white, replace(layer, shadow=np.zeros_like(layer.shadow)))))
        alpha = tools.region_mask(turn.target).erode(1).feather(1)[..., None]
        return Edited(Scene((alpha * scene.base + (1 - alpha) * white).round().astype(np.uint8)))
