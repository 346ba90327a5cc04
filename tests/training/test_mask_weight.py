"""The edited area and its weights, on masks small enough to work out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from editfoundry.training.config import MaskWeight
from editfoundry.training.mask_weight import Unchanged, changed, token_weights


def grey(level: int, size: int = 64) -> NDArray[np.uint8]:
    return np.full((size, size, 3), level, np.uint8)


def painted(*boxes: tuple[int, int, int, int], by: int = 18, size: int = 64) -> NDArray[np.uint8]:
    """Grey 100, with `by` levels added in boxes x0, y0, x1, y1."""
    picture = grey(100, size)
    for x0, y0, x1, y1 in boxes:
        picture[y0:y1, x0:x1] += np.uint8(by)
    return picture


def area(*boxes: tuple[int, int, int, int], size: int = 64) -> NDArray[np.bool_]:
    return painted(*boxes, size=size)[..., 0] > 100


@pytest.mark.parametrize(("by", "pixels"), [(17, 0), (18, 144), (155, 144)])
def test_a_pixel_changes_from_the_threshold_on(by: int, pixels: int) -> None:
    found = changed([grey(100)], painted((10, 20, 22, 32), by=by), 18)
    assert found.sum() == pixels
    if pixels:
        assert np.array_equal(found, area((10, 20, 22, 32)))


def test_the_difference_is_of_grey_so_a_change_of_blue_alone_must_be_large() -> None:
    target = grey(100)
    target[10:20, 10:20, 2] += 100  # blue weighs 0.114: 11 levels of grey
    assert not changed([grey(100)], target, 18).any()
    assert changed([grey(100)], target, 11).sum() == 100


def test_darker_counts_as_much_as_lighter() -> None:
    assert np.array_equal(changed([painted((8, 8, 24, 24), by=40)], grey(100), 18), area((8, 8, 24, 24)))


@pytest.mark.parametrize(("hole", "filled"), [(4, True), (5, False)])
def test_holes_up_to_four_pixels_wide_are_closed(hole: int, filled: bool) -> None:
    target = painted((16, 16, 48, 48), by=50)
    target[30 : 30 + hole, 30 : 30 + hole] = 100
    found = changed([grey(100)], target, 18)
    assert found[30 : 30 + hole, 30 : 30 + hole].all() == filled
    assert found.sum() == 32 * 32 - (0 if filled else hole * hole)


def test_the_border_of_the_picture_is_no_hole() -> None:
    assert np.array_equal(changed([grey(100)], painted((0, 0, 10, 10)), 18), area((0, 0, 10, 10)))


def test_parts_below_three_tenths_of_the_area_are_dropped() -> None:
    seventy, thirty, less = (0, 0, 14, 10), (40, 40, 50, 46), (40, 40, 50, 45)
    assert np.array_equal(changed([grey(100)], painted(seventy, thirty), 18), area(seventy, thirty))
    assert np.array_equal(changed([grey(100)], painted(seventy, less), 18), area(seventy))


def test_scattered_change_has_no_large_part_and_stays_whole() -> None:
    boxes = [(x, y, x + 6, y + 6) for x in (4, 34) for y in (4, 34)]
    assert np.array_equal(changed([grey(100)], painted(*boxes), 18), area(*boxes))


def test_only_what_differs_from_every_source_is_edited() -> None:
    target = painted((0, 0, 32, 64), by=60)
    other = painted((0, 0, 64, 32), by=60)
    assert np.array_equal(changed([grey(100), other], target, 18), area((0, 32, 32, 64)))


def test_less_than_a_thousandth_of_the_picture_is_noise() -> None:
    # Of 64 x 64 pixels, 4 are below 0.1% and 5 are above.
    assert not changed([grey(100)], painted((10, 10, 12, 12), by=99), 18).any()
    assert changed([grey(100)], painted((10, 10, 15, 11), by=99), 18).sum() == 5


def test_weights_of_a_quarter() -> None:
    weights = token_weights(area((0, 0, 32, 32)), (4, 4), MaskWeight())
    assert weights.dtype == np.float32
    high, low = 3.0, 1.0  # x = 4: log2(4) + 1
    assert weights.reshape(4, 4).tolist() == [[high, high, low, low]] * 2 + [[low] * 4] * 2


def test_one_pixel_makes_its_token_edited_and_rows_come_first() -> None:
    weights = token_weights(area((63, 0, 64, 1)), (2, 4), MaskWeight())
    assert weights.tolist() == [1, 1, 1, 4, 1, 1, 1, 1]


@pytest.mark.parametrize(("edited", "weight"), [(16, 1.0), (4, 2.0), (1, 8.0)])
def test_exponential_weights(edited: int, weight: float) -> None:
    """x of 1, 4 and 16: 2^(sqrt(x) - 1) is 1, 2 and 8."""
    chosen = np.zeros((4, 4), np.bool_)
    chosen.ravel()[:edited] = True
    weights = token_weights(chosen, (4, 4), MaskWeight(kind="exp"))
    assert weights.tolist() == [weight] * edited + [1.0] * (16 - edited)


def test_exponential_weights_stop_at_sixteen() -> None:
    one_percent = np.zeros((10, 10), np.bool_)
    one_percent[5, 5] = True
    weights = token_weights(one_percent, (10, 10), MaskWeight(kind="exp"))
    assert sorted(weights)[-2:] == [1.0, 16.0]


def test_normalised_weights_keep_their_ratio() -> None:
    weights = token_weights(area((0, 0, 32, 32)), (4, 4), MaskWeight(normalised=True))
    assert weights.tolist() == pytest.approx([w / 1.5 for w in [3, 3, 1, 1] * 2 + [1] * 8])


def test_a_whole_image_edit_and_weights_turned_off_weigh_evenly() -> None:
    assert token_weights(None, (2, 3), MaskWeight()).tolist() == [1.0] * 6
    assert token_weights(area((0, 0, 8, 8)), (4, 4), MaskWeight(kind="none")).tolist() == [1.0] * 16


def test_a_sample_without_change_is_reconstructed_or_refused() -> None:
    nothing = np.zeros((64, 64), np.bool_)
    assert token_weights(nothing, (4, 4), MaskWeight()).tolist() == [1.0] * 16
    with pytest.raises(Unchanged, match=r"nothing changes between source and result.*unchanged to `reconstruct`"):
        token_weights(nothing, (4, 4), MaskWeight(unchanged="reject"))
    assert token_weights(None, (4, 4), MaskWeight(unchanged="reject")).tolist() == [1.0] * 16


def test_an_area_that_does_not_divide_into_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="64x64 pixels does not divide into 7x4 tokens"):
        token_weights(area((0, 0, 8, 8)), (4, 7), MaskWeight())


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_mean_weight_is_one_plus_log2_x_over_x(rows: int, columns: int, data: st.DataObject) -> None:
    edited = data.draw(st.integers(1, rows * columns))
    chosen = np.zeros(rows * columns, np.bool_)
    chosen[data.draw(st.permutations(range(rows * columns)))[:edited]] = True
    chosen = chosen.reshape(rows, columns).repeat(2, axis=0).repeat(2, axis=1)
    x = rows * columns / edited
    mean = float(token_weights(chosen, (rows, columns), MaskWeight()).mean(dtype=np.float64))
    assert mean == pytest.approx(1 + math.log2(x) / x, rel=1e-6)
    assert mean < 1.5308
    normalised = token_weights(chosen, (rows, columns), MaskWeight(normalised=True))
    assert float(normalised.mean(dtype=np.float64)) == pytest.approx(1, rel=1e-6)
