"""Scores from probabilities: the mean of what a model thinks of each value of the scale, read where the score stands.

Values from 0 to 9 are one token. On a scale to 10, `10` is `1` and then `0`: P(10) = P(1 first) P(0 after it) and
P(1) = P(1 first) (1 - P(0 after it)). What the model gives to any other token is left out of the mean and reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from editfoundry.core.errors import EditFoundryError
from editfoundry.models.judge.rubric import Dimension, Scale, reply_text

TEN = 10


@dataclass(frozen=True)
class ScoreTokens:
    """How a tokenizer writes scores. digits: the token of 0 to 9. pieces: the tokens before each score of a reply."""

    scale: Scale
    digits: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]

    @property
    def two_steps(self) -> bool:
        """Whether the scale has a value of two digits."""
        return self.scale.high == TEN

    def value(self, score: int) -> list[int]:
        """The tokens of a score."""
        return [self.digits[int(digit)] for digit in str(score)]

    def written(self, place: int, first: Tensor, after_one: Tensor | None, end: Sequence[int]) -> int:
        """The score that greedy decoding writes at a place of the reply when held to its form: the most probable digit;

        10 where that is 1 and a 0 is more probable after it than what goes on from there.

        first, after_one: logits [vocabulary], as for `distribution`. end: tokens that end a reply.
        """
        low, high = self.scale.low, min(self.scale.high, 9)
        score = low + int(first[list(self.digits[low : high + 1])].argmax())
        if after_one is None or score != 1:
            return score
        further = [self.pieces[place + 1][0]] if place + 1 < len(self.pieces) else list(end)
        return TEN if bool(after_one[self.digits[0]] > after_one[further].max()) else 1

    def distribution(self, first: Tensor, after_one: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Probabilities [B, values] that sum to 1, lowest value first, and what all other tokens had before that, [B].

        first: logits [B, vocabulary] where the score stands. after_one: logits after the digit 1, on a scale to 10.
        """
        shares = torch.softmax(first.double(), -1)
        given = shares[:, list(self.digits)]
        values = given[:, self.scale.low : min(self.scale.high, 9) + 1]
        if self.two_steps:
            assert after_one is not None
            again = torch.softmax(after_one.double(), -1)[:, self.digits[0]]
            one, place = given[:, 1], 1 - self.scale.low
            values = torch.cat([values, (one * again)[:, None]], 1)
            values[:, place] = one * (1 - again)
        covered = values.sum(1)
        return values / covered[:, None].clamp_min(torch.finfo(torch.float64).tiny), 1 - covered

    def mean(self, probabilities: Tensor) -> Tensor:
        """The expected score [B] of probabilities [B, values]."""
        return probabilities @ torch.tensor(
            list(self.scale.values), dtype=probabilities.dtype, device=probabilities.device
        )


def score_tokens(tokenise: Callable[[str], list[int]], dimensions: Sequence[Dimension], scale: Scale) -> ScoreTokens:
    """How `tokenise` writes a reply of these dimensions.

    Raises ConfigError for a scale with other scores of two digits than 10, EditFoundryError when the tokens of a reply
    are not its labels' tokens with the digits' tokens between them, whatever the scores: then no single place holds a
    score.
    """
    scale.require_digits()
    digits = [tokenise(str(digit)) for digit in range(10)]
    if any(len(tokens) != 1 for tokens in digits):
        raise EditFoundryError("the tokenizer does not write every digit as one token; use --head generate")
    single = [tokens[0] for tokens in digits]
    lowest = reply_text(dimensions, [scale.low] * len(dimensions))
    pieces = _split(tokenise(lowest), single[scale.low], len(dimensions))
    made = ScoreTokens(scale, tuple(single), pieces)
    for value in scale.values:
        scores = [value] * len(dimensions)
        written = [token for piece in pieces for token in (*piece, *made.value(value))]
        if tokenise(reply_text(dimensions, scores)) != written:
            raise EditFoundryError("the tokenizer joins a score with the text around it; use --head generate")
    return made


def _split(tokens: list[int], digit: int, count: int) -> tuple[tuple[int, ...], ...]:
    """The tokens before each of `count` digits."""
    pieces: list[tuple[int, ...]] = []
    piece: list[int] = []
    for token in tokens:
        if token == digit:
            pieces.append(tuple(piece))
            piece = []
        else:
            piece.append(token)
    if piece or len(pieces) != count:
        raise EditFoundryError("a label of the rubric holds a digit, or the tokenizer joins a score with it")
    return tuple(pieces)
