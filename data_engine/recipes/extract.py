"""extract: one object on pure white, cut out along its matte; or a drawn object, which stands in the source."""

from collections.abc import Iterator
from dataclasses import replace

import cv2
import numpy as np

from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, on_donor, on_region
from editfoundry.data_engine.recipes.generated import described, in_context, on_generated
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Turn
from editfoundry.data_engine.scene import Image, Scene
from editfoundry.models.embedded.compositing import composite

GROUND, OBJECT = 6.0, 14.0
"""CIE76 difference from a drawing's ground up to which a pixel is ground, and from which on it is object."""


class Extract(Recipe):
    """The object keeps its place and size (a drawn one, its own); everything else is 255."""

    type = "extract"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if plan.origin == "donor":
            while True:
                donor, placement = plan.place()
                yield on_donor(plan, donor, placement, {}, phrase=f"{donor.label} on white")
        regions = plan.lone_objects()
        if not regions:
            raise Refused("no_object", "no lone object of this photograph is surely known")
        for region in regions:
            phrase = f"{region.label} on white"
            if plan.origin == "generated":
                yield on_generated(plan, region, phrase=phrase, open_result=False)
            else:
                yield on_region(plan, region, {}, phrase=phrase)

    async def start(self, scene: Scene, turn: Turn, tools: Tools) -> Scene:
        if not turn.operation.get("generated"):
            return scene
        side = min(scene.shape)
        drawn = await tools.draw(described(turn.target_label), (side, side))
        alone = centred(on_white(drawn, tools.max_uneven_ground), scene.shape)
        area = tools.cover("inserter", tools.object_mask(turn.target))
        pixels = await tools.insert(scene.pixels, area, drawn, in_context(turn.target_label, tools.source))
        return replace(scene.painted_over(turn.target, pixels, area), alone=((turn.target, alone),))

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        if turn.operation.get("generated"):
            return Edited(Scene(dict(scene.alone)[turn.target]))
        white = np.full_like(scene.base, 255)
        if scene.has(turn.target):
            layer = scene.layer(turn.target)
            return Edited(Scene(composite(white, replace(layer, shadow=np.zeros_like(layer.shadow)))))
        alpha = tools.region_mask(turn.target).erode(1).feather(1)[..., None]
        return Edited(Scene((alpha * scene.base + (1 - alpha) * white).round().astype(np.uint8)))


def on_white(drawing: Image, max_uneven: float) -> Image:
    """A drawing (uint8 [h, w, 3]) of an object on a plain ground with the ground turned pure white.

    What has the ground's colour but is enclosed by the object stays. Raises Refused when more than `max_uneven` of the
    drawing's border differ from its ground.
    """
    lab = cv2.cvtColor(drawing.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    frame = np.ones(drawing.shape[:2], bool)
    margin = max(2, min(frame.shape) // 32)
    frame[margin:-margin, margin:-margin] = False
    distance = np.linalg.norm(lab - np.median(lab[frame], axis=0), axis=2)
    uneven = float((distance[frame] > OBJECT).mean())
    if uneven > max_uneven:
        raise Refused("ground_not_plain", f"{uneven:.0%} of the drawing's border differ from its ground")
    _, parts = cv2.connectedComponents((distance < OBJECT).astype(np.uint8), connectivity=8)
    ground = (parts > 0) & np.isin(parts, np.unique(parts[frame]))
    alpha = np.where(ground, ((distance - GROUND) / (OBJECT - GROUND)).clip(0, 1), 1.0)[..., None]
    white: Image = (alpha * drawing + (1 - alpha) * 255).round().astype(np.uint8)
    return white


def centred(picture: Image, shape: tuple[int, int]) -> Image:
    """The picture in the middle of a white one of `shape` (height, width), which is no smaller."""
    canvas = np.full((*shape, 3), 255, np.uint8)
    height, width = picture.shape[:2]
    top, left = (shape[0] - height) // 2, (shape[1] - width) // 2
    canvas[top : top + height, left : left + width] = picture
    return canvas
