"""resize: a placed object grows or shrinks on its foot point."""

from collections.abc import Iterator

from editfoundry.core.geometry import Box
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, on_donor
from editfoundry.data_engine.recipes.replace import Replace, swapped

SCALES = ((1.6, "clearly larger"), (0.6, "clearly smaller"), (2.0, "about twice as tall"), (0.5, "about half as tall"))


class Resize(Replace):
    """Rendered as a replacement of the object by itself at another scale."""

    type = "resize"

    def plan(self, plan: Plan) -> Iterator[Draft]:
        for _ in range(20):
            donor, start = plan.place()
            scale, words = SCALES[int(plan.rng.integers(len(SCALES)))]
            smaller = donor.model_copy(update={"height_m": donor.height_m * scale})
            placed = swapped(start, donor, smaller, plan.grid, area_ratio=(0.2, 4.5))
            if placed is None or any(_overlap(placed.box, region.box) for region in plan.source.regions):
                continue
            operation = placed.model_dump(mode="json")
            yield on_donor(plan, donor, start, operation, result=words, phrase=donor.label)
        raise Refused("no_room", "no donor of this photograph can change its size in place")


def _overlap(first: tuple[float, float, float, float], second: tuple[float, float, float, float]) -> bool:
    return Box.from_list(first).intersection(Box.from_list(second)) > 0
