"""Where an object could stand when nobody said so: zones estimated from the picture, and only on clear evidence.

Sky is a smooth blue band at the top edge; ground is an evenly textured band of one colour, not blue, at the bottom of a
picture that has such a sky. Anything less clear gives no zone: a missing zone costs an edit, a wrong one makes a
floating object.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Box
from editfoundry.data_engine.pixels import box_list
from editfoundry.data_engine.records import Zone, ZoneKind
from editfoundry.models.protocols import Image

# Visible metres across the image at the zone's depth, when no manifest says: a street or meadow, an open sky.
DEFAULT_WIDTH_M: dict[ZoneKind, float] = {"surface": 0.8, "ground": 6.0, "water": 12.0, "sky": 40.0, "macro": 0.15}

WORK_WIDTH = 160
MIN_SKY = 0.12
MIN_GROUND_ROWS = 0.22
SMOOTH = 6.0
EVEN = 14.0


def estimate_zones(image: Image) -> tuple[Zone, ...]:
    """Zones of a uint8 RGB photograph on its grid, with the default width of their kind; often none."""
    height, width = image.shape[:2]
    scale = WORK_WIDTH / width
    small = cv2.resize(image, (WORK_WIDTH, max(8, round(height * scale))), interpolation=cv2.INTER_AREA)
    lab = cv2.cvtColor(small.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    found = []
    sky = _sky(lab)
    zones: tuple[tuple[ZoneKind, Box | None], ...] = (("sky", sky), ("ground", _ground(lab) if sky else None))
    for kind, box in zones:
        if box is not None:
            whole = Box(*(value / scale for value in box.as_list()))
            found.append(Zone(kind=kind, box=box_list(whole, (width, height)), width_m=DEFAULT_WIDTH_M[kind],
                              origin="estimated"))  # fmt: skip
    return tuple(found)


def _texture(lab: NDArray[np.float32]) -> NDArray[np.float32]:
    """Standard deviation of lightness in a 5x5 neighbourhood, [H, W]."""
    light = lab[..., 0]
    mean = cv2.blur(light, (5, 5))
    deviation: NDArray[np.float32] = np.sqrt(np.maximum(cv2.blur(light * light, (5, 5)) - mean * mean, 0))
    return deviation


def _sky(lab: NDArray[np.float32]) -> Box | None:
    """The deepest full-width band at the top that is smooth and blue."""
    light, blue = lab[..., 0], lab[..., 2]
    like = (_texture(lab) < SMOOTH) & (blue < -8) & (light > 35) & (lab[..., 1] < 30)
    rows = like.mean(axis=1) > 0.97
    depth = len(rows) if rows.all() else int(np.argmin(rows))
    if depth < MIN_SKY * len(rows) or depth > 0.9 * len(rows):
        return None
    return Box(0, 0, lab.shape[1], depth)


def _ground(lab: NDArray[np.float32]) -> Box | None:
    """A full-width band at the bottom of even texture and one colour, clearly different from what is above it."""
    height, width = lab.shape[:2]
    start = height - round(MIN_GROUND_ROWS * height)
    band = lab[start:]
    cells = band.reshape(-1, 3)
    spread = float(np.linalg.norm(cells - np.median(cells, axis=0), axis=1).mean())
    halves = [np.median(part.reshape(-1, 3), axis=0) for part in np.array_split(band, 4, axis=1)]
    sideways = max(float(np.linalg.norm(part - halves[0])) for part in halves)
    above = np.median(lab[: height // 3].reshape(-1, 3), axis=0)
    apart = float(np.linalg.norm(np.median(cells, axis=0) - above))
    watery = float(np.median(cells[:, 2])) < 0
    if watery or spread > EVEN or sideways > EVEN or float(np.median(_texture(band))) > EVEN or apart < 2 * EVEN:
        return None
    return Box(0, start, width, height)
