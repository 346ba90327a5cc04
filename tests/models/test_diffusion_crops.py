"""Crop, work, stitch: outside the mask nothing changes, whatever the sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.core.geometry import Box, Grid, Mask, resize
from editfoundry.models.diffusion.controls import canny
from editfoundry.models.diffusion.crops import crop_around, inward_weights, scaled, work_dimensions


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without detail, which resampling hardly changes."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 / width, y * 255 / height, 128 + 0 * x], axis=-1).astype(np.uint8)


def boxed(height: int, width: int, box: tuple[int, int, int, int]) -> Mask:
    array = np.zeros((height, width), bool)
    x0, y0, x1, y1 = box
    array[y0:y1, x0:x1] = True
    return Mask(array)


@st.composite
def masked(draw: st.DrawFn) -> tuple[np.ndarray, Mask]:
    """A picture of 1 to 90 pixels a side with one or two boxes in it, which may touch every border."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    array = np.zeros((height, width), bool)
    for _ in range(draw(st.integers(1, 2))):
        x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        x1, y1 = draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))
        array[y0:y1, x0:x1] = True
    return noise(height, width, draw(st.integers(0, 3))), Mask(array)


@settings(deadline=None, max_examples=150)
@given(masked(), st.sampled_from([1.0, 1.2, 2.0]), st.sampled_from([0.0, 3.0, 40.0]))
def test_only_what_the_mask_covers_changes(given: tuple[np.ndarray, Mask], context: float, blend: float) -> None:
    image, mask = given
    crop = crop_around(image, mask, work_size=64, context=context, multiple=32)
    assert crop is not None
    x0, y0, x1, y1 = crop.window
    assert 0 <= x0 < x1 <= image.shape[1] and 0 <= y0 < y1 <= image.shape[0]
    assert not np.delete(np.delete(mask.array, np.s_[y0:y1], 0), np.s_[x0:x1], 1).any()
    assert mask.array[y0:y1, x0:x1].sum() == mask.area
    assert crop.size[0] % 32 == 0 and crop.size[1] % 32 == 0 and crop.mask.shape == crop.pixels.shape[:2]
    before = image.copy()
    result = crop.stitch(255 - crop.pixels, blend)
    assert np.array_equal(result[~mask.array], image[~mask.array])
    assert np.array_equal(image, before) and result is not image


@settings(deadline=None, max_examples=60)
@given(st.integers(8, 120), st.integers(8, 120), st.data())
def test_a_model_that_changes_nothing_gives_the_picture_back(height: int, width: int, data: st.DataObject) -> None:
    image = smooth(height, width)
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    mask = boxed(height, width, (x0, y0, data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))))
    crop = crop_around(image, mask, work_size=128)
    assert crop is not None
    left, top, right, bottom = crop.window
    window = image[top:bottom, left:right]
    there_and_back = resize(crop.pixels, right - left, bottom - top)
    error = np.abs(there_and_back.astype(int) - window).max()
    result = crop.stitch(crop.pixels, 4.0)
    assert np.abs(result.astype(int) - image).max() <= error <= 255 / min(height, width) + 2


def test_a_whole_image_mask_is_replaced_whole() -> None:
    image = noise(48, 80)
    crop = crop_around(image, Mask(np.ones((48, 80), bool)), work_size=64)
    assert crop is not None and crop.window == (0, 0, 80, 48)
    assert (crop.stitch(np.full_like(crop.pixels, 7), 32.0) == 7).all()


def test_an_empty_mask_has_no_crop() -> None:
    assert crop_around(noise(16, 16), Mask(np.zeros((16, 16), bool)), work_size=64) is None


def test_the_window_is_a_square_around_the_mask_and_moves_inside() -> None:
    image = noise(400, 600)
    middle = crop_around(image, boxed(400, 600, (250, 150, 350, 200)), work_size=128)
    corner = crop_around(image, boxed(400, 600, (500, 0, 600, 100)), work_size=128)
    wide = crop_around(image, boxed(400, 600, (0, 100, 600, 140)), work_size=128)
    assert middle is not None and corner is not None and wide is not None
    assert middle.window == (240, 115, 360, 235) and middle.size == (128, 128)
    assert corner.window == (480, 0, 600, 120)
    assert wide.window == (0, 0, 600, 400) and wide.size == (160, 96)


def test_the_painted_picture_fades_in_from_the_edge_and_not_from_the_border_of_the_picture() -> None:
    weights = inward_weights(boxed(100, 100, (0, 20, 60, 100)), 10)
    assert weights[60, 0] == 1 and weights[99, 30] == 1, "the picture's borders are no edges"
    row = weights[60, 45:60]
    assert (np.diff(row) <= 0).all() and 0 < row[-1] < 0.1 and row[0] == 1 and weights[60, 60] == 0


def test_a_thin_mask_is_still_painted_in_its_middle() -> None:
    weights = inward_weights(boxed(40, 40, (10, 18, 30, 26)), 32)
    assert weights.max() == 1
    assert inward_weights(boxed(40, 40, (10, 18, 30, 19)), 32)[18, 20] == 1


@pytest.mark.parametrize(
    ("size", "work_size", "expected"),
    [
        ((1024, 1024), 1024, (1024, 1024)),
        ((1152, 896), 1024, (1152, 896)),
        ((1150, 896), 1024, (1168, 896)),
        ((2048, 2048), 1024, (1024, 1024)),
        ((50, 70), 64, (48, 80)),
        ((1, 1), 64, (64, 64)),
        ((5000, 3), 64, (2608, 16)),
    ],
)
def test_work_dimensions(size: tuple[int, int], work_size: int, expected: tuple[int, int]) -> None:
    assert work_dimensions(*size, work_size) == expected


def test_the_soft_mask_is_blurred_at_the_models_size() -> None:
    crop = crop_around(noise(128, 128), boxed(128, 128, (32, 32, 96, 96)), work_size=128, context=2)
    assert crop is not None
    assert set(np.unique(crop.soft_mask(0))) == {0, 255}
    row = crop.soft_mask(2)[64]
    assert row[64] == 255 and row[0] == 0 and 90 < row[32] < 165 and 3 < (row[:64] % 255 > 0).sum() < 20


def test_refuses_what_is_no_picture_with_its_mask() -> None:
    with pytest.raises(ValueError, match="differ in"):
        crop_around(noise(8, 8), Mask(np.ones((8, 9), bool)), work_size=64)
    with pytest.raises(ValueError, match="uint8 RGB"):
        crop_around(np.zeros((8, 8), np.uint8), Mask(np.ones((8, 8), bool)), work_size=64)
    crop = crop_around(noise(8, 8), Mask(np.ones((8, 8), bool)), work_size=64)
    assert crop is not None
    with pytest.raises(ValueError, match="uint8"):
        crop.stitch(crop.pixels.astype(np.float32), 4)


def test_distances_scale_with_the_short_side() -> None:
    assert scaled(64, noise(512, 800)) == 32


def test_canny_finds_the_outline_at_the_pictures_own_size() -> None:
    image = np.full((64, 112, 3), 40, np.uint8)
    image[Mask.from_box(Box(30, 20, 70, 45), Grid(112, 64)).array] = 220
    for side in (32, 768):
        edges = canny(image, 70, 220, side)
        assert edges.shape == (64, 112, 3) and edges.dtype == np.uint8 and (edges[..., 0] == edges[..., 2]).all()
        assert edges[32, 27:33].max() > 200 and edges[32, 40:60].max() == 0 and edges[5].max() == 0
    assert canny(smooth(60, 100), 70, 220, 50).max() == 0
