"""ConSE (Norouzi et al. 2014): an image is placed among words by the words of its most probable classes.

The image's vector is the mean of its ten best tags' word vectors, weighted by their probabilities; a text's score is
the cosine with it. It is not CLIPScore and must not be called that: it knows a thousand nouns, and cannot see
attributes, counts or relations.
"""

from collections.abc import Sequence

import numpy as np

from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.embedded.sentence import SentenceEmbedder
from editfoundry.models.embedded.tagger import EfficientNetTagger
from editfoundry.models.protocols import Image
from editfoundry.models.store import Store

TOP_TAGS = 10


class ConseScorer(EmbeddedModel):
    """`ImageTextScorer` with the metric "conse"."""

    name = "conse-efficientnet-minilm"
    metric = "conse"
    directional = False
    weights = ("efficientnet-lite3-imagenet", "all-minilm-l6-v2")

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._tagger, self._embedder = EfficientNetTagger(self.store), SentenceEmbedder(self.store)

    def _load(self) -> None:
        self._tagger.load()
        self._embedder.load()

    def score(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """Cosine in [-1, 1] of each image's word vector with its text's; 0.0 for an image without any tag."""
        self.load()
        return [self._one(image, text) for image, text in zip(images, texts, strict=True)]

    def direction(self, before: Image, after: Image, said_before: str, said_after: str) -> float:
        """Not offered: a thousand nouns have no directions."""
        raise NotImplementedError(f"{self.name} has no text tower in the images' space; name a CLIP scorer")

    def _one(self, image: Image, text: str) -> float:
        tags = self._tagger.tag(image, TOP_TAGS)
        if not tags:
            return 0.0
        probabilities = np.array([tag.score for tag in tags], np.float32)
        vector = probabilities @ self._embedder.embed([tag.label for tag in tags])
        vector /= max(float(np.linalg.norm(vector)), 1e-12)
        return float(self._embedder.embed([text])[0] @ vector)
