"""The local judge against transformers' own forward and `generate` on the same miniature: nothing that it shares, keeps

or reads side by side changes what is said. Logits are of size 1 to 5 and agree to 2e-5, probabilities to 1e-5.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from judge_data import draw
from judge_reference import THREE, TWO, Reference, pictures_of, some_cases, teach, write_rubric
from safetensors.torch import load_file, save_file

from editfoundry.core.errors import ConfigError, EditFoundryError, UsageError
from editfoundry.models.judge.folder import REGRESSION
from editfoundry.models.judge.local import LocalJudge, LocalJudgeOptions
from editfoundry.models.judge.miniature import write_miniature_judge
from editfoundry.models.judge.parser import Misread, parse_reply
from editfoundry.models.judge.rubric import REASON, Rubric, load_rubric, reply_text, scored_line
from editfoundry.models.judge.shown import Shown
from editfoundry.models.judge.types import Case, Comparison, Order, Preference, Scored
from editfoundry.models.protocols import Unanswered

LOGITS, SHARES = {"atol": 2e-5, "rtol": 0.0}, 1e-5
ORDERS: tuple[Order, ...] = ("compat", "fast")
CASES = some_cases()
LEARNED = CASES[:5:2]
"""Of three, two and one scores."""
ONE_SOURCE = [replace(CASES[0], id=str(number), result=draw(100 + number)) for number in range(4)]
"""Results of four editors for one source and instruction."""
LONG = "no hat is to be seen on it"
REPLIES = (("", (10, 1, 4)), (LONG, (1, 10)), ("good edit", (7,)))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judges")


@pytest.fixture(scope="module")
def folder(home: Path) -> Path:
    return write_miniature_judge(home / "miniature")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def rubrics(home: Path) -> dict[tuple[int, int], str]:
    """Rubric files with sections of three, two and one scores, by scale."""
    sections = {"add": THREE, "remove": TWO, "style": {"following": "Following"}}
    return {scale: write_rubric(home / f"to{scale[1]}.yaml", scale, **sections) for scale in ((1, 5), (0, 10))}


@pytest.fixture(scope="module")
def taught(home: Path, folder: Path, rubrics: dict[tuple[int, int], str]) -> Path:
    """A judge that knows replies to the first cases by heart."""
    return teach(folder, home / "taught", load_rubric(rubrics[0, 10]), LEARNED, REPLIES)


def judge(folder: Path, **options: Any) -> LocalJudge:
    """A judge that shows pictures as its folder says, and shares nothing but the weights with other judges."""
    settings = json.loads((folder / "judge.json").read_text("utf-8"))
    sizes = {name: settings[name] for name in ("min_pixels", "max_pixels")}
    return LocalJudge(LocalJudgeOptions(checkpoint=str(folder), **{"rubric": "edit", **sizes, **options}))


def scored(verdicts: Sequence[Scored | Unanswered]) -> list[Scored]:
    assert all(isinstance(verdict, Scored) for verdict in verdicts), verdicts
    return [verdict for verdict in verdicts if isinstance(verdict, Scored)]


def assert_alike(some: Sequence[Scored | Unanswered], others: Sequence[Scored | Unanswered]) -> None:
    for one, other in zip(scored(some), scored(others), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=10 * SHARES)
        assert {key: list(row) for key, row in one.probabilities.items()} == {
            key: pytest.approx(list(row), abs=SHARES) for key, row in other.probabilities.items()
        }
        assert one.uncovered == pytest.approx(other.uncovered, abs=SHARES)


def by_hand(reference: Reference, rubric: Rubric, case: Case, begun: list[int], order: Order) -> list[float]:
    """Probabilities of the values and what is uncovered, from a forward pass of its own (two for a scale to ten)."""

    def shares(tokens: list[int]) -> list[float]:
        prompt = rubric.prompt(case.type, case.instruction, order)
        logits = reference.logits(reference.inputs([prompt], [pictures_of(case)], tokens))[0]
        exact: list[float] = torch.softmax(logits.double(), -1).tolist()
        return exact

    first, [zero], [one] = shares(begun), reference.ids("0"), reference.ids("1")
    low, high = rubric.scale.low, rubric.scale.high
    values = [first[reference.ids(str(value))[0]] for value in range(low, min(high, 9) + 1)]
    if high == 10:
        ten = shares([*begun, one])[zero]
        values[1 - low] = first[one] * (1 - ten)
        values.append(first[one] * ten)
    return [value / sum(values) for value in values] + [1 - sum(values)]


@pytest.mark.parametrize("order", ORDERS)
def test_every_way_of_reading_gives_the_same_logits(folder: Path, reference: Reference, order: Order) -> None:
    """Fresh and single by transformers; a batch of it, padded on the left; ours, shared or not, in batches."""
    rubric, cases = load_rubric("edit"), [*CASES[::2], CASES[1]]
    prompts = [rubric.prompt(case.type, case.instruction, order) for case in cases]
    pictures = [pictures_of(case) for case in cases]
    pairs = list(zip(prompts, pictures, strict=True))
    single = torch.cat([reference.logits(reference.inputs([one], [two])) for one, two in pairs])
    assert single.abs().max() > 1, "logits that could be told apart"
    together = reference.inputs(prompts, pictures)
    assert together["attention_mask"][:, 0].sum() < len(cases), "some rows are padded"
    torch.testing.assert_close(reference.logits(together), single, **LOGITS)
    for share, batch in ((True, 1), (True, 4), (False, 1), (False, 16)):
        mine = judge(folder, share=share, batch=batch)
        mine.load()
        shown = Shown(mine.encoder, 10_000)
        questions = [shown.question(*one) for one in pairs]
        mine._prefill.patches = shown.patches
        found = torch.zeros_like(single)
        with torch.inference_mode():
            for branches in mine._prefill.run(questions):
                found[branches.members] = mine._logits(branches)
        torch.testing.assert_close(found, single, **LOGITS)


def test_replies_of_unequal_length_side_by_side(folder: Path, reference: Reference) -> None:
    """Each goes on from its own last token, at its own place, however many its neighbours have."""
    mine, rubric, cases = judge(folder, share=False), load_rubric("short"), CASES[:3]
    mine.load()
    shown = Shown(mine.encoder, 10_000)
    prompts = [rubric.prompt(case.type, case.instruction, "compat") for case in cases]
    questions = [shown.question(one, pictures_of(case)) for one, case in zip(prompts, cases, strict=True)]
    mine._prefill.patches = shown.patches
    turns = [["a red hat", "", "hat"], ["", " on it", "s are"], [" 1", " 2", ""]]
    with torch.inference_mode():
        for branches in mine._prefill.run(questions):
            said: list[list[int]] = [[] for _ in branches.members]
            for turn in turns:
                more = [reference.ids(turn[member]) for member in branches.members]
                mine._prefill.extend(branches, more)
                said = [[*before, *tokens] for before, tokens in zip(said, more, strict=True)]
                found = mine._logits(branches)
                for row, member in enumerate(branches.members):
                    fresh = reference.inputs([prompts[member]], [pictures_of(cases[member])], said[row])
                    torch.testing.assert_close(found[row], reference.logits(fresh)[0], **LOGITS)
    assert mine.counts.decode_tokens == sum(len(reference.ids(words)) for turn in turns for words in turn)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", ["chained", "independent"])
@pytest.mark.parametrize("scale", [(1, 5), (0, 10)])
def test_sharing_and_batches_change_no_score(
    folder: Path, rubrics: dict[tuple[int, int], str], scale: tuple[int, int], steps: str, order: Order
) -> None:
    """Over sections of one, two and three scores, several instructions and sizes, mixed in every batch."""
    about = {"rubric": rubrics[scale], "steps": steps, "order": order}
    alone = judge(folder, share=False, batch=1, **about)
    fresh = [alone.score([case])[0] for case in CASES]
    assert [len(one.scores) for one in scored(fresh[:6:2])] == [3, 2, 1]
    spread = np.ptp([one.scores["following"] for one in scored(fresh)])
    assert spread > 100 * SHARES, "scores that could be told apart"
    for share, batch in ((True, 1), (True, 5), (False, 16)):
        assert_alike(judge(folder, share=share, batch=batch, **about).score(CASES), fresh)


def test_a_picture_is_encoded_once_and_kept(folder: Path) -> None:
    mine = judge(folder)
    first = mine.score(ONE_SOURCE)
    assert mine.counts.vision_encodes == 5
    again = mine.score([replace(case, source=case.source.copy()) for case in ONE_SOURCE])
    assert mine.counts.vision_encodes == 5, "equal pixels are one picture"
    assert_alike(again, first)
    assert_alike(first, judge(folder, share=False).score(ONE_SOURCE))
    swapped = mine.score([replace(ONE_SOURCE[0], source=ONE_SOURCE[0].result, result=ONE_SOURCE[0].source)])
    assert mine.counts.vision_encodes == 5
    assert_alike(swapped, judge(folder).score([replace(ONE_SOURCE[0], source=ONE_SOURCE[0].result,
                                                        result=ONE_SOURCE[0].source)]))  # fmt: skip
    assert scored(swapped)[0].scores != pytest.approx(scored(first)[0].scores, abs=SHARES)


@pytest.mark.parametrize("model", ["random", "taught"])
@pytest.mark.parametrize("scale", [(1, 5), (0, 10)])
def test_chained_scores_are_those_of_constrained_generation(
    request: pytest.FixtureRequest,
    folder: Path,
    rubrics: dict[tuple[int, int], str],
    scale: tuple[int, int],
    model: str,
) -> None:
    """Each score's probabilities are those after the scores that `generate` writes when it is held to the form, and the

    most probable value is the one that it writes. Greedy search first chooses a digit: only if that is a 1 can another
    value than 1 or 10 be as probable as either.
    """
    where = folder if model == "random" else request.getfixturevalue("taught")
    reference, rubric, seen = Reference(where), load_rubric(rubrics[scale]), set()
    for case, verdict in zip(LEARNED, scored(judge(where, rubric=rubrics[scale]).score(LEARNED)), strict=True):
        dimensions = rubric.section(case.type).dimensions
        prompt = rubric.prompt(case.type, case.instruction, "compat")
        inputs = reference.inputs([prompt], [pictures_of(case)])
        written = reference.constrained(inputs, dimensions, rubric.scale)
        begun: list[int] = []
        for place, (dimension, score) in enumerate(zip(dimensions, written, strict=True)):
            begun += reference.ids(("\n" if place else "") + scored_line(dimension))
            *expected, uncovered = by_hand(reference, rubric, case, begun, "compat")
            given = verdict.probabilities[dimension.key]
            assert list(given) == pytest.approx(expected, abs=SHARES)
            assert verdict.uncovered >= uncovered - SHARES
            mean = sum(share * value for share, value in zip(given, rubric.scale.values, strict=True))
            assert verdict.scores[dimension.key] == pytest.approx(mean)
            if scale == (1, 5) or model == "taught" or score not in (1, 10):
                assert rubric.scale.low + int(np.argmax(given)) == score
            seen.add(score)
            begun += [token for digit in str(score) for token in reference.ids(digit)]
    assert model == "random" or scale == (1, 5) or seen == {1, 4, 7, 10}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scale", [(1, 5), (0, 10)])
def test_independent_scores_are_those_of_each_score_asked_alone(
    folder: Path, reference: Reference, rubrics: dict[tuple[int, int], str], scale: tuple[int, int], order: Order
) -> None:
    rubric = load_rubric(rubrics[scale])
    verdicts = scored(judge(folder, rubric=rubrics[scale], steps="independent", order=order).score(LEARNED))
    for case, verdict in zip(LEARNED, verdicts, strict=True):
        uncovered = []
        for dimension in rubric.section(case.type).dimensions:
            *expected, rest = by_hand(reference, rubric, case, reference.ids(scored_line(dimension)), order)
            assert list(verdict.probabilities[dimension.key]) == pytest.approx(expected, abs=SHARES)
            uncovered.append(rest)
        assert verdict.uncovered == pytest.approx(max(uncovered), abs=SHARES)


@pytest.mark.parametrize("limit", [48, 12])
def test_compat_generation_is_that_of_transformers(
    taught: Path, rubrics: dict[tuple[int, int], str], limit: int
) -> None:
    """Text for text, and so score for score, in any batch; a reply that does not end is no reply."""
    rubric, reference, cases = load_rubric(rubrics[0, 10]), Reference(taught), [*LEARNED, *CASES[1:7:2]]
    for batch in (1, 8):
        mine = judge(taught, rubric=rubrics[0, 10], head="generate", max_new_tokens=limit, batch=batch)
        verdicts = mine.score(cases)
        kinds = set()
        for case, verdict in zip(cases, verdicts, strict=True):
            prompt = rubric.prompt(case.type, case.instruction, "compat")
            tokens = reference.generate(reference.inputs([prompt], [pictures_of(case)]), limit)
            if reference.end not in tokens:
                assert isinstance(verdict, Unanswered) and verdict.reason == "truncated"
                kinds.add("truncated")
                continue
            text = reference.tokenizer.decode(tokens, skip_special_tokens=True)
            said = parse_reply(text, rubric.section(case.type).dimensions, rubric.scale)
            if isinstance(said, Misread):
                assert isinstance(verdict, Unanswered) and verdict.reason == said.reason
                continue
            assert isinstance(verdict, Scored)
            assert verdict.reply == text and verdict.scores == said
            kinds.add(verdict.reason)
        if limit == 48:
            assert [tuple(one.scores.values()) for one in scored(verdicts[:3])] == [scores for _, scores in REPLIES]
        assert kinds >= ({"", LONG, "good edit"} if limit == 48 else {"truncated"})


def test_fast_generation_writes_a_reason_and_then_scores_in_the_form(
    taught: Path, rubrics: dict[tuple[int, int], str]
) -> None:
    rubric, reference = load_rubric(rubrics[0, 10]), Reference(taught)
    mine = judge(taught, rubric=rubrics[0, 10], head="generate", order="fast", max_new_tokens=9)
    verdicts, read = mine.score(LEARNED), 0
    ends = set()
    for case, verdict in zip(LEARNED, scored(verdicts), strict=True):
        prompt, pictures = rubric.prompt(case.type, case.instruction, "fast"), pictures_of(case)
        begun = reference.ids(REASON)
        tokens = reference.generate(reference.inputs([prompt], [pictures], begun), 9)
        line = [place for place, token in enumerate(tokens)
                if token == reference.end or "\n" in reference.tokenizer.decode([token])]  # fmt: skip
        reason = tokens[: line[0]] if line else tokens
        ends.add(reference.tokenizer.decode(tokens[line[0]]) if line else "")
        inputs = reference.inputs([prompt], [pictures], [*begun, *reason, *reference.ids("\n")])
        written = reference.constrained(inputs, rubric.section(case.type).dimensions, rubric.scale)
        assert verdict.reply == reference.tokenizer.decode(reason)
        assert list(verdict.scores.values()) == written
        reply = [*reason, *reference.ids("\n" + reply_text(rubric.section(case.type).dimensions, written))]
        read += len(reply) - len(str(written[-1])) + len(written)
    assert mine.counts.decode_tokens == read, "all but the last score, and a 1 where each score stands"
    assert {"\n", ""} <= ends, "by the line's end, and cut off at the limit"


def test_what_is_counted(folder: Path) -> None:
    """Four results of one source by one instruction. Score steps: for each score after the first, the tokens of the one

    before and of its own line; on a scale to ten, also the 1 after which a 0 is looked for.
    """
    rubric = load_rubric("edit")
    [first, second] = rubric.section("add").dimensions
    counts, tokens = {}, {}
    for name, options in {
        "shared": {}, "fresh": {"share": False}, "independent": {"steps": "independent"}, "one by one": {"batch": 1},
    }.items():  # fmt: skip
        mine = judge(folder, **options)
        scored(mine.score(ONE_SOURCE))
        counts[name], tokens[name] = mine.counts, mine.encoder.reply_ids
    step = 1 + len(tokens["shared"](f"\n{scored_line(second)}"))
    assert {one.vision_encodes for one in counts.values()} == {5}
    assert [counts[name].decode_tokens for name in ("shared", "fresh", "one by one")] == [4 * step] * 3
    assert counts["independent"].decode_tokens == 0
    assert counts["shared"].forwards == 1 + 1 + 1, "the beginning, four ends side by side, the second score"
    assert counts["one by one"].forwards == 1 + 4 + 4
    assert counts["fresh"].forwards == 1 + 1
    grid = mine.encoder.grid(60, 84)
    question = mine.encoder.tokens(rubric.prompt("add", ONE_SOURCE[0].instruction, "compat"), dict.fromkeys(
        ("source", "result"), grid))  # fmt: skip
    line = len(tokens["shared"](scored_line(first)))
    assert counts["fresh"].prefill_tokens == 4 * (len(question) + line)
    places = [place for place, token in enumerate(question.ids.tolist()) if token == mine.encoder.image_token]
    result = places[mine.encoder.picture_tokens(grid)]
    assert counts["shared"].prefill_tokens == result + 4 * (len(question) + line - result)
    assert counts["shared"].prefill_tokens < 0.6 * counts["fresh"].prefill_tokens


def test_score_steps_to_ten(folder: Path, rubrics: dict[tuple[int, int], str]) -> None:
    """A row with fewer scores than its neighbours takes no part in their steps."""
    mine = judge(folder, rubric=rubrics[0, 10], batch=2)
    three, one = CASES[0], CASES[4]
    verdicts = scored(mine.score([three, one]))
    steps = [mine.encoder.reply_ids(f"\n{label}: ") for label in list(THREE.values())[1:]]
    tens = sum(np.argmax(verdicts[0].probabilities[key]) == 10 for key in list(THREE)[:2])
    assert mine.counts.decode_tokens == 4 + sum(1 + len(step) for step in steps) + tens


def test_the_regression_head_by_hand(folder: Path, reference: Reference, tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    shutil.copytree(folder, trained)
    torch.manual_seed(1)
    weight, bias = 0.1 * torch.randn(6, 128), torch.randn(6)
    save_file({"weight": weight, "bias": bias}, trained / REGRESSION)
    verdicts = scored(judge(trained, rubric="edit", head="regression", order="fast").score(CASES))
    for case, verdict in zip(CASES, verdicts, strict=True):
        prompt = load_rubric("edit").prompt(case.type, case.instruction, "fast")
        state = reference.states(reference.inputs([prompt], [pictures_of(case)]))[0]
        out = weight @ state + bias
        assert list(verdict.scores) == ["following", "naturalness"]
        assert list(verdict.scores.values()) == pytest.approx(out[:2].tolist(), abs=1e-5)
        assert list(verdict.deviations.values()) == pytest.approx((out[3:5] / 2).exp().tolist(), abs=1e-5)
        assert not verdict.probabilities and not verdict.reason
    with pytest.raises(UsageError, match="without a regression head; use --head expected or --head generate"):
        judge(folder, head="regression").load()
    save_file({"weight": weight[:, :64].contiguous(), "bias": bias}, trained / REGRESSION)
    with pytest.raises(EditFoundryError, match="not the regression head of this model"):
        judge(trained, head="regression").load()


@pytest.mark.parametrize("order", ORDERS)
def test_preferences_are_the_mean_over_both_orders(folder: Path, reference: Reference, order: Order) -> None:
    rubric = load_rubric("edit")
    pairs = [Comparison(str(number), one.source, one.result, two.result, one.instruction, one.type)
             for number, (one, two) in enumerate(zip(CASES[::2], CASES[1::2], strict=True))]  # fmt: skip
    mine = judge(folder, order=order)
    found = mine.prefer(pairs)
    assert mine.counts.vision_encodes == len({one.tobytes() for pair in pairs for one in
                                              (pair.source, pair.first, pair.second)})  # fmt: skip
    letters = [reference.ids(letter)[0] for letter in "ABC"]
    for pair, preference in zip(pairs, found, strict=True):
        assert isinstance(preference, Preference)
        shares = []
        for swapped in (False, True):
            prompt = rubric.comparison(pair.type, pair.instruction, order, swapped)
            pictures = {"source": pair.source, "first": pair.first, "second": pair.second}
            logits = reference.logits(reference.inputs([prompt], [pictures]))[0]  # type: ignore[list-item]
            shares.append(torch.softmax(logits.double(), -1)[letters])
        (a, b, c), (d, e, f) = ((one / one.sum()).tolist() for one in shares)
        assert preference.first == pytest.approx((a + e) / 2, abs=SHARES)
        assert preference.second == pytest.approx((b + d) / 2, abs=SHARES)
        assert preference.tie == pytest.approx((c + f) / 2, abs=SHARES)
        assert preference.uncovered == pytest.approx(1 - min(float(one.sum()) for one in shares), abs=SHARES)
    mirrored = mine.prefer([replace(pair, first=pair.second, second=pair.first) for pair in pairs])
    for one, other in zip(found, mirrored, strict=True):
        assert isinstance(one, Preference) and isinstance(other, Preference)
        assert (other.second, other.tie, other.first) == pytest.approx((one.first, one.tie, one.second), abs=SHARES)
        assert one.consistent == other.consistent
    [same] = mine.prefer([replace(pairs[0], second=pairs[0].first.copy())])
    assert isinstance(same, Preference) and same.first == pytest.approx(same.second, abs=SHARES)


def narrow(picture: tuple[int, int]) -> np.ndarray:
    return np.zeros((*picture, 3), np.uint8)


def test_what_cannot_be_shown_is_unanswered_and_the_rest_is_scored(folder: Path) -> None:
    wrong = [replace(CASES[0], source=narrow((1, 101))), replace(CASES[0], result=narrow((0, 7)))]
    verdicts = judge(folder).score([CASES[0], *wrong, CASES[1]])
    assert_alike([verdicts[0], verdicts[3]], judge(folder).score(CASES[:2]))
    for verdict, words in zip(verdicts[1:3], ("101x1 pixels is too narrow", "7x0"), strict=True):
        assert isinstance(verdict, Unanswered)
        assert (verdict.kind, verdict.reason) == ("failed", "bad_picture") and words in verdict.detail
    one = CASES[0]
    pair = Comparison("p", one.source, one.result, narrow((200, 1)), one.instruction, one.type)
    bad, good = judge(folder).prefer([pair, replace(pair, second=CASES[1].result)])
    assert isinstance(bad, Unanswered) and bad.reason == "bad_picture" and isinstance(good, Preference)
    assert judge(folder).score([]) == [] and judge(folder).prefer([]) == []


@pytest.mark.parametrize("steps", ["chained", "independent"])
def test_a_question_longer_than_the_model_reads_is_unanswered(folder: Path, tmp_path: Path, steps: str) -> None:
    """By one token of the longest question about it; the other questions about that case are not asked either."""
    mine = judge(folder, steps=steps)
    [case, longer] = CASES[0], replace(CASES[0], instruction=CASES[0].instruction * 20)
    mine.load()
    shown, prompt = Shown(mine.encoder, 10_000), load_rubric("edit").prompt(case.type, case.instruction, "compat")
    dimensions = load_rubric("edit").section(case.type).dimensions
    length = max(
        len(shown.question(prompt, pictures_of(case), mine.encoder.reply_ids(scored_line(one))).ids)
        for one in (dimensions if steps == "independent" else dimensions[:1])
    )
    for most, fits in ((length, True), (length - 1, False)):
        short = tmp_path / f"reads{most}"
        shutil.copytree(folder, short)
        config = json.loads((short / "config.json").read_text("utf-8"))
        config["text_config"]["max_position_embeddings"] = most
        (short / "config.json").write_text(json.dumps(config), "utf-8")
        verdicts = judge(short, steps=steps).score([longer, case])
        kinds = [verdict.reason if isinstance(verdict, Unanswered) else "scored" for verdict in verdicts]
        assert kinds == ["too_long", "scored" if fits else "too_long"]
        assert isinstance(verdicts[0], Unanswered)
        assert f"the model reads {most}; lower --max-pixels" in verdicts[0].detail


def test_an_output_that_is_no_number_is_an_error(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["lm_head.weight"][7] = float("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(EditFoundryError, match=r"output is not finite.*bfloat16 or float32"):
        judge(broken).score(CASES[:1])
    with pytest.raises(EditFoundryError, match="output is not finite"):
        judge(broken).prefer([Comparison("", *(CASES[0].source,) * 3, "Go.", "add")])


def test_scores_of_which_none_has_any_probability(folder: Path, tmp_path: Path) -> None:
    sure = tmp_path / "sure"
    shutil.copytree(folder, sure)
    tensors = load_file(sure / "model.safetensors")
    tensors["lm_head.weight"][:] = 0
    tensors["lm_head.weight"][0], tensors["lm_head.weight"][1] = 1e6, -1e6
    save_file(tensors, sure / "model.safetensors", {"format": "pt"})
    for verdict in judge(sure).score(CASES[:2]):
        assert isinstance(verdict, Unanswered) and verdict.reason == "uncovered"


def test_a_scale_beyond_ten_is_refused_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    far = write_rubric(tmp_path / "far.yaml", (0, 100), add=TWO)
    for options in ({"head": "expected"}, {"head": "generate", "order": "fast"}):
        with pytest.raises(ConfigError, match="not from 0 to 100; use --head generate"):
            judge(folder, rubric=far, **options)
    assert judge(folder, rubric=far, head="generate").rubric.scale.high == 100


def test_provenance(folder: Path, taught: Path) -> None:
    plain = judge(folder).provenance()
    rubric = load_rubric("edit")
    assert plain["rubric"] == {"name": "edit", "version": 1, "digest": rubric.digest, "pinned": True}
    assert plain["kind"] == "local" and plain["model"] == "miniature" and plain["miniature"] is True
    assert (plain["head"], plain["steps"], plain["order"]) == ("expected", "chained", "compat")
    assert plain["reason"] == "none is written" and plain["max_new_tokens"] is None
    assert str(folder.parent) not in json.dumps(plain)
    assert plain["digest"] != judge(taught).provenance()["digest"]
    fast = judge(folder, head="generate", order="fast").provenance()
    assert fast["order"] == "fast" and fast["steps"] is None and "read from probabilities" in fast["reason"]
    assert judge(folder, head="generate").provenance()["reason"] == "the whole reply"


def test_an_unknown_type_is_an_error(folder: Path, rubrics: dict[tuple[int, int], str]) -> None:
    with pytest.raises(UsageError, match="no section for it; it has add, remove, style"):
        judge(folder, rubric=rubrics[1, 5]).score([replace(CASES[0], type="replace")])
