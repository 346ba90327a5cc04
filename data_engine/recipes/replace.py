"""replace: the object that stands there gives way to another of believable size on the same spot."""

from collections.abc import Callable, Iterator

from editfoundry.core.english import a
from editfoundry.core.geometry import Box, Grid
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, change_mask, on_donor
from editfoundry.data_engine.recipes.generated import in_context, proposals, replacing
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Donor, Placement, Turn
from editfoundry.data_engine.scene import Scene

FRAME_MARGIN = 8
MAX_UPSCALE = 1.5
MIN_SIDE = 48


def swapped(
    placement: Placement, old: Donor, new: Donor, grid: Grid, area_ratio: tuple[float, float] = (0.5, 2.2)
) -> Placement | None:
    """The new donor at its true size on the old one's foot point (centre, in the sky); None when it does not fit."""
    box = Box.from_list(placement.box)
    height = box.height * new.height_m / old.height_m
    width = height * new.width / new.height
    bottom = (box.y0 + box.y1 + height) / 2 if placement.zone == "sky" else box.y1
    centre = (box.x0 + box.x1) / 2
    x0, y0 = centre - width / 2, bottom - height
    fits = (
        placement.zone in new.zones
        and max(width, height) >= MIN_SIDE
        and min(width, height) >= MIN_SIDE / 2
        and height <= MAX_UPSCALE * new.height
        and area_ratio[0] <= width * height / box.area <= area_ratio[1]
        and x0 >= FRAME_MARGIN
        and y0 >= FRAME_MARGIN
        and x0 + width <= grid.width - FRAME_MARGIN
        and bottom <= grid.height - FRAME_MARGIN
    )
    if not fits:
        return None
    return placement.model_copy(update={"donor": new.sha256, "label": new.label, "box": (x0, y0, x0 + width, bottom)})


def find_swap(
    plan: Plan, old: Donor, placement: Placement, accept: Callable[[Donor], bool] | None = None
) -> tuple[Donor, Placement]:
    """A donor of another label that fits in the old one's place. Raises Refused."""
    for index in plan.rng.permutation(len(plan.cutouts)):
        new = plan.cutouts[index]
        if new.label.split()[-1] == old.label.split()[-1] or (accept and not accept(new)):
            continue
        placed = swapped(placement, old, new, plan.grid)
        if placed is not None:
            return new, placed
    raise Refused("no_swap", f"no other donor fits where {old.label} stands")


class Replace(Recipe):
    """Donor for donor, where source and result are exact composites over the same photograph; or a real object that

    gives way to what a generative model paints over it.
    """

    type = "replace"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin == "generated":
            for region, noun in proposals(plan, "replace", plan.lone_objects()):
                yield replacing(plan, region, noun)
            return
        while True:
            old, placement = plan.place()
            new, placed = find_swap(plan, old, placement)
            yield on_donor(
                plan,
                old,
                placement,
                placed.model_dump(mode="json"),
                result=a(new.label),
                phrase=new.label,
                others=(new,),
                named=(new,),
            )

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        if turn.operation.get("generated"):
            area = tools.cover("painter", tools.object_mask(turn.target))
            pixels = await tools.paint(scene.pixels, area, in_context(turn.result_phrase, tools.source))
            after = scene.painted_over(turn.target, pixels, area)
            return Edited(after, change_mask(scene, after, area))
        placement = Placement.model_validate(turn.operation)
        after = tools.place(scene.without(turn.target), placement)
        touched = scene.touched((turn.target,)) | after.touched((placement.object,))
        return Edited(after, change_mask(scene, after, touched))
