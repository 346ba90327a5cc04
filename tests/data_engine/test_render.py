"""The render stage on computed photographs and models: batches, seeds, editors, the best of several, refusals."""

from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import pytest
from recipe_world import (
    CUTOUTS,
    DONORS,
    DiscDrawer,
    FlatPainter,
    Inverter,
    ScriptedJudge,
    disc,
    large_cup,
    photograph,
    plan,
    region,
    region_mask,
    source,
    turn_of,
)

from editfoundry.core.errors import ConfigError
from editfoundry.core.geometry import Grid, Mask, to_grid
from editfoundry.core.hashing import seed_for
from editfoundry.core.images import decode, decode_jpeg, decode_mask_png, encode_jpeg
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.recipes.base import Draft, recipe
from editfoundry.data_engine.recipes.generated import generated_add, generated_adjust, generated_remove
from editfoundry.data_engine.records import Reject, Sample
from editfoundry.data_engine.stages.base import Artifacts, Item
from editfoundry.data_engine.stages.render import Render, RenderConfig
from editfoundry.models.protocols import Drawing, Instructed
from editfoundry.models.registry import REGISTRY

FAKES = {
    "inpainter": "MeanFiller",
    "painter": "FlatPainter",
    "adjuster": "FlatPainter",
    "inserter": "FlatPainter",
    "reference": "DiscDrawer",
    "style": "Inverter",
    "editor": "Inverter",
    "judge": "ScriptedJudge",
}
SEED = 7


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for role, name in FAKES.items():
        monkeypatch.setitem(REGISTRY[role], "fake", f"recipe_world:{name}")


class MemoryArtifacts(Artifacts):
    """The catalogue's rows and cut-outs, in memory."""

    def rows(self, stage: str) -> Iterator[dict[str, Any]]:
        assert stage == "catalogue"
        return (donor.model_dump(mode="json") for donor in DONORS)

    def blob(self, stage: str, shard: int, record_id: str, member: str) -> bytes:
        return cv2.imencode(".png", cv2.cvtColor(CUTOUTS[record_id], cv2.COLOR_RGBA2BGRA))[1].tobytes()


def config(instruct: dict[str, Any] | None = None, without: Sequence[str] = (), **render: Any) -> RunConfig:
    models = {role: "fake" for role in FAKES if role not in without}
    return RunConfig.model_validate(
        {
            "seed": SEED,
            "models": models,
            "ingest": {"sources": [{"path": "/photographs"}]},
            "instruct": instruct or {},
            "render": render,
        }
    )


def everything(**render: Any) -> Render:
    """A stage with every generative model, set up."""
    rates = dict.fromkeys(("replace", "adjust", "background", "visual", "extract", "compose"), 1)
    stage = Render(config({"generated_rates": rates}, **render))
    stage.setup(MemoryArtifacts())
    return stage


def item_of(sample: Sample) -> Item:
    number = int(sample.source.id, 16) % 97
    return Item(sample, {"original": encode_jpeg(photograph(number), quality=95)})


def sample_of(name: str, number: int = 0, origin: str = "generated", instruction: str = "Edit it.") -> Sample:
    """The first sample that the recipe plans for one of many photographs."""
    cup = large_cup() if name == "background" else region("r0", "cup", region_mask())
    of = source(id=f"{number:016x}", regions=(cup,))
    draft = next(recipe(name).plan(plan(of, origin, number)))
    return _sample(of, f"{of.id}_{name}_g0", "single", [turn_of(name, draft)], draft, instruction)


def conversation_of(number: int = 0) -> Sample:
    of = source(id=f"{number:016x}")
    planned = plan(of, "generated", number)
    drafts = [make(planned, of.regions[0]) for make in (generated_add, generated_adjust, generated_remove)]
    steps = zip(("add", "adjust", "remove"), drafts, strict=True)
    turns = [turn_of(name, draft, index + 1, index) for index, (name, draft) in enumerate(steps)]
    return _sample(of, f"{of.id}_content_understanding_0", "content_understanding", turns, drafts[0], "Change it.")


def _sample(of: Any, name: str, kind: Any, turns: list[Any], draft: Draft, instruction: str) -> Sample:
    worded = tuple(turn.model_copy(update={"instruction": instruction}) for turn in turns)
    return Sample(id=name, kind=kind, source=of, initial=draft.initial, turns=worded, donors=draft.donors)


def render(stage: Render, *samples: Sample) -> list[Item | Reject]:
    return [outcome for [outcome] in stage.process([stage.prepare(item_of(sample)) for sample in samples])]


def contents(outcome: Item | Reject) -> tuple[str, dict[str, bytes]]:
    return (outcome.record.to_json(), outcome.blobs) if isinstance(outcome, Item) else (outcome.to_json(), {})


def node(item: Item, index: int) -> np.ndarray:
    return decode_jpeg(item.blobs[f"node{index}.jpg"])


def calls(stage: Render, role: str) -> list[int]:
    """How many requests each call of a role's model carried."""
    return [len(call) for call in stage.models[role].calls]


def test_eight_samples_cost_one_call_per_role_and_round() -> None:
    stage = everything()
    for name in ("replace", "visual"):
        outcomes = render(stage, *(sample_of(name, number) for number in range(8)))
        assert all(isinstance(outcome, Item) for outcome in outcomes)
    assert [calls(stage, role) for role in ("painter", "reference", "inserter")] == [[8], [8], [8]]


def test_conversations_batch_turn_by_turn_and_end_where_they_began() -> None:
    stage = everything()
    outcomes = render(stage, *(conversation_of(number) for number in range(3)))
    assert calls(stage, "inpainter") == [3] and calls(stage, "adjuster") == [3]
    for outcome in outcomes:
        assert isinstance(outcome, Item)
        edges = outcome.record.edges
        assert edges[2].result_sha256 == edges[0].source_sha256 != edges[1].result_sha256
        assert edges[2].result_node == "node0.jpg"


def test_outcomes_do_not_depend_on_the_batch_or_its_order() -> None:
    names = ("replace", "visual", "extract", "background", "adjust")
    samples = [sample_of(name, number) for number, name in enumerate(names)] + [conversation_of(9)]
    together = [contents(outcome) for outcome in render(everything(), *samples)]
    backwards = [contents(outcome) for outcome in render(everything(), *reversed(samples))]
    alone = [contents(render(everything(), sample)[0]) for sample in samples]
    assert together == backwards[::-1] == alone


def test_every_call_has_its_own_seed_that_depends_on_the_run_the_sample_and_the_place_alone() -> None:
    stage = everything(best_of={"visual": 2})
    sample = sample_of("visual")
    render(stage, sample)
    [drawings], [fills] = stage.models["reference"].calls, stage.models["inserter"].calls
    expected = [
        [seed_for(SEED, sample.id, "render", 1, attempt, call) % 2**31 for attempt in (0, 1)] for call in (0, 1)
    ]
    assert [[d.seed for d in drawings], [f.seed for f in fills]] == expected
    assert len({*expected[0], *expected[1]}) == 4


def test_a_refused_sample_leaves_the_others_of_its_batch_alone() -> None:
    stage = everything()
    stage.models["painter"].max_fraction = 0.5
    good, bad = sample_of("replace", 1), sample_of("background", 2)
    outcomes = render(stage, bad, good)
    assert isinstance(outcomes[0], Reject) and outcomes[0].reason == "mask_too_large"
    assert outcomes[0].id == bad.id and outcomes[0].type == "background"
    assert contents(outcomes[1]) == contents(render(everything(), good)[0])


class Noisy(DiscDrawer):
    """Draws coarse noise, which has no ground."""

    def draw(self, drawings: Sequence[Drawing]) -> list[np.ndarray]:
        side = drawings[0].size[0]
        coarse = np.random.default_rng(0).integers(0, 255, (side // 8, side // 8, 3), np.uint8)
        return [coarse.repeat(8, axis=0).repeat(8, axis=1)]


class Broken(FlatPainter):
    def inpaint(self, fills: Any) -> list[np.ndarray]:
        raise RuntimeError("out of memory")


def test_what_a_model_raises_is_raised() -> None:
    stage = everything()
    stage.models["painter"] = Broken()
    with pytest.raises(RuntimeError, match="out of memory"):
        render(stage, sample_of("replace"), sample_of("adjust"))


def test_placed_objects_need_no_generative_model() -> None:
    stage = Render(config(without=("painter", "adjuster", "inserter", "reference", "editor", "judge")))
    stage.setup(MemoryArtifacts())
    [outcome] = render(stage, sample_of("remove", origin="donor"))
    assert isinstance(outcome, Item)
    assert outcome.record.edges[0].render == {} and outcome.record.turns[0].origin == "donor"


def test_how_plain_a_drawings_ground_must_be_is_configured() -> None:
    reasons = []
    for most in (0.1, 1.0):
        stage = everything(max_uneven_ground=most)
        stage.models["reference"] = Noisy()
        [outcome] = render(stage, sample_of("extract"))
        reasons.append(outcome.reason if isinstance(outcome, Reject) else "")
    assert reasons == ["ground_not_plain", ""]


# Editors


def photographed(number: int) -> np.ndarray:
    """What the stage starts from: the photograph as its member decodes."""
    grid = Grid(*source().grid)
    return to_grid(decode(encode_jpeg(photograph(number), quality=95)), grid)


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
    sample = _sample(of, "s_compose_g0", "single", [turn_of("compose", draft)], draft, "Change both.")
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


# The best of several


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
    assert (outcome.reason, outcome.detail) == ("unjudged", "failed: timeout; failed: timeout")


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


# What the configuration asks for


@pytest.mark.parametrize(
    ("instruct", "settings", "asked"),
    [
        ({}, {}, ()),
        ({"generated_rates": {"replace": 1, "visual": 0}}, {}, ("painter",)),
        ({"generated_rates": {"visual": 0.5}}, {}, ("inserter", "reference")),
        ({"generated_rates": {"compose": 1}}, {}, ("painter", "adjuster")),
        ({"generated_conversations": True}, {}, ("painter", "adjuster")),
        ({}, {"editors": ["motion"]}, ("editor",)),
        ({"generated_rates": {"adjust": 1}}, {"best_of": {"adjust": 2}}, ("adjuster", "judge")),
        ({"generated_rates": {"adjust": 1}}, {"best_of": {"adjust": 1}}, ("adjuster",)),
    ],
)
def test_only_the_models_that_are_asked_for_are_needed(
    instruct: dict[str, Any], settings: dict[str, Any], asked: tuple[str, ...]
) -> None:
    assert set(Render.needs(config(instruct, **settings))) == {"inpainter", "style", *asked}


def test_a_model_that_is_not_named_is_an_error_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"models\.painter: render needs one and none is named; available: .*flux-fill"
    ):
        Render(config({"generated_rates": {"replace": 1}}, without=("painter",)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"editors": ["repaint"]}, "unknown edit types"),
        ({"editors": ["add", "add"]}, "listed twice"),
        ({"best_of": {"swap": 2}}, "unknown edit types"),
        ({"best_of": {"replace": 0}}, "greater than or equal to 1"),
        ({"best_of": {"replace": 17}}, "less than or equal to 16"),
        ({"best_of": {"count": 2}}, "count always come out the same"),
        ({"best_of": {"extract": 2}}, "extract always come out the same"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RenderConfig.model_validate(settings)
    assert RenderConfig.model_validate({"editors": ["count", "extract"], "best_of": {"count": 2, "extract": 2}})
