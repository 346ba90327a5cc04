"""Where a donor could stand in a photograph, at its true size and clear of everything that is already there."""

from collections.abc import Sequence

import numpy as np

from editfoundry.core.geometry import Box
from editfoundry.data_engine.records import Donor, Placement, Source, Zone
from editfoundry.models.embedded.compositing import MAX_UPSCALE

MARGIN = 8
"""Pixels between an object and the frame."""
FAR = 1.6
"""How many times wider the view is at the far (upper) edge of a ground, surface or water zone than at its near edge."""
SIZE_JITTER = 0.15
MAX_HEIGHT = 0.75
"""Tallest object, as a share of the grid's height."""
TRIES = 24
_REASONS = ("no_room", "too_small", "too_large", "no_zone")


def place_donor(
    donor: Donor,
    source: Source,
    rng: np.random.Generator,
    avoid: Sequence[Box] = (),
    *,
    min_side: int = 48,
    max_fraction: float = 0.35,
    name: str = "o1",
) -> Placement | str:
    """A place for `donor` in `source`, or why there is none.

    The zone is one of those that suit the donor. In it the object's base stands at a random depth (whole boxes of "sky"
    and "macro" lie inside), and its height in pixels follows from its height in metres, up to 15% more or less, and the
    metres that the zone shows at that depth. It keeps 8 pixels from the frame and touches no box of `avoid`, no
    protected box and no object region.

    Reasons: `no_zone` (none suits), `too_large` (more than `max_fraction` of the grid, most of its height, or 1.5 times
    the donor's own pixels), `too_small` (long side under `min_side`, or short side under half of it), `no_room`. When
    tries failed for several reasons, the one nearest to success is named, in the order room, small, large.
    """
    zones = [zone for zone in source.zones if zone.kind in donor.zones]
    blocked = [*avoid, *(Box.from_list(box) for box in source.protected)]
    blocked += [Box.from_list(region.box) for region in source.regions if region.kind == "object"]
    failures = {"no_zone"}
    for index in rng.permutation(len(zones)):
        for _ in range(TRIES):
            box = _propose(donor, zones[index], source.grid, rng, min_side, max_fraction)
            if isinstance(box, str):
                failures.add(box)
            elif any(box.distance(other) <= 0 for other in blocked):
                failures.add("no_room")
            else:
                x0, y0, x1, y1 = box.as_list()
                return Placement(object=name, donor=donor.sha256, label=donor.label, box=(x0, y0, x1, y1),
                                 zone=zones[index].kind, flip=bool(rng.integers(2)))
    return next(reason for reason in _REASONS if reason in failures)


def width_at(zone: Zone, base: float) -> float:
    """Visible metres across the photograph at the depth of an object whose base is at y = `base` (grid pixels)."""
    if zone.kind in ("sky", "macro"):
        return zone.width_m
    _, top, _, bottom = zone.box
    return zone.width_m * (1.0 + (FAR - 1.0) * min(max((bottom - base) / (bottom - top), 0.0), 1.0))


def _propose(donor: Donor, zone: Zone, grid: tuple[int, int], rng: np.random.Generator, min_side: int,
             max_fraction: float) -> Box | str:
    """One random box of whole pixels in the zone, or the reason why it cannot be."""
    x0, y0, x1, y1 = zone.box
    base = float(rng.uniform(y0, y1))
    metres = donor.height_m * float(rng.uniform(1.0 - SIZE_JITTER, 1.0 + SIZE_JITTER))
    height = round(metres * grid[0] / width_at(zone, base))
    width = round(height * donor.width / donor.height)
    if max(width, height) < min_side or min(width, height) < min_side / 2:
        return "too_small"
    if width * height > max_fraction * grid[0] * grid[1] or height > MAX_HEIGHT * grid[1]:
        return "too_large"
    if max(width / donor.width, height / donor.height) > MAX_UPSCALE:
        return "too_large"
    floating = zone.kind in ("sky", "macro")
    left, right = max(x0, MARGIN), min(x1, grid[0] - MARGIN) - width
    top = max(y0 if floating else 0.0, MARGIN)
    bottom = min(y1, grid[1] - MARGIN)
    if floating and bottom - height > top:
        base = float(rng.uniform(top + height, bottom))
    if left > right or base > bottom or base - height < top:
        return "no_room"
    x, y = round(float(rng.uniform(left, right))), round(base)
    if y - height < top or y > bottom or x < left or x + width > right + width:
        return "no_room"
    return Box(float(x), float(y - height), float(x + width), float(y))
