"""The losses of a judge's heads, each against its formula written out, and against what inference reads."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.models.judge.expected import ScoreTokens
from editfoundry.models.judge.rubric import Scale
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads
from editfoundry.training.judge.losses import Alphabet, losses, totals
from editfoundry.training.judge.model import Outputs
from editfoundry.training.judge.rows import soft

VOCABULARY = 40
DIGITS = tuple(range(20, 30))
CHOICES = (3, 5, 7)
ALL = Heads(generate=1, expected=1, regression=1, ranking=1, preference=1)


def tokens(low: int, high: int) -> ScoreTokens:
    return ScoreTokens(Scale(low, high), DIGITS, ((1,),))


def logits(count: int, seed: int = 0, width: int = VOCABULARY) -> torch.Tensor:
    return 3 * torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def row(**given: Any) -> Row:
    """A row of nothing but these targets."""
    nothing = dict.fromkeys(Row._fields, torch.zeros(0))
    return Row(**{**nothing, "position": 0, "slot": 0, "records": (), "choices": (), **given})  # type: ignore[arg-type]


def outputs(**given: torch.Tensor) -> Outputs:
    return Outputs(**{**dict.fromkeys(Outputs._fields, torch.zeros(0)), **given})


def loss(name: str, found: Outputs, wanted: Row, scale: ScoreTokens | None = None) -> float:
    heads = Heads(**{"expected": 0, name: 2})
    made = losses(found, wanted, heads, Alphabet(scale or tokens(1, 5), CHOICES, ()))
    assert set(made) == {name}
    return float(made[name])


def scored(values: list[float], scale: ScoreTokens, written: list[int]) -> Row:
    """Scores as rows have them. written: the number that stands in the reply."""
    low, count = scale.scale.low, len(scale.scale.values)
    second = [9 if scale.two_steps and number in (1, 10) else -1 for number in written]
    return row(
        score_targets=torch.stack([soft(value - low, count) for value in values]),
        second_places=torch.tensor(second),
        score_weights=torch.ones(len(values)),
    )


def test_replies_are_trained_by_the_cross_entropy_of_their_tokens() -> None:
    reply, ids, weights = logits(3), [4, 0, 39], [1.0, 2.0, 0.5]
    wanted = row(reply_ids=torch.tensor(ids), reply_weights=torch.tensor(weights))
    by_hand = 0.0
    for given_, id, weight in zip(reply.double().tolist(), ids, weights, strict=True):
        by_hand -= weight * (given_[id] - math.log(sum(math.exp(one) for one in given_)))
    assert loss("generate", outputs(reply=reply), wanted) == pytest.approx(by_hand, rel=1e-5)


def test_expected_scores_are_trained_over_the_scale_alone() -> None:
    scale, score = tokens(1, 5), logits(2)
    wanted = scored([4, 2.25], scale, [4, 2])._replace(score_weights=torch.tensor([1.0, 3.0]))
    by_hand = 0.0
    shares = [[math.exp(one[DIGITS[value]]) for value in range(1, 6)] for one in score.double().tolist()]
    by_hand -= math.log(shares[0][3] / sum(shares[0]))
    by_hand -= 3 * (0.75 * math.log(shares[1][1] / sum(shares[1])) + 0.25 * math.log(shares[1][2] / sum(shares[1])))
    assert loss("expected", outputs(score=score, second=score), wanted, scale) == pytest.approx(by_hand, rel=1e-5)
    elsewhere = score.clone()
    elsewhere[:, :20] += 5  # tokens that are no score
    elsewhere[:, DIGITS[0]] -= 5
    assert loss("expected", outputs(score=elsewhere, second=score), wanted, scale) == pytest.approx(by_hand, rel=1e-5)


def test_a_ten_is_a_one_and_then_a_zero() -> None:
    scale, score, second = tokens(0, 10), logits(3, 1), logits(3, 2)
    first = score.double()[:, list(DIGITS)].softmax(-1).tolist()
    zero = second.double().softmax(-1)[:, DIGITS[0]].tolist()
    by_hand = -math.log(first[0][1] * zero[0]) - math.log(first[1][1] * (1 - zero[1])) - math.log(first[2][7])
    wanted = scored([10, 1, 7], scale, [10, 1, 7])
    assert loss("expected", outputs(score=score, second=second), wanted, scale) == pytest.approx(by_hand, rel=1e-5)
    spread = scored([9.5], scale, [10])  # halves up: the reply has a 10, and the target is half a 9
    by_hand = -0.5 * math.log(first[0][9]) - 0.5 * math.log(first[0][1] * zero[0])
    found = outputs(score=score[:1], second=second[:1])
    assert loss("expected", found, spread, scale) == pytest.approx(by_hand, rel=1e-5)
    unread = scored([1.75], scale, [2])  # what would follow a 1 is not known there
    by_hand = -0.25 * math.log(first[0][1]) - 0.75 * math.log(first[0][2])
    assert loss("expected", found, unread, scale) == pytest.approx(by_hand, rel=1e-5)


@given(st.sampled_from([(1, 5), (0, 10), (1, 10), (0, 9), (2, 4)]), st.integers(0, 1000), st.booleans())
def test_what_is_trained_is_the_distribution_that_inference_reads(ends: tuple[int, int], seed: int, sure: bool) -> None:
    """exp(-loss) of a certain value is its probability in `ScoreTokens.distribution`, from the same logits."""
    scale = tokens(*ends)
    score, second = (logits(1, seed + number) * (8 if sure else 1) for number in (0, 5000))
    shares, _ = scale.distribution(score, second)
    found = outputs(score=score, second=second)
    for value, share in zip(scale.scale.values, shares[0].tolist(), strict=True):
        wanted = scored([value], scale, [1 if scale.two_steps and value in (1, 10) else value])
        trained = math.exp(-loss("expected", found, wanted, scale))
        assert trained == pytest.approx(share, rel=1e-3, abs=1e-6)


def test_regression_is_the_likelihood_of_a_normal_distribution() -> None:
    means, log_variances = [[2.0, 4.5, 0.0]], [[0.5, -1.0, 3.0]]
    wanted = row(
        regression_targets=torch.tensor([[3.0, 4.0, 0.0]]),
        regression_mask=torch.tensor([[1.0, 1.0, 0.0]]),
        regression_weights=torch.tensor([[2.0, 1.0, 7.0]]),
    )
    by_hand = 2 * 0.5 * ((3 - 2) ** 2 / math.exp(0.5) + 0.5) + 0.5 * ((4 - 4.5) ** 2 / math.exp(-1) - 1)
    found = outputs(regression=torch.tensor([means[0] + log_variances[0]]))
    assert loss("regression", found, wanted) == pytest.approx(by_hand, rel=1e-6)
    normal = torch.distributions.Normal(torch.tensor(2.0), torch.tensor(math.exp(0.25)))
    one = wanted._replace(regression_weights=torch.tensor([[1.0, 0.0, 0.0]]))
    constant = 0.5 * math.log(2 * math.pi)
    assert loss("regression", found, one) == pytest.approx(-float(normal.log_prob(torch.tensor(3.0))) - constant)
    sure = outputs(regression=torch.tensor([[2.0, 0, 0, -50.0, 0, 0]]))
    assert loss("regression", sure, one) == pytest.approx(0.5 * (math.exp(8) - 8), rel=1e-5)  # bounded


def test_rankings_follow_davidson() -> None:
    a, b, tie = 1.5, 0.25, math.log(0.8)
    regression = torch.zeros(2, 6)
    regression[0, 1], regression[1, 1] = a, b
    found = outputs(regression=regression, tie=torch.tensor([tie]))
    strengths = [math.exp(a), math.exp(tie) * math.exp((a + b) / 2), math.exp(b)]

    def of(better: int, pair: tuple[int, int] = (0, 1)) -> float:
        wanted = row(
            ranking_pairs=torch.tensor([pair]), ranking_targets=torch.tensor([better]),
            ranking_dimensions=torch.tensor([1]), ranking_weights=torch.tensor([2.0]),
        )  # fmt: skip
        return loss("ranking", found, wanted)

    for better, strength in zip((1, 0, -1), strengths, strict=True):
        assert of(better) == pytest.approx(-2 * math.log(strength / sum(strengths)), rel=1e-5)
        assert of(-better, (1, 0)) == pytest.approx(of(better))
    assert sum(math.exp(-of(better) / 2) for better in (1, 0, -1)) == pytest.approx(1)


def test_preferences_are_a_choice_between_three_answers() -> None:
    choice = logits(2)
    wanted = row(choice_targets=torch.eye(3)[[2, 0]], choice_weights=torch.tensor([1.0, 4.0]))
    shares = [[math.exp(one[answer]) for answer in CHOICES] for one in choice.double().tolist()]
    by_hand = -math.log(shares[0][2] / sum(shares[0])) - 4 * math.log(shares[1][0] / sum(shares[1]))
    assert loss("preference", outputs(choice=choice), wanted) == pytest.approx(by_hand, rel=1e-5)


def test_each_head_is_divided_by_the_weight_of_what_it_learns_from() -> None:
    wanted = row(
        reply_weights=torch.tensor([1.0, 2.0]), score_weights=torch.tensor([0.5]),
        regression_weights=torch.tensor([[3.0, 5.0, 7.0]]), regression_mask=torch.tensor([[1.0, 0.0, 1.0]]),
        ranking_weights=torch.tensor([0.25, 0.25]), choice_weights=torch.tensor([4.0]),
    )  # fmt: skip
    found = {name: float(one) for name, one in totals(wanted, ALL).items()}
    assert found == {"generate": 3, "expected": 0.5, "regression": 10, "ranking": 0.5, "preference": 4}
    assert set(totals(wanted, Heads(ranking=1))) == {"expected", "ranking"}
