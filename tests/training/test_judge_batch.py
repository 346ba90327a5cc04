"""Packed rows: each sequence as it is by itself, and every target at the place where it is predicted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from judge_data import (
    ALL,
    parts_of,
    planned,
    preference,
    rating,
    row_builder,
    source,
    ten_points,
    tiny_encoder,
    write_judged_dataset,
    write_lines,
    write_pictures,
)
from tiny.language import qwen_vl
from training_data import edits, scene

from editfoundry.core.errors import UsageError
from editfoundry.core.images import decode, encode_jpeg
from editfoundry.models.judge.corruption import corrupt
from editfoundry.models.judge.encode import PromptEncoder
from editfoundry.models.judge.rubric import CHOICES, load_rubric
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads
from editfoundry.training.judge.packing import pack
from editfoundry.training.judge.pictures import BadPicture, Pictures, read
from editfoundry.training.judge.records import Choice, Record
from editfoundry.training.judge.rows import soft
from editfoundry.training.judge.sequences import Part, is_swapped, pictures_of
from editfoundry.training.judge.sources import read_sources

EDIT = load_rubric("edit")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> PromptEncoder:
    return tiny_encoder(checkpoint)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pictures")
    write_pictures(made, 4)
    return made


def rated(folder: Path, *rows: dict[str, Any], rubric: Any = EDIT) -> list[Record]:
    return read_sources((source("ratings", write_lines(folder / "r.jsonl", rows)),), rubric).records


def chosen(folder: Path, *rows: dict[str, Any]) -> list[Choice]:
    return read_sources((source("preferences", write_lines(folder / "p.jsonl", rows)),), EDIT).choices


def reasoned(record: Record, reason: str = "it is there") -> Record:
    return Record(**{**vars(record), "reason": reason})


def starts(parts: tuple[Part, ...]) -> list[int]:
    return [0, *np.cumsum([part.length for part in parts]).tolist()]


def text(encoder: PromptEncoder, ids: Any) -> str:
    return str(encoder.tokenizer.decode(ids))


def decoded_digit(encoder: PromptEncoder, row: Row, place: int) -> str:
    return text(encoder, [int(row.ids[0, place + 1])])


def test_a_packed_row_is_its_sequences_one_after_the_other(
    folder: Path, checkpoint: Path, encoder: PromptEncoder
) -> None:
    """Tokens, positions as the model itself counts them for each sequence alone, and the pictures of each run."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(checkpoint).model
    shown = [*rated(folder, rating(0), rating(1), rating(2)), *chosen(folder, preference(1))]
    builder = row_builder(encoder)
    parts = parts_of(builder, *shown)
    row = builder.row(parts)
    assert row.ids.shape == (1, sum(part.length for part in parts))
    assert row.positions.shape == (4, *row.ids.shape)
    runs = row.picture_of_run.tolist()
    patches = row.grids.prod(1).tolist()
    pixels = row.pixel_values.split(patches)
    for part, start, end in zip(parts, starts(parts), starts(parts)[1:], strict=False):
        alone = builder.row([part])
        assert torch.equal(row.ids[:, start:end], alone.ids)
        assert row.positions[0, 0, start:end].tolist() == list(range(part.length))
        mine, runs = runs[: len(alone.picture_of_run)], runs[len(alone.picture_of_run) :]
        marked = (alone.ids == encoder.image_token).int()
        expected, _ = model.get_rope_index(alone.ids, marked, image_grid_thw=row.grids[mine])
        assert torch.equal(row.positions[1:, :, start:end], expected)
        for slot, number in zip(encoder_slots(part), mine, strict=True):
            picture = decode(read(pictures_of(part.shown)[slot]))
            assert torch.equal(pixels[number], encoder.patches(picture).pixel_values)
            assert tuple(row.grids[number].tolist()) == encoder.patches(picture).grid
    assert runs == []


def encoder_slots(part: Part) -> list[Any]:
    if isinstance(part.shown, Choice):
        return ["source", "second", "first"] if is_swapped(part.shown, 0) else ["source", "first", "second"]
    return ["source", "result"]


def test_a_picture_is_kept_once_in_a_row_however_often_it_is_shown(folder: Path, encoder: PromptEncoder) -> None:
    same = rated(folder, rating(0), rating(0, id="b", result="0-second.jpg"), rating(0, id="c", result="0-source.jpg"))
    (folder / "copy.jpg").write_bytes((folder / "0-source.jpg").read_bytes())
    same += rated(folder, rating(0, id="d", source="copy.jpg", result="1-first.jpg"))
    row = row_builder(encoder).row(parts_of(row_builder(encoder), *same))
    assert len(row.grids) == 4
    assert row.picture_of_run.tolist() == [0, 1, 0, 2, 0, 0, 0, 3]
    assert len(row.pixel_values) == int(row.grids.prod(1).sum())
    assert int((row.ids == encoder.image_token).sum()) == sum(
        encoder.picture_tokens(tuple(row.grids[number].tolist())) for number in row.picture_of_run.tolist()
    )


@pytest.mark.parametrize("order", ["compat", "fast"])
@pytest.mark.parametrize("heads", [ALL, Heads(), Heads(expected=0, regression=1), Heads(expected=0, generate=1)])
def test_planned_lengths_are_exact_without_reading_a_picture(
    folder: Path, encoder: PromptEncoder, order: Any, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among others for words that no rubric expects, and for text that looks like a picture's token."""
    odd = ["<|image_pad|>", "\n\n", "a\u00a0<edit_prompt>", "猫を消す", "{{ lines }} <|im_end|>"]
    rows = [rating(n % 4, id=f"o{n}", instruction=f"x {words}") for n, words in enumerate(odd)]
    records = [reasoned(one, f"why {n}") if n % 2 else one for n, one in enumerate(rated(folder, *rows))]
    builder = row_builder(encoder, heads, order=order)
    with monkeypatch.context() as without:
        without.setattr("editfoundry.training.judge.pictures.read", None)
        plan = planned(builder, records, chosen(folder, preference(0, instruction="<|vision_end|>")))
    for part in plan.parts:
        assert builder.row([part]).ids.shape == (1, part.length)
        assert builder.row([part], epoch=1).ids.shape == (1, part.length)


def test_every_score_stands_where_its_digit_is_predicted(folder: Path, encoder: PromptEncoder) -> None:
    records = rated(folder, *(rating(n % 4, id=f"s{n}", scores={"following": 1 + n, "naturalness": 5 - n})
                              for n in range(5)))  # fmt: skip
    row = row_builder(encoder, Heads(), records=records).row(parts_of(row_builder(encoder, Heads()), *records))
    assert [decoded_digit(encoder, row, place) for place in row.score_places.tolist()] == list("1524334251")
    assert row.score_targets.argmax(1).tolist() == [0, 4, 1, 3, 2, 2, 3, 1, 4, 0]
    assert row.score_targets.sum(1).tolist() == [1] * 10
    assert row.score_records.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert row.score_dimensions.tolist() == [0, 1] * 5
    assert set(row.second_places.tolist()) == {-1}
    for place, which in zip(row.score_places.tolist(), row.score_dimensions.tolist(), strict=True):
        before = text(encoder, row.ids[0, : place + 1].tolist())
        assert before.endswith(("Following: ", "Naturalness: ")[which])
    assert row.records == tuple(record.id for record in records)
    assert len(row.reply_places) == len(row.choice_places) == len(row.ranking_pairs) == 0


def test_fractional_scores_are_shared_and_the_nearest_is_written(folder: Path, encoder: PromptEncoder) -> None:
    records = rated(folder, rating(0, scores={"following": 3.25, "naturalness": 4.5}))
    row = row_builder(encoder).row(parts_of(row_builder(encoder), *records))
    assert row.score_targets.tolist() == [[0, 0, 0.75, 0.25, 0], [0, 0, 0, 0.5, 0.5]]
    assert [decoded_digit(encoder, row, place) for place in row.score_places.tolist()] == ["3", "5"]
    assert row.regression_targets.tolist() == [[3.25, 4.5, 0]]
    assert row.regression_mask.tolist() == [[1, 1, 0]]


@given(st.floats(0, 10))
def test_shares_have_the_score_as_their_mean(score: float) -> None:
    shares = soft(score, 11)
    assert shares.sum() == pytest.approx(1)
    assert (shares * torch.arange(11)).sum() == pytest.approx(score, abs=1e-5)
    assert len(shares.nonzero()) <= 2


def test_a_ten_has_a_second_place_where_zero_may_follow(folder: Path, encoder: PromptEncoder, tmp_path: Path) -> None:
    rubric = ten_points(tmp_path)
    scores = [(10, 1), (0, 9), (9.6, 9.4), (7, 10)]
    rows = [rating(n, scores={"following": a, "naturalness": b}) for n, (a, b) in enumerate(scores)]
    records = rated(folder, *rows, rubric=rubric)
    builder = row_builder(encoder, Heads(generate=1), rubric)
    row = builder.row(parts_of(builder, *records))
    digits = [decoded_digit(encoder, row, place) for place in row.score_places.tolist()]
    assert digits == list("11091971")
    after = [decoded_digit(encoder, row, place) if place >= 0 else "" for place in row.second_places.tolist()]
    assert after == ["0", "<|im_end|>", "", "", "0", "", "", "0"]
    assert row.score_targets.shape == (8, 11)
    assert row.score_targets[4].tolist() == pytest.approx([0] * 9 + [0.4, 0.6])


def test_missing_scores_end_the_reply_and_are_masked(folder: Path, encoder: PromptEncoder) -> None:
    records = rated(folder, rating(0, scores={"following": 2}), rating(1, scores={"naturalness": 4}))
    builder = row_builder(encoder)
    row = builder.row(parts_of(builder, *records))
    assert row.score_records.tolist() == [0]
    assert row.score_dimensions.tolist() == [0]
    assert row.regression_mask.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert row.regression_weights.tolist() == [[1, 0, 0], [0, 1, 0]]
    said = text(encoder, row.reply_ids.tolist())
    assert said == "Following: 2"  # no end of the turn: the reply is not whole
    assert encoder.tokenizer.eos_token_id not in row.reply_ids.tolist()


def test_the_words_of_a_reply_are_trained_with_the_reason_where_there_is_one(
    folder: Path, encoder: PromptEncoder
) -> None:
    plain, other = rated(folder, rating(0), rating(1))
    builder = row_builder(encoder, Heads(generate=1, expected=1, regression=1))
    parts = parts_of(builder, plain, reasoned(other))
    assert [(part.shown.id, part.reasoned) for part in parts] == [("0:r0", False), ("0:r1", False), ("0:r1", True)]
    row = builder.row(parts)
    assert torch.equal(row.ids[0, row.reply_places + 1], row.reply_ids)
    said = text(encoder, row.reply_ids.tolist()).split("<|im_end|>")
    assert said == [
        "Following: 1\nNaturalness: 5", "Brief reasoning: it is there\nFollowing: 2\nNaturalness: 4", ""
    ]  # fmt: skip
    assert len(row.score_places) == 4  # of the sequences without a reason
    assert len(row.regression_places) == 2


@pytest.mark.parametrize(
    ("heads", "forms"),
    [
        ({"generate": 1, "expected": 0}, [False, True]),
        ({"expected": 1}, [False, False]),
        ({"generate": 1, "expected": 1}, [False, False, True]),
        ({"expected": 0, "ranking": 1}, [False, False]),
        ({"expected": 0, "preference": 1}, []),
    ],
)
def test_an_edit_makes_the_sequences_that_its_heads_need(
    folder: Path, encoder: PromptEncoder, heads: dict[str, float], forms: list[bool]
) -> None:
    plain, other = rated(folder, rating(0), rating(1))
    parts = parts_of(row_builder(encoder, Heads(**heads)), plain, reasoned(other))
    assert [part.reasoned for part in parts] == forms


def test_outputs_on_the_prompt_stand_on_its_last_token(folder: Path, encoder: PromptEncoder) -> None:
    builder = row_builder(encoder)
    parts = parts_of(builder, *rated(folder, rating(0), rating(1)), *chosen(folder, preference(0), preference(2)))
    row = builder.row(parts)
    for place in (*row.regression_places.tolist(), *row.choice_places.tolist()):
        assert text(encoder, row.ids[0, place - 10 : place + 1].tolist()).endswith("<|im_start|>assistant\n")
    only = row_builder(encoder, Heads(expected=0, regression=1))
    alone = only.row(parts_of(only, *rated(folder, rating(0))))
    assert alone.regression_places.tolist() == [alone.ids.shape[1] - 1]  # no reply is needed


def test_choices_are_shown_in_both_orders_in_turn(folder: Path, encoder: PromptEncoder) -> None:
    builder = row_builder(encoder)
    assert [text(encoder, [one]) for one in builder.choice_ids] == list(CHOICES)
    first, tie, second = chosen(folder, *(preference(n) for n in range(3)))
    parts = parts_of(builder, first, tie, second)
    for epoch in range(3):
        row = builder.row(parts, epoch=epoch)
        answers = row.choice_targets.argmax(1).tolist()
        assert answers == [int(is_swapped(first, epoch)), 2, int(not is_swapped(second, epoch))]
        pixels = row.pixel_values.split(row.grids.prod(1).tolist())
        shown = [pixels[number] for number in row.picture_of_run[:3].tolist()]
        better = encoder.patches(decode(read(first.first))).pixel_values
        assert torch.equal(shown[1 + answers[0]], better)
    assert [is_swapped(first, epoch) for epoch in range(4)] in ([True, False] * 2, [False, True] * 2)
    many = [Choice(**{**vars(first), "id": f"{n}"}) for n in range(400)]
    assert 160 < sum(is_swapped(one, 0) for one in many) < 240
    assert row.choices == tuple(one.id for one in (first, tie, second))


def test_results_of_one_group_are_ranked_by_every_known_score(folder: Path, encoder: PromptEncoder) -> None:
    rows = [
        rating(0, scores={"following": 5, "naturalness": 2}),
        rating(1),
        rating(0, id="b", result="0-second.jpg", scores={"following": 4, "naturalness": 2}),
        rating(0, id="c", result="1-first.jpg", scores={"following": 4.5}),
    ]
    records = rated(folder, *rows)
    builder = row_builder(encoder)
    plan = planned(builder, records)
    assert sorted(len(item.members) for item in plan.items) == [1, 3]
    row = builder.row(plan.parts)
    rankings = row.ranking_pairs.tolist(), row.ranking_dimensions.tolist(), row.ranking_targets.tolist()
    pairs = [(*pair, which, better) for pair, which, better in zip(*rankings, strict=True)]
    assert pairs == [(0, 2, 0, 1), (0, 2, 1, 0), (0, 3, 0, 1), (2, 3, 0, -1)]
    assert row.ranking_weights.tolist() == [0.5] * 4  # each of three results has two others
    apart = row_builder(encoder, Heads())
    assert all(len(item.members) == 1 for item in planned(apart, records).items)


def test_weights_are_the_records_times_the_balance(folder: Path, encoder: PromptEncoder) -> None:
    rows = [rating(n, id=f"{n}", scores={"following": 5 if n else 1, "naturalness": 3}) for n in range(4)]
    records = read_sources((source("ratings", write_lines(folder / "r.jsonl", rows), weight=3),), EDIT).records
    builder = row_builder(encoder, records=records)
    row = builder.row(parts_of(builder, *records))
    weights = row.score_weights.reshape(4, 2)
    assert weights[0, 0] / weights[1, 0] == pytest.approx(3**0.5)
    assert weights[0, 1] == weights[1, 1]
    assert torch.equal(row.regression_weights[:, :2], weights)
    assert weights.mean() == pytest.approx(3)
    assert set(row.reply_weights.tolist()) == {3}


def test_corruptions_are_applied_as_the_dataset_is_read_and_are_the_same_every_time(
    tmp_path: Path, encoder: PromptEncoder
) -> None:
    drawn = edits(2)
    dataset = write_judged_dataset(tmp_path / "data", drawn)
    judged = read_sources((source("graded", dataset),), EDIT)
    of = {record.corruption: record for record in judged.records if "edit00000" in record.id}
    source_, result, area = scene(drawn[0])
    seen = {name: Pictures().of(record) for name, record in of.items()}
    assert np.abs(seen[""]["result"].astype(int) - result).max() < 30
    assert np.array_equal(seen["identity"]["result"], seen[""]["source"])
    assert np.array_equal(seen["swapped"]["source"], seen[""]["result"])
    assert np.array_equal(seen["swapped"]["result"], seen[""]["source"])
    assert len(np.unique(seen["blank"]["result"])) == 1
    noise = [np.abs(seen[f"noise-{n}"]["result"].astype(int) - seen[""]["result"]).mean() for n in (1, 2, 3, 4)]
    assert noise == sorted(noise)
    assert noise[0] > 3
    spilt = (seen["spill-4"]["result"] != seen[""]["result"]).any(2)
    assert spilt.any()
    assert not spilt[area].any()  # damage outside of the edit
    again = read_sources((source("graded", dataset), source("graded", dataset)), EDIT).records[-len(of) * 2 :]
    twin = next(one for one in again if one.id.endswith("edit00000:noise-3"))
    assert twin.id.startswith("1:")  # whichever source it is, and in whatever process
    assert np.array_equal(Pictures().of(twin)["result"], seen["noise-3"]["result"])
    differ = corrupt("noise", 3, source_, seen[""]["result"], None, 1)
    assert not np.array_equal(differ, seen["noise-3"]["result"])
    builder = row_builder(encoder)
    row = builder.row(planned(builder, list(of.values())).parts)
    assert len(row.grids) == len({seen[name]["result"].tobytes() for name in of} | {seen[""]["source"].tobytes()})


def test_a_picture_that_changed_or_broke_since_the_plan_is_named(folder: Path, encoder: PromptEncoder) -> None:
    path = folder / "late.jpg"
    path.write_bytes((folder / "0-first.jpg").read_bytes())
    [record] = rated(folder, rating(0, result="late.jpg"))
    builder = row_builder(encoder)
    parts = parts_of(builder, record)
    path.write_bytes(encode_jpeg(np.zeros((112, 56, 3), np.uint8)))
    with pytest.raises(BadPicture, match=r"0:r0: \d+ tokens where \d+ were planned: a picture has changed"):
        builder.row(parts)
    path.write_bytes((folder / "0-first.jpg").read_bytes()[:-200])
    with pytest.raises(BadPicture, match=r"0:r0: .*late\.jpg: "):
        builder.row(parts)
    path.unlink()
    with pytest.raises(BadPicture, match=r"0:r0: .*late\.jpg: cannot be read"):
        builder.row(parts)


def test_what_no_row_can_hold_is_refused_with_its_name_and_the_remedy(folder: Path, encoder: PromptEncoder) -> None:
    records = rated(folder, rating(0), rating(1, instruction="long " * 3000))
    with pytest.raises(UsageError, match=r"0:r1: \d+ tokens, and a row has 2000; raise data.pack or lower"):
        planned(row_builder(encoder), records, limit=2000)
    (folder / "narrow.jpg").write_bytes(encode_jpeg(np.zeros((2, 400, 3), np.uint8)))
    with pytest.raises(BadPicture, match=r"0:r0: .*narrow\.jpg: .*too narrow"):
        planned(row_builder(encoder), rated(folder, rating(0, result="narrow.jpg")))
    (folder / "dot.jpg").write_bytes(encode_jpeg(np.zeros((1, 1, 3), np.uint8)))
    builder = row_builder(encoder)
    assert builder.row(parts_of(builder, *rated(folder, rating(0, result="dot.jpg")))).grids.tolist()[1] == [1, 4, 4]


def test_groups_longer_than_a_row_are_ranked_in_pieces(tmp_path: Path, encoder: PromptEncoder) -> None:
    records = read_sources((source("graded", write_judged_dataset(tmp_path / "data", edits(2))),), EDIT).records
    builder = row_builder(encoder, Heads(expected=0, ranking=1))
    limit = 2500
    plan = planned(builder, records, limit=limit)
    assert max(sum(item.lengths) for item in plan.items) > 2 * limit
    for members in pack(plan.items, limit, 0, 0)[:2]:
        row = builder.row([plan.parts[member] for member in members])
        assert row.ids.shape[1] <= limit
        assert len(row.ranking_pairs) > 0
