"""Finds objects and agrees their nouns."""

from collections.abc import Sequence
from typing import ClassVar

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage


class DetectConfig(Config):
    pass


class Detect(Stage):
    name: ClassVar[str] = "detect"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("detector", "saliency", "tagger", "scorer", "faces", "reader")

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        raise NotImplementedError
