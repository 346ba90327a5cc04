"""Salient objects of a whole photograph, from U2-Net-P: where the main subjects are, without saying what they are.

A second way to find a subject that the detector has no class for (a leaf, a rocket, a butterfly). The caller names the
box with a tagger.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from editfoundry.core.geometry import Box
from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.embedded.u2net import U2Net, shared_network
from editfoundry.models.protocols import Detection, Image
from editfoundry.models.store import Store

LABEL = "object"
SALIENT = 0.5


class SalientObjectDetector(EmbeddedModel):
    """`Detector` with the single label "object": boxes of connected salient regions.

    `least_area` is the smallest region reported, as a fraction of the image.
    """

    name = "u2netp-salient"
    weights = ("u2netp",)

    def __init__(self, store: Store | None = None, least_area: float = 0.005) -> None:
        super().__init__(store)
        self.least_area = least_area
        self._net: U2Net

    def _load(self) -> None:
        self._net = shared_network(str(self.store.path("u2netp")))

    def detect(self, image: Image, vocabulary: Sequence[str] | None = None) -> list[Detection]:
        """Salient regions of a uint8 RGB image [H, W, 3], best first; score is the mean saliency inside the region.

        A vocabulary without "object" selects nothing. The network's own scale is kept (no stretching to [0, 1]), so a
        photograph without a subject gives no region.
        """
        if vocabulary is not None and LABEL not in vocabulary:
            return []
        self.load()
        saliency = self._net.saliency(image)
        salient = (saliency > SALIENT).astype(np.uint8)
        count, regions, stats, _ = cv2.connectedComponentsWithStats(salient, connectivity=8)
        found = []
        for region in range(1, count):
            x, y, width, height, area = (int(value) for value in stats[region])
            if area >= self.least_area * saliency.size:
                score = float(saliency[regions == region].mean(dtype=np.float64))
                found.append(Detection(LABEL, score, Box(x, y, x + width, y + height)))
        return sorted(found, key=lambda one: (-one.score * one.box.area, one.box.as_list()))
