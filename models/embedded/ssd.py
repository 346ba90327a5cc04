"""SSD-MobileNet-v2 (Liu et al. 2016; Sandler et al. 2018) trained on COCO, run by OpenCV's DNN module.

A closed vocabulary: the COCO classes and nothing else. Reliable on large objects only; on anything else it answers with
the nearest COCO class, so a caller should ask a second model before it believes a label.
"""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from editfoundry.core.geometry import Box
from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.embedded.coco import COCO_LABELS
from editfoundry.models.protocols import Detection, Image
from editfoundry.models.store import Store

INPUT_SIDE = 300


class SsdDetector(EmbeddedModel):
    """`Detector` over the COCO classes.

    `threshold` is the least score reported, `overlap` the IoU above which the weaker of two boxes is dropped, whatever
    their labels: one object is reported once.
    """

    name = "ssd-mobilenet-v2-coco"
    open_vocabulary = False
    weights = ("ssd-mobilenet-v2-coco",)

    def __init__(self, store: Store | None = None, threshold: float = 0.35, overlap: float = 0.6) -> None:
        super().__init__(store)
        self.threshold, self.overlap = threshold, overlap
        self._net: Any = None

    def _load(self) -> None:
        directory = self.store.path("ssd-mobilenet-v2-coco")
        graph, text = directory / "frozen_inference_graph.pb", directory / "ssd_mobilenet_v2_coco_2018_03_29.pbtxt"
        self._net = cv2.dnn.readNetFromTensorflow(str(graph), str(text))

    def detect(self, image: Image, vocabulary: Sequence[str] | None = None) -> list[Detection]:
        """Objects of a uint8 RGB image [H, W, 3], best first, boxes in pixels clipped to the image.

        With a vocabulary only labels in it are reported; words that are not COCO classes can never be.
        """
        self.load()
        height, width = image.shape[:2]
        self._net.setInput(cv2.dnn.blobFromImage(image, size=(INPUT_SIDE, INPUT_SIDE)))
        rows = self._net.forward()[0, 0]  # [N, 7]: image, class id, score, box relative to the image
        found: list[Detection] = []
        for _, class_id, score, *relative in rows[np.argsort(-rows[:, 2], kind="stable")].tolist():
            if score < self.threshold:
                break
            x0, y0, x1, y1 = (value * size for value, size in zip(relative, (width, height) * 2, strict=True))
            if x1 <= x0 or y1 <= y0:
                continue
            box = Box(x0, y0, x1, y1).clip(width, height)
            label = COCO_LABELS[int(class_id)]
            if box is None or (vocabulary is not None and label not in vocabulary):
                continue
            if all(box.iou(other.box) <= self.overlap for other in found):
                found.append(Detection(label, float(score), box))
        return found
