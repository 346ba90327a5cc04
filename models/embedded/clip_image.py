"""The image tower of CLIP ViT-B/16 (Radford et al. 2021), quantised to int8.

Good for image-to-image similarity. The quantised tower is not aligned with CLIP's text tower (or with the unquantised
image tower), so its vectors are compared with each other only.
"""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from editfoundry.models.embedded.base import EmbeddedModel, onnx_session
from editfoundry.models.protocols import Float, Image
from editfoundry.models.store import Store

INPUT_SIDE = 224
DIMENSION = 512
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


class ClipImageEmbedder(EmbeddedModel):
    """`ImageEmbedder`, 512 numbers an image.

    The whole image is squashed to a square (nothing is cropped away), and each image runs alone: dynamic quantisation
    scales by what is in the batch, so a batch would change its members.
    """

    name = "clip-vit-b16-image-int8"
    weights = ("clip-vit-b16-image-int8",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._session: Any = None

    def _load(self) -> None:
        self._session = onnx_session(str(self.store.path("clip-vit-b16-image-int8")))

    def embed(self, images: Sequence[Image]) -> Float:
        """float32 [N, 512], rows of length 1, of uint8 RGB images [H, W, 3]."""
        self.load()
        if not images:
            return np.zeros((0, DIMENSION), np.float32)
        vectors = np.stack([self._one(image) for image in images])
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)

    def _one(self, image: Image) -> Float:
        shrinks = min(image.shape[:2]) > INPUT_SIDE
        method = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
        pixels = cv2.resize(image, (INPUT_SIDE, INPUT_SIDE), interpolation=method).astype(np.float32) / 255
        batch = ((pixels - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32)
        return np.asarray(self._session.run(None, {"pixel_values": batch})[0][0], dtype=np.float32)
