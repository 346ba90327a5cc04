"""Class words and the COCO-to-ImageNet agreement map."""

import pytest

from editfoundry.models.embedded.coco import COCO_LABELS
from editfoundry.models.embedded.labels import INDIRECT, SUPPORT, agrees, imagenet_nouns, supporting
from editfoundry.models.protocols import Tag


def test_nouns_are_a_thousand_different_words() -> None:
    nouns = imagenet_nouns()
    assert len(nouns) == len(set(nouns)) == 1000
    assert [nouns[index] for index in (0, 134, 517, 967, 999)] == [
        "tench", "crane bird", "construction crane", "espresso", "toilet paper"]


@pytest.mark.weights
def test_nouns_follow_the_class_order_of_the_weights() -> None:
    from editfoundry.models.store import Store

    lines = Store().path("efficientnet-lite3-imagenet", "efficientnet_labels.txt").read_text().splitlines()
    nouns = imagenet_nouns()
    assert len(lines) == len(nouns)
    plainer = [(line, noun) for line, noun in zip(lines, nouns, strict=True)
               if not set(noun.lower().split()) & set(line.lower().replace(",", " ").split())]
    assert plainer == [("cock", "rooster"), ("chiffonier, commode", "chest of drawers"),
                       ("half track", "half-track vehicle"), ("jean, blue jean, denim", "jeans"),
                       ("sunglass", "dark sunglasses"), ("alp", "mountain")]


def test_support_map_uses_coco_labels_and_valid_classes() -> None:
    assert set(SUPPORT) <= set(COCO_LABELS)
    assert len(COCO_LABELS) == len(set(COCO_LABELS)) == 91
    assert (COCO_LABELS[1], COCO_LABELS[17], COCO_LABELS[47], COCO_LABELS[90]) == ("person", "cat", "cup", "toothbrush")
    assert set(SUPPORT) >= INDIRECT
    assert all(supporting(label) for label in SUPPORT)


@pytest.mark.parametrize(("label", "nouns"), [
    ("cup", {"espresso", "coffee mug", "cup", "measuring cup", "eggnog"}),
    ("orange", {"orange", "lemon"}),
    ("motorcycle", {"moped", "motor scooter", "disk brake"}),
    ("cat", {"tabby cat", "tiger cat", "Persian cat", "Siamese cat", "Egyptian cat"}),
    ("bear", {"brown bear", "black bear", "polar bear", "sloth bear"}),
    ("stop sign", {"street sign"}),
    ("giraffe", set()),
])
def test_supporting_classes(label: str, nouns: set[str]) -> None:
    assert supporting(label) == nouns


def test_animal_ranges_end_where_the_animals_do() -> None:
    nouns = imagenet_nouns()
    assert {"rooster", "great grey owl", "black swan", "white stork", "albatross"} <= supporting("bird")
    assert not {nouns[index] for index in (6, 25, 79, 101, 126, 147)} & supporting("bird")
    assert {"Chihuahua dog", "Mexican hairless dog"} <= supporting("dog")
    assert not {nouns[150], nouns[269]} & supporting("dog")


@pytest.mark.parametrize(("label", "tags", "answer"), [
    ("cup", [Tag("espresso", 0.8), Tag("cup", 0.1), Tag("tray", 0.1)], 0.9),
    ("cup", [Tag("daisy", 0.9)], 0.0),
    ("giraffe", [Tag("zebra", 0.9)], None),
    ("person", [Tag("military uniform", 0.7), Tag("suit", 0.1)], 0.8),
    ("person", [Tag("daisy", 0.9)], None),
    ("zebra", [], 0.0),
])
def test_agreement(label: str, tags: list[Tag], answer: float | None) -> None:
    assert agrees(label, tags) == (None if answer is None else pytest.approx(answer))
