"""A cut-out in a photograph: where it may change pixels, how large it is, and what the light does to it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage import data

from editfoundry.core.geometry import Box
from editfoundry.models.embedded.compositing import Layer, composite, make_layer, support

GREEN_FRINGE = (0, 255, 0)


def ball(diameter: int = 80, colour: tuple[int, int, int] = (200, 60, 40)) -> np.ndarray:
    """An opaque disc, uint8 [d, d, 4], with a one-pixel rim of bright green: what a careless cutting leaves."""
    y, x = np.mgrid[:diameter, :diameter] - (diameter - 1) / 2
    radius = np.hypot(x, y)
    rgba = np.zeros((diameter, diameter, 4), np.uint8)
    rgba[..., :3] = np.where((radius < diameter / 2 - 1.5)[..., None], colour, GREEN_FRINGE)
    rgba[..., 3] = np.where(radius <= diameter / 2, 255, 0)
    return rgba


def plain(level: int = 150, height: int = 240, width: int = 320) -> np.ndarray:
    """A neutral table with a little texture, so that it is neither blank nor out of focus."""
    noise = np.random.default_rng(0).integers(-12, 13, (height, width, 1))
    return (level + noise).repeat(3, axis=2).astype(np.uint8)


def placed(layer: Layer, shape: tuple[int, ...]) -> np.ndarray:
    """The layer's alpha on the whole grid."""
    alpha = np.zeros(shape[:2], np.float32)
    alpha[layer.window] = layer.alpha
    return alpha


def test_the_object_fills_its_box_and_nothing_outside_the_support_changes() -> None:
    table = plain()
    layer = make_layer(ball(), table, Box(100, 80, 160, 140), "surface")
    alpha = placed(layer, table.shape)
    rows, columns = np.nonzero(alpha > 0.5)
    assert (columns.min(), columns.max() + 1, rows.min(), rows.max() + 1) == pytest.approx((100, 160, 80, 140), abs=2)
    result, touched = composite(table, layer), support(layer, table.shape).array
    assert np.array_equal(result[~touched], table[~touched])
    assert (result[touched] != table[touched]).any(axis=1).mean() > 0.9


@pytest.mark.parametrize("zone", ["surface", "ground", "macro", "water"])
def test_the_support_gets_darker_right_under_the_base(zone: str) -> None:
    table = plain()
    result = composite(table, make_layer(ball(), table, Box(100, 80, 160, 140), zone))
    under, far = result[140:144, 115:145].mean(), result[200:230].mean()
    assert under < far - 12
    assert result[20:60].mean() == pytest.approx(table[20:60].mean())


def test_the_sky_takes_no_shadow() -> None:
    sky = plain(190)
    layer = make_layer(ball(), sky, Box(100, 80, 160, 140), "sky")
    assert not layer.shadow.any()
    assert layer.alpha.shape == (60, 60)


def test_no_fringe_of_the_old_background_remains() -> None:
    table = plain()
    result = composite(table, make_layer(ball(), table, Box(100, 80, 180, 160), "surface")).astype(int)
    greener = result[..., 1] - np.maximum(result[..., 0], result[..., 2])
    assert greener.max() < 12


def test_flip_mirrors_the_cut_out() -> None:
    half = ball()
    half[:, 40:, 2] = 220
    table = plain()
    straight = make_layer(half, table, Box(100, 80, 180, 160), "sky")
    mirrored = make_layer(half, table, Box(100, 80, 180, 160), "sky", flip=True)
    assert np.abs(straight.rgb[:, ::-1].astype(int) - mirrored.rgb).mean() < 2


def test_less_light_darkens_the_object_and_a_grey_photograph_greys_it() -> None:
    bright, dark = plain(170), plain(30)
    box = Box(100, 80, 160, 140)
    day, night = (make_layer(ball(), scene, box, "ground") for scene in (bright, dark))
    inside = day.alpha > 0.95
    assert night.rgb[inside].mean() < 0.75 * day.rgb[inside].mean()
    assert np.ptp(day.rgb[inside].astype(int), axis=1).max() <= 2, "the table is pure grey"


def test_the_object_keeps_its_colour_in_a_colour_photograph_and_takes_some_of_its_warmth() -> None:
    warm = np.asarray(data.coffee())
    grey_ball = ball(colour=(128, 128, 128))
    layer = make_layer(grey_ball, warm, Box(480, 250, 560, 330), "surface")
    red, _, blue = layer.rgb[layer.alpha > 0.95].mean(axis=0)
    assert 6 < red - blue < 70, "wooden table in warm light"
    red, green, blue = make_layer(ball(), warm, Box(480, 250, 560, 330), "surface").rgb[layer.alpha > 0.95].mean(axis=0)
    assert red > green + 60 and red > blue + 60


def test_the_same_arguments_give_the_same_layer() -> None:
    scene = np.asarray(data.coffee())
    first, second = (make_layer(ball(), scene, Box(450, 200, 540, 290), "surface") for _ in range(2))
    for name in ("rgb", "alpha", "shadow"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_a_box_that_enlarges_too_much_or_lies_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"more than 1\.5 times"):
        make_layer(ball(40), plain(), Box(10, 10, 90, 90), "surface")
    with pytest.raises(ValueError, match="outside"):
        make_layer(ball(), plain(), Box(400, 10, 480, 90), "surface")
    with pytest.raises(ValueError, match="unknown zone"):
        make_layer(ball(), plain(), Box(10, 10, 90, 90), "lava")
    with pytest.raises(ValueError, match=r"uint8 \[h, w, 4\]"):
        make_layer(ball()[..., :3], plain(), Box(10, 10, 90, 90), "surface")


@settings(max_examples=25, deadline=None)
@given(x=st.integers(-60, 300), y=st.integers(-60, 220), side=st.integers(12, 110),
       zone=st.sampled_from(["surface", "ground", "water", "sky", "macro"]), flip=st.booleans())
def test_a_layer_always_lies_inside_and_changes_only_its_support(x: int, y: int, side: int, zone: str,
                                                                 flip: bool) -> None:
    table, box = plain(), Box(x, y, x + side, y + side)
    if box.clip(320, 240) is None:
        return
    layer = make_layer(ball(), table, box, zone, flip)
    assert layer.left >= 0 and layer.top >= 0
    assert layer.left + layer.alpha.shape[1] <= 320 and layer.top + layer.alpha.shape[0] <= 240
    assert layer.rgb.shape[:2] == layer.alpha.shape == layer.shadow.shape
    assert layer.alpha.min() >= 0 and layer.alpha.max() <= 1
    assert layer.shadow.min() >= 0 and layer.shadow.max() < 1
    untouched = ~support(layer, table.shape).array
    assert np.array_equal(composite(table, layer)[untouched], table[untouched])
