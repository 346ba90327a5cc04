"""The embedded captioner: the text that came with a photograph, or a sentence from what the tagger is sure of."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.english import a
from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.embedded.nouns import KINDS, background_nouns, kind_score, object_nouns
from editfoundry.models.embedded.tagger import EfficientNetTagger
from editfoundry.models.protocols import Described, Image, Photograph

SUMMARY_WORDS = 15
NO_NOUN = "A photograph."


class TagCaptioner(EmbeddedModel):
    """`Captioner` that never invents: without a text and without a sure tag it says "A photograph.", with no nouns."""

    name = "tags"
    weights = ("efficientnet-lite3-imagenet",)

    class Options(Config):
        """min_tag: what the tagger must give a noun, for the picture and its mirror image, to put it into a caption."""

        min_tag: float = Field(default=0.5, ge=0, le=1)

    default: ClassVar[Options] = Options()

    def __init__(self, options: Options = default) -> None:
        super().__init__()
        self.options = options
        self._tagger = EfficientNetTagger(self.store)

    def digest(self) -> str:
        return sha256(canonical_json([super().digest(), self.options.model_dump()]))

    def _load(self) -> None:
        self._tagger.load()

    def caption(self, photographs: Sequence[Photograph]) -> list[Described]:
        """Nouns are those of the closed vocabulary that the text names; the summary is its first 15 words."""
        return [describe(photograph.text or self._sentence(photograph.image)) for photograph in photographs]

    def _sentence(self, image: Image) -> str:
        tags = self._tagger.tag(image)
        mirrored = self._tagger.tag(np.ascontiguousarray(image[:, ::-1]))
        support = {kind: min(kind_score(kind, tags), kind_score(kind, mirrored)) for kind in KINDS}
        best = max(support, key=lambda kind: (support[kind], kind))
        return f"A photograph of {a(best)}." if support[best] >= self.options.min_tag else NO_NOUN


def describe(text: str) -> Described:
    """A text with the nouns of the vocabulary that it names.

    >>> describe("A squirrel on the grass.").objects
    ('squirrel',)
    """
    words = text.split()
    summary = " ".join(words[:SUMMARY_WORDS])
    return Described(
        text=text,
        summary=summary if len(words) <= SUMMARY_WORDS else summary.rstrip(",;:-"),
        objects=object_nouns(text),
        backgrounds=background_nouns(text),
    )
