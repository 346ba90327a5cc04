"""Where rendering has a choice: instruction editors instead of recipes, and the best of several attempts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from recipe_world import (
    FlatPainter,
    Inverter,
    ScriptedJudge,
    disc,
    large_cup,
    plan,
    region,
    region_mask,
    source,
    turn_of,
)
from render_world import (
    calls,
    conversation_of,
    everything,
    node,
    photographed,
    planned_sample,
    register_fakes,
    render,
    sample_of,
)

from editfoundry.core.geometry import Mask
from editfoundry.core.images import decode_jpeg, decode_mask_png
from editfoundry.data_engine.recipes.base import recipe
from editfoundry.data_engine.records import Reject
from editfoundry.data_engine.stages.base import Item
from editfoundry.models.protocols import Instructed


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register_fakes(monkeypatch)


def test_an_editor_changes_only_around_the_planned_object() -> None:
    stage = everything(editors=["replace"])
    [outcome] = render(stage, sample_of("replace", instruction="Replace the cup with an owl."))
    assert isinstance(outcome, Item)
    [edge] = outcome.record.edges
    mask = decode_mask_png(outcome.blobs[edge.mask])
    before, after = node(outcome, 0).astype(int), node(outcome, 1).astype(int)
    assert edge.render == {"renderer": "editor"} and outcome.record.turns[0].origin == "generated"
    assert mask.area < region_mask().dilate(16).area
    assert np.abs(after - (255 - before))[region_mask().erode(8).array].mean() < 4
    assert not (before != after)[~mask.dilate(16).array].any()
    [[request]] = stage.models["editor"].calls
    assert request.instruction == "Replace the cup with an owl."
    assert np.array_equal(request.image, photographed(0))
    assert stage.models["painter"].calls == []


def test_an_editor_keeps_the_object_before_a_new_background() -> None:
    [outcome] = render(everything(editors=["background"]), sample_of("background"))
    assert isinstance(outcome, Item)
    before, after = node(outcome, 0).astype(int), node(outcome, 1).astype(int)
    cup = Mask.from_rle(large_cup().mask)
    assert not (before != after)[cup.erode(20).array].any()
    assert np.abs(after - (255 - before))[~cup.dilate(20).array].mean() < 4


class Stamping(Inverter):
    """An editor that stamps a dark square and disturbs every pixel a little, as decoders do."""

    square = (slice(300, 380), slice(420, 520))

    def edit(self, requests: Sequence[Instructed]) -> list[np.ndarray]:
        results = []
        for request in requests:
            image = request.image ^ np.uint8(1)
            image[self.square] = 10
            results.append(image)
        return results


class Idle(Inverter):
    def edit(self, requests: Sequence[Instructed]) -> list[np.ndarray]:
        return [request.image ^ np.uint8(1) for request in requests]


def test_where_an_addition_went_is_seen_from_the_change() -> None:
    stage = everything(editors=["add"])
    stage.models["editor"] = Stamping()
    [outcome] = render(stage, sample_of("add", origin="donor"))
    assert isinstance(outcome, Item)
    mask = decode_mask_png(outcome.blobs["mask1.png"]).array
    square = np.zeros_like(mask)
    square[Stamping.square] = True
    assert mask[square].all() and not mask[:270].any() and mask.sum() < 2.2 * square.sum()
    before, after = node(outcome, 0), node(outcome, 1)
    assert (after[310:370, 430:510] < 30).all()
    assert np.array_equal(before[:250], after[:250])
    assert outcome.record.turns[0].origin == "generated"


@pytest.mark.parametrize(("editor", "reason"), [(Idle(), "no_visible_change"), (Inverter(), "changed_everywhere")])
def test_an_addition_nobody_sees_or_that_is_everywhere_is_refused(editor: Any, reason: str) -> None:
    stage = everything(editors=["add"])
    stage.models["editor"] = editor
    [outcome] = render(stage, sample_of("add", origin="donor"))
    assert isinstance(outcome, Reject) and outcome.reason == reason


def test_the_editor_sees_the_reference_of_a_visual_edit_which_is_stored() -> None:
    stage = everything(editors=["visual"])
    placed, drawn = render(stage, sample_of("visual", 1, origin="donor"), sample_of("visual", 2))
    [[first], [second]] = stage.models["editor"].calls  # the second's reference had to be drawn first
    assert first.references[0].shape == (256, 256, 3) and second.references[0].shape == (448, 448, 3)
    for outcome, request in zip((placed, drawn), (first, second), strict=True):
        assert isinstance(outcome, Item)
        stored = decode_jpeg(outcome.blobs[outcome.record.edges[0].reference])
        assert np.abs(stored.astype(int) - request.references[0]).mean() < 3


def test_an_editor_composes_where_both_steps_stay_in_place() -> None:
    bottle = region("r1", "bottle", disc(500, 300, 50, 70))
    of = source(regions=(*source().regions, bottle), counts={"cup": 1, "bottle": 1})
    drafts = (next(recipe("compose").plan(plan(of, "generated", seed))) for seed in range(20))
    draft = next(d for d in drafts if {s["type"] for s in d.operation["steps"]} == {"adjust", "replace"})
    sample = planned_sample(of, "s_compose_g0", "single", [turn_of("compose", draft)], draft, "Change both.")
    [outcome] = render(everything(editors=["compose"]), sample)
    assert isinstance(outcome, Item)
    mask = decode_mask_png(outcome.blobs["mask1.png"])
    both = region_mask() | disc(500, 300, 50, 70)
    assert both.containment(mask) == 1.0 and mask.containment(both.dilate(16)) == 1.0


def test_conversations_keep_their_recipes() -> None:
    stage = everything(editors=["add", "adjust", "remove"])
    [outcome] = render(stage, conversation_of())
    assert isinstance(outcome, Item)
    assert stage.models["editor"].calls == []
    assert [edge.render for edge in outcome.record.edges] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("verdicts", "chosen", "overall"),
    [([2, 4.5, 3], 1, 4.5), ([4, 4, 1], 0, 4.0), ([None, 2, None], 1, 2.0), ([None, 3, 3], 1, 3.0)],
)
def test_the_best_attempt_is_kept(verdicts: list[float | None], chosen: int, overall: float) -> None:
    stage = everything(best_of={"replace": 3})
    stage.models["judge"] = ScriptedJudge(verdicts)
    [outcome] = render(stage, sample_of("replace"))
    assert isinstance(outcome, Item)
    assert outcome.record.edges[0].render == {"candidates": 3, "chosen": chosen, "judge_overall": overall}
    [pairs], [fills] = stage.models["judge"].calls, stage.models["painter"].calls
    assert len(pairs) == len(fills) == 3
    assert pairs[0].instruction == "Edit it." and pairs[0].type == "replace" and pairs[0].sha256 == source().sha256
    assert len({pair.result.tobytes() for pair in pairs}) == 3
    assert np.abs(node(outcome, 1).astype(int) - pairs[chosen].result).mean() < 3


def test_attempts_and_verdicts_of_a_batch_share_their_calls() -> None:
    stage = everything(best_of={"replace": 2, "visual": 3})
    outcomes = render(stage, *(sample_of("replace", n) for n in range(4)), *(sample_of("visual", n) for n in range(3)))
    assert all(isinstance(outcome, Item) for outcome in outcomes)
    assert (calls(stage, "painter"), calls(stage, "reference"), calls(stage, "inserter")) == ([8], [9], [9])
    assert calls(stage, "judge") == [8, 9]  # replacing takes one round before its verdict, visual two


def test_attempts_that_nobody_judged_are_refused() -> None:
    stage = everything(best_of={"replace": 2})
    stage.models["judge"] = ScriptedJudge([None, None])
    [outcome] = render(stage, sample_of("replace"))
    assert isinstance(outcome, Reject)
    assert (outcome.reason, outcome.detail) == ("judge_failed", "failed: timeout; failed: timeout")


class Fading(FlatPainter):
    """An adjuster whose first attempt changes nothing."""

    def inpaint(self, fills: Any) -> list[np.ndarray]:
        return [fills[0].image, *super().inpaint(fills[1:])]


def test_a_refused_attempt_loses_and_only_all_refused_are_a_reject() -> None:
    stage = everything(best_of={"adjust": 2})
    stage.models["adjuster"] = Fading()
    [outcome] = render(stage, sample_of("adjust"))
    assert isinstance(outcome, Item)
    assert outcome.record.edges[0].render == {"candidates": 2, "chosen": 1, "judge_overall": 3.0}
    assert calls(stage, "judge") == [1]
    stage.models["adjuster"].max_fraction = 0.01
    [refused] = render(stage, sample_of("adjust"))
    assert isinstance(refused, Reject) and refused.reason == "mask_too_large"


def test_editors_compete_too() -> None:
    stage = everything(editors=["remove"], best_of={"remove": 2})
    stage.models["judge"] = ScriptedJudge([1, 5])
    [outcome] = render(stage, sample_of("remove", origin="donor"))
    assert isinstance(outcome, Item)
    assert outcome.record.edges[0].render == {
        "renderer": "editor",
        "candidates": 2,
        "chosen": 1,
        "judge_overall": 5.0,
    }


def test_edits_of_a_recipe_without_chance_are_made_once() -> None:
    stage = everything(best_of={"replace": 4})
    [outcome] = render(stage, sample_of("replace", origin="donor"))
    assert isinstance(outcome, Item)
    assert outcome.record.edges[0].render == {} and stage.models["judge"].calls == []
