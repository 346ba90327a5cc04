"""Scores from logits, and where a tokenizer puts them."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.errors import ConfigError, EditFoundryError
from editfoundry.models.judge.expected import ScoreTokens, score_tokens
from editfoundry.models.judge.rubric import Dimension, Scale

TWO = (Dimension("following", "Following"), Dimension("naturalness", "Naturalness"))
SCALES = (Scale(1, 5), Scale(0, 10), Scale(1, 10), Scale(0, 9), Scale(2, 9))


def by_pattern(pattern: str) -> Callable[[str], list[int]]:
    """A tokenizer whose tokens are the matches of a pattern, numbered as they are first seen; a digit is its own."""
    numbers: dict[str, int] = {str(digit): digit for digit in range(10)}
    return lambda text: [numbers.setdefault(piece, len(numbers)) for piece in re.findall(pattern, text)]


SPLITS_DIGITS = r"\d|[^\d\n]+|\n"


def logits(shares: dict[int, float], size: int = 16) -> torch.Tensor:
    """Logits [1, size] of tokens with these probabilities; the rest goes to the last token."""
    values = torch.full((size,), 1e-30, dtype=torch.float64)
    for token, share in shares.items():
        values[token] = share
    values[-1] += 1 - sum(shares.values())
    return values.log()[None].float()


def test_a_scale_of_single_digits_by_hand() -> None:
    tokens = score_tokens(by_pattern(SPLITS_DIGITS), TWO, Scale(1, 5))
    shares, uncovered = tokens.distribution(logits({0: 0.1, 1: 0.05, 3: 0.25, 5: 0.2, 6: 0.3}))
    assert shares[0].tolist() == pytest.approx([0.1, 0, 0.5, 0, 0.4], abs=1e-6)
    assert uncovered.item() == pytest.approx(0.5, abs=1e-6)
    assert tokens.mean(shares).item() == pytest.approx(0.1 + 1.5 + 2.0, abs=1e-5)


@pytest.mark.parametrize("low", [0, 1])
def test_a_scale_to_ten_by_hand(low: int) -> None:
    """P(10) = P(1) P(0 | 1), P(1) = P(1) (1 - P(0 | 1)), whatever else follows the 1."""
    tokens = score_tokens(by_pattern(SPLITS_DIGITS), TWO, Scale(low, 10))
    shares, uncovered = tokens.distribution(logits({1: 0.4, 7: 0.4}), logits({0: 0.75, 5: 0.2}))
    expected = dict.fromkeys(range(low, 11), 0.0) | {1: 0.125, 7: 0.5, 10: 0.375}
    assert shares[0].tolist() == pytest.approx(list(expected.values()), abs=1e-6)
    assert uncovered.item() == pytest.approx(0.2, abs=1e-6)
    assert tokens.mean(shares).item() == pytest.approx(0.125 + 3.5 + 3.75, abs=1e-5)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@given(st.data())
def test_probabilities_sum_to_one_and_the_mean_is_on_the_scale(scale: Scale, data: st.DataObject) -> None:
    tokens = score_tokens(by_pattern(SPLITS_DIGITS), TWO, scale)
    numbers = st.lists(st.floats(-40, 40, width=32), min_size=16, max_size=16)
    first, after_one = (torch.tensor([data.draw(numbers)]) for _ in range(2))
    shares, uncovered = tokens.distribution(first, after_one if scale.high == 10 else None)
    assert shares.shape == (1, len(scale.values))
    assert shares.sum().item() == pytest.approx(1) and bool((shares >= 0).all())
    assert -1e-9 <= uncovered.item() <= 1
    assert scale.low - 1e-9 <= tokens.mean(shares).item() <= scale.high + 1e-9
    moved, _ = tokens.distribution(first + 3.0, after_one - 5.0 if scale.high == 10 else None)
    assert torch.allclose(moved, shares, atol=1e-5)
    if scale.high < 10:
        written = tokens.written(0, first[0], None, [15])
        assert shares[0, written - scale.low].item() == pytest.approx(shares.max().item())


def test_what_constrained_decoding_writes() -> None:
    """After a 1 it goes on with 0 or with what the form has next: the next label's line, at the end the turn's end."""
    split = by_pattern(SPLITS_DIGITS)
    tokens = score_tokens(split, TWO, Scale(0, 10))
    [line] = split("\n")
    assert tokens.pieces[1][0] == line
    one = logits({1: 0.3, 7: 0.2})[0]
    unlikely = logits({0: 1e-3, line: 1e-4, 14: 1e-2})[0]
    assert tokens.written(0, one, unlikely, [14]) == 10
    assert tokens.written(1, one, unlikely, [13, 14]) == 1
    assert tokens.written(0, logits({1: 0.3, 7: 0.4})[0], unlikely, [14]) == 7
    assert tokens.written(0, logits({0: 0.3})[0], unlikely, [14]) == 0


def test_the_tokens_of_a_reply() -> None:
    split = by_pattern(SPLITS_DIGITS)
    tokens = score_tokens(split, TWO, Scale(0, 10))
    assert tokens.digits == tuple(range(10))
    assert [list(piece) for piece in tokens.pieces] == [split("Following: "), split("\nNaturalness: ")]
    assert tokens.value(10) == [1, 0] and tokens.value(7) == [7]
    written = [*tokens.pieces[0], *tokens.value(10), *tokens.pieces[1], *tokens.value(0)]
    assert split("Following: 10\nNaturalness: 0") == written


@pytest.mark.parametrize(
    ("pattern", "scale", "says"),
    [
        (r"\d+|[^\d\n]+|\n", Scale(0, 10), "joins a score with the text around it"),
        (r"[ ]?\d|[^\d\n]+?(?= ?\d)|[^\d\n]+|\n", Scale(1, 5), "joins a score with"),
        (r"\d\n|\d|[^\d\n]+|\n", Scale(1, 5), "joins a score with"),
    ],
)
def test_a_tokenizer_that_joins_scores_is_refused(pattern: str, scale: Scale, says: str) -> None:
    with pytest.raises(EditFoundryError, match=says):
        score_tokens(by_pattern(pattern), TWO, scale)


def test_a_tokenizer_that_joins_ten_still_has_five() -> None:
    assert isinstance(score_tokens(by_pattern(r"\d+|[^\d\n]+|\n"), TWO, Scale(1, 5)), ScoreTokens)


def test_a_digit_of_several_tokens_is_refused() -> None:
    with pytest.raises(EditFoundryError, match="every digit as one token; use --head generate"):
        score_tokens(lambda text: list(text.encode("utf-16")), TWO, Scale(1, 5))


@pytest.mark.parametrize("scale", [Scale(0, 100), Scale(2, 10), Scale(5, 12)], ids=str)
def test_scales_that_cannot_be_read(scale: Scale) -> None:
    with pytest.raises(ConfigError, match=f"not from {scale.low} to {scale.high}; use --head generate"):
        score_tokens(by_pattern(SPLITS_DIGITS), TWO, scale)


def test_no_probability_left_is_no_score() -> None:
    """Logits so far apart that nothing is left for the scores give no distribution, which the judge does not score."""
    tokens = score_tokens(by_pattern(SPLITS_DIGITS), TWO, Scale(1, 5))
    shares, uncovered = tokens.distribution(torch.tensor([[0.0] * 15 + [1e4]]))
    assert shares.sum().item() == 0 and uncovered.item() == 1 and math.isfinite(shares.sum().item())
