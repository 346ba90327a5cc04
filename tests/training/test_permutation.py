"""The keyed permutation: exact, even, and the same for ever."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.training.data.permutation import permute, splitmix

KEYS = st.integers(0, 2**64 - 1)


@given(size=st.integers(1, 3000), key=KEYS)
def test_it_is_a_bijection(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


def test_every_small_size_is_a_bijection() -> None:
    for size in range(1, 130):
        for key in (0, 1, 2**64 - 1):
            assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@given(size=st.integers(1, 2**52 - 1), key=KEYS, part=st.integers(0, 2**52))
def test_elements_stay_below_any_size(size: int, key: int, part: int) -> None:
    assert int(permute(part % size, size, key)) < size


@given(st.lists(st.tuples(st.integers(1, 10**7), KEYS, st.integers(0, 10**7)), min_size=1, max_size=20))
def test_each_element_is_permuted_by_itself(cases: list[tuple[int, int, int]]) -> None:
    sizes, keys, elements = (
        np.array(column, np.uint64)
        for column in zip(*((size, key, element % size) for size, key, element in cases), strict=True)
    )
    together = permute(elements, sizes, keys)
    assert together.tolist() == [int(permute(*each)) for each in zip(elements, sizes, keys, strict=True)]


def test_a_large_size_takes_an_element_at_a_time() -> None:
    size = 10_000_019
    found = permute(np.arange(0, size, 1000), size, 7)
    assert len(np.unique(found)) == len(found)
    assert abs(float(found.mean()) / size - 0.5) < 0.02


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_keys_give_every_order_equally_often(size: int) -> None:
    keys = np.arange(24_000, dtype=np.uint64)
    orders = np.stack([permute(element, size, keys) for element in range(size)], axis=1)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    expected = len(keys) / math.factorial(size)
    assert len(counts) == math.factorial(size)
    assert float(((counts - expected) ** 2 / expected).sum()) < 1.4 * len(counts) + 5


def test_recorded_values() -> None:
    assert [hex(int(splitmix(1234567, number))) for number in range(2)] == ["0x599ed017fb08fc85", "0x2c73f08458540fa5"]
    assert permute(np.arange(12), 12, 2026).tolist() == [6, 10, 1, 11, 2, 8, 7, 3, 0, 5, 9, 4]
    assert int(permute(123_456, 10_000_000, 1)) == 7_615_236


@pytest.mark.parametrize(("element", "size"), [(5, 5), (0, 0), (0, 2**52)])
def test_elements_and_sizes_out_of_range_are_refused(element: int, size: int) -> None:
    with pytest.raises(ValueError, match="not below"):
        permute(element, size, 0)
