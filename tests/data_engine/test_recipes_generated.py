"""Edits by generative models: what the models are asked, and what the recipes promise of pixels, masks and graphs."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from recipe_world import (
    HEIGHT,
    WIDTH,
    DiscDrawer,
    FlatPainter,
    MemoryTools,
    conversation,
    disc,
    fakes,
    flat,
    large_cup,
    photograph,
    plan,
    region,
    region_mask,
    rendered,
    source,
    turn_of,
)

from editfoundry.core.geometry import Mask
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, recipe
from editfoundry.data_engine.recipes.extract import on_white
from editfoundry.data_engine.recipes.generated import (
    described,
    generated_add,
    generated_adjust,
    generated_remove,
    generated_replace,
    in_context,
)
from editfoundry.data_engine.records import Source
from editfoundry.data_engine.scene import Scene, patch
from editfoundry.data_engine.taxonomy import TYPES
from editfoundry.models.embedded.compositing import composite
from editfoundry.models.protocols import Fill

GENERATED = tuple(name for name, row in TYPES.items() if row.generated)
SUMMARY = "a cup before a wall"


def two_objects() -> Source:
    """A cup and a bottle, far apart."""
    bottle = region("r1", "bottle", disc(500, 300, 50, 70))
    return source(regions=(*source().regions, bottle), counts={"cup": 1, "bottle": 1})


def first_draft(name: str, of: Source, seed: int = 0) -> Draft:
    return next(recipe(name).plan(plan(of, "generated", seed)))


def asked(models: dict[str, Any], role: str) -> Fill:
    """The one request the role's model got."""
    [[fill]] = models[role].calls
    return fill


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("seed", range(3))
def test_local_edits_change_only_their_mask_and_something_visible(name: str, seed: int) -> None:
    of = source(regions=(large_cup(),)) if name == "background" else two_objects()
    draft = first_draft(name, of, seed)
    before, edited = rendered(name, draft, of)
    different = (before.pixels != edited.scene.pixels).any(axis=2)
    assert edited.scene.pixels.shape == (HEIGHT, WIDTH, 3)
    assert different.mean() > 0.003
    assert (edited.mask is not None) == TYPES[name].local
    if edited.mask is not None:
        assert not (different & ~edited.mask.array).any()


@pytest.mark.parametrize("name", GENERATED)
def test_plans_are_a_function_of_the_seed_and_say_that_they_are_generated(name: str) -> None:
    of = source(regions=(large_cup(),)) if name == "background" else two_objects()
    first, again, other = (list(islice(recipe(name).plan(plan(of, "generated", s)), 2)) for s in (1, 1, 2))
    assert first == again
    assert name == "extract" or first != other
    for draft in first:
        assert draft.origin == "generated"
        assert draft.operation["generated"] is True
        assert draft.result_phrase and draft.result_phrase not in str({**draft.operation, "steps": None})
        assert draft.open_result == (name not in ("extract", "compose"))
        assert name == "compose" or draft.box == next(r.box for r in of.regions if r.id == draft.target)


@given(
    arrays(np.uint8, (6, 5, 3)),
    arrays(np.uint8, (6, 5, 3)),
    arrays(np.bool_, (6, 5)).filter(lambda mask: bool(mask.any())),
)
def test_a_patch_shows_exactly_its_pixels(base: np.ndarray, pixels: np.ndarray, mask: np.ndarray) -> None:
    expected = np.where(mask[..., None], pixels, base)
    assert np.array_equal(composite(base, patch(pixels, Mask(mask))), expected)
    scene = Scene(base).painted_over("o", expected, Mask(mask))
    assert np.array_equal(scene.pixels, expected)
    assert np.array_equal(scene.without("o").pixels, base)
    other = np.roll(mask, 1, axis=0)
    repainted = np.where(other[..., None], 255 - expected, expected)
    again = scene.painted_over("o", repainted, Mask(other))
    assert np.array_equal(again.pixels, repainted)
    assert np.array_equal(again.without("o").pixels, base)


def test_a_patch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="not empty"):
        patch(photograph(0), Mask(np.zeros((HEIGHT, WIDTH), bool)))


def test_replace_paints_the_result_over_the_covered_object() -> None:
    models = fakes()
    draft = first_draft("replace", source())
    before, edited = rendered("replace", draft, source(), models)
    fill = asked(models, "painter")
    area = region_mask().dilate(8)
    assert fill.prompt == f"{described(draft.result_phrase)}, in {SUMMARY}"
    assert np.array_equal(fill.mask.array, area.array)
    assert np.array_equal(fill.image, photograph(0)) and np.array_equal(before.pixels, photograph(0))
    assert (edited.scene.pixels[area.array] == flat(fill.prompt, fill.seed)).all()
    assert np.array_equal(edited.scene.pixels[~area.array], photograph(0)[~area.array])
    assert draft.fields["result"].endswith(draft.result_phrase) and draft.fields["position"] == "in the upper left"


def test_a_phrase_the_writer_chose_reaches_the_model() -> None:
    models, of = fakes(), source()
    draft = first_draft("replace", of)
    turn = turn_of("replace", draft).model_copy(update={"result_phrase": "the old brass lamp"})
    conversation([turn], draft, MemoryTools(of, models))
    assert asked(models, "painter").prompt == f"the old brass lamp, in {SUMMARY}"


def test_without_a_caption_the_prompt_is_the_phrase() -> None:
    assert in_context("owl", source(caption=None)) == "an owl"
    assert in_context("two owls", source()) == f"two owls, in {SUMMARY}"


def test_adjust_keeps_the_label_in_the_prompt_and_the_template_says_only_the_look() -> None:
    models = fakes()
    draft = first_draft("adjust", source())
    _, edited = rendered("adjust", draft, source(), models)
    fill = asked(models, "adjuster")
    assert draft.result_phrase == f"{draft.fields['result']} cup"
    assert fill.prompt == f"{described(draft.result_phrase)}, in {SUMMARY}"
    assert np.array_equal(fill.mask.array, region_mask().dilate(2).array)
    assert (edited.scene.pixels[region_mask().array] == flat(fill.prompt, fill.seed)).all()


class Unchanging(FlatPainter):
    """An adjuster that gives back what it got."""

    def inpaint(self, fills: Any) -> list[np.ndarray]:
        return [fill.image.copy() for fill in fills]


def test_an_adjustment_nobody_would_see_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        rendered("adjust", first_draft("adjust", source()), source(), fakes(adjuster=Unchanging()))
    assert refused.value.reason == "barely_visible"


def test_background_is_painted_around_an_object_that_is_kept_to_the_bit() -> None:
    models = fakes()
    of = source(regions=(large_cup(),))
    draft = first_draft("background", of)
    before, edited = rendered("background", draft, of, models)
    fill = asked(models, "painter")
    cup = Mask.from_rle(large_cup().mask)
    kept = cup.erode(5).array
    assert np.array_equal(fill.mask.array, (~cup).dilate(8).array)
    assert fill.prompt == f"a cup in front of {draft.result_phrase}" == f"a cup in front of {draft.fields['result']}"
    assert np.array_equal(edited.scene.pixels[kept], before.pixels[kept])
    assert edited.mask is not None and np.array_equal(edited.mask.array, ~kept)
    away = ~cup.dilate(1).array
    assert (edited.scene.pixels[away] == flat(fill.prompt, fill.seed)).all()


def test_an_object_larger_than_the_painter_can_invent_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        rendered("replace", first_draft("replace", source()), source(), fakes(painter=FlatPainter(8, 0.02)))
    assert refused.value.reason == "mask_too_large"


def test_a_small_object_is_not_kept_before_a_painted_background() -> None:
    with pytest.raises(Refused) as refused:
        first_draft("background", source())
    assert refused.value.reason == "no_object"


def test_visual_inserts_what_was_drawn_and_stores_it_and_does_not_name_it() -> None:
    models = fakes()
    draft = first_draft("visual", source())
    _, edited = rendered("visual", draft, source(), models)
    [[drawing]] = models["reference"].calls
    fill = asked(models, "inserter")
    assert drawing.subject == described(draft.result_phrase) and drawing.size == (HEIGHT, HEIGHT)
    assert edited.reference is not None and np.array_equal(edited.reference, DiscDrawer().draw([drawing])[0])
    assert fill.reference is not None and np.array_equal(fill.reference, edited.reference)
    assert draft.result_phrase not in " ".join(draft.fields.values())
    assert drawing.seed != fill.seed


def test_a_drawn_object_stands_in_the_source_and_alone_on_pure_white_in_the_result() -> None:
    models = fakes()
    draft = first_draft("extract", source())
    before, edited = rendered("extract", draft, source(), models)
    [[drawing]] = models["reference"].calls
    fill = asked(models, "inserter")
    area = region_mask().dilate(12).array
    assert drawing.subject == "a cup" and drawing.size == (HEIGHT, HEIGHT)
    assert (before.pixels[area] == flat(fill.prompt, fill.seed)).all()
    assert np.array_equal(before.pixels[~area], photograph(0)[~area])
    object_ = disc(WIDTH / 2, HEIGHT / 2, 0.35 * HEIGHT, 0.35 * HEIGHT)
    result = edited.scene.pixels
    assert (result[~object_.dilate(2).array] == 255).all()
    assert (result[object_.erode(2).array] == flat("a cup", drawing.seed)).all()


def test_white_inside_a_drawn_object_is_not_taken_for_its_ground() -> None:
    drawing = np.full((200, 300, 3), 240, np.uint8)
    y, x = np.mgrid[0:200, 0:300]
    radius = np.hypot(x - 150, y - 100)
    drawing[(radius < 80) & (radius > 40)] = (10, 60, 160)
    result = on_white(drawing, max_uneven=0.0)
    assert (result[radius > 82] == 255).all()
    assert (result[radius < 38] == 240).all()
    assert (result[(radius < 78) & (radius > 42)] == (10, 60, 160)).all()


def test_a_drawing_without_a_plain_ground_is_refused_before_anything_is_inserted() -> None:
    models = fakes(reference=DiscDrawer(ground=(236, 236, 236)))
    models["reference"]._draw = lambda _: photograph(3)[:HEIGHT, :HEIGHT] ^ np.uint8(128)
    with pytest.raises(Refused) as refused:
        rendered("extract", first_draft("extract", source()), source(), models)
    assert refused.value.reason == "ground_not_plain"
    assert models["inserter"].calls == []


def test_compose_makes_two_different_edits_of_two_classes_far_apart() -> None:
    of = two_objects()
    drafts = [first_draft("compose", of, seed) for seed in range(12)]
    kinds = [tuple(step["type"] for step in draft.operation["steps"]) for draft in drafts]
    assert {kind for pair in kinds for kind in pair} == {"add", "remove", "replace", "adjust"}
    for draft in dict(zip(kinds, drafts, strict=True)).values():
        first, second = draft.operation["steps"]
        assert first["type"] != second["type"]
        assert {first["target"], second["target"]} == {"r0", "r1"}
        assert set(draft.names) == {"cup", "bottle"}
        before, edited = rendered("compose", draft, of)
        for step in (first, second):
            inside = Mask.from_rle(next(r.mask for r in of.regions if r.id == step["target"])).array
            there = {"add": edited.scene, "remove": before, "replace": before, "adjust": before}[step["type"]]
            assert np.array_equal(there.pixels[inside], photograph(0)[inside])
            assert (before.pixels[inside] != edited.scene.pixels[inside]).any(axis=1).mean() > 0.9


def test_compose_needs_two_objects_that_stand_apart() -> None:
    near = region("r1", "bottle", disc(330, 120, 40, 60))
    for regions in (source().regions, (*source().regions, near)):
        with pytest.raises(Refused) as refused:
            first_draft("compose", source(regions=regions, counts={"cup": 1, "bottle": 1}))
        assert refused.value.reason == "no_pair"


def test_people_are_neither_replaced_nor_repainted() -> None:
    of = source(regions=(region("r0", "person", region_mask()),), counts={"person": 1})
    for name in ("replace", "adjust", "visual"):
        with pytest.raises(Refused) as refused:
            first_draft(name, of)
        assert refused.value.reason == "no_idea"


@pytest.mark.parametrize("name", ["add", "remove"])
def test_generated_additions_and_removals_are_those_of_real_objects(name: str) -> None:
    assert first_draft(name, source()) == next(recipe(name).plan(plan(source(), "photograph")))


def turns(of: Source, *steps: tuple[str, int, Any]) -> tuple[list[Any], Draft]:
    """Turns of (type, parent, function that makes the draft), and the first draft."""
    planned: Plan = plan(of, "generated")
    drafts = [make(planned, of.regions[0]) for _, _, make in steps]
    made = [
        turn_of(name, draft, index, parent)
        for index, ((name, parent, _), draft) in enumerate(zip(steps, drafts, strict=True), start=1)
    ]
    return made, drafts[0]


def test_a_conversation_puts_a_real_object_back_changes_it_and_takes_it_away_exactly() -> None:
    steps, draft = turns(
        source(), ("add", 0, generated_add), ("adjust", 1, generated_adjust), ("remove", 2, generated_remove)
    )
    models = fakes()
    nodes, edits = conversation(steps, draft, MemoryTools(source(), models))
    gone = region_mask().dilate(9).array
    assert (nodes[0].pixels[region_mask().array] != photograph(0)[region_mask().array]).any()
    assert np.array_equal(nodes[0].pixels[~gone], photograph(0)[~gone])
    assert np.array_equal(nodes[1].pixels, photograph(0))
    assert (nodes[2].pixels[region_mask().array] != photograph(0)[region_mask().array]).any(axis=1).all()
    assert np.array_equal(nodes[3].pixels, nodes[0].pixels)
    for turn, edit in zip(steps, edits, strict=True):
        different = (nodes[turn.parent].pixels != edit.scene.pixels).any(axis=2)
        assert edit.mask is not None and not (different & ~edit.mask.array).any()
    assert len(models["inpainter"].calls) == 1


def test_going_back_a_version_leaves_no_trace_of_the_one_left() -> None:
    steps, draft = turns(
        source(), ("add", 0, generated_add), ("replace", 1, generated_replace), ("adjust", 1, generated_adjust)
    )
    models = fakes()
    nodes, _ = conversation(steps, draft, MemoryTools(source(), models))
    assert np.array_equal(asked(models, "adjuster").image, photograph(0))
    outside = ~region_mask().dilate(2).array
    assert np.array_equal(nodes[3].pixels[outside], photograph(0)[outside])


def test_what_is_nested_in_an_object_goes_and_comes_back_with_it() -> None:
    lid = region("r1", "lid", disc(200, 70, 20, 18)).model_copy(update={"parent": "r0"})
    of = source(regions=(*source().regions, lid), counts={"cup": 1, "lid": 1})
    steps, draft = turns(of, ("add", 0, generated_add), ("replace", 1, generated_replace))
    models = fakes()
    nodes, _ = conversation(steps, draft, MemoryTools(of, models))
    both = (region_mask() | disc(200, 70, 20, 18)).dilate(8)
    assert np.array_equal(nodes[1].pixels, photograph(0))
    assert np.array_equal(asked(models, "painter").mask.array, both.array)


def test_a_real_object_that_was_never_segmented_is_refused() -> None:
    bare = source().regions[0].model_copy(update={"mask": None})
    of = source(regions=(bare,))
    with pytest.raises(Refused) as refused:
        rendered("replace", first_draft("replace", of), of)
    assert refused.value.reason == "no_mask"
