"""EfficientNet-lite3 (Tan & Le 2019, the "lite" release) on ImageNet-1k, quantised to uint8, run by LiteRT."""

from typing import Any

import cv2
import numpy as np

from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.embedded.labels import imagenet_nouns
from editfoundry.models.protocols import Float, Image, Tag
from editfoundry.models.store import Store

INPUT_SIDE = 280


class EfficientNetTagger(EmbeddedModel):
    """`Tagger`: the whole image named with ImageNet classes, as short nouns ("espresso", "tabby cat")."""

    name = "efficientnet-lite3-imagenet"
    weights = ("efficientnet-lite3-imagenet",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._interpreter: Any = None

    def _load(self) -> None:
        from ai_edge_litert.interpreter import Interpreter

        path = self.store.path("efficientnet-lite3-imagenet", "efficientnet_lite3.tflite")
        self._interpreter = Interpreter(model_path=str(path), num_threads=1)
        self._interpreter.allocate_tensors()

    def probabilities(self, image: Image) -> Float:
        """ImageNet-1k probabilities, float32 [1000] in steps of 1/256, of a uint8 RGB image [H, W, 3].

        The image is squashed to a square, not cropped. Rounding to the steps loses the tail: where the model is unsure
        the sum stays visibly below 1, and is left so.
        """
        self.load()
        pixels = cv2.resize(image, (INPUT_SIDE, INPUT_SIDE), interpolation=cv2.INTER_AREA)
        given, answer = self._interpreter.get_input_details()[0], self._interpreter.get_output_details()[0]
        self._interpreter.set_tensor(given["index"], pixels[None])
        self._interpreter.invoke()
        scale, zero = answer["quantization"]
        steps = self._interpreter.get_tensor(answer["index"])[0].astype(np.float32)
        return np.asarray((steps - zero) * scale, dtype=np.float32)

    def tag(self, image: Image, top: int = 10) -> list[Tag]:
        """At most `top` classes of non-zero probability, best first; equal scores in class order."""
        scores, nouns = self.probabilities(image), imagenet_nouns()
        best = np.argsort(-scores, kind="stable")[:top]
        return [Tag(nouns[index], float(scores[index])) for index in best.tolist() if scores[index] > 0]
