"""Scores and choices from token probabilities, however a server's tokenizer writes them."""

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from editfoundry.core.chat.messages import Answered
from editfoundry.models.judge.logprobs import Reading, Unread, choice, read_choice, read_scores
from editfoundry.models.judge.rubric import Dimension, Scale

TWO = (Dimension("following", "Following"), Dimension("naturalness", "Naturalness"))
ONE = TWO[:1]
FIVE, ZERO_TO_TEN = Scale(1, 5), Scale(0, 10)
Place = tuple[str, Mapping[str, float]]
"""A token, and the probabilities that the server shows at its place."""


def sure(*tokens: str) -> list[Place]:
    """Tokens of which nothing matters."""
    return [(token, {token: 1.0}) for token in tokens]


def reply(places: Sequence[Place], text: str | None = None) -> Answered:
    return Answered(
        "".join(token for token, _ in places) if text is None else text,
        logprobs=tuple((token, math.log(shown.get(token) or 0.5)) for token, shown in places),
        alternatives=tuple(
            tuple((token, math.log(share) if share else -9999.0) for token, share in shown.items())
            for _, shown in places
        ),
    )


def read(places: Sequence[Place], score: int, scale: Scale = FIVE, text: str | None = None) -> Reading:
    return read_scores(reply(places, text), ONE, scale, {"following": score})["following"]


def trouble(places: Sequence[Place], score: int, scale: Scale = FIVE, text: str | None = None) -> str:
    with pytest.raises(Unread) as error:
        read(places, score, scale, text)
    return error.value.reason


# How tokenizers cut `Following: 4`: what stands before the number's token, and the forms of a number in such a token.
CUTS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "digit alone": (["Following", ":", " "], ("{}",)),
    "with the blank": (["Following", ":"], (" {}", "{}")),
    "with the colon": (["Follow", "ing"], (": {}", ":{}")),
    "with a line's end": (["Following: "], ("{}\n", "{}", "{}.\n")),
    "bold": (["**", "Following", "**:", " **"], ("{}**", "{}")),
    "full-width": (["Following", "："], ("{}", "{wide}")),
    "after a blank of the server's": ([" \n", "Following: "], ("{}",)),
}


@pytest.mark.parametrize("cut", CUTS)
@given(st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(any), st.integers(0, 500), st.data())
def test_every_form_of_a_value_counts(cut: str, weights: list[int], other: int, data: st.DataObject) -> None:
    before, forms = CUTS[cut]
    total = sum(weights) + other
    shown: dict[str, float] = {"The": other / total} if other else {}
    for value, weight in enumerate(weights, 1):
        wide = chr(ord("０") + value)
        for number, form in enumerate(forms):
            part = (weight if len(forms) == 1 else weight * (0.7 if number == 0 else 0.3 / (len(forms) - 1))) / total
            shown[form.format(value, wide=wide)] = part
    best = data.draw(st.sampled_from([value for value, weight in enumerate(weights, 1) if weight]))
    written = data.draw(st.sampled_from(forms)).format(best, wide=chr(ord("０") + best))
    places = [*sure(*before), (written, shown), *sure("<|im_end|>")]
    text = "".join(token for token, _ in places[:-1]).strip()
    reading = read(places, best, text=text)
    expected = sum(value * weight for value, weight in enumerate(weights, 1)) / sum(weights)
    assert reading.mean(FIVE) == pytest.approx(expected)
    assert reading.probabilities == pytest.approx([weight / sum(weights) for weight in weights])
    assert reading.uncovered == pytest.approx(other / total, abs=1e-9)


def test_each_dimension_has_its_place() -> None:
    places = [
        *sure("Brief", " reasoning: naturalness", " 5 of", " 5\n", "Following", ":"),
        (" 4", {" 4": 0.6, " 2": 0.2, " I": 0.1}),
        *sure("\n", "Naturalness", ":", " "),
        ("1", {"1": 0.9, "2": 0.1}),
    ]
    readings = read_scores(reply(places), TWO, FIVE, {"following": 4, "naturalness": 1})
    assert [reading.mean(FIVE) for reading in readings.values()] == pytest.approx([3.5, 1.1])
    assert readings["following"].uncovered == pytest.approx(0.2)
    assert readings["naturalness"].uncovered == pytest.approx(0.0)


def test_json_has_places_too() -> None:
    places = [*sure('{"', "following", '": '), ("3", {"3": 0.5, "5": 0.5}), *sure(', "Naturalness": 2}')]
    readings = read_scores(reply(places), ONE, FIVE, {"following": 3})
    assert readings["following"].mean(FIVE) == pytest.approx(4)


def test_ten_as_one_token() -> None:
    shown = {"10": 0.5, "9": 0.2, "1": 0.2, " 10": 0.05}
    for token, score in (("10", 10), ("9", 9), ("1", 1)):
        reading = read([*sure("Following: "), (token, shown)], score, ZERO_TO_TEN)
        assert reading.probabilities == pytest.approx([0, 0.2 / 0.95, *[0] * 7, 0.2 / 0.95, 0.55 / 0.95])
        assert reading.uncovered == pytest.approx(0.05)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_ten_as_two_digits(one: float, zero: float) -> None:
    start: Place = ("1", {"1": one, "7": 1 - one})
    for after, score in (("0", 10), ("\n", 1)):
        places = [*sure("Following: "), start, (after, {"0": zero, "\n": 1 - zero}), *sure("x")]
        reading = read(places, score, ZERO_TO_TEN, text="Following: 10" if score == 10 else "Following: 1\nx")
        assert reading.probabilities[10] == pytest.approx(one * zero)
        assert reading.probabilities[1] == pytest.approx(one * (1 - zero))
        assert reading.probabilities[7] == pytest.approx(1 - one)
        assert reading.uncovered == pytest.approx(0, abs=1e-9)


def test_a_blank_and_a_zero_is_no_ten() -> None:
    places: list[Place] = [*sure("Following: "), ("1", {"1": 1.0}), ("\n", {"\n": 0.7, " 0": 0.2, "0": 0.1})]
    assert read(places, 1, ZERO_TO_TEN, text="Following: 1").probabilities[10] == pytest.approx(0.1)


def test_what_follows_a_one_that_was_not_written_cannot_be_known() -> None:
    reading = read([*sure("Following: "), ("7", {"7": 0.8, "1": 0.15, "1\n": 0.05})], 7, ZERO_TO_TEN)
    assert reading.probabilities[7] == pytest.approx(0.8 / 0.85)
    assert reading.probabilities[1] == pytest.approx(0.05 / 0.85)
    assert reading.uncovered == pytest.approx(0.15)


def test_a_one_whose_end_is_not_shown_is_no_score() -> None:
    last: Place = ("1", {"1": 0.9, "2": 0.1})
    assert trouble([*sure("Following: "), last], 1, ZERO_TO_TEN) == "uncovered"
    ended: Place = ("", {"": 0.9, "0": 0.1})
    assert read([*sure("Following: "), last, ended], 1, ZERO_TO_TEN).probabilities[10] == pytest.approx(0.09)


def test_the_same_token_listed_twice_counts_once() -> None:
    answered = Answered(
        "Following: 4",
        logprobs=(("Following: ", 0.0), ("4", math.log(0.6))),
        alternatives=((("Following: ", 0.0),), (("4", math.log(0.6)), ("4", math.log(0.6)), ("2", math.log(0.3)))),
    )
    reading = read_scores(answered, ONE, FIVE, {"following": 4})["following"]
    assert reading.mean(FIVE) == pytest.approx((4 * 2 + 2) / 3)
    assert reading.uncovered == pytest.approx(0.1)


FOUR: Place = ("4", {"4": 1.0})
REFUSED: dict[str, tuple[list[Place], int, str | None, str]] = {
    "no label": ([*sure("Score: "), FOUR], 4, None, "no_place"),
    "label twice": ([*sure("Following: "), FOUR, *sure("\nFollowing: "), FOUR], 4, None, "no_place"),
    "another dimension's line": ([*sure("Not Following: "), FOUR], 4, None, "no_place"),
    "number on the next line": ([*sure("Following:\n"), FOUR], 4, None, "no_place"),
    "tokens of another reply": ([*sure("Following: "), FOUR], 4, "Following: 5", "unspelled"),
    "numbers of tokens": ([*sure("token_id:11", "token_id:19")], 4, "Following: 4", "unspelled"),
    "thoughts before": ([*sure("Following: 4? Yes. ", "Following: "), FOUR], 4, "Following: 4", "unspelled"),
    "own score not shown": ([*sure("Following: "), ("4", {"5": 0.6, "3": 0.3})], 4, None, "uncovered"),
    "own score in another form only": ([*sure("Following: "), ("4", {" 4": 0.9})], 4, None, "uncovered"),
    "own score impossible": ([*sure("Following: "), ("4", {"4": 0.0, "5": 0.3})], 4, None, "uncovered"),
    "no place of its own": ([*sure("Following: 4"), *sure("\n")], 4, None, "uncovered"),
    "too much": ([*sure("Following: "), ("4", {"4": 0.9, "5": 0.3})], 4, None, "inconsistent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_sure_is_no_score(name: str) -> None:
    places, score, text, reason = REFUSED[name]
    assert trouble(places, score, text=text) == reason


def test_no_probabilities_no_score() -> None:
    with pytest.raises(Unread, match="shows no log-probabilities") as error:
        read_scores(Answered("Following: 4"), ONE, FIVE, {"following": 4})
    assert error.value.reason == "no_logprobs"


@example("Following: 4", 0.0)
@given(st.text(st.sampled_from('Folwing: 14\n,{*"_'), min_size=1, max_size=60), st.floats(-1e30, 1e30))
def test_whatever_a_server_shows_it_is_read_or_refused(text: str, value: float) -> None:
    answered = Answered(text, logprobs=((text, value),), alternatives=(((text, value), ("4", 0.0)),))
    try:
        reading = read_scores(answered, ONE, FIVE, {"following": 4})["following"]
    except Unread:
        return
    assert math.isclose(math.fsum(reading.probabilities), 1) and 0 <= reading.uncovered <= 1


def test_a_long_reply_takes_no_long_time() -> None:
    text = " \n" * 20_000 + "Following " * 5_000 + "{ , " * 5_000
    with pytest.raises(Unread):
        read_scores(reply(sure(text)), ONE, FIVE, {"following": 4})


def test_choices() -> None:
    shown = {"B": 0.5, " B": 0.1, "A": 0.2, "C.": 0.1, "Both": 0.05}
    assert read_choice(reply([("B", shown), *sure("<|im_end|>")], text="B")) == pytest.approx((0.2, 0.6, 0.1))
    assert read_choice(reply([*sure("**"), ("B", shown), *sure("**")])) == pytest.approx((0.2, 0.6, 0.1))


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        (sure("Result B"), "no_choice"),
        (sure("A", " or", " B"), "no_choice"),
        (sure("D"), "no_choice"),
        (sure("b"), "no_choice"),
        ([("B", {"A": 1.0})], "uncovered"),
        ([("B", {"B": 0.0, "A": 1.0})], "uncovered"),
    ],
)
def test_no_choice(places: list[Place], reason: str) -> None:
    with pytest.raises(Unread) as error:
        read_choice(reply(places))
    assert error.value.reason == reason


@pytest.mark.parametrize("text", ["A", " A\n", "**A**", "A.", '"A"'])
def test_a_choice_may_have_marks(text: str) -> None:
    assert choice(text) == "A"
