"""Faces by dlib (King 2009): HOG detector, 5-point alignment, ResNet embedding. The 68-point model is not used."""

from typing import Any

import numpy as np

from editfoundry.core.geometry import Box
from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.protocols import Face, Image
from editfoundry.models.store import Store


class DlibFaceEmbedder(EmbeddedModel):
    """`FaceEmbedder`: upright, roughly frontal faces of about 40 pixels and more.

    `upsample` doublings of the image decide the smallest face found (80 pixels, halved by each); `threshold` is the
    least detector confidence.
    """

    name = "dlib-hog-resnet"
    weights = ("dlib-faces",)

    def __init__(self, store: Store | None = None, upsample: int = 1, threshold: float = 0.3) -> None:
        super().__init__(store)
        self.upsample, self.threshold = upsample, threshold
        self._detector: Any = None
        self._landmarks: Any = None
        self._network: Any = None

    def _load(self) -> None:
        import dlib

        directory = self.store.path("dlib-faces")
        self._detector = dlib.get_frontal_face_detector()
        self._landmarks = dlib.shape_predictor(str(directory / "shape_predictor_5_face_landmarks.dat"))
        self._network = dlib.face_recognition_model_v1(str(directory / "dlib_face_recognition_resnet_model_v1.dat"))

    def faces(self, image: Image) -> list[Face]:
        """Faces of a uint8 RGB image [H, W, 3], left to right. Embeddings are float32 [128]; an L2 distance under 0.6
        means the same person."""
        self.load()
        pixels = np.ascontiguousarray(image)
        height, width = pixels.shape[:2]
        rectangles, _, _ = self._detector.run(pixels, self.upsample, self.threshold)
        found = []
        for rectangle in rectangles:
            box = Box(rectangle.left(), rectangle.top(), rectangle.right() + 1, rectangle.bottom() + 1)
            clipped = box.clip(width, height)
            if clipped is not None:
                aligned = self._landmarks(pixels, rectangle)
                vector = self._network.compute_face_descriptor(pixels, aligned)
                found.append(Face(clipped, np.array(vector, dtype=np.float32)))
        return sorted(found, key=lambda face: face.box.as_list())
