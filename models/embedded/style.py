"""Arbitrary style transfer (Ghiasi et al. 2017, "Exploring the structure of a real-time, arbitrary neural artistic

stylization network", distilled to MobileNet): one network reads a style code off a picture, another repaints by it.
"""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from editfoundry.core.geometry import resize
from editfoundry.models.embedded.base import EmbeddedModel, onnx_session
from editfoundry.models.protocols import Float, Image, Restyle
from editfoundry.models.store import Store

CODE_SIDE, WORK_SIDE = 256, 384
DETAIL = 0.6
"""Share of the fine lightness detail, lost by repainting at 384 pixels, that is put back."""


class ArbitraryStyleTransfer(EmbeddedModel):
    """`StyleTransfer`: repaints colours and strokes in the manner of any reference; shapes stay where they are."""

    name = "arbitrary"
    weights = ("arbitrary-style",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._predict: Any = None
        self._transform: Any = None

    def _load(self) -> None:
        self._predict, self._transform = (
            onnx_session(str(self.store.path("arbitrary-style", f"arbitrary_{part}.onnx")), precise=False)
            for part in ("predict", "transform")
        )

    def stylise(self, restyles: Sequence[Restyle]) -> list[Image]:
        """Each image (uint8 [H, W, 3]) in the style of its reference (any size); its words are not understood.

        `strength` in (0, 1] moves from the image's own style code to the reference's. Raises ValueError outside that.
        """
        return [self._one(restyle.image, restyle.reference, restyle.strength) for restyle in restyles]

    def _one(self, image: Image, reference: Image, strength: float) -> Image:
        if not 0.0 < strength <= 1.0:
            raise ValueError(f"style strength lies in (0, 1], got {strength}")
        self.load()
        code = self._code(reference)
        if strength < 1.0:
            code = np.float32(strength) * code + np.float32(1.0 - strength) * self._code(image)
        content, style = self._transform.get_inputs()
        small = resize(image, WORK_SIDE, WORK_SIDE)
        inputs = {content.name: _unit(small), style.name: code}
        painted = self._transform.run(None, inputs)[0][0].astype(np.float32).clip(0.0, 1.0) * np.float32(255.0)
        height, width = image.shape[:2]
        large = resize(painted, width, height) + np.float32(DETAIL) * _lost_detail(image, small)[..., None]
        result: Image = np.rint(large).clip(0, 255).astype(np.uint8)
        return result

    def _code(self, image: Image) -> Float:
        """The style code of a picture, float32 [1, 1, 1, 100]."""
        code: Float = self._predict.run(
            None, {self._predict.get_inputs()[0].name: _unit(resize(image, CODE_SIDE, CODE_SIDE))})[0]
        return code


def _unit(image: Image) -> Float:
    return (image[None] / np.float32(255.0)).astype(np.float32)


def _lost_detail(image: Image, small: Image) -> Float:
    """What of the image's lightness its small copy cannot show, float32 [H, W] in grey levels around 0."""
    height, width = image.shape[:2]
    coarse: Float = cv2.cvtColor(resize(small, width, height), cv2.COLOR_RGB2GRAY).astype(np.float32)
    fine: Float = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return fine - coarse
