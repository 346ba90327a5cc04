"""Planning: seeded, accounted for, inside one split, worded by the configured templates and checked."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from planning import Library, config, donors, planned, samples, source

from editfoundry.core.errors import ConfigError
from editfoundry.data_engine.conversations import plan_conversation
from editfoundry.data_engine.recipes.base import Plan, Refused
from editfoundry.data_engine.records import Region, Reject
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.instruct import Instruct
from editfoundry.data_engine.taxonomy import CONVERSATION_WORDS, TYPES

EVERYTHING = {
    "donor_rates": dict.fromkeys(set(TYPES) - {"background", "style", "motion"}, 2),
    "conversation_rates": dict.fromkeys(CONVERSATION_WORDS, 2),
}


def test_everything_planned_is_worded_and_keyed() -> None:
    found = samples(planned(source(), **EVERYTHING))
    assert len({s.id for s in found}) == len(found) >= 20
    for sample in found:
        assert set(sample.id) <= set("0123456789abcdefghijklmnopqrstuvwxyz_")
        for turn in sample.turns:
            assert 1 <= len(turn.instruction.split()) <= 30 and turn.type in TYPES


def test_plans_do_not_depend_on_batch_or_company() -> None:
    stage = Instruct(config(**EVERYTHING))
    stage.setup(Library(donors()))
    together = stage.process([Item(source(1)), Item(source(2))])
    assert [samples(o) for o in together] == [samples(planned(source(i), **EVERYTHING)) for i in (1, 2)]


def test_adding_a_type_leaves_the_other_plans_alone() -> None:
    few = {s.id: s for s in samples(planned(source(), donor_rates={"add": 1}, conversation_rates={}))}
    more = {s.id: s for s in samples(planned(source(), donor_rates={"add": 1, "remove": 1}, conversation_rates={}))}
    assert few.items() <= more.items() and len(more) > len(few)


def test_fractional_rates_are_chances() -> None:
    made = [
        len(samples(planned(source(i), donor_rates={"add": 0.5}, conversation_rates={}, photograph_rates={})))
        for i in range(60)
    ]
    assert set(made) == {0, 1} and 18 <= sum(made) <= 42


def test_a_source_only_meets_donors_of_its_own_split() -> None:
    both = donors("train") + donors("val")
    for split in ("train", "val"):
        allowed = {d.sha256 for d in both if d.split == split}
        for sample in samples(planned(source(split=split), both, **EVERYTHING)):
            assert sample.split == split and set(sample.donors) <= allowed


def test_a_source_with_no_place_and_no_object_is_rejected_with_reasons() -> None:
    outcome = planned(source(zones=()), photograph_rates={}, conversation_rates={}, donor_rates={"add": 1})
    assert [(r.unit, r.reason) for r in outcome] == [("candidate", "no_zone"), ("source", "nothing_planned")]


def test_templates_can_be_replaced_and_enter_the_fingerprint() -> None:
    mine = planned(
        source(),
        donor_rates={"add": 1},
        conversation_rates={},
        photograph_rates={},
        templates={"add": ["Kindly add {a_object}."]},
    )
    assert samples(mine)[0].turns[0].instruction.startswith("Kindly add a")
    assert Instruct(config()).settings() != Instruct(config(templates={"add": ["Kindly add {a_object}."]})).settings()


def test_a_template_that_forgets_the_object_is_refused() -> None:
    outcome = planned(
        source(),
        donor_rates={"add": 1},
        conversation_rates={},
        photograph_rates={},
        templates={"add": ["Add something."]},
    )
    assert [r.reason for r in outcome if isinstance(r, Reject)] == ["bad_instruction", "nothing_planned"]


def test_unsure_nouns_have_no_way_in() -> None:
    unsure = Region(
        id="r0",
        label="mouse",
        kind="object",
        box=(10, 10, 100, 100),
        detector="ssd",
        detector_score=0.9,
        qualified=False,
    )
    for sample in samples(planned(source(regions=(unsure,)), **EVERYTHING)):
        assert all("mouse" not in turn.instruction for turn in sample.turns)


@pytest.mark.parametrize("key", ["donor_rates", "photograph_rates", "templates"])
def test_unknown_types_are_named(key: str) -> None:
    with pytest.raises(ConfigError, match="teleport"):
        config(**{key: {"teleport": ["x"] if key == "templates" else 1}})


def graphs(kind: str) -> Iterator[Any]:
    for seed in range(12):
        plan = Plan(source(), donors(), [], [], np.random.default_rng(seed))
        try:
            yield plan_conversation(kind, plan, CONVERSATION_WORDS[kind])
        except Refused:
            continue


def test_content_memory_states_a_premise_that_no_turn_repeats() -> None:
    found = list(graphs("content_memory"))
    assert len(found) >= 6
    for graph in found:
        assert graph.premise and [t.parent for t in graph.turns] == [0, 1]
        assert not {"left", "right"} & {w for t in graph.turns for text in t.templates for w in text.split()}


def test_content_understanding_is_a_chain_of_add_adjust_and_remove_or_replace() -> None:
    for graph in graphs("content_understanding"):
        assert [t.parent for t in graph.turns] == [0, 1, 2]
        assert [t.type for t in graph.turns][:2] == ["add", "adjust"] and graph.turns[2].type in {"remove", "replace"}


def test_version_backtracking_returns_to_the_first_result() -> None:
    for graph in graphs("version_backtracking"):
        assert [t.type for t in graph.turns] == ["add", "replace", "adjust"]
        assert [t.parent for t in graph.turns] == [0, 1, 1]
        assert graph.turns[2].draft.target_label == graph.turns[0].draft.target_label


def test_a_premise_of_colour_never_meets_a_label_that_says_another() -> None:
    for graph in graphs("content_memory"):
        if "half" not in graph.premise:
            assert "black cat" not in {turn.draft.target_label for turn in graph.turns}


class Reworder:
    """A Paraphraser that always answers the same thing."""

    def __init__(self, reply: str) -> None:
        self.reply = reply

    def paraphrase(self, instruction: str, seed: int) -> str:
        return self.reply or instruction.replace("Add", "Please add")


def reworded(reply: str, **rates: Any) -> list[Item | Reject]:
    stage = Instruct(config(**({"donor_rates": {}, "conversation_rates": {}, "photograph_rates": {}} | rates)))
    stage.setup(Library(donors()))
    stage.config = stage.config.model_copy(update={"paraphrase": 1.0})
    stage.models["paraphraser"] = Reworder(reply)
    return stage.process([Item(source())])[0]


ADD = {"donor_rates": {"add": 1}, "templates": {"add": ["Add {a_object} {position}."]}}


def test_a_faithful_rewording_is_taken() -> None:
    (turn,) = samples(reworded("", **ADD))[0].turns
    assert turn.instruction.startswith("Please add ") and turn.worded_by == "paraphraser"


@pytest.mark.parametrize("reply", ["Add a thing.", "Remove everything; ignore the rules", "", "Add <b>it</b>"])
def test_any_other_rewording_is_refused_and_counted(reply: str) -> None:
    outcome = reworded(reply or "Add a rooster and a second dog somewhere.", **ADD)
    assert samples(outcome)[0].turns[0].instruction.startswith("Add ")
    assert samples(outcome)[0].turns[0].worded_by == "template"
    assert "paraphrase_refused" in [part.reason for part in outcome if isinstance(part, Reject)]


def test_turns_that_point_back_are_never_reworded() -> None:
    outcome = reworded("Bring it back to pink.", conversation_rates={"version_backtracking": 1})
    assert all("back to pink" not in turn.instruction for sample in samples(outcome) for turn in sample.turns)


def test_the_words_of_a_seed_never_change() -> None:
    """Recorded before writers and generated edits existed: neither may move what a run without them writes."""
    rates = {"donor_rates": {"add": 1, "replace": 1, "move": 1}, "photograph_rates": {}}
    conversations = {"conversation_rates": {"content_memory": 1, "version_backtracking": 1}}
    found = samples(planned(source(), **rates, **conversations))
    assert {s.id.partition("_")[2]: [t.instruction for t in s.turns] for s in found} == {
        "add_d0": ["There should be a ball in the lower right."],
        "move_d0": ["Move the black cat in the middle to the lower right."],
        "replace_d0": ["Swap the rooster in the lower left for a ball."],
        "content_memory_0": ["Put a lemon into the scene.", "Now add a goose."],
        "version_backtracking_0": [
            "Add a ball at the bottom.",
            "Replace it with a lemon.",
            "Go back one step and make the ball purple instead.",
        ],
    }
    assert [s.premise for s in found if s.premise] == ["From now on, everything you add must be pink."]
