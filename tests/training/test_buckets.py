"""The grids of the aspect buckets, and which one a picture goes to."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.errors import ConfigError
from editfoundry.core.geometry import Grid
from editfoundry.training.config import DataConfig, DatasetSpec
from editfoundry.training.data.buckets import Buckets

RATIOS = DataConfig(datasets=(DatasetSpec(path="x"),)).aspect_ratios


def test_default_grids_have_about_the_area_of_a_square() -> None:
    grids = Buckets(512, RATIOS).grids
    assert [(grid.width, grid.height) for grid in grids] == [
        (368, 736),
        (384, 688),
        (416, 624),
        (448, 592),
        (464, 576),
        (512, 512),
        (576, 464),
        (592, 448),
        (624, 416),
        (688, 384),
        (736, 368),
    ]
    assert all(0.95 < grid.area / 512**2 < 1.05 for grid in grids)


@given(size=st.integers(4, 128).map(lambda n: 16 * n), ratio=st.floats(0.25, 4))
def test_a_grid_is_near_its_ratio_and_area(size: int, ratio: float) -> None:
    (grid,) = Buckets(size, [ratio]).grids
    assert 0.6 * size**2 <= grid.area <= 1.1 * size**2
    step = 16 / min(size * math.sqrt(ratio), size / math.sqrt(ratio))
    assert abs(math.log(grid.width / grid.height / ratio)) <= 1.1 * step


def test_ratios_that_round_to_one_grid_share_it() -> None:
    buckets = Buckets(64, (1.0, 1.01, 2.0))
    assert buckets.grids == (Grid(64, 64), Grid(80, 48))
    assert len(buckets) == 4


def test_bucket_numbers_say_grid_and_pictures() -> None:
    buckets = Buckets(512, (2.0, 0.5, 1.0))
    found = buckets.of([400, 1000, 400, 1000], [1000, 1000, 1000, 400], [1, 2, 2, 1])
    assert found.tolist() == [0, 3, 1, 4]
    assert [(buckets.grid(bucket), buckets.pictures(bucket)) for bucket in (0, 3, 4)] == [
        (Grid(368, 736), 1),
        (Grid(512, 512), 2),
        (Grid(736, 368), 1),
    ]
    assert int(buckets.of(512, 512, 1)) == 2


def test_a_picture_of_a_bucket_s_size_goes_to_that_bucket() -> None:
    buckets = Buckets(512, RATIOS)
    for number, grid in enumerate(buckets.grids):
        for scale in (1, 2, 7):
            assert int(buckets.of(grid.width * scale, grid.height * scale, 1)) == 2 * number


@given(width=st.integers(1, 65535), height=st.integers(1, 65535))
def test_the_nearest_ratio_is_taken(width: int, height: int) -> None:
    buckets = Buckets(512, RATIOS)
    distances = [abs(math.log(width / height * grid.height / grid.width)) for grid in buckets.grids]
    assert distances[int(buckets.of(width, height, 1)) // 2] == pytest.approx(min(distances), abs=1e-9)


@pytest.mark.parametrize(("width", "height", "pictures"), [(0, 5, 1), (5, 65536, 1), (-3, 5, 1), (5, 5, 3), (5, 5, 0)])
def test_absurd_sizes_are_refused(width: int, height: int, pictures: int) -> None:
    with pytest.raises(ValueError, match="not within 1 to"):
        Buckets(512, RATIOS).of(np.array([64, width]), np.array([64, height]), pictures)


@pytest.mark.parametrize("ratios", [(), (0.0,), (-1.0,), (9.0,), (1.0, float("nan"))])
def test_ratios_without_a_grid_are_refused(ratios: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"data\.aspect_ratios"):
        Buckets(512, ratios)


def test_the_smallest_size_still_has_grids() -> None:
    assert Buckets(32, (8.0, 0.125)).grids == (Grid(16, 64), Grid(64, 16))
