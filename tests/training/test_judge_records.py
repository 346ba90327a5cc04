"""Readers of judged edits: what they give, what they refuse and where, and which photographs are kept apart."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_data import preference, rating, source, ten_points, write_judged_dataset, write_lines, write_pictures
from pydantic import ValidationError
from training_data import edits

from editfoundry.core.errors import UsageError
from editfoundry.core.images import decode, encode_jpeg
from editfoundry.data_engine.shards import DamagedFile
from editfoundry.models.judge.corruption import CANARIES, DEGREES, GRADED
from editfoundry.models.judge.rubric import load_rubric
from editfoundry.training.judge.balance import weighting
from editfoundry.training.judge.pictures import HEAD_BYTES, BadPicture, look
from editfoundry.training.judge.records import PictureRef, Record
from editfoundry.training.judge.sources import BadRecord, Judged, read_sources
from editfoundry.training.judge.split import sample, split

EDIT = load_rubric("edit")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pictures(tmp_path, 4)
    return tmp_path


def read(kind: str, path: Path, **changes: Any) -> Judged:
    return read_sources((source(kind, path, **changes),), EDIT)


def reply(following: object, naturalness: object, reason: str = "it is there") -> str:
    return f"Brief reasoning: {reason}\nFollowing: {following}\nNaturalness: {naturalness}"


def scored(number: int, said: str, **changes: Any) -> dict[str, Any]:
    row = {key: value for key, value in rating(number).items() if key not in ("scores", "id")}
    return {**row, "reply": said, **changes}


def write_scores(file: Path, records: Any) -> Path:
    file.write_text(json.dumps(records, indent=1), encoding="utf-8")
    return file


def test_scores_are_read_from_a_list_or_an_object_of_records(folder: Path) -> None:
    rows = [scored(0, reply(4, 5)), scored(1, reply("2/5", "**3**", "half of it"), id="b")]
    judged = read("scores", write_scores(folder / "s.json", rows), weight=2)
    first, second = judged.records
    assert (first.id, first.scores, first.reason, first.weight) == (
        "0:0", {"following": 4.0, "naturalness": 5.0}, "it is there", 2)  # fmt: skip
    assert (second.id, second.scores, second.reason) == ("0:b", {"following": 2.0, "naturalness": 3.0}, "half of it")
    assert (first.source.path, first.source.size) == (folder / "0-source.jpg", (60, 84))
    assert (first.type, first.instruction) == ("add", "add a square")
    named = read("scores", write_scores(folder / "o.json", {"one": rows[0], "two": rows[1]}), weight=2)
    assert named.records == judged.records


def test_scores_take_the_files_own_names_labels_types_and_patterns_of_paths(folder: Path) -> None:
    row = {"path": "1", "prompt": "add a red square", "gpt": "Prompt following: 3\nRealism - overall: 2", "kind": "Add"}
    columns = {
        "source": "{path}-source.jpg", "result": "{path}-first.jpg", "instruction": "prompt", "reply": "gpt",
        "type": "kind", "following": "Prompt following", "naturalness": "Realism - overall",
    }  # fmt: skip
    file = write_scores(folder.parent / f"{folder.name}.json", [row])
    [record] = read("scores", file, columns=columns, types={"Add": "add"}, images=str(folder)).records
    assert record.scores == {"following": 3.0, "naturalness": 2.0}
    assert (record.source.path.name, record.result.path.name, record.type) == ("1-source.jpg", "1-first.jpg", "add")


def test_replies_that_cannot_be_read_are_counted_and_listed_and_never_guessed(folder: Path) -> None:
    rows = [scored(0, reply(4, 9)), scored(1, "I cannot tell."), scored(2, reply(1, 1)), scored(3, reply("3-4", 2))]
    judged = read("scores", write_scores(folder / "s.json", rows))
    assert [record.id for record in judged.records] == ["0:2"]
    assert judged.left_out == Counter({"out_of_range": 1, "missing": 1, "not_a_number": 1})
    assert len(judged.listed) == 3
    assert judged.listed[0].startswith(f"{folder / 's.json'}: line 2: out_of_range: ")
    assert judged.listed[1].startswith(f"{folder / 's.json'}: line 9: missing: ")
    with pytest.raises(UsageError, match=r"no usable record \(missing 1\)"):
        read("scores", write_scores(folder / "s.json", [scored(1, "no")]))


def test_ratings_are_averaged_over_the_raters_of_each_dimension(folder: Path) -> None:
    rows = [
        rating(0, rater="a", scores={"following": 5, "naturalness": 2}),
        rating(1, rater="a"),
        rating(0, rater="b", scores={"following": 4}),
        rating(0, rater="c", scores={"following": 4.5}),
    ]
    first, second = read("ratings", write_lines(folder / "r.jsonl", rows)).records
    assert first.scores == {"following": 4.5, "naturalness": 2.0}
    assert second.scores == {"following": 2.0, "naturalness": 4.0}
    assert first.group != second.group


def test_results_of_one_picture_and_instruction_are_a_group(folder: Path) -> None:
    rows = [rating(0), rating(0, id="other", result="0-second.jpg"), rating(0, id="words", instruction="no"),
            rating(0, id="type", type="remove")]  # fmt: skip
    groups = [record.group for record in read("ratings", write_lines(folder / "r.jsonl", rows)).records]
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3


def test_preferences_keep_which_result_was_chosen(folder: Path) -> None:
    choices = read("preferences", write_lines(folder / "p.jsonl", [preference(n) for n in range(3)])).choices
    assert [choice.preferred for choice in choices] == ["first", "tie", "second"]
    assert choices[1].second.path == folder / "1-second.jpg"
    assert choices[0].photograph == look(folder / "0-source.jpg").digest


def test_photographs_have_the_names_that_a_file_gives_them(folder: Path, tmp_path: Path) -> None:
    """So edits of one photograph stay together in several sources, a dataset's with those that people rated."""
    dataset = write_judged_dataset(tmp_path / "data", edits(1), [{"following": 5.0, "naturalness": 4.0}])
    [edge] = read("verification", dataset).records
    [rated] = read("ratings", write_lines(folder / "r.jsonl", [rating(0, photograph=edge.photograph)])).records
    assert rated.photograph == edge.photograph


def test_a_record_is_the_same_wherever_its_folder_lies(folder: Path, tmp_path: Path) -> None:
    write_lines(folder / "r.jsonl", [rating(n) for n in range(3)])
    write_judged_dataset(folder / "data", edits(2), [{"following": 5.0, "naturalness": 4.0}] * 2)
    sources = (("ratings", "r.jsonl"), ("verification", "data"))
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    before, after = ([repr(read(kind, at / file).records) for kind, file in sources] for at in (folder, moved))
    assert before == after
    (moved / "0-first.jpg").write_bytes((moved / "1-first.jpg").read_bytes() + b"\0")
    look.cache_clear()  # a run looks at a file once
    assert repr(read("ratings", moved / "r.jsonl").records) != before[0]


def test_verdicts_of_the_data_engine_are_read_from_a_datasets_index(tmp_path: Path) -> None:
    verdicts = [
        {"following": 5.0, "naturalness": 4.0, "reason": "a duck\nis there"},
        {"following": None, "naturalness": None, "reason": None},
        {"following": 3.0, "naturalness": 3.0, "reason": None},
    ]
    drawn = edits(3)
    judged = read("verification", write_judged_dataset(tmp_path / "data", drawn, verdicts))
    first, second = judged.records
    assert (first.id, first.scores, first.reason) == (
        "0:edit00000", {"following": 5.0, "naturalness": 4.0}, "a duck is there")  # fmt: skip
    assert (second.id, second.reason, second.source.size) == ("0:edit00002", "", (64, 64))
    assert judged.left_out == Counter(no_verdict=1)
    assert "edit00001" in judged.listed[0]


def test_verdicts_need_the_rubric_that_they_were_given_by(tmp_path: Path) -> None:
    dataset = write_judged_dataset(tmp_path / "data", edits(1), [{"following": 5.0, "naturalness": 4.0}])
    for rubric in (load_rubric("types"), ten_points(tmp_path)):
        with pytest.raises(UsageError, match="train with `rubric: edit`"):
            read_sources((source("verification", dataset),), rubric)


@pytest.mark.parametrize("bad", [7.0, float("nan"), float("inf")])
def test_a_verdict_that_is_no_score_is_refused(tmp_path: Path, bad: float) -> None:
    dataset = write_judged_dataset(tmp_path / "data", edits(1), [{"following": bad, "naturalness": 4.0}])
    with pytest.raises(BadRecord, match=r"edge edit00000: gate_judge_following: .* is no number from 1 to 5"):
        read("verification", dataset)


def test_graded_edits_come_at_every_degree_and_as_canaries(tmp_path: Path) -> None:
    drawn = [edits(1)[0], *edits(2, type="remove")[1:]]
    records = read("graded", write_judged_dataset(tmp_path / "data", drawn)).records
    of_first = {record.corruption: record for record in records if record.id.startswith("0:edit00000:")}
    assert set(of_first) == {"", *(f"{name}-{degree}" for name in GRADED for degree in DEGREES), *CANARIES}
    assert of_first[""].scores == {"following": 5, "naturalness": 5}
    assert of_first["blur-2"].scores == {"following": 5, "naturalness": 3}
    assert of_first["undone-4"].scores["following"] == of_first["identity"].scores["following"] == 1
    assert of_first["wrong_instruction"].instruction == drawn[1].instruction != drawn[0].instruction
    assert of_first["spill-1"].mask is not None
    groups = {name: record.group for name, record in of_first.items()}
    apart = groups.pop("swapped"), groups.pop("wrong_instruction")
    assert len(set(groups.values())) == 1
    assert len({*apart, *groups.values()}) == 3
    assert len({record.photograph for record in of_first.values()}) == 1


def test_only_the_corruptions_asked_for_are_made(tmp_path: Path) -> None:
    dataset = write_judged_dataset(tmp_path / "data", edits(1))
    records = read("graded", dataset, corruptions=("blank", "noise")).records
    assert [record.corruption for record in records] == ["", *(f"noise-{degree}" for degree in DEGREES), "blank"]
    with pytest.raises(ValidationError, match=r"no corruption 'nose'; there are noise, blur"):
        source("graded", dataset, corruptions=("nose",))
    with pytest.raises(ValidationError, match="corruptions are for the kind graded, not ratings"):
        source("ratings", dataset, corruptions=("noise",))


HOSTILE = [
    ("not JSON", "{", "not JSON"),
    ("NaN", '{"id": "x", "scores": {"following": NaN}}', "NaN"),
    ("nested", "[" * 100_000, "nested too deeply"),
    ("no object", [1, 2], "expected a JSON object"),
    ("no id", {key: value for key, value in rating(1).items() if key != "id"}, "no 'id'; name the file's own"),
    ("blank", rating(1, instruction="  "), "instruction: expected text"),
    ("half a character", rating(1, instruction="\ud83d"), "instruction: not valid Unicode"),
    ("no text", rating(1, source=3), "source: expected text"),
    ("missing picture", rating(1, result="9-first.jpg"), "result: .*9-first.jpg: no file of"),
    ("a folder", rating(1, result="."), "result: .*no file of"),
    ("outside", rating(1, source="../x.jpg"), "is outside of .*set `images`"),
    ("absolute", rating(1, source="/etc/passwd"), "is outside of"),
    ("NUL", rating(1, source="a\0b.jpg"), "no file of"),
    ("damaged picture", rating(1, source="damaged.jpg"), "source: .*damaged.jpg: "),
    ("no picture", rating(1, source="r.jsonl"), "no known image format"),
    ("no scores", rating(1, scores={}), "expected an object with some of following, naturalness"),
    ("other score", rating(1, scores={"beauty": 3}), "expected an object with some of following, naturalness"),
    ("scores of text", rating(1, scores={"following": "5"}), "scores.following: '5' is no number from 1 to 5"),
    ("truth", rating(1, scores={"following": True}), "True is no number"),
    ("out of range", rating(1, scores={"following": 6}), "6 is no number from 1 to 5"),
    ("infinite", '{"id": "r1", "source": "1-source.jpg", "result": "1-first.jpg", "instruction": "x", "type": "add", '
     '"scores": {"following": 1e999}}', "inf is no number"),
    ("other edit", rating(0, instruction="something else"), "id r0 was another edit in .*line 1"),
    ("other type", rating(0, type="remove"), "id r0 was another edit in .*line 1"),
    ("rated twice", rating(0, rater="a"), "rater a rates id r0 again"),
    ("too long", rating(1, instruction="x" * (1 << 20)), "longer than"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "said"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_a_rating_that_breaks_the_form_is_refused_with_file_and_line(folder: Path, row: Any, said: str) -> None:
    (folder / "damaged.jpg").write_bytes((folder / "0-source.jpg").read_bytes()[:30])
    file = write_lines(folder / "r.jsonl", [rating(0, rater="a"), "", row])
    with pytest.raises(BadRecord, match=said) as caught:
        read("ratings", file)
    assert str(caught.value).startswith(f"{file}: line 3")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (preference(1, preferred="A"), "preferred: expected first, tie or second"),
        (preference(1, second="gone.jpg"), "second: .*gone.jpg: no file"),
        (preference(1, photograph=""), "photograph: expected text"),
    ],
)
def test_a_preference_that_breaks_the_form_is_refused_with_file_and_line(folder: Path, row: Any, said: str) -> None:
    file = write_lines(folder / "p.jsonl", [preference(0), row])
    with pytest.raises(BadRecord, match=said) as caught:
        read("preferences", file)
    assert str(caught.value).startswith(f"{file}: line 2: ")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[{"reply": "x",\n "source": 1}]', 1, "source"),
        ('[\n\n{"reply": "x", "source": "0-source.jpg", "instruction": "a", "result": "no.jpg"}]', 3, r"no\.jpg: "),
        ('[\n{"source": "0-source.jpg"}]', 2, "no 'reply'"),
        ('[{"reply": NaN}]', 1, "NaN"),
        ('{"reply": "x"', None, "ends inside"),
        ("[1, 2]", None, "no record"),
    ],
)  # fmt: skip
def test_a_broken_record_of_scores_is_refused_with_file_and_line(
    folder: Path, text: str, line: int | None, said: str
) -> None:
    file = folder / "s.json"
    file.write_text(text.replace('"x"', json.dumps(reply(4, 4))), encoding="utf-8")
    with pytest.raises(BadRecord, match=said) as caught:
        read("scores", file)
    assert str(caught.value).startswith(f"{file}: line {line}: " if line else f"{file}")


def test_a_broken_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a dataset"):
        read("graded", tmp_path)
    dataset = write_judged_dataset(tmp_path / "data", edits(1))
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = pq.read_table(dataset / "index.parquet").to_pylist()[0]
    pq.write_table(pa.Table.from_pylist([{**row, "shard": "../../secret.tar"}]), dataset / "index.parquet")
    for kind in ("graded", "verification"):
        with pytest.raises(DamagedFile, match="row 0"):
            read(kind, dataset)


def test_a_type_without_a_section_is_named_with_the_remedy(folder: Path) -> None:
    file = write_lines(folder / "r.jsonl", [rating(0, type="cooking", scores={"score": 3})])
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps({"add": "Judge.\n<edit_prompt>\nScore: A number from 1 to 5.\n"}))
    rubric = load_rubric(str(prompts))
    with pytest.raises(BadRecord, match=r"line 1: type 'cooking'.*has add; give our name for it with `types`"):
        read_sources((source("ratings", file),), rubric)
    [record] = read_sources((source("ratings", file, types={"cooking": "add"}),), rubric).records
    assert (record.type, record.scores) == ("add", {"score": 3.0})


def test_missing_files_and_ids_given_twice(folder: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        read("scores", folder / "none.json")
    file = write_lines(folder / "p.jsonl", [preference(0), preference(0)])
    with pytest.raises(UsageError, match="the id 'p0' stands twice in source 0"):
        read("preferences", file)
    one = source("preferences", write_lines(folder / "p.jsonl", [preference(0)]))
    assert [choice.id for choice in read_sources((one, one), EDIT).choices] == ["0:p0", "1:p0"]


def test_pictures_are_known_by_their_header_and_copies_by_their_bytes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 300, 3), np.uint8)
    data = encode_jpeg(noise)
    assert len(data) > HEAD_BYTES
    (tmp_path / "a.jpg").write_bytes(data)
    (tmp_path / "b.jpg").write_bytes(data)
    (tmp_path / "c.jpg").write_bytes(data + b"\0")
    late = data[:2] + b"".join(b"\xff\xe1\xff\xff" + bytes(65533) for _ in range(2)) + data[2:]
    (tmp_path / "late.jpg").write_bytes(late)  # the size stands after more than HEAD_BYTES
    found = {name: look(tmp_path / f"{name}.jpg") for name in ("a", "b", "c", "late")}
    assert {one.size for one in found.values()} == {(400, 300)} == {decode(late).shape[:2]}
    assert found["a"].digest == found["b"].digest
    assert len({one.digest for one in found.values()}) == 3
    with pytest.raises(BadPicture, match="no file of"):
        look(tmp_path / "none.jpg")


def records(count: int, held_out: frozenset[int] = frozenset()) -> list[Record]:
    picture = PictureRef(Path("x"), (56, 56))
    return [
        Record(f"{n}", picture, picture, "a", "add", {"following": 1.0 + n % 5}, f"photo{n // 3}", f"{n}",
               held_out=n in held_out)
        for n in range(count)
    ]  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 200), st.floats(0.2, 0.8))
def test_photographs_are_on_one_side_and_the_share_is_about_right(seed: int, holdout: float) -> None:
    ones = [Record(**{**vars(one), "photograph": f"{seed} {one.photograph}"}) for one in records(300)]
    train, kept = split(ones, [], holdout)
    assert not {one.photograph for one in train.records} & {one.photograph for one in kept.records}
    assert sorted(one.id for side in (train, kept) for one in side.records) == sorted(one.id for one in ones)
    assert abs(len(kept.records) / 300 - holdout) < 0.25


def test_what_is_held_out_takes_its_photograph_along() -> None:
    ones = records(30, frozenset({4}))
    train, kept = split(ones, [], 1e-9)
    assert [one.id for one in kept.records] == ["3", "4", "5"]
    assert len(train.records) == 27
    with pytest.raises(UsageError, match="too few photographs"):
        split(records(30), [], 1e-9)


def test_a_datasets_own_validation_split_is_never_trained_on(tmp_path: Path) -> None:
    drawn = [*edits(4), *edits(6, split="val")[4:]]
    judged = read("graded", write_judged_dataset(tmp_path / "data", drawn))
    train, kept = split(judged.records, judged.choices, 1e-9)
    assert {one.id.split(":")[1] for one in kept.records} == {"edit00004", "edit00005"}
    assert {one.id.split(":")[1] for one in train.records} == {f"edit0000{n}" for n in range(4)}


def test_a_sample_is_drawn_by_hash_and_kept_in_order() -> None:
    side, _ = split(records(60), [], 0.2)
    drawn = sample(side, 7).records
    assert len(drawn) == 7
    assert drawn == [one for one in side.records if one in drawn]
    shuffled = side._replace(records=side.records[::-1])
    assert {one.id for one in sample(shuffled, 7).records} == {one.id for one in drawn}


def test_rare_scores_weigh_more_with_a_mean_of_one_and_a_limit() -> None:
    given = [5.0] * 16 + [3.0] * 4 + [1.0]
    ones = [Record(**{**vars(records(1)[0]), "scores": {"following": score}}) for score in given]
    even, root, inverse = (weighting(ones, EDIT, how) for how in ("none", "sqrt", "inverse"))
    assert [even.of(0, score) for score in (1, 3, 5)] == [1, 1, 1]
    assert root.of(0, 1) / root.of(0, 5) == pytest.approx(4)
    assert inverse.of(0, 3) / inverse.of(0, 5) == pytest.approx(4)
    for made in (root, inverse):
        assert sum(made.of(0, score) for score in given) / len(given) == pytest.approx(1)
    assert root.of(1, 5) == 1  # never given
    many = [*ones * 40, Record(**{**vars(ones[0]), "scores": {"following": 2.0}})]
    assert weighting(many, EDIT, "inverse").of(0, 2) == 10
