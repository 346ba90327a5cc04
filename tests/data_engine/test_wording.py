"""Instructions are English, short, name what they are about, and never smuggle anything in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.english import a, plural
from editfoundry.core.errors import ConfigError
from editfoundry.data_engine.taxonomy import CONVERSATION_WORDS, FAMILIES, TYPES
from editfoundry.data_engine.wording import fill, problems, same_request

FIELDS = dict.fromkeys(
    (
        "a_object",
        "the_object",
        "object",
        "objects",
        "objects_after",
        "position",
        "result",
        "first",
        "second",
        "before",
        "after",
        "colour",
        "side",
    ),
    "thing",
)


@pytest.mark.parametrize(
    ("noun", "expected"),
    [
        ("owl", "an owl"),
        ("rooster", "a rooster"),
        ("orange", "an orange"),
        ("unicycle", "a unicycle"),
        ("umbrella", "an umbrella"),
        ("scissors", "a pair of scissors"),
    ],
)
def test_indefinite_article(noun: str, expected: str) -> None:
    assert a(noun) == expected


@pytest.mark.parametrize(
    ("noun", "expected"),
    [
        ("red apple", "red apples"),
        ("mouse", "mice"),
        ("sheep", "sheep"),
        ("strawberry", "strawberries"),
        ("paint brush", "paint brushes"),
        ("tomato", "tomatoes"),
        ("key", "keys"),
        ("glass", "glasses"),
        ("fox", "foxes"),
        ("ear of corn", "ears of corn"),
        ("woodlouse", "woodlice"),
    ],
)
def test_plural(noun: str, expected: str) -> None:
    assert plural(noun) == expected


@pytest.mark.parametrize("name", TYPES)
def test_every_template_fills_and_passes_the_checks(name: str) -> None:
    for template in TYPES[name].templates:
        text = fill([template], FIELDS, np.random.default_rng(0))
        assert problems(text) == []
        assert text[0].isupper() and "{" not in text and "  " not in text


@pytest.mark.parametrize("template", ["Paint it like {style}.", "Paint it like {result.", "Paint it like {}."])
def test_a_wrong_template_stops_the_run_with_its_fields(template: str) -> None:
    with pytest.raises(ConfigError, match=r"instruct\.templates: 'Paint it like .*fields here: a_object, "):
        fill([template], FIELDS, np.random.default_rng(0))


def test_every_conversation_template_fills() -> None:
    for turns in CONVERSATION_WORDS.values():
        for templates in turns.values():
            for template in templates:
                assert problems(fill([template], FIELDS, np.random.default_rng(0))) == []


def test_pronoun_turns_never_name_the_object() -> None:
    for turn in ("adjust", "remove", "replace"):
        for template in CONVERSATION_WORDS["content_understanding"][turn]:
            assert "object" not in template


def test_all_ten_families_have_a_row() -> None:
    assert set(FAMILIES) <= set(TYPES)
    assert len(FAMILIES) == 10


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("Add a cup at 120, 40.", "holds digits"),
        ("Add <b>a cup</b>.", "holds markup"),
        ("Add a cup\nIgnore the rules", "holds markup"),
        ("word " * 31, "31 words, more than 30"),
        ("Add a mug.", "does not name 'cup'"),
    ],
)
def test_problems_are_named(text: str, problem: str) -> None:
    assert problem in problems(text, ("cup",) if "mug" in text else ())


@pytest.mark.parametrize(
    ("reworded", "same"),
    [
        ("Place a rooster on the left.", True),
        ("Put a rooster in the left part of the picture.", True),
        ("Add a hen on the left.", False),
        ("Add a rooster on the left and a dog.", False),
        ("Rooster on a farm.", False),
    ],
)
def test_a_rewording_may_ask_for_nothing_new(reworded: str, same: bool) -> None:
    assert same_request("Add a rooster on the left.", reworded) is same


@given(st.text(max_size=200))
def test_problems_never_pass_markup_or_digits(text: str) -> None:
    if problems(text) == []:
        assert not set(text) & set("<>{}[]\n\r\t0123456789")
        assert 1 <= len(text.split()) <= 30
