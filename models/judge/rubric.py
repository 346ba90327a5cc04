"""Rubrics: what a judge is asked about an edit, and in which words it has to answer. Versioned, hashed files.

A prompt is the rubric's text, the instruction, and the pictures. In order `compat` they stand in this order, as the
released prompts are built; in order `fast` what many questions share comes first (text, picture before the edit), then
the picture after it, and the instruction last.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from editfoundry.core.config import Config, read_yaml, validate
from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.core.hashing import sha256
from editfoundry.core.text import one_line
from editfoundry.models.judge.types import Order
from editfoundry.models.language.prompts import quoted

Slot = Literal["source", "result", "first", "second"]
"""Where a picture stands in a prompt. first and second: of a comparison."""

FOLDER = Path(__file__).parent / "rubrics"
PACKAGED = ("edit", "types", "short")
COMPARE = "compare"
CHOICES = ("A", "B", "C")
"""Answers to a comparison: the first picture shown, the second, no difference."""
REASON = "Brief reasoning:"
"""What the line of a reply begins with that holds its reason."""
SYNONYMS = {"action": "motion", "alter": "adjust"}
"""Types of other projects, by our name for them."""
IMGEDIT_SHA256 = "f9468dc848776ee0a6c2e2c31e678c7224e9cb61b013747c8c52d4a05627b5a0"
"""The released ImgEdit-Bench prompts.json this reader was written for."""
PLACEHOLDER = "<edit_prompt>"
_RELEASED_LABEL = re.compile(r"^(.+): A number from 1 to 5\.?\s*$", re.MULTILINE)
MAX_RUBRIC_BYTES = 1 << 20
_LABEL = re.compile(r"[^\W\d_][^\d:=|\n]*")


@dataclass(frozen=True)
class Scale:
    """Whole numbers from `low` to `high`, both included: 1 to 5, or 0 to 10."""

    low: int
    high: int

    @property
    def values(self) -> range:
        """All scores, lowest first."""
        return range(self.low, self.high + 1)

    def require_digits(self) -> None:
        """Raise ConfigError unless a score is known by its first digit and, where that is 1, by whether 0 follows."""
        if not (self.high <= 9 or (self.high == 10 and self.low <= 1)):
            raise ConfigError(
                f"expected scores are read on scales up to 9, and from 0 or 1 to 10, not from {self.low} to "
                f"{self.high}; use --head generate"
            )


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
    """What a rubric says about one type of edit.

    before, after: the texts around the instruction. question: the instruction's own line, with PLACEHOLDER for it.
    """

    type: str
    dimensions: tuple[Dimension, ...]
    before: str
    question: str
    after: str


def _labels(dimensions: dict[str, str]) -> dict[str, str]:
    """Labels that a reply's reader can tell apart, and from the scores after them."""
    if len({label.casefold() for label in dimensions.values()}) < len(dimensions):
        raise ValueError("two dimensions have the same label")
    if wrong := [label for label in dimensions.values() if not _LABEL.fullmatch(label)]:
        raise ValueError(f"{wrong[0]!r}: a label begins with a letter and holds no digit, `:`, `=`, `|` or line break")
    return dimensions


def _scale(scale: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= scale[0] < scale[1]:
        raise ValueError("a scale is two whole numbers from 0 up, the lower one first")
    return scale


def _question(text: str) -> str:
    if text.count(PLACEHOLDER) != 1:
        raise ValueError(f"expected {PLACEHOLDER} once")
    return text


class SectionFile(Config):
    """A section as a rubric's file has it. dimensions: label by key."""

    dimensions: Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_]*$")], str],
        Field(min_length=1, max_length=3),
        AfterValidator(_labels),
    ]
    text: str


class RubricFile(Config):
    """A rubric's file. `{{ text }}` in `before` is the section's; `{{ lines }}` in `after` the reply's form."""

    version: int = Field(ge=1)
    scale: Annotated[tuple[int, int], AfterValidator(_scale)]
    capped: bool
    system: str
    before: str
    question: Annotated[str, AfterValidator(_question)]
    after: str
    types: dict[str, SectionFile] = Field(min_length=1)


class CompareFile(Config):
    """How two results are compared, whatever the rubric."""

    version: int = Field(ge=1)
    system: str
    before: str
    question: str
    after: str
    labels: dict[str, str]


@dataclass(frozen=True)
class Rubric:
    """A rubric.

    digest: SHA-256 of its file, and of how results are compared. capped: whether no later score may be above the first.
    official: it is the released ImgEdit prompts; pinned: they are the ones this code was written for. labels: the line
    before each picture, if any.
    """

    name: str
    version: int
    digest: str
    scale: Scale
    capped: bool
    official: bool
    pinned: bool
    system: str
    sections: Mapping[str, Section]
    labels: Mapping[Slot, str]
    compare: CompareFile

    @property
    def types(self) -> tuple[str, ...]:
        """Edit types with a section."""
        return tuple(self.sections)

    def provenance(self) -> dict[str, str | int | bool]:
        """What names this rubric in the provenance of a score."""
        return {"name": self.name, "version": self.version, "digest": self.digest, "pinned": self.pinned}

    def section(self, type: str) -> Section:
        """The section of an edit type, by our name or by another project's. Raises UsageError naming the known ones."""
        others = [other for other, ours in SYNONYMS.items() if ours == type]
        for name in (type, SYNONYMS.get(type, type), *others, "other"):
            if name in self.sections:
                return self.sections[name]
        known = ", ".join(sorted(self.sections))
        raise UsageError(f"type {one_line(type, 40)!r}: the rubric `{self.name}` has no section for it; it has {known}")

    def prompt(self, type: str, instruction: str, order: Order) -> Prompt:
        """What a judge is shown about an edit of that type."""
        section = self.section(type)
        asked = self._asked(section.question, instruction)
        pictures = (*self._picture("source"), *self._picture("result"))
        if order == "compat":
            return Prompt(self.system, (section.before + asked + section.after, *pictures))
        return Prompt(self.system, (section.before + section.after, *pictures, asked.strip()))

    def comparison(self, type: str, instruction: str, order: Order, swapped: bool) -> Prompt:
        """What a judge is shown about two results of one instruction. swapped: the second result is shown as A."""
        compare = self.compare
        before = compare.before.replace("{{ text }}", self.section(type).before.strip())
        asked = compare.question.replace(PLACEHOLDER, quoted({"instruction": instruction}))
        shown: tuple[Slot, ...] = ("source", "second", "first") if swapped else ("source", "first", "second")
        named = zip(("before", "A", "B"), shown, strict=True)
        pictures = tuple(part for name, slot in named for part in (compare.labels[name], Picture(slot)))
        if order == "compat":
            return Prompt(compare.system.strip(), (f"{before}{asked}{compare.after}", *pictures))
        return Prompt(compare.system.strip(), (f"{before}{compare.after}", *pictures, asked.strip()))

    def above_first(self, type: str, scores: Mapping[str, float]) -> tuple[str, ...]:
        """Dimensions with a score above the first one's, where the rubric forbids that."""
        first, *others = (dimension.key for dimension in self.section(type).dimensions)
        return tuple(key for key in others if self.capped and scores[key] > scores[first])

    def overall(self, type: str, scores: Mapping[str, float]) -> float:
        """The mean of the scores, those above the first counted as the first where the rubric forbids that."""
        keys = [dimension.key for dimension in self.section(type).dimensions]
        most = scores[keys[0]] if self.capped else float("inf")
        return sum(min(scores[key], most) for key in keys) / len(keys)

    def _asked(self, question: str, instruction: str) -> str:
        """The instruction's line: word for word in the released prompts, as quoted data in ours."""
        before, placeholder, after = question.partition(PLACEHOLDER)
        assert placeholder
        return before + (instruction if self.official else quoted({"instruction": instruction})) + after

    def _picture(self, slot: Slot) -> tuple[str | Picture, ...]:
        return (*((self.labels[slot],) if slot in self.labels else ()), Picture(slot))


def scored_line(dimension: Dimension) -> str:
    """What stands before a score in a reply; the number follows at once.

    >>> scored_line(Dimension("compliance", "Prompt Compliance"))
    'Prompt Compliance: '
    """
    return f"{dimension.label}: "


def reply_text(dimensions: Sequence[Dimension], scores: Sequence[int], reason: str = "") -> str:
    """The reply that gives these scores, in the form that rubrics ask for: the reason's line, then one per score."""
    lines = [f"{REASON} {reason}"] if reason else []
    return "\n".join(lines + [scored_line(one) + str(score) for one, score in zip(dimensions, scores, strict=True)])


@lru_cache(maxsize=16)
def load_rubric(name: str) -> Rubric:
    """A packaged rubric (`edit`, `types`, `short`), or a file: one of ours (.yaml), or the released prompts (.json).

    Raises UsageError for a name or path that is neither, ConfigError for a file of ours that is wrong.
    """
    compare_file = FOLDER / f"{COMPARE}.yaml"
    compare = validate(CompareFile, read_yaml(compare_file), str(compare_file))
    path = os.path.expanduser(name)  # noqa: PTH111 - leaves the name of an unknown user as it is
    file = FOLDER / f"{name}.yaml" if name in PACKAGED else Path(path)
    if not file.is_file():
        raise UsageError(f"rubric {name!r}: no such file; packaged are {', '.join(PACKAGED)}; or name a prompts.json")
    if file.stat().st_size > MAX_RUBRIC_BYTES:
        raise UsageError(f"rubric {file}: larger than {MAX_RUBRIC_BYTES} bytes, so no rubric")
    content = file.read_bytes()
    digest = sha256(content + compare_file.read_bytes())
    if file.suffix == ".json":
        return _released(file, content, digest, compare)
    ours = validate(RubricFile, read_yaml(file), str(file))
    sections = {type: _section(ours, type, one) for type, one in ours.types.items()}
    labels: dict[Slot, str] = {"source": compare.labels["before"], "result": compare.labels["after"]}
    scale = Scale(*ours.scale)
    return Rubric(
        file.stem, ours.version, digest, scale, ours.capped, False, True, ours.system.strip(), sections, labels, compare
    )


def _section(ours: RubricFile, type: str, section: SectionFile) -> Section:
    dimensions = tuple(Dimension(key, label) for key, label in section.dimensions.items())
    low, high = ours.scale
    lines = "\n".join(f"{scored_line(one)}a whole number from {low} to {high}" for one in dimensions)
    before = ours.before.replace("{{ text }}", section.text.strip())
    return Section(type, dimensions, before, ours.question, ours.after.replace("{{ lines }}", lines))


def _released(file: Path, content: bytes, digest: str, compare: CompareFile) -> Rubric:
    """The released ImgEdit prompts: a JSON object of texts by edit type, shown as they are."""
    try:
        texts = json.loads(content)
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, dict) or not texts or not all(isinstance(text, str) for text in texts.values()):
        raise UsageError(f"rubric {file}: not the released prompts.json, which is an object of texts by edit type")
    sections = {type: _released_section(file, type, text) for type, text in texts.items()}
    pinned = sha256(content) == IMGEDIT_SHA256
    return Rubric("imgedit", 1, digest, Scale(1, 5), True, True, pinned, "", sections, {}, compare)


def _released_section(file: Path, type: str, text: str) -> Section:
    labels = _RELEASED_LABEL.findall(text)
    keys = [re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_") for label in labels]
    readable = all(_LABEL.fullmatch(label) for label in labels)
    if not readable or not 1 <= len(labels) <= 3 or len(set(keys)) != len(keys) or text.count(PLACEHOLDER) != 1:
        raise UsageError(
            f"rubric {file}: {one_line(type, 40)}: expected one {PLACEHOLDER} and one to three lines "
            "`Label: A number from 1 to 5.`"
        )
    start = text.rfind("\n", 0, text.index(PLACEHOLDER)) + 1
    end = text.index("\n", start) if "\n" in text[start:] else len(text)
    dimensions = tuple(Dimension(key, label) for key, label in zip(keys, labels, strict=True))
    return Section(type, dimensions, text[:start], text[start:end], text[end:])
