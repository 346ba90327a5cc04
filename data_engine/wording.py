"""Instructions: filling templates, articles, and the checks every instruction passes before it reaches a dataset."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from editfoundry.core.errors import ConfigError

MAX_WORDS = 30
NUMBERS = ("no", "one", "two", "three", "four", "five")

POSITIONS = {
    "upper-left": "in the upper left",
    "top": "at the top",
    "upper-right": "in the upper right",
    "left": "on the left",
    "center": "in the middle",
    "right": "on the right",
    "lower-left": "in the lower left",
    "bottom": "at the bottom",
    "lower-right": "in the lower right",
}


def fill(templates: Sequence[str], fields: Mapping[str, str], rng: np.random.Generator) -> str:
    """One template, drawn by `rng`, with its fields filled. Raises ConfigError, naming the fields there are."""
    template = templates[int(rng.integers(len(templates)))]
    try:
        text = template.format_map(fields)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        known = ", ".join(sorted(fields))
        raise ConfigError(
            f"instruct.templates: {template!r}: unknown field or bad braces ({error}); fields here: {known}"
        ) from error
    text = re.sub(r"\s+([.,;:])", r"\1", " ".join(text.split()))
    return text[:1].upper() + text[1:]


def problems(text: str, must_contain: Sequence[str] = ()) -> list[str]:
    """What is wrong with an instruction; empty when it may be used.

    Refused: empty or over 30 words, numbers that could be coordinates, markup, line breaks, missing nouns.
    """
    found = []
    words = text.split()
    if not words:
        found.append("empty")
    if len(words) > MAX_WORDS:
        found.append(f"{len(words)} words, more than {MAX_WORDS}")
    if re.search(r"\d", text):
        found.append("holds digits")
    if re.search(r"[<>{}\[\]\n\r\t]", text):
        found.append("holds markup")
    lowered = text.lower()
    found += [f"does not name {noun!r}" for noun in must_contain if noun.lower() not in lowered]
    return found


_FUNCTION_WORDS = frozenset(
    re.findall(
        r"[a-z]+",
        """
        a an the in on at of to with and or it its is be so that this there should please now into onto for from by as
        put place add insert remove erase delete take away get rid swap replace change make turn switch set let have
        image picture photo photograph scene side part corner area left right upper lower top bottom middle center
        """,
    )
)


def same_request(original: str, reworded: str) -> bool:
    """Whether a rewording asks for nothing new: every word stands in the original or is a function or edit word."""
    known = set(re.findall(r"[a-z]+", original.lower())) | _FUNCTION_WORDS
    return set(re.findall(r"[a-z]+", reworded.lower())) <= known


def content_words(phrase: str) -> list[str]:
    """The words of a phrase that carry its meaning, lower case, in order: no articles, prepositions or edit verbs."""
    found = re.findall(r"[^\W\d_]+", phrase.lower())
    return [word for word in found if len(word) > 1 and word not in _FUNCTION_WORDS]
