"""Edits made worse by known degrees, canaries, and words to the judge."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.core.geometry import resize
from editfoundry.models.judge.corruption import (
    CANARIES,
    DEGREES,
    DRAWN_CONTROL,
    DRAWN_TEXT,
    GRADED,
    INJECTIONS,
    MID_GREY,
    QUALITY,
    WRITTEN_CONTROL,
    WRITTEN_TEXT,
    canary,
    corrupt,
    drawn,
    grades,
    lowers,
)
from editfoundry.models.judge.rubric import Dimension, Scale
from editfoundry.models.protocols import Image

THREE = [Dimension(key, key) for key in ("first", "second", "third")]


def picture(seed: int, height: int = 96, width: int = 128) -> Image:
    """Smooth, with an area of its own colours."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin((x + 3 * seed) / 17), np.cos(y / 11), np.sin((x + y) / 23)], axis=-1)
    return (127 + 90 * waves).astype(np.uint8)


def edited() -> tuple[Image, Image, np.ndarray]:
    source = picture(0)
    mask = np.zeros(source.shape[:2], bool)
    mask[30:60, 40:80] = True
    result = source.copy()
    result[mask] = (210, 40, 40)
    return source, result, mask


def distance(one: Image, other: Image) -> float:
    return float(np.abs(one.astype(float) - other).mean())


@pytest.mark.parametrize("name", GRADED)
def test_every_degree_is_farther_from_the_edit_than_the_one_before(name: str) -> None:
    source, result, mask = edited()
    made = [corrupt(name, degree, source, result, mask, seed=3) for degree in DEGREES]
    far = [distance(one, result) for one in made]
    assert far[0] > 0 and all(nearer < farther for nearer, farther in pairwise(far)), far
    assert all(one.shape == result.shape and one.dtype == np.uint8 for one in made)
    again = corrupt(name, 2, source, result, mask, seed=3)
    assert np.array_equal(again, made[1])


def test_undone_ends_at_what_was_there_and_spill_spares_the_edit() -> None:
    source, result, mask = edited()
    assert np.array_equal(corrupt("undone", 4, source, result, mask, 0), source)
    spilled = corrupt("spill", 4, source, result, mask, 0)
    assert np.array_equal(spilled[mask], result[mask])
    assert not np.array_equal(corrupt("spill", 4, source, result, mask, 1), spilled)
    smaller = source[::2, ::2]
    assert corrupt("undone", 4, smaller, result, mask, 0).shape == result.shape


@pytest.mark.parametrize(("name", "degree"), [("identity", 1), ("noise", 0), ("noise", 5), ("nonsense", 1)])
def test_what_is_no_corruption_is_refused(name: str, degree: int) -> None:
    source, result, mask = edited()
    with pytest.raises(ValueError, match="no corruption"):
        corrupt(name, degree, source, result, mask, 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 40), st.booleans(), st.integers(0, 3))
def test_pictures_of_any_shape_are_corrupted_and_drawn_on(height: int, width: int, masked: bool, seed: int) -> None:
    source, result = picture(0, height, width), picture(1, height, width)
    mask = np.ones((height, width), bool) if masked else None
    for name in GRADED:
        for degree in DEGREES:
            assert corrupt(name, degree, source, result, mask, seed).shape == result.shape
    for text in DRAWN_TEXT:
        assert drawn(result, text).shape == result.shape


def test_canaries_are_pairs_on_which_the_instruction_was_not_carried_out() -> None:
    source, result, _ = edited()
    made = {name: canary(name, source, result, "do it", "do that") for name in CANARIES}
    assert made["identity"] == (source, source, "do it")
    assert made["swapped"] == (result, source, "do it")
    assert made["wrong_instruction"] == (source, result, "do that")
    assert made["blank"][0] is source and (made["blank"][1] == MID_GREY).all()
    assert made["blank"][1].shape == result.shape


def test_words_are_drawn_across_the_picture_and_leave_the_original_as_it_is() -> None:
    plain = np.full((200, 300, 3), 90, np.uint8)
    shown = drawn(plain, DRAWN_TEXT[0])
    assert (plain == 90).all()
    changed = (shown != plain).any(axis=(1, 2))
    assert 20 < changed.sum() < 100 and changed[95:100].all() and not changed[:40].any() and not changed[120:].any()
    assert (shown == 255).any()
    assert not np.array_equal(drawn(plain, DRAWN_CONTROL[0]), shown)


def test_every_injection_has_a_harmless_twin_of_about_its_length() -> None:
    assert INJECTIONS == ("drawn", "written")
    for words, controls in ((DRAWN_TEXT, DRAWN_CONTROL), (WRITTEN_TEXT, WRITTEN_CONTROL)):
        for text, control in zip(words, controls, strict=True):
            assert abs(len(text) - len(control)) <= 15
            assert not any(sign.isdigit() for sign in control)


def test_a_fair_judge_lowers_what_a_test_is_about() -> None:
    assert {name for name in (*CANARIES, *GRADED) if lowers(name, 0, capped=False)} == {*CANARIES, "undone"}
    assert {name for name in (*CANARIES, *GRADED) if lowers(name, 1, capped=False)} == {"blank", *QUALITY}
    assert {name for name in (*CANARIES, *GRADED) if lowers(name, 2, capped=True)} == {*CANARIES, *GRADED}


def test_grades_fall_by_a_fourth_of_the_scale_with_each_degree() -> None:
    scale = Scale(1, 5)
    assert [grades("blur", degree, scale, THREE, False)["third"] for degree in DEGREES] == [4, 3, 2, 1]
    assert grades("blur", 4, scale, THREE, False)["first"] == 5
    assert list(grades("undone", 4, scale, THREE, False).values()) == [1, 5, 5]
    assert list(grades("swapped", 0, scale, THREE, False).values()) == [1, 5, 5]
    assert set(grades("undone", 2, scale, THREE, True).values()) == {3}
    assert set(grades("blank", 0, scale, THREE, False).values()) == {1}
    assert set(grades("", 0, Scale(0, 10), THREE, True).values()) == {10}


def test_noise_is_still_there_in_a_small_picture() -> None:
    grey = np.full((512, 768, 3), 128, np.uint8)
    small = [resize(corrupt("noise", degree, grey, grey, None, 0), 96, 64).std() for degree in DEGREES]
    assert small == sorted(small)
    assert small[0] > 3
