"""Filling holes: what is outside the mask stays to the bit, what is inside continues the surroundings."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import pytest
from skimage import data

from editfoundry.core.geometry import Box, Grid, Mask
from editfoundry.models.embedded.inpaint import PatchMatchInpainter
from editfoundry.models.protocols import Fill

CHILD = """
from hashlib import sha256
import numpy as np
from skimage import data
from editfoundry.core.geometry import Box, Grid, Mask
from editfoundry.models.embedded.inpaint import PatchMatchInpainter
from editfoundry.models.protocols import Fill
image = np.asarray(data.coffee())
mask = Mask.from_box(Box(480, 60, 540, 110), Grid(600 // 16 * 16, 400))
print(sha256(PatchMatchInpainter().inpaint([Fill(image[:, :592], mask, 7)])[0].tobytes()).hexdigest())
"""


def filled_by(image: np.ndarray, mask: Mask, seed: int) -> np.ndarray:
    (result,) = PatchMatchInpainter().inpaint([Fill(image, mask, seed)])
    return result


def stripes(height: int = 160, width: int = 240) -> np.ndarray:
    """Vertical stripes of eight pixels: the only right way to fill a hole in them is to continue them."""
    column = np.where(np.arange(width) // 8 % 2, 200, 60).astype(np.uint8)
    return np.broadcast_to(column[None, :, None], (height, width, 3)).copy()


def test_a_texture_is_continued_and_the_outside_is_untouched() -> None:
    whole, mask = stripes(), Mask.from_box(Box(100, 60, 140, 100), Grid(240, 160))
    damaged = whole.copy()
    damaged[mask.array] = (255, 0, 0)
    filled = filled_by(damaged, mask, 3)
    assert np.array_equal(filled[~mask.array], damaged[~mask.array])
    assert np.abs(filled[mask.array].astype(int) - whole[mask.array]).mean() < 20, "70 would be plain grey"


def test_a_tiny_hole_is_smoothed_over() -> None:
    plain = np.full((160, 240, 3), (90, 120, 150), np.uint8)
    mask = Mask.from_box(Box(100, 60, 106, 66), Grid(240, 160))
    damaged = plain.copy()
    damaged[mask.array] = 0
    assert np.abs(filled_by(damaged, mask, 0).astype(int) - plain).max() <= 2


def test_an_empty_mask_changes_nothing_and_a_full_one_is_refused() -> None:
    image, empty = stripes(), Mask(np.zeros((160, 240), np.bool_))
    assert np.array_equal(filled_by(image, empty, 0), image)
    with pytest.raises(ValueError, match="nothing is left"):
        filled_by(image, ~empty, 0)
    with pytest.raises(ValueError, match="differ in"):
        filled_by(image, Mask(np.zeros((10, 10), np.bool_)), 0)


def test_the_digest_names_the_implementation() -> None:
    digest = PatchMatchInpainter().digest()
    assert len(digest) == 64 and digest == PatchMatchInpainter().digest()


@pytest.mark.slow
def test_one_seed_gives_one_result_in_every_thread_and_process() -> None:
    image = np.asarray(data.coffee())[:, :592]
    mask = Mask.from_box(Box(480, 60, 540, 110), Grid(592, 400))

    def run(_: int) -> str:
        return sha256(filled_by(image, mask, 7).tobytes()).hexdigest()

    with ThreadPoolExecutor(3) as pool:
        hashes = set(pool.map(run, range(3)))
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert hashes == {child.stdout.strip()}
