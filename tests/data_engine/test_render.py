"""The render stage on computed photographs and models: batches, seeds, refusals, and the models it needs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from recipe_world import (
    DiscDrawer,
    FlatPainter,
)
from render_world import (
    SEED,
    MemoryArtifacts,
    calls,
    config,
    contents,
    conversation_of,
    everything,
    register_fakes,
    render,
    sample_of,
)

from editfoundry.core.errors import ConfigError
from editfoundry.core.hashing import seed_for
from editfoundry.data_engine.records import Reject
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.render import Render, RenderConfig
from editfoundry.models.protocols import Drawing


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register_fakes(monkeypatch)


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
