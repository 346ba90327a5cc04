"""Says what the photograph shows."""

from collections.abc import Sequence
from typing import ClassVar

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage


class CaptionConfig(Config):
    pass


class Caption(Stage):
    name: ClassVar[str] = "caption"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("tagger",)

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        raise NotImplementedError
