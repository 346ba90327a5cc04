"""Says what the photograph shows, in words that later stages can trust: every noun is an exact part of the text."""

from collections.abc import Sequence
from typing import ClassVar

from editfoundry.core.config import Config
from editfoundry.data_engine.pixels import grid_pixels
from editfoundry.data_engine.records import Caption as CaptionRecord
from editfoundry.data_engine.records import Record, Reject, Source
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.data_engine.stages.similar import Likeness
from editfoundry.models.protocols import Described, Photograph, Unanswered


class CaptionConfig(Config):
    """Nothing to choose: how a photograph is described is its captioner's, named under `models`."""


class Caption(Stage):
    """A source whose captioner refused or failed is a reject (`captioner_refused`, `captioner_failed`).

    Frame pairs are captioned by their first frame; a caption that came with the source is kept. Photographs that the
    comparison over the whole run found too similar to another, or to a benchmark's image, end here.
    """

    name: ClassVar[str] = "caption"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("captioner",)
    artifacts: ClassVar[tuple[str, ...]] = ("similar",)
    config: CaptionConfig

    def setup(self, artifacts: Artifacts) -> None:
        super().setup(artifacts)
        rows = (Likeness.model_validate(row) for row in artifacts.rows("similar"))
        self.likenesses = {row.uri: row for row in rows}

    def prepare(self, item: Item) -> Item:
        if item.record.uri not in self.likenesses:
            item.pixels = grid_pixels(item)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        todo = [i for i in batch if i.record.caption is None and i.record.uri not in self.likenesses]
        photographs = [Photograph(item.pixels[0], item.record.text, item.record.sha256) for item in todo]
        replies: list[Described | Unanswered] = self.models["captioner"].caption(photographs) if todo else []
        described = {id(item): reply for item, reply in zip(todo, replies, strict=True)}
        return [
            self._outcome(item.record, described[id(item)]) if id(item) in described else self._untold(item.record)
            for item in batch
        ]

    def _untold(self, source: Source) -> Outcome:
        """A source that needed no captioner: it has its caption, or is too like another picture to go on."""
        likeness = self.likenesses.get(source.uri)
        if likeness is None:
            return [Item(source)]
        return [
            Reject(
                stage=self.name,
                id=source.id,
                reason=likeness.reason,
                detail=f"{source.uri}: too like {likeness.other}",
                score=likeness.similarity,
                source_sha256=source.sha256,
            )
        ]

    def _outcome(self, source: Source, reply: Described | Unanswered) -> Outcome:
        if isinstance(reply, Described):
            return [Item(source.model_copy(update={"caption": caption(reply)}))]
        return [
            Reject(
                stage=self.name,
                id=source.id,
                reason=f"captioner_{reply.kind}",
                detail=f"{source.uri}: {reply.reason}: {reply.detail}",
                source_sha256=source.sha256,
            )
        ]


def caption(described: Described) -> CaptionRecord:
    """The record of a description. Nouns that are no part of its text are dropped; the summary ends after 15 words."""
    return CaptionRecord(
        text=described.text,
        summary=" ".join(described.summary.split()[:15]),
        objects=tuple(noun for noun in described.objects if noun in described.text),
        backgrounds=tuple(noun for noun in described.backgrounds if noun in described.text),
    )
