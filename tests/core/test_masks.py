"""Mask algebra, morphology, run lengths, and the block certificate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pycocotools import mask as coco

from editfoundry.core.geometry import Box, Grid, Mask, containment_tree, outside_difference
from editfoundry.core.images import decode_jpeg, encode_jpeg

shapes = st.tuples(st.integers(1, 40), st.integers(1, 40))
arrays = shapes.flatmap(lambda shape: npst.arrays(np.bool_, shape))
masks = arrays.map(Mask)
pairs = shapes.flatmap(lambda shape: st.tuples(*(npst.arrays(np.bool_, shape).map(Mask) for _ in range(2))))


def rectangle(x0, y0, x1, y1, shape=(64, 96)):
    array = np.zeros(shape, bool)
    array[y0:y1, x0:x1] = True
    return Mask(array)


def test_measures():
    mask = rectangle(10, 20, 40, 50)
    assert mask.area == 900
    assert mask.fraction == 900 / (64 * 96)
    assert mask.box() == Box(10, 20, 40, 50)
    assert mask.shape == (64, 96)
    assert Mask(np.zeros((4, 4), bool)).box() is None
    assert repr(mask) == "Mask(96x64, area=900)"


def test_a_mask_is_a_value():
    source = np.zeros((4, 4), bool)
    mask = Mask(source)
    source[0, 0] = True
    assert mask.area == 0
    with pytest.raises(ValueError, match="read-only"):
        mask.array[0, 0] = True
    assert mask == Mask(np.zeros((4, 4), bool))
    assert hash(mask) == hash(Mask(np.zeros((4, 4), bool)))
    assert mask != Mask(np.zeros((4, 5), bool))


@pytest.mark.parametrize("array", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 1), bool), np.zeros((0, 4), bool)])
def test_mask_refuses_other_arrays(array):
    with pytest.raises(ValueError, match="non-empty bool array"):
        Mask(array)


def test_masks_of_different_sizes_do_not_mix():
    a, b = rectangle(0, 0, 5, 5), Mask(np.zeros((3, 3), bool))
    for operation in (a.__and__, a.__or__, a.__sub__, a.iou, a.containment):
        with pytest.raises(ValueError, match="differ in size"):
            operation(b)


@given(pairs)
def test_algebra(pair):
    a, b = pair
    assert (a & b).area + (a | b).area == a.area + b.area
    assert a - b == a & ~b
    assert ~(a | b) == ~a & ~b
    assert a.iou(b) == b.iou(a)
    assert a.iou(a) == (1.0 if a.area else 0.0)
    assert a.containment(b) == pytest.approx((a & b).area / a.area if a.area else 0.0)


@given(pairs, st.integers(0, 6))
def test_dilation_and_erosion(pair, pixels):
    a, b = pair
    grown = a.dilate(pixels)
    assert (a - grown).area == 0
    assert (a.erode(pixels) - a).area == 0
    assert a.dilate(0) == a == a.erode(0)
    assert (a | b).dilate(pixels) == grown | b.dilate(pixels)
    assert a.erode(pixels) == ~(~a).dilate(pixels)


@given(masks, st.integers(0, 5))
def test_dilation_is_euclidean(mask, pixels):
    rows, columns = np.indices(mask.shape)
    expected = np.zeros(mask.shape, bool)
    for y, x in zip(*np.nonzero(mask.array), strict=True):
        expected |= (rows - y) ** 2 + (columns - x) ** 2 <= pixels**2
    np.testing.assert_array_equal(mask.dilate(pixels).array, expected)


@given(masks, st.integers(0, 6))
def test_feather_is_one_inside_and_zero_outside_the_dilation(mask, pixels):
    weights = mask.feather(pixels)
    assert weights.dtype == np.float32
    assert (weights[mask.array] == 1.0).all()
    assert (weights[~mask.dilate(pixels).array] == 0.0).all()
    assert ((weights >= 0.0) & (weights <= 1.0)).all()
    between = weights[(mask.dilate(pixels) - mask).array]
    assert ((between > 0.0) & (between < 1.0)).all()


def test_feather_falls_with_distance():
    weights = rectangle(0, 0, 40, 64).feather(8)[30, 39:50]
    assert weights[0] == 1.0
    assert (np.diff(weights[:9]) < 0).all()
    assert (weights[9:] == 0.0).all()


def test_negative_distances_are_refused():
    mask = rectangle(0, 0, 5, 5)
    for operation in (mask.dilate, mask.erode, mask.feather):
        with pytest.raises(ValueError, match="0 pixels or more"):
            operation(-1)


def test_fill_holes_and_components():
    ring = rectangle(10, 10, 40, 40) - rectangle(20, 20, 30, 30)
    dot = rectangle(80, 5, 83, 8)
    both = ring | dot
    assert both.fill_holes() == rectangle(10, 10, 40, 40) | dot
    assert both.components() == [ring, dot]
    assert both.largest_component() == ring
    empty = Mask(np.zeros((3, 3), bool))
    assert empty.components() == []
    assert empty.largest_component() == empty


@given(masks)
def test_components_partition_the_mask(mask):
    parts = mask.components()
    assert sum(part.area for part in parts) == mask.area
    assert [part.area for part in parts] == sorted((part.area for part in parts), reverse=True)
    union = Mask(np.zeros(mask.shape, bool))
    for part in parts:
        union |= part
    assert union == mask


@given(masks, st.integers(1, 9))
def test_blocks_are_those_that_hold_a_pixel(mask, size):
    expected = np.zeros((-(-mask.shape[0] // size), -(-mask.shape[1] // size)), bool)
    for y, x in zip(*np.nonzero(mask.array), strict=True):
        expected[y // size, x // size] = True
    np.testing.assert_array_equal(mask.blocks(size), expected)


def test_from_box():
    grid = Grid(96, 64)
    assert Mask.from_box(Box(10, 20, 40, 50), grid) == rectangle(10, 20, 40, 50)
    assert Mask.from_box(Box(9.5, -4, 40.2, 5), grid) == rectangle(9, 0, 41, 5)
    assert Mask.from_box(Box(200, 200, 210, 210), grid).area == 0


# Run lengths


@given(masks)
def test_rle_round_trip(mask):
    rle = mask.to_rle()
    assert rle["size"] == list(mask.shape)
    assert Mask.from_rle(rle) == mask
    assert Mask.from_counts(rle["counts"], *mask.shape) == mask
    assert Mask.from_rle({**rle, "counts": rle["counts"].encode()}) == mask


def test_rle_is_what_coco_writes():
    mask = rectangle(2, 1, 4, 3, (5, 7))
    assert mask.to_rle() == {"size": [5, 7], "counts": ";230>"}
    long = rectangle(3, 2, 900, 690, (700, 1000))
    encoded = coco.encode(np.asfortranarray(long.array.astype(np.uint8)))
    assert long.to_rle()["counts"] == encoded["counts"].decode()
    assert Mask.from_rle(long.to_rle()) == long


@pytest.mark.parametrize(
    "counts",
    ["", "P", "o", "oooooooooo0", ";230", ";230>1", "é", "\0", " ", "1" * 10_000, "B230", ";2300", ";230>\0", "N1T1"],
)
def test_hostile_counts_are_refused(counts):
    with pytest.raises(ValueError, match="RLE counts"):
        Mask.from_counts(counts, 5, 7)


@settings(max_examples=400)
@given(st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=40), st.integers(1, 9), st.integers(1, 9))
def test_any_counts_are_a_mask_or_a_value_error(counts, height, width):
    try:
        mask = Mask.from_counts(counts, height, width)
    except ValueError:
        return
    assert mask.shape == (height, width)


@given(masks, st.data())
def test_changed_counts_are_a_mask_or_a_value_error(mask, data):
    counts = list(mask.to_rle()["counts"])
    index = data.draw(st.integers(0, len(counts) - 1))
    counts[index] = chr(data.draw(st.integers(48, 111)))
    try:
        changed = Mask.from_counts("".join(counts), *mask.shape)
    except ValueError:
        return
    assert changed.shape == mask.shape


@pytest.mark.parametrize(
    "size", [None, [5], [5, 7, 1], [5.0, 7], ["5", "7"], [0, 7], [-5, 7], [1 << 20, 1 << 20], [True, 35]]
)
def test_hostile_sizes_are_refused(size):
    with pytest.raises(ValueError, match=r"size|pixels"):
        Mask.from_rle({"size": size, "counts": ";230>"})


def test_uncompressed_counts_are_refused():
    with pytest.raises(ValueError, match="compressed text"):
        Mask.from_rle({"size": [5, 7], "counts": [11, 2, 3, 2, 17]})


# Containment tree


def test_containment_tree_nests_by_smallest_parent():
    person = rectangle(10, 5, 50, 60)
    jacket = rectangle(12, 20, 48, 45)
    button = rectangle(28, 30, 31, 33)
    other = rectangle(70, 10, 90, 30)
    overlapping = rectangle(40, 40, 80, 60)
    assert containment_tree([button, person, other, jacket, overlapping]) == [3, None, None, 1, None]


def test_containment_tree_of_duplicates_and_empties():
    mask, empty = rectangle(10, 5, 50, 60), rectangle(0, 0, 0, 0)
    assert containment_tree([mask, mask, mask, empty]) == [None, 0, 1, None]
    assert containment_tree([]) == []


@given(st.lists(npst.arrays(np.bool_, (6, 6)).map(Mask), max_size=7), st.floats(0.3, 1.0))
def test_containment_tree_is_a_forest(several, threshold):
    parents = containment_tree(several, threshold)
    for child, start in enumerate(parents):
        seen, parent = {child}, start
        while parent is not None:
            assert parent not in seen
            assert several[parent].area >= several[child].area
            seen.add(parent)
            parent = parents[parent]


# The certificate


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_jpegs_equal_outside_a_mask_stay_equal_in_every_untouched_block(data):
    height, width = data.draw(st.integers(9, 70)), data.draw(st.integers(9, 70))
    seed = data.draw(st.integers(0, 2**32 - 1))
    quality = data.draw(st.sampled_from([60, 92, 98]))
    random = np.random.default_rng(seed)
    source = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    seedling = rectangle(x0, y0, x1, y1, (height, width)) & Mask(random.random((height, width)) < 0.3)
    feather = data.draw(st.integers(0, 6))
    weights = seedling.feather(feather)[..., None]
    painted = random.integers(0, 256, (height, width, 3)).astype(np.float32)
    result = np.rint(source * (1 - weights) + painted * weights).astype(np.uint8)

    stored = seedling.dilate(feather)
    a, b = decode_jpeg(encode_jpeg(source, quality)), decode_jpeg(encode_jpeg(result, quality))
    assert outside_difference(a, b, stored) == (0, 0.0)


def test_outside_difference_reports_the_largest_and_the_mean():
    a = np.zeros((16, 24, 3), np.uint8)
    b = a.copy()
    b[0, 0] = 250  # inside a touched block
    b[12, 20, 1] = 255  # outside, and more than int8 holds
    mask = rectangle(3, 3, 5, 5, (16, 24))
    assert outside_difference(a, b, mask) == (255, pytest.approx(255 / (5 * 64 * 3)))
    assert outside_difference(b, a, mask) == outside_difference(a, b, mask)
    assert outside_difference(a, b, Mask(np.ones((16, 24), bool))) == (0, 0.0)


def test_outside_difference_needs_one_size_and_uint8():
    a, mask = np.zeros((16, 24, 3), np.uint8), rectangle(0, 0, 1, 1, (16, 24))
    with pytest.raises(ValueError, match="sizes differ"):
        outside_difference(a, a[:8], mask)
    with pytest.raises(ValueError, match="sizes differ"):
        outside_difference(a[:8], a[:8], mask)
    with pytest.raises(ValueError, match="uint8"):
        outside_difference(a, a.astype(np.float32), mask)
