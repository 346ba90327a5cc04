"""What ControlNets are shown of a picture: its edges or its depth."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import cv2
import numpy as np
from pydantic import Field

from editfoundry.core.geometry import resize
from editfoundry.models.checkpoint import TorchOptions
from editfoundry.models.protocols import DepthEstimator, Image
from editfoundry.models.registry import ModelSpec, create

Condition = Callable[[Image], Image]


class ControlOptions(TorchOptions):
    """A ControlNet's options. condition: what it is shown; a depth one needs a `controlnet` trained for depth.

    control_scale, control_end: its weight, and the share of the steps it has a say in. canny_*: thresholds, and the
    short side edges are found at. depth: checkpoint of the depth estimator, for `condition: depth`.
    """

    controlnet: str = "sdxl-controlnet-canny"
    condition: Literal["canny", "depth"] = "canny"
    control_scale: float = Field(default=0.9, ge=0)
    control_end: float = Field(default=0.7, ge=0, le=1)
    canny_low: int = Field(default=70, ge=0)
    canny_high: int = Field(default=220, ge=0)
    canny_side: int = Field(default=768, ge=16)
    depth: str = "depth-anything-v2-small"

    def weights(self) -> tuple[str, ...]:
        """The options that name the weights of the condition."""
        return ("depth",) if self.condition == "depth" else ()

    def conditioner(self) -> Condition:
        """From a picture to what the ControlNet is shown, uint8 [H, W, 3] of the same size. Loads the estimator."""
        if self.condition == "canny":
            return partial(canny, low=self.canny_low, high=self.canny_high, side=self.canny_side)
        spec: dict[str, Any] = {"checkpoint": self.depth, "device": self.device, "dtype": self.dtype}
        estimator = create("depth", ModelSpec(name="depth-anything", **spec))
        estimator.load()
        return partial(nearness, estimator=estimator)


def canny(image: Image, low: int, high: int, side: int) -> Image:
    """Canny edges (white on black) of a picture, uint8 [H, W, 3] of its own size.

    Found on a copy whose short side is `side` pixels, so that thresholds mean the same for every picture; a picture
    smaller than that is taken as it is, for edges of one pixel fade when they are made smaller.
    """
    height, width = image.shape[:2]
    scale = min(1.0, side / min(height, width))
    copy = resize(image, max(1, round(width * scale)), max(1, round(height * scale)))
    edges = cv2.Canny(np.ascontiguousarray(copy), low, high)
    return np.repeat(resize(edges, width, height)[..., None], 3, axis=2)


def nearness(image: Image, estimator: DepthEstimator) -> Image:
    """Relative depth of a picture, uint8 [H, W, 3]: 255 is nearest."""
    grey = np.rint(estimator.depth(image) * 255).clip(0, 255).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)
