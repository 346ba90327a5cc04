"""Fill a hole in a photograph from its surroundings: PatchMatch for textures, Telea's method for scratches."""

from collections.abc import Sequence
from importlib.metadata import version

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Box, Mask
from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.protocols import Fill, Image

PATCH = 7
GROWTH = 9
EM_LOOPS = 2
TINY = 0.002
"""Holes below this share of the image are filled by Telea's method (J. Graphics Tools 2004), which smooths inward."""
TELEA_RADIUS = 4
CONTEXT = 1.0
"""Surroundings given to PatchMatch on each side of the hole, as a share of the hole's own width and height."""
MIN_CONTEXT = 48


class PatchMatchInpainter(EmbeddedModel):
    """`Inpainter`: continues grass, sand, water, sky and walls well up to about a quarter of the image; does not know

    what objects look like. Barnes et al. 2009 in a pyramid, as patchmatch-cython implements it. Deterministic for one
    image, mask and seed.
    """

    name = "patchmatch"
    version = 1
    max_fraction = 0.22

    def digest(self) -> str:
        """SHA-256 over the versions of this code and of the two libraries that do the filling."""
        libraries = {name: version(name) for name in ("opencv-python-headless", "patchmatch-cython")}
        return sha256(canonical_json({"name": self.name, "version": self.version, "libraries": libraries}))

    def _load(self) -> None:
        """Nothing to read: the method has no weights."""

    def cover(self, mask: Mask) -> Mask:
        """The mask without holes, grown by 9 pixels so that no rim of the object is copied."""
        return mask.fill_holes().dilate(GROWTH)

    def inpaint(self, fills: Sequence[Fill]) -> list[Image]:
        """Each image (uint8 [H, W, 3]) with the pixels of its mask filled; all others are bit-identical.

        Prompts are not understood and ignored. Raises ValueError when sizes differ, or when nothing outside the mask is
        left to copy from.
        """
        return [self._fill(fill.image, fill.mask, fill.seed) for fill in fills]

    def _fill(self, image: Image, mask: Mask, seed: int) -> Image:
        if mask.shape != image.shape[:2]:
            raise ValueError(f"image {list(image.shape[:2])} and mask {list(mask.shape)} differ in (height, width)")
        hole = mask.box()
        if hole is None:
            return image.copy()
        if mask.fraction > 0.95:
            raise ValueError(f"the mask covers {mask.fraction:.0%} of the image; nothing is left to fill it from")
        self.load()
        x0, y0, x1, y1 = _context(hole, image.shape[1], image.shape[0])
        window, inside = np.ascontiguousarray(image[y0:y1, x0:x1]), np.ascontiguousarray(mask.array[y0:y1, x0:x1])
        filled = _telea(window, inside) if mask.fraction < TINY else _patchmatch(window, inside, seed)
        result = image.copy()
        result[y0:y1, x0:x1][inside] = filled[inside]
        return result


def _context(hole: Box, width: int, height: int) -> tuple[int, int, int, int]:
    near = hole.expand(CONTEXT, pixels=MIN_CONTEXT).clip(width, height)
    assert near is not None, "a mask's box lies inside the image"
    return near.to_ints()


def _telea(window: Image, inside: NDArray[np.bool_]) -> Image:
    filled: Image = cv2.inpaint(window, inside.astype(np.uint8), TELEA_RADIUS, cv2.INPAINT_TELEA)
    return filled


def _patchmatch(window: Image, inside: NDArray[np.bool_], seed: int) -> Image:
    from patchmatch_cython import inpaint_pyramid
    from patchmatch_cython.cython_solver import CythonSolver

    filled: Image = inpaint_pyramid(window, inside, patch_size=PATCH, solver_class=CythonSolver, seed=seed % 2**31,
                                    em_loops=EM_LOOPS)
    return filled
