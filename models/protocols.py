"""What the engine needs from models, in the field's own words.

Images are uint8 RGB arrays [H, W, 3]. Every model is cheap to construct, loads its weights in `load()` (called once per
worker), runs single-threaded and deterministically, and names itself by `digest()` without loading anything. Methods
that take a sequence serve it in batches of their own choosing and answer in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

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
    open_vocabulary: bool
    """Whether it finds any noun it is asked for; otherwise it knows a closed list of classes."""

    def detect(self, image: Image, vocabulary: Sequence[str] | None = None) -> list[Detection]:
        """Objects, best first; with a vocabulary only those labels."""
        ...


class Segmenter(Model, Protocol):
    salient: bool
    """Whether the matte of a box without an object stays faint: the segmenter looks for what stands out."""

    def segment(self, image: Image, boxes: Sequence[Box]) -> list[Segmentation]:
        """One matte per box, zero outside the box."""
        ...


class Tagger(Model, Protocol):
    def tag(self, image: Image, top: int = 10) -> list[Tag]:
        """The most probable labels, best first."""
        ...


class ImageTextScorer(Model, Protocol):
    metric: str
    """Which score this is: a column name such as `clip_score` or `conse`."""
    directional: bool
    """Whether `direction` can be asked for: the model has a text tower in the images' space."""

    def score(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """How well text *i* names image *i*; as many texts as images."""
        ...

    def direction(self, before: Image, after: Image, said_before: str, said_after: str) -> float:
        """Directional similarity in [-1, 1] (Gal et al. 2021): the images' change against the texts' change."""
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


@dataclass(frozen=True)
class Fill:
    """An area to paint anew. `prompt`: what should be there; empty: what the surroundings suggest.

    reference: a picture of the object to put there, for models that take one.
    """

    image: Image
    mask: Mask
    seed: int
    prompt: str = ""
    reference: Image | None = None


class Inpainter(Model, Protocol):
    max_fraction: float
    """Largest share of the image that it can be asked to invent."""

    def cover(self, mask: Mask) -> Mask:
        """The area to paint for an object with this tight mask: how far the model needs it grown."""
        ...

    def inpaint(self, fills: Sequence[Fill]) -> list[Image]:
        """Each image with its masked pixels painted; all other pixels are bit-identical."""
        ...


@dataclass(frozen=True)
class Drawing:
    """An object to draw from words alone, alone on a plain background. size: (width, height) in pixels."""

    subject: str
    seed: int
    size: tuple[int, int]


class ReferenceGenerator(Model, Protocol):
    def draw(self, drawings: Sequence[Drawing]) -> list[Image]:
        """One picture per drawing, uint8 [height, width, 3], of exactly the size asked."""
        ...


@dataclass(frozen=True)
class Restyle:
    """A picture to repaint in a style, which a reference shows and words name. `strength` in (0, 1]."""

    image: Image
    reference: Image
    words: str
    seed: int
    strength: float = 1.0


class StyleTransfer(Model, Protocol):
    def stylise(self, restyles: Sequence[Restyle]) -> list[Image]:
        """Each image repainted in its style, same size."""
        ...


@dataclass(frozen=True)
class Instructed:
    """A picture and what to do with it. `references`: pictures that the instruction speaks of."""

    image: Image
    instruction: str
    seed: int
    references: tuple[Image, ...] = ()


class ImageEditor(Model, Protocol):
    def edit(self, requests: Sequence[Instructed]) -> list[Image]:
        """Each image edited as instructed, same size. Any pixel may have changed."""
        ...


class AestheticScorer(Model, Protocol):
    def aesthetic(self, images: Sequence[Image]) -> list[float]:
        """How well people would like each picture, about 1 to 10."""
        ...


class DepthEstimator(Model, Protocol):
    def depth(self, image: Image) -> Float:
        """Relative nearness [H, W] in [0, 1]: 1 is nearest."""
        ...


@dataclass(frozen=True)
class Unanswered:
    """A language model gave nothing that may be used. refused: it declined; failed: no reply could be had or parsed.

    `reason` is a stable code, `detail` for people. Never a score.
    """

    kind: Literal["refused", "failed"]
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Photograph:
    """A picture to describe, the text that came with it, and its content hash (what `forget` goes by)."""

    image: Image
    text: str
    sha256: str


@dataclass(frozen=True)
class Described:
    """What a picture shows. `objects` and `backgrounds` are exact substrings of `text`; `summary` is ≤ 15 words."""

    text: str
    summary: str
    objects: tuple[str, ...] = ()
    backgrounds: tuple[str, ...] = ()


class Captioner(Model, Protocol):
    def caption(self, photographs: Sequence[Photograph]) -> list[Described | Unanswered]:
        """One description per photograph, in order."""
        ...


@dataclass(frozen=True)
class TurnBrief:
    """One edit to word. label: the object; position, size: words for its box ("in the upper left", "small").

    result: what the plan proposes it becomes, empty where the type has none; open_result: the writer may choose another
    (a noun phrase, for the renderer). names: what the instruction must say. draft: the template's wording.
    """

    type: str
    label: str
    position: str
    size: str
    draft: str
    result: str = ""
    open_result: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Brief:
    """What a writer is asked for: one turn (`kind` "single") or a conversation's turns and premise.

    others: further objects in the picture. complaints: what was wrong with the reply before, when asking again.
    """

    kind: str
    turns: tuple[TurnBrief, ...]
    caption: str
    summary: str
    sha256: str
    others: tuple[str, ...] = ()
    premise: str = ""
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """A writer's reply: an instruction and a result phrase (empty where none was open) per turn, and the premise."""

    instructions: tuple[str, ...]
    results: tuple[str, ...]
    premise: str = ""


class InstructionWriter(Model, Protocol):
    def write(self, briefs: Sequence[Brief]) -> list[Written | Unanswered]:
        """One reply per brief, in order, of the brief's shape. Its words are unchecked: the caller validates them."""
        ...


@dataclass(frozen=True)
class Pair:
    """A finished edit to judge. sha256: of the photograph it began with."""

    source: Image
    result: Image
    instruction: str
    type: str
    sha256: str
    reference: Image | None = None


@dataclass(frozen=True)
class Judgement:
    """following: how well the instruction was carried out, 1 to 5. naturalness: how natural, and how little else

    changed, 1 to 5. objects_match: whether the right object was edited. reason: one line of at most 20 words.
    """

    following: float
    naturalness: float
    objects_match: bool
    reason: str

    @property
    def overall(self) -> float:
        """Geometric mean of the two scores, 1 to 5."""
        return float((self.following * self.naturalness) ** 0.5)


class Judge(Model, Protocol):
    def judge(self, pairs: Sequence[Pair]) -> list[Judgement | Unanswered]:
        """One judgement per pair, in order."""
        ...
