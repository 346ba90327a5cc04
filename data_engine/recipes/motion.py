"""motion: two frames of one shot in which one subject moved and the rest stood still."""

from collections.abc import Iterator

from editfoundry.core.geometry import Box
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused, object_fields
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Motion, Turn
from editfoundry.data_engine.scene import Scene

_WAYS = {
    (1, 0): "to the right",
    (-1, 0): "to the left",
    (0, 1): "down, toward the viewer",
    (0, -1): "up, away from the viewer",
    (1, 1): "to the lower right",
    (-1, 1): "to the lower left",
    (1, -1): "to the upper right",
    (-1, -1): "to the upper left",
}


def way(motion: Motion) -> str:
    """Where the subject went, in words, from the shift of its foot point."""
    before, after = Box.from_list(motion.before), Box.from_list(motion.after)
    dx, dy = after.center[0] - before.center[0], after.y1 - before.y1
    longest = max(abs(dx), abs(dy))
    across, down = ((1 if value > 0 else -1) if abs(value) > 0.4 * longest else 0 for value in (dx, dy))
    return _WAYS[across, down]


class MotionRecipe(Recipe):
    """Nothing is synthesised: both pictures are frames of the video."""

    type = "motion"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        motion, subjects = plan.source.motion, plan.source.regions
        if motion is None or not subjects:
            raise Refused("no_motion", "not a frame pair with a surely known subject")
        label = subjects[0].label
        verb = "walk" if label == "person" else "move"
        yield Draft(
            {"seconds": motion.seconds},
            object_fields(label, plan.where(motion.before), f"{verb} {way(motion)}"),
            target=subjects[0].id,
            target_label=label,
            result_phrase=f"{label} further {way(motion)}",
            names=(label,),
            origin="video",
            box=motion.before,
        )

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        return Edited(Scene(tools.second_frame()))
