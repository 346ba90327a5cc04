"""Grid, resize, Box and the words for position and size."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.geometry import (
    Box,
    Grid,
    grid_transform,
    position_agrees,
    position_words,
    resize,
    size_words,
    to_grid,
)

GRID = Grid(960, 640)
sides = st.integers(80, 6000)
coordinates = st.floats(-500, 1500, allow_nan=False).map(lambda value: round(value, 2))


@st.composite
def boxes(draw):
    x0, y0 = draw(coordinates), draw(coordinates)
    return Box(x0, y0, x0 + draw(st.floats(0.5, 900)), y0 + draw(st.floats(0.5, 900)))


# Grid


@pytest.mark.parametrize(("width", "height"), [(0, 64), (-16, 64), (65, 64), (64, 72)])
def test_grid_refuses_sides_that_are_no_multiples_of_16(width, height):
    with pytest.raises(ValueError, match="multiple of 16"):
        Grid(width, height)


@pytest.mark.parametrize(
    ("size", "area", "expected"),
    [
        ((512, 512), 400_000, (512, 512)),  # the source's own size, never more
        ((2560, 1600), 400_000, (800, 496)),
        ((6000, 4000), 1024 * 1024, (1248, 832)),
        ((451, 300), 400_000, (448, 304)),
        ((70, 64), 400_000, (64, 64)),
        ((62, 62), 400_000, (64, 64)),  # slightly larger than the source is allowed
    ],
)
def test_grid_for_known_sizes(size, area, expected):
    grid = Grid.for_size(*size, area=area)
    assert (grid.width, grid.height) == expected
    assert grid.shape == expected[::-1]
    assert grid.area == expected[0] * expected[1]


@given(sides, sides, st.integers(100_000, 2_000_000), st.sampled_from([16, 32]))
def test_grid_keeps_the_contract(width, height, area, multiple):
    target = min(area, width * height)
    try:
        grid = Grid.for_size(width, height, area, multiple)
    except ValueError:
        ideal_short_side = math.sqrt(target * min(width, height) / max(width, height))
        assert ideal_short_side < 64 + 2 * multiple
        return
    assert grid.width % multiple == 0
    assert grid.height % multiple == 0
    assert min(grid.shape) >= 64
    assert grid.area <= 1.1 * target
    scale = max(grid.width / width, grid.height / height)
    assert scale <= 1.1
    kept = grid.area / (width * scale * height * scale)
    assert kept >= 1 - multiple / 64


@given(st.integers(600, 6000), st.integers(600, 6000))
def test_grid_of_an_ordinary_photograph_is_near_its_area_and_aspect(width, height):
    area = 400_000
    if max(width, height) > 2.5 * min(width, height):
        return
    grid = Grid.for_size(width, height, area)
    assert grid.area == pytest.approx(min(area, width * height), rel=0.08)
    assert grid.width / grid.height == pytest.approx(width / height, rel=0.03)


def test_grid_refuses_tiny_and_elongated_images_and_odd_multiples():
    for width, height in ((1, 1), (50, 2000), (57, 57), (20_000, 100)):
        with pytest.raises(ValueError, match="too small or too elongated"):
            Grid.for_size(width, height, 400_000)
    with pytest.raises(ValueError, match="multiple 24"):
        Grid.for_size(640, 480, multiple=24)
    with pytest.raises(ValueError, match="must be positive"):
        Grid.for_size(0, 480)


# resize and to_grid


def test_to_grid_crops_the_centre():
    image = np.zeros((64, 200), np.uint8)
    image[:, 68:132] = 200
    image[:, :68] = 50
    grid = Grid(64, 64)
    assert grid_transform(200, 64, grid) == (1.0, 68.0, 0.0)
    assert (to_grid(image, grid) == 200).all()


@given(st.integers(64, 300), st.integers(64, 300), st.sampled_from([Grid(64, 64), Grid(96, 64), Grid(64, 128)]))
def test_grid_transform_tells_where_a_block_lands(width, height, grid):
    x0, y0 = width // 2 - 12, height // 2 - 12
    image = np.zeros((height, width), np.float32)
    image[y0 : y0 + 24, x0 : x0 + 24] = 1.0
    placed = to_grid(image, grid)
    scale, offset_x, offset_y = grid_transform(width, height, grid)
    rows, columns = np.nonzero(placed > 0.5)
    assert columns.min() == pytest.approx(x0 * scale - offset_x, abs=1.5)
    assert rows.max() + 1 == pytest.approx((y0 + 24) * scale - offset_y, abs=1.5)
    assert columns.max() + 1 == pytest.approx((x0 + 24) * scale - offset_x, abs=1.5)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
@pytest.mark.parametrize("size", [(20, 10), (64, 96), (30, 90), (90, 20)])
def test_resize_keeps_dtype_channels_and_a_flat_colour(dtype, channels, size):
    image = np.full((48, 40, *channels), 37, dtype)
    result = resize(image, *size)
    assert result.dtype == dtype
    assert result.shape == (size[1], size[0], *channels)
    np.testing.assert_allclose(result, 37, rtol=1e-5)


def test_shrinking_averages_instead_of_skipping():
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    assert set(np.unique(resize(stripes, 16, 16))) <= {127, 128}
    # One axis shrinks while the other grows: the shrinking one is still averaged.
    assert set(np.unique(resize(stripes, 16, 128))) <= {127, 128}


def test_enlarging_never_overshoots():
    step = np.zeros((8, 8), np.float32)
    step[:, 4:] = 1.0
    enlarged = resize(step, 64, 64)
    assert enlarged.min() == 0.0
    assert enlarged.max() == 1.0


def test_nearest_keeps_labels_and_bools():
    labels = np.arange(16, dtype=np.int64).reshape(4, 4) * 1000
    doubled = resize(labels, 8, 8, nearest=True)
    np.testing.assert_array_equal(doubled, labels.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(resize(doubled, 4, 4, nearest=True), labels)
    mask = np.eye(6, dtype=bool)
    np.testing.assert_array_equal(resize(mask, 3, 3, nearest=True), np.eye(3, dtype=bool))


def test_resize_explains_what_it_refuses():
    with pytest.raises(ValueError, match="nearest=True"):
        resize(np.zeros((8, 8), bool), 4, 4)
    with pytest.raises(ValueError, match="non-empty"):
        resize(np.zeros((0, 8), np.uint8), 4, 4)
    with pytest.raises(ValueError, match="must be positive"):
        resize(np.zeros((8, 8), np.uint8), 0, 4)


# Box


def test_box_measures():
    box = Box.from_list([10, 20, 40, 60])
    assert (box.width, box.height, box.area, box.center) == (30, 40, 1200, (25, 40))
    assert box.as_list() == [10, 20, 40, 60]
    assert box.expand(0.1).as_list() == [7, 16, 43, 64]
    assert box.expand(pixels=5).as_list() == [5, 15, 45, 65]
    assert Box(0.2, 0.5, 3.1, 4.0).to_ints() == (0, 0, 4, 4)
    assert box.clip(30, 30) == Box(10, 20, 30, 30)
    assert box.clip(10, 100) is None


def test_box_relations():
    box = Box(0, 0, 10, 10)
    assert box.intersection(Box(5, 5, 15, 15)) == 25
    assert box.iou(Box(5, 5, 15, 15)) == pytest.approx(25 / 175)
    assert box.iou(Box(10, 0, 20, 10)) == 0.0
    assert box.distance(Box(13, 14, 20, 20)) == 5.0
    assert box.distance(Box(10, 0, 20, 10)) == 0.0
    assert box.contains(Box(1, 1, 9, 9))
    assert not box.contains(Box(-1, 1, 9, 9))
    assert box.contains(Box(-1, 1, 9, 9), tolerance=1)


@pytest.mark.parametrize("values", [(0, 0, 0, 1), (0, 5, 1, 4), (math.nan, 0, 1, 1), (0, 0, math.inf, 1)])
def test_box_refuses_empty_and_non_finite(values):
    with pytest.raises(ValueError, match="box"):
        Box(*values)


def test_box_from_list_wants_four_numbers():
    with pytest.raises(ValueError, match="4 numbers"):
        Box.from_list([1, 2, 3])


@given(boxes(), boxes())
def test_box_algebra(a, b):
    assert a.iou(b) == pytest.approx(b.iou(a))
    assert a.iou(a) == pytest.approx(1.0)
    assert 0.0 <= a.iou(b) <= 1.0
    assert a.distance(b) == b.distance(a)
    assert (a.distance(b) == 0.0) or (a.intersection(b) == 0.0)
    assert a.intersection(b) <= min(a.area, b.area) * (1 + 1e-9)
    if a.contains(b):
        assert a.intersection(b) == pytest.approx(b.area)
    assert a.expand(0.25, pixels=2).contains(a)
    x0, y0, x1, y1 = a.to_ints()
    assert Box(x0, y0, x1, y1).contains(a)
    assert Box.from_list(a.as_list()) == a


@given(boxes())
def test_clip_is_the_part_inside(box):
    clipped = box.clip(640, 480)
    frame = Box(0, 0, 640, 480)
    assert (clipped is None) == (box.intersection(frame) == 0.0)
    if clipped is not None:
        assert frame.contains(clipped)
        assert clipped.area == pytest.approx(box.intersection(frame))


# Words


def centred_at(x, y, size=10.0):
    return Box(x - size / 2, y - size / 2, x + size / 2, y + size / 2)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (100, 100, "upper-left"),
        (480, 100, "top"),
        (900, 100, "upper-right"),
        (100, 320, "left"),
        (480, 320, "center"),
        (900, 320, "right"),
        (100, 600, "lower-left"),
        (480, 600, "bottom"),
        (900, 600, "lower-right"),
    ],
)
def test_position_words_name_the_nine_places(x, y, words):
    assert position_words(centred_at(x, y), GRID) == words


@given(st.floats(5, 955), st.floats(5, 635), st.sampled_from(["at the {} of the image", "the {} part", "in the {}"]))
def test_generated_words_always_agree(x, y, template):
    box = centred_at(x, y)
    assert position_agrees("Remove the cup " + template.format(position_words(box, GRID)), box, GRID)


@given(st.floats(5, 400), st.floats(5, 250))
def test_the_opposite_corner_never_agrees(x, y):
    opposite = centred_at(GRID.width - x, GRID.height - y)
    for text in ("the cup in the upper-left", "the cup on the left", "at the top of the picture", "top left corner"):
        assert position_agrees(text, centred_at(x, y), GRID)
        assert not position_agrees(text, opposite, GRID)


@pytest.mark.parametrize(
    "text",
    [
        "Remove the red top.",
        "Place a cup on top of the table, to the left of the lamp.",
        "Right now, lower the brightness of the left wheel.",
        "Take it out with the right hand.",
        "Whatever is left should be blue.",
        "Move it to the right of the bottle.",
        "Paint the upper deck green.",
    ],
)
@pytest.mark.parametrize("place", [(100, 100), (900, 600), (480, 320)])
def test_words_that_are_no_image_position_never_contradict(text, place):
    assert position_agrees(text, centred_at(*place), GRID)


@pytest.mark.parametrize(
    ("text", "agreeing"),
    [
        ("Remove the dog on the right.", (900, 320)),
        ("Remove the dog on the right side, please", (900, 100)),
        ("on the right-hand side", (900, 320)),
        ("on the right hand side of the photo", (900, 320)),
        ("the RIGHTMOST dog", (900, 320)),
        ("Remove the dog in the bottom right corner of the image.", (900, 600)),
        ("in the middle right", (900, 320)),
        ("to the far right of the scene", (900, 320)),
        ("Remove the dog at the bottom and keep the rest", (900, 600)),
    ],
)
def test_each_form_of_position_is_understood(text, agreeing):
    assert position_agrees(text, centred_at(*agreeing), GRID)
    assert not position_agrees(text, centred_at(100, 100), GRID)


def test_center_reaches_a_quarter_of_the_image():
    assert position_agrees("in the center of the image", centred_at(480, 320), GRID)
    assert not position_agrees("in the centre of the image", centred_at(100, 320), GRID)
    assert position_agrees("the top center", centred_at(480, 100), GRID)
    assert not position_agrees("the top center", centred_at(480, 600), GRID)


def test_two_positions_must_both_hold():
    assert not position_agrees("from the left to the right", centred_at(100, 320), GRID)


@pytest.mark.parametrize(
    ("fraction", "words"),
    [
        (0.0, "a tiny part"),
        (0.05, "a small part"),
        (0.1, "about a tenth"),
        (0.25, "about a quarter"),
        (1 / 3, "about a third"),
        (0.5, "about half"),
        (0.75, "most"),
        (1.0, "nearly all"),
    ],
)
def test_size_words(fraction, words):
    assert size_words(fraction) == words
    assert not any(character.isdigit() for character in words)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_size_words_refuse_what_is_no_share(fraction):
    with pytest.raises(ValueError, match="between 0 and 1"):
        size_words(fraction)
