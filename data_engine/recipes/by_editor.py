"""Any edit rendered by an instruction editor instead of its own recipe, held to what its type promises.

An editor repaints every pixel. A local edit takes its result only where the edit was planned; where no place is planned
(something is added, moved, counted), only where the editor visibly changed the picture.
"""

import cv2
import numpy as np

from editfoundry.core.geometry import Box, Grid, Mask
from editfoundry.data_engine.recipes.background import in_front
from editfoundry.data_engine.recipes.base import Edited, Refused, recipe
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Turn
from editfoundry.data_engine.scene import Image, Scene, patch
from editfoundry.data_engine.taxonomy import TYPES

GROWTH_AT_1024 = 32
"""How far around the planned or observed area the editor's pixels are taken, blended over that distance."""
VISIBLE = 20.0
"""Difference of a channel, smoothed, from which on a pixel counts as changed by the editor and not by its decoder."""
MIN_PART = 0.0005
"""Smallest connected change, as a share of the image, that is the edit."""
MAX_OBSERVED = 0.75

IN_PLACE = frozenset({"remove", "replace", "adjust", "visual"})
GONE_OR_MANY = frozenset({"remove", "count", "compose"})


async def by_editor(scene: Scene, turn: Turn, tools: Tools) -> Edited:
    """The turn carried out by the editor. Raises Refused when it changed nothing visible, or everything."""
    references = await recipe(turn.type).references(turn, tools)
    pixels = await tools.edit(scene.pixels, turn.instruction, references)
    edited = _held_to_its_place(scene, turn, tools, pixels) if TYPES[turn.type].local else Edited(Scene(pixels))
    reference = references[0] if references else None
    return Edited(edited.scene, edited.mask, reference, {"renderer": "editor"})


def _held_to_its_place(scene: Scene, turn: Turn, tools: Tools, pixels: Image) -> Edited:
    if turn.type == "background":
        return in_front(scene, tools.object_mask(turn.target), pixels)
    tight = planned_area(scene, turn, tools)
    if tight is None:
        tight = observed_change(scene.pixels, pixels)
    half = max(3, round(GROWTH_AT_1024 * min(scene.shape) / 1024 / 2))
    weight = tight.dilate(half).feather(half)[..., None]
    mixed: Image = (weight * pixels + (1 - weight) * scene.pixels).round().astype(np.uint8)
    area = Mask(weight[..., 0] > 0) | scene.touched((turn.target,))
    name = f"turn{turn.index}" if turn.type in GONE_OR_MANY else turn.target
    return Edited(scene.without(turn.target).with_layer(name, patch(mixed, area)), area)


def planned_area(scene: Scene, turn: Turn, tools: Tools) -> Mask | None:
    """What the turn is planned to change, or None where the editor chooses the place."""
    if "steps" in turn.operation:
        areas = [planned_area(scene, turn.model_copy(update=step), tools) for step in turn.operation["steps"]]
        first, second = areas
        return None if first is None or second is None else first | second
    if turn.type not in IN_PLACE:
        return None
    area = scene.touched((turn.target,)) if scene.has(turn.target) else tools.object_mask(turn.target)
    if "box" in turn.operation:
        area = area | Mask.from_box(Box.from_list(turn.operation["box"]), Grid(scene.shape[1], scene.shape[0]))
    return area


def observed_change(before: Image, after: Image) -> Mask:
    """Where an editor visibly changed a picture, without specks. Raises Refused when that is nowhere or everywhere."""
    first, second = (cv2.GaussianBlur(image.astype(np.float32), (0, 0), 2.0) for image in (before, after))
    count, parts, stats, _ = cv2.connectedComponentsWithStats(
        (np.abs(first - second).max(axis=2) > VISIBLE).astype(np.uint8), connectivity=8
    )
    kept = [part for part in range(1, count) if stats[part, cv2.CC_STAT_AREA] >= MIN_PART * parts.size]
    change = Mask(np.isin(parts, kept))
    if not kept:
        raise Refused("no_visible_change", "the editor changed nothing visible")
    if change.fraction > MAX_OBSERVED:
        raise Refused("changed_everywhere", f"the editor changed {change.fraction:.0%} of the picture")
    return change
