"""move: a placed object goes to another place that can carry it."""

from collections.abc import Iterator

from editfoundry.core.geometry import Box
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, on_donor, only
from editfoundry.data_engine.recipes.replace import Replace

MIN_SHIFT = 0.22


class Move(Replace):
    """Rendered as a replacement of the object by itself elsewhere."""

    type = "move"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        for _ in range(12):
            donor, start = plan.place()
            try:
                _, end = plan.place(avoid=(start,), accept=only(donor))
            except Refused:
                continue
            before, after = Box.from_list(start.box), Box.from_list(end.box)
            here, there = plan.where(start.box), plan.where(end.box)
            shift = abs(after.center[0] - before.center[0]) / plan.grid.width
            if here == there or shift < MIN_SHIFT:
                continue
            goal = there.replace("in the ", "the ").replace("on the ", "the ").replace("at the ", "the ")
            same_way = end.model_copy(update={"flip": start.flip})
            operation = same_way.model_dump(mode="json")
            yield on_donor(plan, donor, start, operation, result=goal, phrase=donor.label)
        raise Refused("no_room", "no second place for a donor in this photograph")
