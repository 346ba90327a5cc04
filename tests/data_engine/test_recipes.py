"""Every recipe, planned and rendered on real compositing: what it promises about pixels, masks and graphs."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from recipe_world import HEIGHT, WIDTH, photograph, plan, region_mask, rendered, source

from editfoundry.core.geometry import Box
from editfoundry.data_engine.recipes.base import Refused, recipe
from editfoundry.data_engine.records import Motion
from editfoundry.data_engine.taxonomy import TYPES

DONOR_TYPES = ("add", "remove", "replace", "adjust", "extract", "visual", "compose", "move", "resize", "count")
REAL_TYPES = ("add", "remove", "adjust", "background", "style", "extract")


def cases() -> Iterator[tuple[str, str]]:
    yield from ((name, "donor") for name in DONOR_TYPES)
    yield from ((name, "photograph") for name in REAL_TYPES)


@pytest.mark.parametrize(("name", "origin"), list(cases()))
@pytest.mark.parametrize("seed", range(4))
def test_local_edits_change_only_their_mask_and_something_visible(name: str, origin: str, seed: int) -> None:
    of = source()
    draft = next(recipe(name).plan(plan(of, origin, seed)))
    before, edited = rendered(name, draft, of)
    different = (before.pixels != edited.scene.pixels).any(axis=2)
    assert edited.scene.pixels.shape == (HEIGHT, WIDTH, 3)
    assert different.mean() > 0.003
    assert (edited.mask is not None) == TYPES[name].local
    if edited.mask is not None:
        assert not (different & ~edited.mask.array).any()


@pytest.mark.parametrize("name", DONOR_TYPES)
def test_plans_are_a_function_of_the_seed(name: str) -> None:
    first, again, other = (list(islice(recipe(name).plan(plan(source(), seed=s)), 2)) for s in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", DONOR_TYPES)
def test_placed_objects_keep_off_the_regions_of_the_photograph(name: str) -> None:
    for seed in range(5):
        draft = next(recipe(name).plan(plan(source(), seed=seed)))
        for placement in draft.initial:
            assert Box.from_list(list(placement.box)).intersection(Box(130, 60, 270, 180)) == 0


def test_removing_a_donor_gives_back_the_photograph_exactly() -> None:
    of = source()
    draft = next(recipe("remove").plan(plan(of)))
    before, edited = rendered("remove", draft, of)
    assert not np.array_equal(before.pixels, photograph(0))
    assert np.array_equal(edited.scene.pixels, photograph(0))


def test_adding_a_real_object_back_ends_at_the_photograph() -> None:
    of = source()
    draft = next(recipe("add").plan(plan(of, "photograph")))
    before, edited = rendered("add", draft, of)
    assert np.array_equal(edited.scene.pixels, photograph(0))
    assert (before.pixels != photograph(0)).any()


def test_background_keeps_the_object_to_the_bit() -> None:
    of = source()
    draft = next(recipe("background").plan(plan(of, "photograph")))
    before, edited = rendered("background", draft, of)
    kept = region_mask().erode(6).array
    assert np.array_equal(before.pixels[kept], edited.scene.pixels[kept])
    assert (before.pixels != edited.scene.pixels).any(axis=2)[~region_mask().dilate(8).array].mean() > 0.95


def test_extract_is_pure_white_away_from_the_object() -> None:
    of = source()
    for origin in ("donor", "photograph"):
        draft = next(recipe("extract").plan(plan(of, origin)))
        _, edited = rendered("extract", draft, of)
        white = (edited.scene.pixels == 255).all(axis=2)
        assert 0.5 < white.mean() < 0.999


def test_visual_stores_a_reference_of_the_new_object_and_does_not_name_it() -> None:
    of = source()
    draft = next(recipe("visual").plan(plan(of)))
    _, edited = rendered("visual", draft, of)
    assert edited.reference is not None and edited.reference.shape == (256, 256, 3)
    assert tuple(edited.reference[0, 0]) == (236, 236, 236)
    assert draft.result_phrase not in " ".join(draft.fields.values())


def test_move_keeps_the_object_and_changes_its_place() -> None:
    draft = next(recipe("move").plan(plan(source())))
    start, goal = draft.initial[0], draft.operation
    assert goal["donor"] == start.donor and goal["flip"] == start.flip
    assert draft.fields["result"].removeprefix("the ") not in draft.fields["position"]


def test_resize_stands_on_the_same_foot_point() -> None:
    draft = next(recipe("resize").plan(plan(source())))
    start, end = Box.from_list(list(draft.initial[0].box)), Box.from_list(list(draft.operation["box"]))
    assert end.y1 == pytest.approx(start.y1) and end.center[0] == pytest.approx(start.center[0])
    ratio = end.height / start.height
    assert ratio == pytest.approx(
        {"clearly larger": 1.6, "clearly smaller": 0.6, "about twice as tall": 2.0, "about half as tall": 0.5}[
            draft.fields["result"]
        ],
        rel=1e-6,
    )


def test_count_shows_what_it_says() -> None:
    for seed in range(8):
        draft = next(recipe("count").plan(plan(source(), seed=seed)))
        _, edited = rendered("count", draft, source())
        assert len(draft.initial) == draft.operation["before"]
        assert len(edited.scene.layers) == draft.operation["after"]


def test_compose_makes_two_different_edits_far_apart() -> None:
    draft = next(recipe("compose").plan(plan(source())))
    assert len({step["type"] for step in draft.operation["steps"]}) == 2
    assert len({step["target"] for step in draft.operation["steps"]}) == 2


def test_removing_a_large_object_is_refused() -> None:
    of = source()
    large = of.regions[0].model_copy(update={"area": 0.4})
    with pytest.raises(Refused) as refused:
        next(recipe("remove").plan(plan(of.model_copy(update={"regions": (large,)}), "photograph")))
    assert refused.value.reason == "no_removable_object"


def test_one_of_several_alike_is_never_picked_by_name() -> None:
    of = source(counts={"cup": 2})
    for name in ("adjust", "extract", "remove"):
        with pytest.raises((Refused, StopIteration)):
            next(recipe(name).plan(plan(of, "photograph")))


def test_no_zone_means_no_donor() -> None:
    with pytest.raises(Refused) as refused:
        next(recipe("add").plan(plan(source(zones=()))))
    assert refused.value.reason == "no_zone"


@pytest.mark.parametrize(
    ("after", "way"),
    [
        ((300, 100, 340, 200), "to the right"),
        ((60, 100, 100, 200), "to the left"),
        ((160, 160, 200, 260), "down, toward the viewer"),
        ((160, 40, 200, 140), "up, away from the viewer"),
        ((260, 180, 300, 280), "to the lower right"),
    ],
)
def test_motion_says_where_the_subject_went(after: tuple[float, ...], way: str) -> None:
    motion = Motion(before=(160, 100, 200, 200), after=after, seconds=1, frame_before=0, frame_after=9)
    person = source().regions[0].model_copy(update={"label": "person"})
    of = source(kind="frames", motion=motion, regions=(person,))
    draft = next(recipe("motion").plan(plan(of, "photograph")))
    assert draft.fields["result"] == f"walk {way}"
