"""The losses of a judge's heads, each as a weighted sum and the weight it is to be divided by.

Sums of all micro-batches and ranks over sums of all weights give the same loss however a global batch is cut.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from editfoundry.models.judge.expected import ScoreTokens
from editfoundry.models.judge.folder import DIMENSIONS
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads
from editfoundry.training.judge.model import Outputs

LEAST_LOG_VARIANCE, MOST_LOG_VARIANCE = -8.0, 8.0
HEADS = ("generate", "expected", "regression", "ranking", "preference")


@dataclass(frozen=True)
class Alphabet:
    """Tokens of the digits 0 to 9 with the scale, of the answers to a comparison, and those that end a reply."""

    digits: ScoreTokens
    choices: tuple[int, ...]
    end: tuple[int, ...]


def losses(outputs: Outputs, row: Row, heads: Heads, alphabet: Alphabet) -> dict[str, Tensor]:
    """The weighted sum of each head that has a weight, float32 scalars."""
    made: dict[str, Tensor] = {}
    if heads.generate:
        made["generate"] = (
            functional.cross_entropy(outputs.reply, row.reply_ids, reduction="none") * row.reply_weights
        ).sum()
    if heads.expected:
        made["expected"] = (_expected(outputs, row, alphabet.digits) * row.score_weights).sum()
    if heads.regression:
        made["regression"] = (_gaussian(outputs.regression, row) * row.regression_weights * row.regression_mask).sum()
    if heads.ranking:
        made["ranking"] = (_davidson(outputs, row) * row.ranking_weights).sum()
    if heads.preference:
        logits = outputs.choice[:, list(alphabet.choices)]
        made["preference"] = (
            functional.cross_entropy(logits, row.choice_targets, reduction="none") * row.choice_weights
        ).sum()
    return made


def totals(row: Row, heads: Heads) -> dict[str, Tensor]:
    """What each head's sum is divided by: the weight of its places."""
    weights = {
        "generate": row.reply_weights,
        "expected": row.score_weights,
        "regression": row.regression_weights * row.regression_mask,
        "ranking": row.ranking_weights,
        "preference": row.choice_weights,
    }
    return {name: weights[name].sum() for name in HEADS if getattr(heads, name)}


def _expected(outputs: Outputs, row: Row, tokens: ScoreTokens) -> Tensor:
    """Cross-entropy [S] of the score over the values of the scale alone.

    On a scale to 10, of the first digit, and, where that is written as 1, of whether 0 follows.
    """
    low = tokens.scale.low
    digits = tokens.digits[low : min(tokens.scale.high, 9) + 1]
    values = functional.log_softmax(outputs.score[:, list(digits)], -1)
    if tokens.two_steps:
        odds, one = _odds(outputs.second, tokens.digits[0]), 1 - low
        written = row.second_places >= 0  # elsewhere a fractional score is written as another digit
        followed, alone = (torch.where(written, functional.logsigmoid(sign * odds), 0.0) for sign in (1, -1))
        ten = values[:, one] + followed
        values = torch.cat([values[:, :one], (values[:, one] + alone)[:, None], values[:, one + 1 :], ten[:, None]], 1)
    return -(row.score_targets * values).sum(-1)


def _odds(logits: Tensor, token: int) -> Tensor:
    """Log-odds of a token against all others."""
    others = logits.clone()
    others[:, token] = -torch.inf
    return logits[:, token] - torch.logsumexp(others, -1)


def _gaussian(regression: Tensor, row: Row) -> Tensor:
    """Negative log-likelihood [R, 3], without its constant, of scores normally distributed about the means."""
    mean = regression[:, :DIMENSIONS]
    log_variance = regression[:, DIMENSIONS:].clamp(LEAST_LOG_VARIANCE, MOST_LOG_VARIANCE)
    return 0.5 * ((row.regression_targets - mean).square() * (-log_variance).exp() + log_variance)


def _davidson(outputs: Outputs, row: Row) -> Tensor:
    """Negative log-likelihood [K] of which of two results is better, or that neither is: Davidson (1970).

    With strengths e^a and e^b and tie parameter v: P(first) = e^a / (e^a + e^b + v e^((a + b) / 2)).
    """
    one, two = (outputs.regression[row.ranking_pairs[:, side], row.ranking_dimensions] for side in (0, 1))
    logits = torch.stack([one, outputs.tie + (one + two) / 2, two], 1)
    return functional.cross_entropy(logits, 1 - row.ranking_targets, reduction="none")
