"""Cuts a mask for every region and fills in the zones."""

from collections.abc import Sequence
from typing import ClassVar

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage


class SegmentConfig(Config):
    pass


class Segment(Stage):
    name: ClassVar[str] = "segment"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("segmenter",)

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        raise NotImplementedError
