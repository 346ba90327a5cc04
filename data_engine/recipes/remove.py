"""remove: a placed donor taken out again (the result is the untouched photograph), or a real object inpainted away."""

from collections.abc import Iterator

from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, change_mask, on_donor
from editfoundry.data_engine.recipes.generated import generated_remove
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Region, Turn
from editfoundry.data_engine.scene import Scene

MAX_REMOVED_SHARE = 0.85 * 0.22
"""Largest share of the image an object to be removed may have; the inpainter's own limit holds at rendering."""


def removable(plan: Plan) -> list[Region]:
    """Real objects that inpainting can hope to remove: alone of their kind, whole, and not too large."""
    width, height = plan.source.grid
    found = [
        r
        for r in plan.lone_objects()
        if r.area <= MAX_REMOVED_SHARE
        and r.box[0] > 2
        and r.box[1] > 2
        and r.box[2] < width - 2
        and r.box[3] < height - 2
    ]
    if not found:
        raise Refused("no_removable_object", "no whole, lone object small enough to inpaint")
    return found


async def without_region(scene: Scene, region: str, tools: Tools) -> Scene:
    """The scene with a real object (and all that is nested in it) inpainted away."""
    mask = tools.cover("inpainter", tools.object_mask(region))
    return scene.with_base(await tools.inpaint(scene.base, mask))


class Remove(Recipe):
    """With a donor the result is exact; with a real object it is what the inpainter makes of it."""

    type = "remove"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin != "donor":
            for region in removable(plan):
                yield generated_remove(plan, region)
            return
        while True:
            donor, placement = plan.place()
            yield on_donor(plan, donor, placement, {})

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        if scene.has(turn.target):
            after = scene.without(turn.target)
            return Edited(after, change_mask(scene, after, scene.touched((turn.target,))))
        after = await without_region(scene, turn.target, tools)
        return Edited(after, change_mask(scene, after, tools.region_mask(turn.target)))
