"""Judged edits, from whatever file they came: what the trainer learns from. Pictures are named here, not read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class PictureRef:
    """A picture's bytes: a file, or `length` bytes from `offset` of one (a member of a shard). size: height, width.

    digest: of the bytes, or of their beginning and number. `repr` tells which picture it is, wherever its folder lies.
    """

    path: Path = field(repr=False)
    size: tuple[int, int]
    offset: int = 0
    length: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Record:
    """A judged edit. scores: by key of the rubric's dimension, fractions allowed, dimensions may be missing.

    photograph: hash that tells which photograph it began with; validation keeps photographs apart. held_out: it must
    not be trained on. group: equal for results of one picture and instruction, which can be ranked. corruption: name
    and degree (`blur-2`) applied to the result when it is read, or a canary's name; empty for pictures that are used as
    they are. mask: the edited area, for corruptions that spare it. weight: in the loss.
    """

    id: str
    source: PictureRef
    result: PictureRef
    instruction: str
    type: str
    scores: Mapping[str, float]
    photograph: str
    group: str
    reason: str = ""
    corruption: str = ""
    mask: PictureRef | None = None
    weight: float = 1.0
    held_out: bool = False


@dataclass(frozen=True)
class Choice:
    """A choice between two results of one instruction. The rest is as in `Record`."""

    id: str
    source: PictureRef
    first: PictureRef
    second: PictureRef
    instruction: str
    type: str
    preferred: Literal["first", "tie", "second"]
    photograph: str
    weight: float = 1.0
    held_out: bool = False
