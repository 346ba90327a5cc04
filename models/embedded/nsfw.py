"""Yahoo's Open NSFW (2016): the probability that a photograph is not safe for work."""

from typing import Any

import cv2
import numpy as np

from editfoundry.models.embedded.base import EmbeddedModel, onnx_session
from editfoundry.models.protocols import Image
from editfoundry.models.store import Store

RESIZED, INPUT_SIDE = 256, 224
MEAN_BGR = np.array([104, 117, 123], np.float32)


class NsfwScorer(EmbeddedModel):
    """`SafetyScorer`: photographic nudity only; drawings, violence and text are outside what the network was taught."""

    name = "open-nsfw"
    weights = ("open-nsfw",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._session: Any = None
        self._input = ""

    def _load(self) -> None:
        self._session = onnx_session(str(self.store.path("open-nsfw")))
        self._input = self._session.get_inputs()[0].name

    def unsafe(self, image: Image) -> float:
        """Probability in [0, 1] for a uint8 RGB image [H, W, 3]; its border (an eighth) is cropped away."""
        self.load()
        edge = (RESIZED - INPUT_SIDE) // 2
        pixels = cv2.resize(image, (RESIZED, RESIZED), interpolation=cv2.INTER_AREA)[edge:-edge, edge:-edge, ::-1]
        return float(self._session.run(None, {self._input: pixels.astype(np.float32)[None] - MEAN_BGR})[0][0, 1])
