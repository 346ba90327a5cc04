"""Scores and choices from the token probabilities that a server shows beside its reply.

A server names, for each token of a reply, the most probable tokens at its place. Tokenizers differ in what stands
around a digit (`4`, ` 4`, `: 4`, `4` and a line's end, a full-width digit): all forms of a value count together. What
is given to other tokens, or not shown, is reported as uncovered. A place that cannot be found is an error, not a guess.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from editfoundry.core.chat.messages import Answered
from editfoundry.core.errors import EditFoundryError
from editfoundry.models.judge.rubric import CHOICES, Dimension, Scale

TEN = 10
ROUNDING = 0.01
"""How far the probabilities of one place may sum to more than 1."""
_MARKS = "*_\"'`"
_VALUE = re.compile(rf"[\s{_MARKS}:：=]*(\d{{1,2}})([\s{_MARKS}.,;，。]*)")
_CHOICE = re.compile(rf"[\s{_MARKS}]*([{''.join(CHOICES)}])[\s{_MARKS}.,;]*")


class Unread(EditFoundryError):
    """A reply without what was asked for, or without the probabilities there. reason: a stable code."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Reading:
    """Probabilities of the values of a scale, lowest first, that sum to 1, and what all else had before that."""

    probabilities: tuple[float, ...]
    uncovered: float

    def mean(self, scale: Scale) -> float:
        """The expected score."""
        return math.fsum(p * value for p, value in zip(self.probabilities, scale.values, strict=True))


def read_scores(
    reply: Answered, dimensions: Sequence[Dimension], scale: Scale, scores: Mapping[str, int]
) -> dict[str, Reading]:
    """What the server shows of each score's place, by dimension. scale: from 0 to 10 at most.

    scores: what the reply says, from `parse_reply`; each has to be among the values that are shown. Where tokens write
    10 as two digits, P(10) = P(1) P(0 after it); unless the reply has a 1 there, what was given to 1 cannot be told
    apart and is uncovered. Raises Unread.
    """
    tokens = _Tokens(reply)
    return {one.key: _score(tokens, _number(reply.text, one), scale, scores[one.key]) for one in dimensions}


def read_choice(reply: Answered) -> tuple[float, ...]:
    """Probabilities of the CHOICES where the reply's one stands; the rest to 1 is uncovered. Raises Unread."""
    said = choice(reply.text)
    place = _Tokens(reply).at(reply.text.index(said))
    shares = dict.fromkeys(CHOICES, 0.0)
    for text, share in place.shares:
        if match := _CHOICE.fullmatch(text):
            shares[match[1]] += share
    if not _CHOICE.fullmatch(place.text) or not place.shown or not shares[said]:
        raise Unread("uncovered", f"the reply's {said} is not among the tokens that the server shows")
    return tuple(shares.values())


def choice(text: str) -> str:
    """The one of CHOICES that a reply consists of, but for marks and blanks around it. Raises Unread.

    >>> choice(" **A**.")
    'A'
    """
    match = _CHOICE.fullmatch(text)
    if match is None:
        raise Unread("no_choice", f"the reply is none of {', '.join(CHOICES)}")
    return match[1]


@dataclass(frozen=True)
class _Place:
    """A token of a reply, and the probabilities of those that might stand there, itself mostly among them."""

    text: str
    shares: tuple[tuple[str, float], ...]

    @property
    def shown(self) -> bool:
        return any(text == self.text for text, _ in self.shares)

    def sum(self, counts: Callable[[str], bool]) -> float:
        return math.fsum(share for text, share in self.shares if counts(text))


class _Tokens:
    """Finds the token at a character of a reply's text."""

    def __init__(self, reply: Answered) -> None:
        if not reply.alternatives:
            raise Unread("no_logprobs", "the server shows no log-probabilities with this reply")
        texts = [token for token, _ in reply.logprobs]
        before, found, _ = "".join(texts).rpartition(reply.text)
        if not found or before.strip():
            raise Unread("unspelled", "the tokens that the server shows do not spell its reply")
        self._reply = reply
        self._starts = list(accumulate(map(len, texts), initial=-len(before)))

    def at(self, character: int, further: int = 0) -> _Place:
        """The place of the token that this character is of, or so many further. Raises Unread where there is none."""
        index = bisect_right(self._starts, character) - 1 + further
        if index >= len(self._reply.logprobs):
            raise Unread("uncovered", "the server does not show what ends the reply")
        shares = tuple(
            (text, math.exp(min(value, 1.0))) for text, value in dict.fromkeys(self._reply.alternatives[index])
        )
        if math.fsum(share for _, share in shares) > 1 + ROUNDING:
            raise Unread("inconsistent", "the probabilities that the server shows at a place sum to more than 1")
        return _Place(self._reply.logprobs[index][0], shares)


def _number(text: str, dimension: Dimension) -> int:
    """Where the only number after the dimension's label stands, in characters."""
    names = "|".join(r"[\s_]+".join(map(re.escape, name.split())) for name in (dimension.label, dimension.key))
    marks = rf"[ \t{_MARKS}]*"
    pattern = rf"(?:^|[{{,])[ \t{_MARKS}#>•-]*(?:{names}){marks}[:：=]{marks}(\d)"
    places = [match.start(1) for match in re.finditer(pattern, text, re.MULTILINE | re.IGNORECASE)]
    if len(places) != 1:
        raise Unread("no_place", f"the place of the score for {dimension.label} cannot be found in the reply")
    return places[0]


def _score(tokens: _Tokens, at: int, scale: Scale, score: int) -> Reading:
    place = tokens.at(at)
    values = dict.fromkeys(scale.values, 0.0)
    for text, share in place.shares:
        if (value := _value(text)) in values:
            values[value] += share
    if scale.high == TEN and not (values[TEN] and not (score == TEN and _value(place.text) == 1)):
        _part_ten(tokens, place, at, values)
    own = _value(place.text)
    if not place.shown or (own != score and (own, score) != (1, TEN)) or not values[score]:
        raise Unread("uncovered", f"the reply's score {score} is not among the tokens that the server shows")
    covered = math.fsum(values.values())
    return Reading(tuple(share / covered for share in values.values()), max(0.0, 1 - covered))


def _part_ten(tokens: _Tokens, place: _Place, at: int, values: dict[int, float]) -> None:
    """Part what was given to a bare 1 into 1 and 10, by what the server shows after the reply's own 1."""
    bare = place.sum(lambda text: _value(text) == 1 and not _ends(text))
    values[1] -= bare
    if _value(place.text) == 1 and not _ends(place.text):
        zero = tokens.at(at, further=1).sum(lambda text: text[:1].isdecimal() and _value(text) == 0)
        values[1] += bare * (1 - zero)
        values[TEN] += bare * zero


def _value(token: str) -> int | None:
    """The number that a token is, but for marks around it."""
    match = _VALUE.fullmatch(token)
    return int(match[1]) if match else None


def _ends(token: str) -> bool:
    """Whether nothing can be added to the number in the token."""
    match = _VALUE.fullmatch(token)
    return bool(match and match[2])
