"""Drops what should not become training data."""

from collections.abc import Sequence
from typing import ClassVar

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage


class FilterConfig(Config):
    pass


class Filter(Stage):
    name: ClassVar[str] = "filter"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("safety", "quality")

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        raise NotImplementedError
