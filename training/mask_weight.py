"""How much each image token's loss counts: the edited area more than the rest, the more so the smaller it is.

The rule is that of UniWorld-V1 (its released training code): the area is what changed between the pictures and the
target; with x = all tokens / edited tokens, edited tokens weigh log2(x) + 1 (`exp`: 2^(sqrt(x) - 1), at most 16: it
would reach 512 where 1% is edited), all others 1. A sample's exact edit mask is better than the difference and takes
its place.
"""

import math
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import EditFoundryError
from editfoundry.models.protocols import Image
from editfoundry.training.config import MaskWeight

CLOSE = 5
SMALLEST_PART = 0.3
LEAST_CHANGE = 0.001
MOST_WEIGHT = 16.0


class Unchanged(EditFoundryError):
    """A sample in which nothing changes, where such samples are refused."""


def changed(sources: Sequence[Image], target: Image, threshold: int) -> NDArray[np.bool_]:
    """Where `target` differs from every one of `sources`: bool [H, W]; all are uint8 [H, W, 3] of one size.

    A pixel differs by a grey difference of at least `threshold` levels. Per source, holes are closed with a square of 5
    pixels and parts below 0.3 of the whole are dropped (scattered change has no such part, and stays whole). A result
    below 0.1% of the picture is the noise of encoding: nothing changed.
    """
    grey = cv2.cvtColor(target, cv2.COLOR_RGB2GRAY)
    area = np.ones(grey.shape, np.bool_)
    for source in sources:
        difference = cv2.absdiff(cv2.cvtColor(source, cv2.COLOR_RGB2GRAY), grey) >= threshold
        area &= _large_parts(cv2.morphologyEx(difference.astype(np.uint8), cv2.MORPH_CLOSE, np.ones((CLOSE, CLOSE))))
    return area if area.mean() >= LEAST_CHANGE else np.zeros_like(area)


def token_weights(area: NDArray[np.bool_] | None, tokens: tuple[int, int], options: MaskWeight) -> NDArray[np.float32]:
    """Weights float32 [N] of `tokens` = (rows, columns) of image tokens, N = rows * columns, in reading order.

    area: bool [H, W], a token counts as edited where any of its pixels is; None for an edit of the whole image, whose
    tokens weigh evenly. H and W are multiples of the rows and columns (else ValueError). Unnormalised, the mean weight
    of `log2` is 1 + log2(x) / x, at most 1.53. Raises Unchanged for an empty area where `options` refuse it.
    """
    even = np.ones(tokens[0] * tokens[1], np.float32)
    if area is None:
        return even
    if not area.any():
        if options.unchanged == "reject":
            raise Unchanged(
                "nothing changes between source and result (below 0.1% of the pixels, or an empty mask); "
                "set data.mask_weight.unchanged to `reconstruct` to train on such samples"
            )
        return even
    if options.kind == "none":
        return even
    edited = pooled(area, tokens).ravel()
    x = edited.size / np.count_nonzero(edited)
    high = math.log2(x) + 1 if options.kind == "log2" else min(2 ** (math.sqrt(x) - 1), MOST_WEIGHT)
    weights = np.where(edited, high, 1.0)
    if options.normalised:
        weights /= weights.mean()
    return weights.astype(np.float32)


def _large_parts(area: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The 8-connected parts that make at least 0.3 of the area; all of it where there are none."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(area, connectivity=8)
    large = stats[:, cv2.CC_STAT_AREA] >= SMALLEST_PART * np.count_nonzero(area)
    large[0] = False
    return large[labels] if large.any() else area.astype(np.bool_)


def pooled(area: NDArray[np.bool_], tokens: tuple[int, int]) -> NDArray[np.bool_]:
    """Which of (rows, columns) tokens have any pixel of the area: bool [H, W] -> [rows, columns].

    Raises ValueError when they do not divide it.
    """
    rows, columns = tokens
    height, width = area.shape
    if height % rows or width % columns:
        raise ValueError(f"an area of {width}x{height} pixels does not divide into {columns}x{rows} tokens")
    tiles = area.reshape(rows, height // rows, columns, width // columns)
    return np.asarray(tiles.any(axis=(1, 3)), np.bool_)
