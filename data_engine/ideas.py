"""What a generated edit may aim at when no writer chooses it: curated result phrases, kept in ideas.yaml."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from editfoundry.core.config import Config, read_yaml, validate
from editfoundry.core.english import plural
from editfoundry.core.hashing import fingerprint

FILE = Path(__file__).with_name("ideas.yaml")
KINDS = ("replace", "visual", "adjust", "background", "style")

_AFTER_HEAD = re.compile(r"[\s,]+(?:of|with|in|on|at|from|under|over|behind|beside|for|by|made|covered|full)\b.*", re.I)


class Category(Config):
    """Proposals for one coarse kind of thing. `members`: labels, or head nouns of labels, that belong to it."""

    name: str
    members: frozenset[str]
    replace: tuple[str, ...]
    visual: tuple[str, ...]
    adjust: tuple[str, ...]


class Ideas(Config):
    """The whole file: categories by label, what serves every other label, and what needs no label."""

    categories: tuple[Category, ...]
    replace: tuple[str, ...] = Field(min_length=1)
    visual: tuple[str, ...] = Field(min_length=1)
    adjust: tuple[str, ...] = Field(min_length=1)
    background: tuple[str, ...] = Field(min_length=1)
    style: tuple[str, ...] = Field(min_length=1)


def head(phrase: str) -> str:
    """The noun that says what a noun phrase is, in lower case: `cup` of "the blue cup with a chip"."""
    words = re.findall(r"[^\W\d_]+(?:['-][^\W\d_]+)*", _AFTER_HEAD.sub("", phrase.strip()))
    return words[-1].lower() if words else ""


def same_noun(first: str, second: str) -> bool:
    """Whether two nouns are one, in singular or plural: "cup", "Cups"."""
    first, second = first.lower(), second.lower()
    return bool(first) and bool(second) and (first == second or plural(first) == second or first == plural(second))


def ideas(kind: str, label: str = "") -> Sequence[str]:
    """Proposals of a kind for an object of this label, always in the same order; draw one with the plan's generator.

    replace, visual: bare nouns ("red fox": give them an article), none with the label's own head noun. adjust: looks to
    put before the label ("polished brass" + "kettle"). background, style: noun phrases with their article; the label is
    not looked at. Empty where such an edit must not be made (people are neither replaced nor repainted).
    Raises ValueError for another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no ideas of kind {kind!r}; kinds: {', '.join(KINDS)}")
    known = _known()
    if kind in ("background", "style"):
        return known.background if kind == "background" else known.style
    found: Sequence[str] = getattr(category(label) or known, kind)
    return found if kind == "adjust" else tuple(idea for idea in found if not same_noun(head(idea), head(label)))


def category(label: str) -> Category | None:
    """The category of a label: that of the label or its head noun, else of its last word that any category knows."""
    nouns = [label.strip(), head(label), *reversed(re.findall(r"[^\W\d_]+", label.lower()))]
    for noun in nouns:
        for candidate in _known().categories:
            if any(same_noun(noun, member) for member in candidate.members):
                return candidate
    return None


def content_hash() -> str:
    """Names everything `ideas` can answer: part of the fingerprint of a stage that may use one."""
    return fingerprint(_known().model_dump(mode="json"))


@cache
def _known() -> Ideas:
    return validate(Ideas, read_yaml(FILE), where=str(FILE))
