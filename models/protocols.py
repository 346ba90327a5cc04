"""What the engine needs from models, in the field's own words.

Images are uint8 RGB arrays [H, W, 3]. Every model is cheap to construct, loads its weights in `load()` (called once per
worker), runs single-threaded and deterministically, and names itself by `digest()` without loading anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Box, Mask

Image = NDArray[np.uint8]
Float = NDArray[np.float32]


@dataclass(frozen=True)
class Detection:
    """One object found: label, confidence in [0, 1], box in pixels of the image given."""

    label: str
    score: float
    box: Box


@dataclass(frozen=True)
class Segmentation:
    """Alpha matte [H, W] in [0, 1] of one prompted object, and the segmenter's own confidence."""

    alpha: Float
    score: float


@dataclass(frozen=True)
class Tag:
    """A label of the whole image with its probability."""

    label: str
    score: float


@dataclass(frozen=True)
class TextLine:
    """One line of text read in the image."""

    text: str
    score: float
    box: Box


@dataclass(frozen=True)
class Face:
    """One face and its identity embedding (L2 distance; below 0.6 is the same person)."""

    box: Box
    embedding: Float


@runtime_checkable
class Model(Protocol):
    """What every model offers the engine."""

    name: str

    def digest(self) -> str:
        """Hash of the weights and of the implementation's version, computed without loading the weights."""
        ...

    def load(self) -> None:
        """Load the weights. Raises ModelMissing, naming the command that fetches them."""
        ...


class Detector(Model, Protocol):
    def detect(self, image: Image, vocabulary: Sequence[str] | None = None) -> list[Detection]:
        """Objects, best first; with a vocabulary only those labels."""
        ...


class Segmenter(Model, Protocol):
    def segment(self, image: Image, boxes: Sequence[Box]) -> list[Segmentation]:
        """One matte per box, zero outside the box."""
        ...


class Tagger(Model, Protocol):
    def tag(self, image: Image, top: int = 10) -> list[Tag]:
        """The most probable labels, best first."""
        ...


class ImageTextScorer(Model, Protocol):
    metric: str

    def score(self, image: Image, texts: Sequence[str]) -> list[float]:
        """How well each text names the image; `metric` says which score this is."""
        ...


class ImageEmbedder(Model, Protocol):
    def embed(self, images: Sequence[Image]) -> Float:
        """[N, D], L2-normalised."""
        ...


class TextEmbedder(Model, Protocol):
    def embed(self, texts: Sequence[str]) -> Float:
        """[N, D], L2-normalised."""
        ...


class QualityScorer(Model, Protocol):
    def quality(self, image: Image) -> float:
        """Technical distortion, lower is better."""
        ...


class SafetyScorer(Model, Protocol):
    def unsafe(self, image: Image) -> float:
        """Probability in [0, 1] that the image is not safe for work."""
        ...


class TextReader(Model, Protocol):
    def read(self, image: Image) -> list[TextLine]:
        """Lines of text, top to bottom."""
        ...


class FaceEmbedder(Model, Protocol):
    def faces(self, image: Image) -> list[Face]:
        """Faces, left to right."""
        ...


class Paraphraser(Model, Protocol):
    def paraphrase(self, instruction: str, seed: int) -> str:
        """One rewording. The reply is raw model output: the caller validates it."""
        ...


class Inpainter(Model, Protocol):
    def inpaint(self, image: Image, mask: Mask, seed: int) -> Image:
        """The image with the masked pixels replaced from their surroundings; other pixels are unchanged."""
        ...


class StyleTransfer(Model, Protocol):
    def stylise(self, image: Image, reference: Image, strength: float = 1.0) -> Image:
        """The image repainted in the reference's style, same size. `strength` in (0, 1] blends style codes."""
        ...
