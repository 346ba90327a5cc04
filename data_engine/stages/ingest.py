"""Photographs and videos in, one `Source` each out: bytes, header, identity, split and grid."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record, Source, Zone
from editfoundry.data_engine.stages.base import Item, Outcome, Stage
from editfoundry.data_engine.video import VideoConfig


class SourceSpec(Config):
    """A file, folder or glob of sources, and what holds for all of them unless the manifest says otherwise."""

    path: str
    manifest: str | None = None
    licence: str = "unknown"
    source_url: str = ""
    recursive: bool = True


class IngestConfig(Config):
    """sources: where to look. max_pixels: photographs with more pixels are rejected before decoding."""

    sources: tuple[SourceSpec, ...]
    max_pixels: int = Field(default=100_000_000, ge=1)
    video: VideoConfig = VideoConfig()


class SourceFile(Record):
    """One directory entry to ingest; the id is what a reject carries until the content's hash is known."""

    id: str
    uri: str
    path: str
    licence: str = "unknown"
    source_url: str = ""
    text: str = ""
    zones: tuple[Zone, ...] = ()


def list_sources(config: IngestConfig) -> list[SourceFile]:
    raise NotImplementedError


class Ingest(Stage):
    name: ClassVar[str] = "ingest"
    row: ClassVar[type[Record]] = Source

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        raise NotImplementedError
