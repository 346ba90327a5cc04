"""Decides which regions may be edited."""

from collections.abc import Sequence
from typing import ClassVar

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage


class QualifyConfig(Config):
    pass


class Qualify(Stage):
    name: ClassVar[str] = "qualify"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("scorer",)

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        raise NotImplementedError
