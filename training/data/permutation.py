"""Keyed permutations of 0..n-1 that are computed per element: no array of n numbers, hence O(1) to start anywhere.

A generalised Feistel network on Z_a x Z_b (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002) whose
round function is SplitMix64 (Steele, Lea and Flood, 2014). a * b is at least n and barely more; elements that fall
outside are permuted again (cycle walking). Integer arithmetic only: the same on every machine.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words: TypeAlias = NDArray[np.uint64]

ROUNDS = 8  # from 8 pairs on, all orders of 3 to 6 elements come up equally often over the keys (chi-squared)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def splitmix(key: ArrayLike, number: ArrayLike) -> Words:
    """Number `number` (from 0) of the SplitMix64 generator seeded with `key`, elementwise in uint64."""
    keys, numbers = np.asarray(key, np.uint64), np.asarray(number, np.uint64)
    with np.errstate(over="ignore"):
        state = keys + (numbers + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _FIRST
        state = (state ^ (state >> np.uint64(27))) * _SECOND
    return np.asarray(state ^ (state >> np.uint64(31)))


def permute(element: ArrayLike, size: ArrayLike, key: ArrayLike) -> Words:
    """Where the permutation of 0..size-1 chosen by `key` takes `element`, elementwise (arguments broadcast).

    Elements below their size, sizes from 1 below 2**52, keys uint64. Raises ValueError for other elements and sizes.
    """
    arrays = np.broadcast_arrays(*(np.asarray(value, np.uint64) for value in (element, size, key)))
    values, sizes, keys = (array.ravel() for array in arrays)
    if np.any(values >= sizes) or np.any(sizes >= np.uint64(2**52)):
        raise ValueError("an element is not below its size, or a size is not below 2**52")
    rows = np.floor(np.sqrt((sizes - np.uint64(1)).astype(np.float64))).astype(np.uint64) + np.uint64(1)
    columns = (sizes + rows - np.uint64(1)) // rows
    result = _network(values, rows, columns, keys)
    while np.any(outside := result >= sizes):
        result[outside] = _network(result[outside], rows[outside], columns[outside], keys[outside])
    return result.reshape(arrays[0].shape)


def _network(values: Words, rows: Words, columns: Words, keys: Words) -> Words:
    """A permutation of 0..rows*columns-1: each half moves by an amount that depends on the other half and the key."""
    left, right = values // columns, values % columns
    for number in range(ROUNDS):
        left = (left + splitmix(splitmix(keys, 2 * number), right)) % rows
        right = (right + splitmix(splitmix(keys, 2 * number + 1), left)) % columns
    return left * columns + right
