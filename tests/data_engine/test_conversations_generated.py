"""Conversations about the photograph's own objects: their graphs, what each turn says, and what it may not."""

from collections.abc import Iterator

import numpy as np
import pytest
from planning import CAR, CUP, PERSON, QUIET, only_sample, photograph, planned, real, rejects, samples

from editfoundry.data_engine.conversations import Graph, plan_conversation
from editfoundry.data_engine.ideas import head, ideas, same_noun
from editfoundry.data_engine.recipes.base import Plan, Refused
from editfoundry.data_engine.records import Region
from editfoundry.data_engine.taxonomy import CONVERSATION_WORDS

DOG = real(3, "dog", (200, 230, 330, 380))
ALL = {"conversation_rates": dict.fromkeys(CONVERSATION_WORDS, 2), "generated_conversations": True}


def graph(kind: str, seed: int, regions: tuple[Region, ...] = (CUP, CAR, PERSON, DOG)) -> Graph:
    plan = Plan(photograph(regions=regions), [], [], [], np.random.default_rng(seed), "generated")
    return plan_conversation(kind, plan, CONVERSATION_WORDS[kind])


def graphs(kind: str) -> Iterator[Graph]:
    return (graph(kind, seed) for seed in range(10))


def test_a_memory_gives_two_objects_the_look_that_only_the_premise_says() -> None:
    premises = set()
    for found in graphs("content_memory"):
        assert [(t.type, t.parent) for t in found.turns] == [("adjust", 0), ("adjust", 1)]
        first, second = (t.draft for t in found.turns)
        assert first.target != second.target and "person" not in (first.target_label, second.target_label)
        look = first.result_phrase.removesuffix(f" {first.target_label}")
        assert look in ideas("adjust") and second.result_phrase == f"{look} {second.target_label}"
        assert look in found.premise and set(found.constraint) <= set(look.split())
        for draft in (first, second):
            assert (draft.open_result, draft.origin, draft.fields["result"]) == (False, "generated", "")
        premises.add(found.premise)
    assert len(premises) >= 4


def test_an_understanding_is_about_one_object_which_only_its_first_turn_names() -> None:
    endings = set()
    for found in graphs("content_understanding"):
        types = [t.type for t in found.turns]
        assert types[:2] == ["add", "adjust"] and [t.parent for t in found.turns] == [0, 1, 2]
        assert len({t.draft.target for t in found.turns}) == 1 and found.turns[0].draft.target_label != "person"
        assert found.turns[0].draft.names == (found.turns[0].draft.target_label,)
        assert [t.draft.names for t in found.turns[1:]] == [("it",), ("it",)]
        assert [t.draft.fields["position"] for t in found.turns[1:]] == ["", ""]
        endings.add(types[2])
    assert endings == {"remove", "replace"}


def test_a_backtracking_adjusts_the_first_object_from_the_first_result() -> None:
    for found in graphs("version_backtracking"):
        assert [(t.type, t.parent) for t in found.turns] == [("add", 0), ("replace", 1), ("adjust", 1)]
        first, swap, last = (t.draft for t in found.turns)
        assert first.target == swap.target == last.target
        assert not same_noun(head(swap.result_phrase), head(first.target_label))
        assert last.result_phrase.endswith(f" {first.target_label}") and last.names == (first.target_label,)


def test_every_one_is_worded_by_templates_within_the_rules() -> None:
    outcome = planned(photograph(regions=(CUP, CAR, DOG)), **(QUIET | ALL))
    found = samples(outcome)
    assert len(found) == 6 and rejects(outcome) == [] and len({s.id for s in found}) == 6
    for sample in found:
        assert sample.donors == () and sample.initial == () and "_g" in sample.id
        for number, turn in enumerate(sample.turns):
            if sample.kind == "content_understanding" and number:
                assert turn.target_label not in turn.instruction.lower()
            if sample.kind == "content_memory":
                look = turn.result_phrase.removesuffix(f" {turn.target_label}")
                assert not set(look.split()) & set(turn.instruction.lower().strip(".").split())


@pytest.mark.parametrize(
    ("kind", "regions", "reason"),
    [
        ("content_memory", (CUP,), "no_pair"),
        ("content_memory", (CUP, CUP.model_copy(update={"id": "r9"})), "no_pair"),
        ("content_memory", (CUP, real(4, "bottle", (125, 20, 160, 120))), "no_pair"),
        ("content_memory", (CUP, PERSON), "no_pair"),
        ("content_understanding", (PERSON,), "no_idea"),
        ("version_backtracking", (PERSON,), "no_idea"),
        ("version_backtracking", (), "no_removable_object"),
    ],
)
def test_what_cannot_be_held_is_refused_with_the_reason(kind: str, regions: tuple[Region, ...], reason: str) -> None:
    with pytest.raises(Refused) as refused:
        graph(kind, 0, regions)
    assert refused.value.reason == reason


def test_donor_conversations_stay_as_they_were_when_not_asked_for() -> None:
    rates = {"conversation_rates": {"content_understanding": 1}}
    donor = only_sample(planned(photograph(regions=(CUP, CAR)), **(QUIET | rates)))
    assert donor.donors and {turn.origin for turn in donor.turns} == {"donor"}
    own = only_sample(planned(photograph(regions=(CUP, CAR)), **(QUIET | rates | {"generated_conversations": True})))
    assert not own.donors and own.id != donor.id
