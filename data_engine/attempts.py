"""Several attempts at one edit, of which the judge picks the best."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from editfoundry.data_engine.recipes.base import Edited, Refused
from editfoundry.data_engine.recipes.tools import Tools
from editfoundry.data_engine.records import Turn
from editfoundry.data_engine.scene import Scene
from editfoundry.data_engine.together import gather
from editfoundry.models.protocols import Judgement, Unanswered

Renderer = Callable[[Scene, Turn, Tools], Coroutine[Any, Any, Edited]]


async def best_of(render: Renderer, scene: Scene, turn: Turn, attempts: list[Tools]) -> Edited:
    """The edit the judge finds best overall, the first of equals; one attempt per entry of `attempts`, side by side.

    An attempt that is refused, or that the judge does not answer for, loses. Raises the first attempt's Refused when
    all are refused. When none of the others is answered for, raises Refused("judge_refused") if the judge declined them
    all, else Refused("judge_failed").
    """
    tried = await gather([render(scene, turn, tools) for tools in attempts])
    for result in tried:
        if isinstance(result, Exception) and not isinstance(result, Refused):
            raise result
    made = {number: result for number, result in enumerate(tried) if isinstance(result, Edited)}
    if not made:
        raise next(result for result in tried if isinstance(result, Refused))
    verdicts = await gather([attempts[n].judge(scene, edit, turn.instruction, turn.type) for n, edit in made.items()])
    scores: dict[int, float] = {}
    for number, verdict in zip(made, verdicts, strict=True):
        if isinstance(verdict, Exception):
            raise verdict
        if isinstance(verdict, Judgement):
            scores[number] = verdict.overall
    if not scores:
        unanswered = [verdict for verdict in verdicts if isinstance(verdict, Unanswered)]
        failed = any(verdict.kind == "failed" for verdict in unanswered)
        detail = "; ".join(f"{verdict.kind}: {verdict.reason}" for verdict in unanswered)
        raise Refused("judge_failed" if failed else "judge_refused", detail)
    chosen = max(scores, key=lambda number: (scores[number], -number))
    overall = round(scores[chosen], 4)
    how = made[chosen].how | {"candidates": len(attempts), "chosen": chosen, "judge_overall": overall}
    return replace(made[chosen], how=how)
