"""U2-Net-P (Qin et al. 2020), a salient-object network, used as a box-prompted segmenter.

Inside a box that a detector drew, the salient object is the object. So: crop to the box plus a margin (the network
needs to see some background), run, and keep what lies in the box. Overlapping instances are segmented one by one.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import cv2
import numpy as np

from editfoundry.core.geometry import Box
from editfoundry.models.embedded.base import EmbeddedModel, onnx_session
from editfoundry.models.protocols import Float, Image, Segmentation
from editfoundry.models.store import Store

INPUT_SIDE = 320
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
MARGIN = 0.12


class U2Net:
    """The network itself: image in, saliency map out."""

    def __init__(self, path: str) -> None:
        self._session: Any = onnx_session(path)
        self._input: str = self._session.get_inputs()[0].name
        self._output: str = self._session.get_outputs()[0].name

    def saliency(self, image: Image) -> Float:
        """Saliency in [0, 1], float32 [H, W], of a uint8 RGB image [H, W, 3] of any size and aspect ratio."""
        height, width = image.shape[:2]
        pixels = cv2.resize(image, (INPUT_SIDE, INPUT_SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
        pixels = (pixels / max(float(pixels.max()), 1e-6) - MEAN) / STD
        batch = pixels.transpose(2, 0, 1)[None].astype(np.float32)
        output = self._session.run([self._output], {self._input: batch})[0]
        saliency = cv2.resize(output[0, 0], (width, height), interpolation=cv2.INTER_LINEAR)
        return np.asarray(np.clip(saliency, 0.0, 1.0), dtype=np.float32)


@cache
def shared_network(path: str) -> U2Net:
    """The network of a weight file, loaded once in a process however many models use it."""
    return U2Net(path)


class U2NetSegmenter(EmbeddedModel):
    """`Segmenter`: one alpha matte for each box."""

    name = "u2netp-box"
    salient = True
    weights = ("u2netp",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._net: U2Net

    def _load(self) -> None:
        self._net = shared_network(str(self.store.path("u2netp")))

    def segment(self, image: Image, boxes: Sequence[Box]) -> list[Segmentation]:
        """For each box (pixels) a float32 matte [H, W] in [0, 1] that is zero outside the box.

        The score is the matte's stability, area(alpha > 0.75) / area(alpha > 0.25): near 1 for a crisp outline, low for
        a diffuse one, 0 for an empty matte. Raises ValueError for a box that lies outside the image.
        """
        self.load()
        return [self._one(image, box) for box in boxes]

    def _one(self, image: Image, box: Box) -> Segmentation:
        height, width = image.shape[:2]
        inside, around = box.clip(width, height), box.expand(MARGIN).clip(width, height)
        if inside is None or around is None:
            raise ValueError(f"box {box.as_list()} lies outside the {width}x{height} image")
        x0, y0, x1, y1 = around.to_ints()
        matte = self._net.saliency(np.ascontiguousarray(image[y0:y1, x0:x1]))
        low, high = float(matte.min()), float(matte.max())
        alpha = np.zeros((height, width), np.float32)
        alpha[y0:y1, x0:x1] = (matte - low) / max(high - low, 1e-6)
        bx0, by0, bx1, by1 = inside.to_ints()
        outside = np.ones((height, width), bool)
        outside[by0:by1, bx0:bx1] = False
        alpha[outside] = 0.0
        loose = int((alpha > 0.25).sum())
        return Segmentation(alpha, float((alpha > 0.75).sum()) / loose if loose else 0.0)
