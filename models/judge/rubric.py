"""Rubrics: what a judge is asked about an edit, and in which words it has to answer. Versioned, hashed files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Slot = Literal["source", "result", "first", "second"]
"""Where a picture stands in a prompt. first and second: of a comparison."""


@dataclass(frozen=True)
class Scale:
    """Whole numbers from `low` to `high`, both included: 1 to 5, or 0 to 10."""

    low: int
    high: int

    @property
    def values(self) -> range:
        """All scores, lowest first."""
        return range(self.low, self.high + 1)


@dataclass(frozen=True)
class Dimension:
    """One score. key: in files and code (`compliance`); label: as a reply writes it before the number."""

    key: str
    label: str


@dataclass(frozen=True)
class Picture:
    """The place of a picture among the parts of a prompt."""

    slot: Slot


@dataclass(frozen=True)
class Prompt:
    """What is shown to the model: an optional system turn and the parts of the user's turn."""

    system: str
    parts: tuple[str | Picture, ...]


@dataclass(frozen=True)
class Section:
    """What a rubric says about one type of edit. before, question, after: the texts around and with the instruction."""

    type: str
    dimensions: tuple[Dimension, ...]
    before: str
    question: str
    after: str


def scored_line(dimension: Dimension) -> str:
    """What stands before a score in a reply; the number follows at once.

    >>> scored_line(Dimension("compliance", "Prompt Compliance"))
    'Prompt Compliance: '
    """
    return f"{dimension.label}: "


def reply_text(dimensions: Sequence[Dimension], scores: Sequence[int], reason: str = "") -> str:
    """The reply that gives these scores, in the form that rubrics ask for: the reason's line, then one per score."""
    lines = [f"Brief reasoning: {reason}"] if reason else []
    return "\n".join(lines + [scored_line(one) + str(score) for one, score in zip(dimensions, scores, strict=True)])
