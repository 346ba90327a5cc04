"""Groups sources that show the same photograph, so that sizes, twins and crops of it count once."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.stages.base import Barrier, Item


class DuplicatesConfig(Config):
    """max_distance: differing bits of the 64-bit perceptual hash at which two photographs are the same picture."""

    max_distance: int = Field(default=6, ge=0, le=64)


class DuplicateGroup(Record):
    """One group: `keeper` goes on; `exact` are byte-identical to it, `near` look the same."""

    id: str
    keeper: str
    keeper_uri: str
    exact: tuple[str, ...] = ()
    near: tuple[str, ...] = ()


class Duplicates(Barrier):
    name: ClassVar[str] = "duplicates"
    row: ClassVar[type[Record]] = DuplicateGroup
    reads: ClassVar[tuple[str, ...]] = ("ingest",)

    def gather(self, rows: Callable[[str], Iterator[tuple[int, dict[str, Any]]]]) -> Iterator[Item]:
        raise NotImplementedError
