"""What replies say: a corpus of replies with what both readers make of each, and properties of both readers."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.text import one_line
from editfoundry.models.judge.official import official_score, official_scores
from editfoundry.models.judge.parser import LONGEST_REASON, LONGEST_REPLY, Misread, parse_reason, parse_reply
from editfoundry.models.judge.rubric import PACKAGED, Dimension, Scale, load_rubric, reply_text

ROOT = Path(__file__).parents[2]
REPLIES: list[dict[str, Any]] = json.loads((ROOT / "tests/assets/judge/replies.json").read_text(encoding="utf-8"))
FIVE, TEN = Scale(1, 5), Scale(0, 10)
REPLACE = (
    Dimension("prompt_compliance", "Prompt Compliance"),
    Dimension("visual_naturalness", "Visual Naturalness"),
    Dimension("physical_detail_integrity", "Physical & Detail Integrity"),
)
STYLE = (
    Dimension("style_fidelity", "Style Fidelity"),
    Dimension("content_preservation", "Content Preservation"),
    Dimension("rendering_quality", "Rendering Quality"),
)
EXTRACT = (
    Dimension("object_identity", "Object Identity"),
    Dimension("mask_precision", "Mask Precision"),
    Dimension("visual_quality", "Visual Quality"),
)
EDIT = (Dimension("following", "Following"), Dimension("naturalness", "Naturalness"))
ASKED = {
    "replace": (REPLACE, FIVE), "style": (STYLE, FIVE), "extract": (EXTRACT, FIVE), "edit": (EDIT, FIVE),
    "viescore": (EDIT, TEN),
}  # fmt: skip
DIGITS = ("0123456789", "０１２３４５６７８９", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "๐๑๒๓๔๕๖๗๘๙")
SHOWN = (
    "plain/as asked", "plain/reordered", "ending/full stop", "of/slash", "of/ten, number on the scale",
    "remark/in brackets", "remark/or in brackets", "range/hyphen", "out/ninety-nine", "digits/Thai",
    "digits/superscript", "markdown/bold label with its colon", "markdown/bold value, of five outside", "JSON/labels",
    "JSON/pretty after a sentence", "missing/last", "twice/different", "prose/a total", "echo/the form, then scores",
    "think/other scores before", "language/Chinese",
)  # fmt: skip


def strictly(row: dict[str, Any]) -> list[int] | str:
    """Scores in the rubric's order, or the reason why there are none."""
    said = parse_reply(row["reply"], *ASKED[row["dimensions"]])
    return said.reason if isinstance(said, Misread) else list(said.values())


def officially(reply: str) -> list[int] | None:
    try:
        return official_scores(reply)
    except ValueError:
        return None


def by_the_rule(reply: str) -> list[int]:
    """The official rule once more, read sign by sign."""
    numbers = []
    for line in reply.splitlines():
        stripped = line.strip()
        places = [at for at in range(len(stripped) - 1) if stripped[at] == ":" and stripped[at + 1] == " "]
        after = stripped[places[0] + 2 :] if len(places) == 1 else ""
        if after and not [sign for sign in after if not sign.isdigit()]:
            numbers.append(int(after))
    return numbers


def counts() -> str:
    """How often the readers agree, over all replies."""
    rows = [(strictly(row), officially(row["reply"])) for row in REPLIES]
    read = [(strict, official) for strict, official in rows if isinstance(strict, list)]
    refused = [official for strict, official in rows if isinstance(strict, str)]
    partly = sum(bool(official) and official != strict for strict, official in read)
    reasons = Counter(strict for strict, _ in rows if isinstance(strict, str))
    named = ", ".join(f"`{reason}` {count}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
    return (
        f"Of {len(rows)} replies the strict reader takes {len(read)}: there the official one finds the same numbers in "
        f"{sum(strict == official for strict, official in read)}, more, fewer or in another order in {partly}, and "
        f"none in {sum(not official for _, official in read)}. Of the {len(refused)} refused ones ({named}) it takes a "
        f"score from {sum(bool(official) for official in refused)}, finds none in "
        f"{sum(official == [] for official in refused)}, and is ended by {refused.count(None)}."
    )


def table() -> str:
    """The rows of SHOWN as the document has them."""
    lines = [
        "| Case | Reply without its reason | Strict | Official numbers | Official score |",
        "|---|---|---|---|---|",
    ]
    rows = {row["name"]: row for row in REPLIES}
    for name in SHOWN:
        row = rows[name]
        written = [line for line in row["reply"].splitlines() if line and not line.startswith(("Brief", "```", "<"))]
        strict, official = strictly(row), officially(row["reply"])
        reading = f"`{strict}`" if isinstance(strict, str) else ", ".join(map(str, strict))
        numbers = "error" if official is None else ", ".join(map(str, official)) or "none"
        shown = one_line(" ⏎ ".join(written), 110)
        lines.append(f"| {name} | `{shown}` | {reading} | {numbers} | {official_score(row['reply']) or 'none'} |")
    return "\n".join(lines)


def test_there_are_many_different_replies() -> None:
    assert len(REPLIES) > 350
    assert len({row["reply"] for row in REPLIES}) == len({row["name"] for row in REPLIES}) == len(REPLIES)
    outcomes = Counter(row["strict"] if isinstance(row["strict"], str) else "scores" for row in REPLIES)
    assert set(outcomes) == {
        "scores", "missing", "not_a_number", "out_of_range", "duplicate", "contradictory", "unreadable"
    }  # fmt: skip


@pytest.mark.parametrize("row", REPLIES, ids=[row["name"] for row in REPLIES])
def test_each_reply_is_read_as_expected(row: dict[str, Any]) -> None:
    assert strictly(row) == row["strict"]
    assert officially(row["reply"]) == row["official"]
    assert official_score(row["reply"]) == row["official_mean"]


def test_the_document_says_where_the_readers_differ() -> None:
    document = (ROOT / "docs/judge-parsers.md").read_text(encoding="utf-8")
    assert table() in document
    assert counts() in document.replace("\n", " ")


def test_a_misreading_says_which_score() -> None:
    said = parse_reply("Following: 4\nNaturalness: 9\x1b[31m of all", EDIT, FIVE)
    assert said == Misread("not_a_number", "Naturalness: 9 [31m of all is no whole number")
    assert parse_reply("Following: 6", EDIT, FIVE) == Misread("out_of_range", "Following: 6 is not on the scale 1 to 5")
    assert parse_reply("Following: 4", EDIT, FIVE) == Misread("missing", "no line for Naturalness")
    assert parse_reply("Following: 4\nFollowing: 4", EDIT, FIVE) == Misread("duplicate", "Following is given 2 times")


@pytest.mark.parametrize(
    "reply",
    [
        "\n" * LONGEST_REPLY,
        "Following: 4" + " " * (LONGEST_REPLY - 100) + "x",
        "Following: 4 (" + "(" * (LONGEST_REPLY - 100),
        "Following: " + "4" * (LONGEST_REPLY - 100) + "x",
        "Following: 4/" + "5" * (LONGEST_REPLY - 100),
        "Following: 4" + "*_" * (LONGEST_REPLY // 2 - 100) + "x",
        "```" + "-" * (LONGEST_REPLY - 100) + "x",
        '{"following":' * 7000,
        "{" + '"a": [' * 15000,
        '{"following": ' + "9" * 9000 + "}",
    ],
    ids=range(10),
)  # fmt: skip
def test_hostile_replies_are_refused_quickly(reply: str) -> None:
    start = time.process_time()
    assert isinstance(parse_reply(reply, EDIT, FIVE), Misread)
    assert len(parse_reason(reply, EDIT)) <= LONGEST_REASON
    assert time.process_time() - start < 3


def test_a_reply_has_a_longest_length() -> None:
    reply = "Following: 4\nNaturalness: 3\n"
    assert parse_reply(reply.ljust(LONGEST_REPLY), EDIT, FIVE) == {"following": 4, "naturalness": 3}
    said = parse_reply(reply.ljust(LONGEST_REPLY + 1), EDIT, FIVE)
    assert isinstance(said, Misread) and said.reason == "unreadable"


def mapped(write: Callable[[str, str], str]) -> Callable[[list[str], list[str]], str]:
    return lambda labels, values: "\n".join(map(write, labels, values))


def fenced(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=1)}\n```"


DECORATIONS: dict[str, Callable[[list[str], list[str]], str]] = {
    "bold": mapped(lambda label, value: f"**{label}:** {value}"),
    "bold value": mapped(lambda label, value: f"- {label}: **{value}**"),
    "stop": mapped(lambda label, value: f"{label}: {value}."),
    "remark": mapped(lambda label, value: f"{label}: {value} (good)"),
    "sentence": mapped(lambda label, value: f"* {label}: {value}. Hardly a trace."),
    "table": mapped(lambda label, value: f"| {label} | {value} |"),
    "numbered": lambda labels, values: "\n".join(
        f"{place}. **{label}**: {value}" for place, (label, value) in enumerate(zip(labels, values, strict=True), 1)
    ),
    "upside down": lambda labels, values: mapped(lambda label, value: f"{label}：{value}")(labels[::-1], values[::-1]),
    "fence": lambda *both: "```\r\n" + mapped(lambda label, value: f"{label}: {value}\r")(*both) + "\n```",
    "JSON": lambda labels, values: json.dumps(dict(zip(labels, values, strict=True))),
    "nested": lambda labels, values: fenced({label: {"why": "5 of 5", "score": value}
                                            for label, value in zip(labels, values, strict=True)}),
}  # fmt: skip


@st.composite
def asked(draw: st.DrawFn) -> tuple[tuple[Dimension, ...], Scale, list[int]]:
    """Dimensions, a scale and scores on it."""
    dimensions, _ = ASKED[draw(st.sampled_from(sorted(ASKED)))]
    scale = draw(st.sampled_from((FIVE, TEN)))
    values = st.integers(scale.low, scale.high)
    return dimensions, scale, draw(st.lists(values, min_size=len(dimensions), max_size=len(dimensions)))


@given(asked(), st.text(max_size=60))
def test_what_rubrics_ask_for_is_read_back(case: tuple[tuple[Dimension, ...], Scale, list[int]], reason: str) -> None:
    dimensions, scale, scores = case
    reply = reply_text(dimensions, scores, one_line(reason, 60))
    assert parse_reply(reply, dimensions, scale) == {
        one.key: score for one, score in zip(dimensions, scores, strict=True)
    }
    assert by_the_rule(reply_text(dimensions, scores)) == scores


@pytest.mark.parametrize("decoration", DECORATIONS)
@given(case=asked(), digits=st.sampled_from(DIGITS), of=st.sampled_from(("", "/", " / ", " out of ")))
def test_every_way_of_writing_scores_is_read_back(
    decoration: str, case: tuple[tuple[Dimension, ...], Scale, list[int]], digits: str, of: str
) -> None:
    dimensions, scale, scores = case
    written = [f"{score}{of and of + str(scale.high)}".translate(str.maketrans(DIGITS[0], digits)) for score in scores]
    reply = DECORATIONS[decoration]([one.label for one in dimensions], written)
    expected = {one.key: score for one, score in zip(dimensions, scores, strict=True)}
    assert parse_reply(reply, dimensions, scale) == expected


@pytest.mark.parametrize("name", PACKAGED)
def test_the_labels_of_every_packaged_rubric_are_read(name: str) -> None:
    rubric = load_rubric(name)
    for section in rubric.sections.values():
        scores = list(range(1, len(section.dimensions) + 1))
        keys = [one.key for one in section.dimensions]
        reply = reply_text(section.dimensions, scores, "fine")
        assert parse_reply(reply, section.dimensions, rubric.scale) == dict(zip(keys, scores, strict=True))


FRAGMENTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ("Following", "following", "Naturalness: ", ": ", "\n", "4", "4/5", "9", "-", "٤", "²", "**", "```",
         "```json\n", "{", "}", '"', ",", "[", "null", "NaN", "|", " (good)", " out of 5", "<think>", "\x00",
         "\u2028", "\ud800", "=", "1. ")
    ),
)  # fmt: skip


@given(st.lists(FRAGMENTS, max_size=25).map("".join), st.sampled_from((FIVE, TEN)))
def test_any_reply_has_all_scores_or_none(reply: str, scale: Scale) -> None:
    said = parse_reply(reply, EDIT, scale)
    if not isinstance(said, Misread):
        assert list(said) == ["following", "naturalness"]
        assert all(type(score) is int and score in scale.values for score in said.values())
    reason = parse_reason(reply, EDIT)
    assert len(reason) <= LONGEST_REASON and reason == one_line(reason, LONGEST_REASON)


@given(asked(), st.data())
def test_a_score_more_or_less_is_refused(
    case: tuple[tuple[Dimension, ...], Scale, list[int]], data: st.DataObject
) -> None:
    dimensions, scale, scores = case
    lines = reply_text(dimensions, scores).splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    fewer = parse_reply("\n".join(lines[:place] + lines[place + 1 :]), dimensions, scale)
    assert fewer == Misread("missing", f"no line for {dimensions[place].label}")
    again = data.draw(st.integers(scale.low, scale.high))
    more = parse_reply("\n".join([*lines, f"{dimensions[place].label}: {again}"]), dimensions, scale)
    assert isinstance(more, Misread)
    assert more.reason == ("duplicate" if again == scores[place] else "contradictory")


@given(st.lists(FRAGMENTS, max_size=25).map("".join))
def test_the_official_reader_follows_its_rule(reply: str) -> None:
    try:
        expected = by_the_rule(reply)
    except ValueError:
        assert officially(reply) is None and official_score(reply) is None
    else:
        assert official_scores(reply) == expected
        assert official_score(reply) == (round(sum(expected) / len(expected), 2) if expected else None)


def test_what_ends_the_official_script_has_no_official_score() -> None:
    for sign in "²⑤":
        with pytest.raises(ValueError, match="invalid literal"):
            official_scores(f"A: 4\nB: {sign}")
        assert official_score(f"A: 4\nB: {sign}") is None
    assert official_score("A: " + "9" * 400) is None
    assert official_score("A: " + "9" * 5000) is None
    assert official_score("A: 1\nB: 1\nC: 3") == 1.67


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("Brief reasoning: a clean swap\nFollowing: 4\nNaturalness: 3", "a clean swap"),
        ("**Brief reasoning:** *a clean swap*\n\nFollowing: 4", "a clean swap"),
        ("Following: 4\nNaturalness: 3\nReason: soft edges", "soft edges"),
        ("The bus is there.\nIts shadow is not.\nFollowing: 4\nNaturalness: 3", "The bus is there. Its shadow is not."),
        ('{"reasoning": "soft\\nedges", "following": 4}', "soft edges"),
        ('{"reasoning": "cut \\ud83d here"}', "cut here"),
        ('{"reasoning": ["a"], "following": 4}', ""),
        ('{"following": 4', ""),
        ("Following: 4\nNaturalness: 3", ""),
        ("", ""),
        ("Brief reasoning: " + "x" * 999, "x" * LONGEST_REASON),
        ("Reason: a\x1b[1mb\u202ec", "a [1mb c"),
    ],
)
def test_the_reason(reply: str, reason: str) -> None:
    assert parse_reason(reply, EDIT) == reason


if __name__ == "__main__":
    print(table(), counts(), sep="\n\n")
