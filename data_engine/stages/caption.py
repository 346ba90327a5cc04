"""Says what the photograph shows: the text that came with it, or a sentence from what the tagger is sure of."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.data_engine.nouns import KINDS, background_nouns, kind_score, object_nouns
from editfoundry.data_engine.pixels import grid_pixels
from editfoundry.data_engine.records import Caption as CaptionRecord
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage
from editfoundry.data_engine.wording import a
from editfoundry.models.protocols import Image, Tag

SUMMARY_WORDS = 15
NO_NOUN = "A photograph."


class CaptionConfig(Config):
    """min_tag: what the tagger must give a noun, for the picture and for its mirror image, to be put into a caption."""

    min_tag: float = Field(default=0.5, ge=0, le=1)


class Caption(Stage):
    """Never invents: without a text and without a sure tag the caption is "A photograph." and has no nouns.

    The first tags go into `scores` as `tag:<label>`. Frame pairs are captioned by what moves in them.
    """

    name: ClassVar[str] = "caption"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("tagger",)
    config: CaptionConfig

    def prepare(self, item: Item) -> Item:
        item.pixels = grid_pixels(item)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [[Item(self._captioned(item.record, item.pixels[0]))] for item in batch]

    def _captioned(self, source: Source, image: Image) -> Source:
        tags: list[Tag] = self.models["tagger"].tag(image)
        mirrored: list[Tag] = self.models["tagger"].tag(np.ascontiguousarray(image[:, ::-1]))
        text = source.text or self._sentence(tags, mirrored)
        scores = {f"tag:{tag.label}": round(tag.score, 4) for tag in tags[:3]}
        return source.model_copy(update={"caption": caption(text), "scores": {**source.scores, **scores}})

    def _sentence(self, tags: Sequence[Tag], mirrored: Sequence[Tag]) -> str:
        support = {kind: min(kind_score(kind, tags), kind_score(kind, mirrored)) for kind in KINDS}
        best = max(support, key=lambda kind: (support[kind], kind))
        return f"A photograph of {a(best)}." if support[best] >= self.config.min_tag else NO_NOUN


def caption(text: str) -> CaptionRecord:
    """The record of a caption: its nouns are exact substrings of it, its summary the first 15 words.

    >>> caption("A squirrel on the grass.").objects
    ('squirrel',)
    """
    words = text.split()
    summary = " ".join(words[:SUMMARY_WORDS])
    return CaptionRecord(
        text=text,
        summary=summary if len(words) <= SUMMARY_WORDS else summary.rstrip(",;:-"),
        objects=object_nouns(text),
        backgrounds=background_nouns(text),
    )
