"""A row on its way: as it is listed, and as it was read."""

from dataclasses import dataclass, field
from typing import Any

from editfoundry.core.errors import ImageError
from editfoundry.data_engine.readers.tars import Member


class RowRefused(ImageError):
    """A row that cannot be used; `reason` is a stable code. score: what was measured, where something was."""

    def __init__(self, reason: str, message: str, score: float | None = None) -> None:
        super().__init__(reason, message)
        self.score = score


@dataclass(frozen=True, slots=True)
class ListedRow:
    """One row of a dataset, not read yet. dataset: its number in the configuration; number: the row's in its file.

    stamp: changes when the file does. problem: reason and detail of why it cannot be read. members: of WebDataset, the
    members of the sample, by what follows the key.
    """

    id: str
    uri: str
    dataset: int
    url: str
    number: int
    source_url: str = ""
    stamp: str = ""
    problem: tuple[str, str] | None = None
    members: tuple[tuple[str, Member], ...] = ()

    def identity(self) -> str:
        """Changes when the row may have: what tells a re-run to read it again."""
        return f"{self.uri} {self.stamp} {self.problem[0] if self.problem else ''}"


@dataclass(frozen=True)
class RawTurn:
    """One edit as the dataset has it: encoded pictures, and values that nothing has been checked of."""

    source: bytes
    result: bytes
    instruction: Any
    mask: bytes | None = None
    reference: bytes | None = None
    type: str = ""
    target: Any = None


@dataclass(frozen=True)
class RawRow:
    """A row that was read: its turns in order. id: the dataset's own, "" without; kind: of a conversation, if known.

    licence, source_url: of the row itself, None where only the dataset has them.
    """

    listed: ListedRow
    turns: tuple[RawTurn, ...]
    id: str = ""
    kind: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    licence: Any = None
    source_url: Any = None

    @property
    def uri(self) -> str:
        return self.listed.uri
