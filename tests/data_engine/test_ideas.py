"""The curated result phrases: enough of them, well formed, and none where an edit must not be made."""

import pytest

from editfoundry.core.english import a
from editfoundry.data_engine import ideas as module
from editfoundry.data_engine.ideas import category, content_hash, head, ideas, same_noun
from editfoundry.data_engine.wording import problems

LABELS = ("dog", "car", "chair", "apple", "cup", "tree", "handbag", "laptop", "boat", "gadget nobody lists")


def every_phrase() -> list[str]:
    known = module._known()
    lists = [known, *known.categories]
    return [idea for part in lists for kind in ("replace", "visual", "adjust") for idea in getattr(part, kind)]


def test_there_are_enough_and_none_twice() -> None:
    assert len(set(ideas("background"))) == len(ideas("background")) >= 25
    assert len(set(ideas("style"))) == len(ideas("style")) >= 20
    for label in LABELS:
        for kind in ("replace", "visual", "adjust"):
            found = ideas(kind, label)
            assert len(set(found)) == len(found) >= 4


def test_every_phrase_is_short_and_would_pass_in_an_instruction() -> None:
    for phrase in [*every_phrase(), *ideas("background"), *ideas("style")]:
        assert problems(phrase) == [] and len(phrase.split()) <= 8
        assert phrase == phrase.strip() and phrase[-1].isalpha()
    for phrase in (*ideas("background"), *ideas("style")):
        assert phrase.split()[0] in {"a", "an"} or phrase == "pixel art"
    for phrase in every_phrase():
        assert phrase.split()[0] not in {"a", "an", "the"}
        assert a(phrase).endswith(phrase)


@pytest.mark.parametrize(
    "label", ["person", "two men", "police officer", "little girl", "woman with an umbrella", "face"]
)
def test_people_are_neither_replaced_nor_repainted(label: str) -> None:
    assert [list(ideas(kind, label)) for kind in ("replace", "visual", "adjust")] == [[], [], []]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("dogs", "small animals"),
        ("hot dog", "food"),
        ("teddy bear", "toys and sports"),
        ("cup of tea", "vessels and tableware"),
        ("city bus", "road vehicles"),
        ("parking meter", "buildings and street"),
        ("sheep", "large animals"),
    ],
)
def test_labels_find_their_category(label: str, name: str) -> None:
    found = category(label)
    assert found is not None and found.name == name


def test_every_member_belongs_to_one_category() -> None:
    members = [member for part in module._known().categories for member in part.members]
    assert len(set(members)) == len(members) > 400
    assert category("gadget nobody lists") is None


def test_a_thing_is_never_replaced_by_its_own_kind() -> None:
    assert "red fox" in ideas("replace", "dog") and "red fox" not in ideas("replace", "arctic foxes")
    for label in LABELS:
        assert all(not same_noun(head(idea), head(label)) for idea in ideas("replace", label))


@pytest.mark.parametrize(
    ("phrase", "noun"),
    [("the blue cup with a chip", "cup"), ("ear of corn", "ear"), ("ice-cream", "ice-cream"), ("", ""), ("...", "")],
)
def test_the_head_of_a_phrase(phrase: str, noun: str) -> None:
    assert head(phrase) == noun


def test_unknown_kinds_are_errors_and_the_hash_is_stable() -> None:
    with pytest.raises(ValueError, match="no ideas of kind 'remove'"):
        ideas("remove", "dog")
    assert content_hash() == content_hash() and len(content_hash()) == 16
