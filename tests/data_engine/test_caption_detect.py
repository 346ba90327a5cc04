"""Nouns: exact substrings of the caption, and in a region only where independent witnesses agree."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from skimage import data
from source_stages import config, ingest, run, text_source

from editfoundry.core.geometry import Box
from editfoundry.data_engine.agreement import (
    AgreementConfig,
    Views,
    judge_detection,
    judge_person,
    judge_unnamed,
)
from editfoundry.data_engine.stages.caption import Caption, caption
from editfoundry.data_engine.stages.detect import Detect
from editfoundry.models.embedded.captioner import describe
from editfoundry.models.embedded.labels import imagenet_nouns
from editfoundry.models.embedded.nouns import KINDS, background_nouns, kind_score, members, mentions, object_nouns
from editfoundry.models.protocols import Tag

CONFIG = AgreementConfig()


@given(st.text(alphabet=st.sampled_from("cup dog,.-ORANGEs boat sky\n"), max_size=80) | st.text(max_size=120))
def test_caption_nouns_are_substrings_and_summary_is_short(text: str) -> None:
    record = caption(describe(text))
    assert all(noun in text for noun in (*record.objects, *record.backgrounds))
    assert len(record.summary.split()) <= 15


def test_nouns_of_a_sentence() -> None:
    text = "Two Boats and a dog on the beach, an orange suit beside an orange."
    assert object_nouns(text) == ("Boats", "dog", "orange")
    assert background_nouns(text) == ("beach",)
    assert object_nouns("An orange suit; a carton in a scatter of cargo") == ()


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        ("A ladybird on a stem", "ladybug", True),
        ("Two WOLVES", "wolf", True),
        ("A woman waits", "person", True),
        ("a hot-dog stand", "dog", False),
        ("category", "cat", False),
        ("an orange dahlia", "orange", False),
        ("an orange on a table", "orange", True),
    ],
)
def test_mentions(text: str, label: str, expected: bool) -> None:
    assert mentions(text, label) is expected


def test_every_kind_has_classes_and_no_class_has_two_kinds() -> None:
    assert all(members(kind) for kind in KINDS)
    nouns = imagenet_nouns()
    owners = {noun: [kind for kind in KINDS if noun in members(kind)] for noun in nouns}
    assert {noun: kinds for noun, kinds in owners.items() if len(kinds) > 1} == {}


def seen(*scores: float, label: str = "espresso", other: str = "tray") -> Views:
    """Four views that give `label` these scores and `other` half of the rest, best first as a tagger answers."""
    views = [[Tag(label, score), Tag(other, (1 - score) / 2)] for score in scores]
    return [sorted(tags, key=lambda tag: -tag.score) for tags in views]


def test_detection_needs_the_tagger_in_every_view() -> None:
    assert judge_detection("cup", 0.9, seen(0.9, 0.8, 0.7, 0.9), "", CONFIG).sure
    assert not judge_detection("cup", 0.9, seen(0.9, 0.8, 0.3, 0.9), "", CONFIG).sure
    assert not judge_detection("cup", 0.4, seen(0.9, 0.8, 0.7, 0.9), "", CONFIG).sure


def test_text_is_a_witness_but_not_the_only_one() -> None:
    views = seen(0.3, 0.2, 0.15, 0.3)
    assert not judge_detection("cup", 0.9, views, "", CONFIG).sure
    assert judge_detection("cup", 0.9, views, "A cup of coffee", CONFIG).sure
    assert not judge_detection("cup", 0.9, seen(0.02, 0.02, 0.01, 0.01), "A cup of coffee", CONFIG).sure


def test_detector_label_that_the_tagger_cannot_judge_needs_the_text() -> None:
    views = seen(0.5, 0.5, 0.5, 0.5)
    assert not judge_detection("frisbee", 0.99, views, "", CONFIG).sure
    assert judge_detection("frisbee", 0.99, views, "A frisbee", CONFIG).sure
    assert "cannot judge frisbee" in judge_detection("frisbee", 0.99, views, "", CONFIG).why


def test_helmet_called_mouse_is_refused_in_the_witnesses_words() -> None:
    verdict = judge_detection("mouse", 0.5, seen(0.6, 0.6, 0.6, 0.6, label="crash helmet"), "", CONFIG)
    assert not verdict.sure
    assert verdict.why == "detector says mouse 0.50; tagger says crash helmet 0.60"


def test_lemon_is_no_orange_and_a_surer_narrower_kind_wins() -> None:
    assert not judge_detection("orange", 0.98, seen(0.9, 0.9, 0.9, 0.9, label="lemon"), "", CONFIG).sure
    verdict = judge_detection("sports ball", 0.9, seen(0.95, 0.9, 0.9, 0.95, label="soccer ball"), "", CONFIG)
    assert (verdict.label, verdict.sure) == ("soccer ball", True)


def test_unnamed_region_takes_the_kind_not_the_breed() -> None:
    views = [[Tag("Egyptian cat", 0.3), Tag("tabby cat", 0.3)] for _ in range(4)]
    verdict = judge_unnamed(views, [], "", [], CONFIG)
    assert (verdict.label, verdict.sure) == ("cat", True)
    assert verdict.support == pytest.approx(0.6)


def test_unnamed_region_against_the_detector() -> None:
    views = seen(0.9, 0.9, 0.9, 0.9, label="baboon")
    assert judge_unnamed(views, [], "", [], CONFIG).label == "monkey"
    assert not judge_unnamed(views, [], "", ["tie"], CONFIG).sure
    squirrel = seen(0.9, 0.9, 0.9, 0.9, label="fox squirrel")
    assert judge_unnamed(squirrel, [], "A squirrel", ["bird"], CONFIG).sure


def test_part_of_an_object_is_not_the_object() -> None:
    petal = seen(0.2, 0.2, 0.2, 0.2, label="daisy")
    assert judge_unnamed(petal, [Tag("daisy", 0.3)], "A flower", [], CONFIG).sure
    assert not judge_unnamed(petal, [Tag("daisy", 0.9)], "A flower", [], CONFIG).sure


def test_first_choice_in_three_views_confirms_the_text() -> None:
    weak = [[Tag("daisy", 0.06)], [Tag("mushroom", 0.1), Tag("daisy", 0.06)], [Tag("daisy", 0.1)], [Tag("daisy", 0.04)]]
    assert judge_unnamed(weak, [], "A dahlia", [], CONFIG).sure
    assert not judge_unnamed(weak, [], "", [], CONFIG).sure


def test_person_needs_a_second_witness_or_near_certainty() -> None:
    plain, dressed = seen(0.5, 0.5, 0.5, 0.5), seen(0.5, 0.5, 0.5, 0.5, label="jersey")
    assert not judge_person(0.8, False, plain, "", CONFIG).sure
    assert judge_person(0.97, False, plain, "", CONFIG).sure
    assert judge_person(0.8, True, plain, "", CONFIG).sure
    assert judge_person(0.8, False, dressed, "", CONFIG).sure
    assert judge_person(0.8, False, plain, "a football player", CONFIG).sure
    assert not judge_person(0.6, True, dressed, "a man", CONFIG).sure


@given(st.lists(st.tuples(st.sampled_from(imagenet_nouns()), st.floats(0, 1)), max_size=12))
def test_kind_score_is_a_probability(pairs: list[tuple[str, float]]) -> None:
    tags = [Tag(*pair) for pair in pairs]
    assert all(0 <= kind_score(kind, tags) <= 1 for kind in KINDS)


def photograph(folder: Path, name: str) -> Path:
    Image.fromarray(getattr(data, name)()).save(folder / f"{name}.png")
    return folder


@pytest.mark.weights
@pytest.mark.slow
def test_coffee_is_one_cup_and_its_table_is_refused(tmp_path: Path) -> None:
    items, _ = ingest(photograph(tmp_path, "coffee"))
    (item,), rejects = run(Detect(config(tmp_path)), items)
    (region,) = item.record.regions
    assert (region.label, region.detector) == ("cup", "detector")
    assert region.detector_score > 0.9
    assert region.tagger_score > 0.8
    assert Box.from_list(region.box).iou(Box(157, 9, 385, 250)) > 0.6
    assert item.record.counts["cup"] == 1
    assert {reject.unit for reject in rejects} == {"region"}
    assert {reject.reason for reject in rejects} <= {"unsure_label", "found_twice"}


@pytest.mark.weights
@pytest.mark.slow
def test_astronaut_has_a_face_to_protect_and_no_mouse(tmp_path: Path) -> None:
    items, _ = ingest(photograph(tmp_path, "astronaut"))
    (item,), rejects = run(Detect(config(tmp_path)), items)
    source = item.record
    assert source.faces == 1
    assert source.protected
    assert "mouse" not in {region.label for region in source.regions}
    mouse = next(reject for reject in rejects if reject.type == "mouse")
    assert mouse.reason == "unsure_label"
    assert "helmet" in mouse.detail


@pytest.mark.weights
def test_rocket_has_no_sure_noun(tmp_path: Path) -> None:
    items, _ = ingest(photograph(tmp_path, "rocket"))
    (item,), _ = run(Detect(config(tmp_path)), items)
    assert item.record.regions == ()


@pytest.mark.weights
def test_captions_come_from_the_text_or_from_sure_tags_only(tmp_path: Path) -> None:
    items, _ = ingest(photograph(tmp_path, "chelsea"))
    (tagged,), _ = run(Caption(config(tmp_path)), items)
    assert tagged.record.caption.text == "A photograph of a cat."
    assert tagged.record.caption.objects == ("cat",)
    (told,), _ = run(Caption(config(tmp_path)), [text_source(items[0], "My old kitten Tom, asleep on the floor")])
    assert told.record.caption.objects == ("kitten",)
    assert told.record.caption.backgrounds == ("floor",)


@pytest.mark.weights
def test_caption_without_a_sure_tag_names_nothing(tmp_path: Path) -> None:
    grain = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    Image.fromarray(grain).save(tmp_path / "grain.png")
    items, _ = ingest(tmp_path)
    (item,), _ = run(Caption(config(tmp_path)), items)
    assert item.record.caption.text == "A photograph."
    assert item.record.caption.objects == ()
