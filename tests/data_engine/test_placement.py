"""Donors stand where they can, at the size they have."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.core.geometry import Box
from editfoundry.data_engine.placement import MARGIN, place_donor, width_at
from editfoundry.data_engine.records import Donor, Placement, Region, Source, Zone

GRID = (800, 496)
GROUND = Zone(kind="ground", box=(40, 300, 760, 480), width_m=4.0, origin="manifest")
SKY = Zone(kind="sky", box=(100, 20, 700, 220), width_m=10.0, origin="manifest")


def donor(height_m: float = 0.6, zones: tuple[str, ...] = ("ground",), width: int = 300, height: int = 200) -> Donor:
    return Donor.model_validate({"sha256": "d" * 64, "kind": "cutout", "label": "dog", "zones": zones,
                                 "height_m": height_m, "width": width, "height": height})


def source(*zones: Zone, **fields: object) -> Source:
    known = {"id": "s", "sha256": "0" * 64, "uri": "s.jpg", "grid": GRID, "zones": zones}
    return Source.model_validate({**known, **fields})


def place(thing: Donor, scene: Source, seed: int = 0, avoid: tuple[Box, ...] = (), **limits: object) -> Placement | str:
    return place_donor(thing, scene, np.random.default_rng(seed), avoid, **limits)  # type: ignore[arg-type]


def placed(thing: Donor, scene: Source, seed: int = 0, avoid: tuple[Box, ...] = ()) -> Placement:
    placement = place(thing, scene, seed, avoid)
    assert isinstance(placement, Placement), placement
    return placement


@pytest.mark.parametrize("seed", range(20))
def test_size_follows_from_metres_and_depth(seed: int) -> None:
    x0, y0, x1, y1 = placed(donor(), source(GROUND), seed).box
    assert 300 <= y1 <= 480
    exact = 0.6 * 800 / width_at(GROUND, y1)
    assert 0.84 * exact <= y1 - y0 <= 1.16 * exact
    assert (x1 - x0) / (y1 - y0) == pytest.approx(1.5, abs=0.02)


def test_things_farther_up_in_a_ground_zone_are_farther_away() -> None:
    assert width_at(GROUND, 480) == 4.0
    assert width_at(GROUND, 390) == pytest.approx(5.2)
    assert width_at(GROUND, 300) == pytest.approx(6.4)
    assert width_at(SKY, 30) == width_at(SKY, 200) == 10.0


@pytest.mark.parametrize("seed", range(20))
def test_what_flies_lies_wholly_in_the_sky(seed: int) -> None:
    box = Box.from_list(placed(donor(zones=("sky",)), source(GROUND, SKY), seed).box)
    assert Box.from_list(SKY.box).contains(box)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), height_m=st.floats(0.2, 1.5), blocked_x=st.integers(0, 700))
def test_a_placement_is_in_the_frame_and_touches_nothing(seed: int, height_m: float, blocked_x: int) -> None:
    blocked = Box(blocked_x, 200, blocked_x + 100, 490)
    person = Region(id="r", label="person", kind="object", box=(600, 250, 700, 480), detector="t", detector_score=1)
    scene = source(GROUND, regions=[person], protected=[(20, 250, 120, 490)])
    placement = place(donor(height_m), scene, seed, (blocked,))
    if isinstance(placement, str):
        assert placement in ("no_room", "too_small")
        return
    box = Box.from_list(placement.box)
    assert Box(MARGIN, MARGIN, GRID[0] - MARGIN, GRID[1] - MARGIN).contains(box)
    assert all(box.distance(Box.from_list(list(other))) > 0
               for other in (blocked.as_list(), person.box, scene.protected[0]))


def test_background_regions_do_not_block() -> None:
    lawn = Region(id="r", label="lawn", kind="background", box=(0, 250, 800, 496), detector="t", detector_score=1)
    assert isinstance(place(donor(), source(GROUND, regions=[lawn])), Placement)


@pytest.mark.parametrize(("thing", "scene", "reason"), [
    (donor(zones=("water",)), source(GROUND, SKY), "no_zone"),
    (donor(), source(), "no_zone"),
    (donor(height_m=0.05), source(GROUND), "too_small"),
    (donor(height_m=8.0), source(GROUND), "too_large"),
    (donor(width=45, height=30), source(GROUND), "too_large"),
    (donor(), source(GROUND, protected=[(0, 0, 800, 496)]), "no_room"),
])
def test_reasons(thing: Donor, scene: Source, reason: str) -> None:
    assert place(thing, scene) == reason


def test_the_same_generator_state_gives_the_same_place() -> None:
    scene = source(GROUND, SKY)
    thing = donor(zones=("ground", "sky"))
    assert place(thing, scene, 5) == place(thing, scene, 5)
    assert len({str(place(thing, scene, seed)) for seed in range(10)}) == 10


def test_limits_are_the_callers() -> None:
    assert place(donor(), source(GROUND), min_side=230) == "too_small"
    assert place(donor(), source(GROUND), max_fraction=0.001) == "too_large"
    placement = place(donor(), source(GROUND), name="o2")
    assert isinstance(placement, Placement) and placement.object == "o2" and placement.label == "dog"
