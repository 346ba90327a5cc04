"""background: another photograph behind a real object's matte, or a scene painted around the object."""

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.english import a
from editfoundry.core.geometry import Grid, Mask
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, on_region
from editfoundry.data_engine.recipes.generated import described, on_generated, proposals
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Turn
from editfoundry.data_engine.scene import Image, Scene

LIGHT_TRANSFER = 0.3
RIM, KEPT_INSET = 2, 5
"""Pixels inside the object's outline over which it is blended, and from which on it is kept."""
MIN_AREA, MIN_GENERATED_AREA = 0.04, 0.1
"""Smallest share of the image for an object to keep; a painter has to see some of it beyond what it paints over."""


class Background(Recipe):
    """Only pixels well inside the object are kept to the bit; the rim is blended and belongs to the mask."""

    type = "background"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        regions = [r for r in plan.lone_objects() if r.area >= MIN_AREA]
        if plan.origin == "generated":
            large = [r for r in regions if r.area >= MIN_GENERATED_AREA]
            for region, place in proposals(plan, "background", large):
                yield on_generated(plan, region, result=place, phrase=place)
            return
        others = [b for b in plan.backgrounds if b.sha256 != plan.source.sha256]
        if not regions:
            raise Refused("no_object", "no lone object large enough to keep in front of a new background")
        if not others:
            raise Refused("no_background", "the catalogue holds no other photograph fit to be a background")
        for region in regions:
            for index in plan.rng.permutation(len(others)):
                new = others[index]
                operation = {"background": new.sha256}
                yield on_region(plan, region, operation, result=new.label, phrase=new.label, others=(new,))

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        if turn.operation.get("generated"):
            foreground = tools.object_mask(turn.target)
            # A painter fades its picture in where the mask was grown: under the object, which is put back on top.
            behind = await tools.paint(
                scene.base,
                tools.cover("painter", ~foreground),
                f"{a(turn.target_label)} in front of {described(turn.result_phrase)}",
            )
            return in_front(scene, foreground, behind)
        foreground = tools.region_mask(turn.target)
        height, width = scene.shape
        behind = tools.photograph(turn.operation["background"], Grid(width, height))
        behind = _lit_like(behind, scene.base, ~foreground.dilate(4))
        return in_front(scene, foreground, behind)


def in_front(scene: Scene, foreground: Mask, behind: Image) -> Edited:
    """The scene's base before another picture; its light at the rim is blended, what is well inside is kept."""
    alpha = foreground.erode(RIM).feather(RIM)[..., None]
    mixed = (alpha * scene.base + (1 - alpha) * behind).round().clip(0, 255).astype(np.uint8)
    kept = foreground.erode(KEPT_INSET)
    mixed[kept.array] = scene.base[kept.array]
    return Edited(scene.with_base(mixed), ~kept)


def _lit_like(image: Image, reference: Image, where: Mask) -> Image:
    """The image with its Lab mean and spread moved part of the way to the reference's, measured where asked."""
    lab = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    wanted: NDArray[np.float32] = cv2.cvtColor(reference.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[where.array]
    if len(wanted) == 0:
        return image
    own = lab.reshape(-1, 3)
    gain = 1 + LIGHT_TRANSFER * (np.clip(wanted.std(axis=0) / np.maximum(own.std(axis=0), 1), 0.6, 1.6) - 1)
    moved = (
        (lab - own.mean(axis=0)) * gain + own.mean(axis=0) + LIGHT_TRANSFER * (wanted.mean(axis=0) - own.mean(axis=0))
    )
    moved[..., 0] = moved[..., 0].clip(0, 100)
    rgb = cv2.cvtColor(moved.astype(np.float32), cv2.COLOR_LAB2RGB)
    lit: Image = (rgb * 255).round().clip(0, 255).astype(np.uint8)
    return lit
