"""style: the whole photograph repainted after a style reference."""

from collections.abc import Iterator

from editfoundry.core.geometry import Grid
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, Recipe, Refused
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Turn
from editfoundry.data_engine.scene import Scene

STRENGTHS = (0.8, 0.9, 1.0)


class Style(Recipe):
    """Arbitrary style transfer keeps the scene's structure and changes its colours and strokes."""

    type = "style"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        if not plan.styles:
            raise Refused("no_style", "the catalogue holds no style reference for this split")
        for index in plan.rng.permutation(len(plan.styles)):
            style = plan.styles[index]
            strength = float(plan.rng.choice(STRENGTHS))
            yield Draft(
                {"style": style.sha256, "strength": strength},
                {"result": style.label},
                origin="photograph",
                result_phrase=style.label,
                donors=(style.sha256,),
            )

    async def render(self, scene: Scene, turn: Turn, tools: Tools) -> Edited:
        height, width = scene.shape
        reference = tools.photograph(turn.operation["style"], Grid(width, height))
        strength, words = turn.operation["strength"], turn.result_phrase
        return Edited(scene.with_base(await tools.stylise(scene.pixels, reference, strength, words)))
