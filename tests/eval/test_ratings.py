"""Rater files and score files: the released layouts, and what strangers may hand in."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.errors import UsageError
from editfoundry.eval.ratings import ScoredFile, lay_side_by_side, read_raters, read_scores

RELEASED = "uid\tGlide\tSDInpaint\t\r\nb.jpg\t[0,0.5]\t[1, 0.5]\r\na.jpg\t[0.5 , 1]\t[1,0]\r\n".replace("\t\r", "\r")


def written(folder: Path, text: str | bytes, name: str = "file.tsv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def scores(folder: Path, plain: Any, name: str = "scores.json") -> ScoredFile:
    return read_scores(written(folder, json.dumps(plain), name))


def test_a_released_file_is_read_with_its_line_ends_and_blanks(tmp_path: Path) -> None:
    file = read_raters(written(tmp_path, RELEASED))
    assert file.models == ("Glide", "SDInpaint")
    assert file.samples == {
        ("Glide", "b.jpg"): (0.0, 0.5), ("SDInpaint", "b.jpg"): (1.0, 0.5),
        ("Glide", "a.jpg"): (0.5, 1.0), ("SDInpaint", "a.jpg"): (1.0, 0.0),
    }  # fmt: skip
    assert read_raters(written(tmp_path, b"\xef\xbb\xbf" + RELEASED.encode())).samples == file.samples


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"uid\tGlide\r\n", "a header and no ratings"),
        (b"id\tGlide\na\t[0,0]\n", "line 1: expected a header `uid<TAB>model"),
        (b"uid\na\n", "line 1: expected a header"),
        (b"uid\tGlide\t\na\t[0,0]\t[0,0]\n", "line 1: expected a header"),
        (b"uid\tGlide\tGlide\na\t[0,0]\t[0,0]\n", 'line 1: the model "Glide" has two columns'),
        (b"uid\tGlide\na\t[0,0]\t[1,1]\n", "line 2: 2 ratings for 1 models"),
        (b"uid\tGlide\tSD\n\na\t[0,0]\n", "line 3: 1 ratings for 2 models"),
        (b"uid\tGlide\na\t[0,0]\nb\t[0,0]\na\t[1,1]\n", 'line 4, column uid: "a" is on line 2 too'),
        (b"uid\tGlide\n\t[0,0]\n", "line 2, column uid: empty"),
        (b"uid\tGlide\na\t\n", 'line 2, column Glide: expected [sc,pq] such as [0.5,1], found ""'),
        (b"uid\tGlide\na\t[0.5]\n", "line 2, column Glide: expected [sc,pq]"),
        (b"uid\tGlide\na\t[NaN,1]\n", 'found "[NaN,1]"'),
        (b"uid\tGlide\na\t[-1,1]\n", 'found "[-1,1]"'),
        ("uid\tGlide\na\t[١,0]\n".encode(), "expected [sc,pq]"),
        (b"uid\tGlide\na\t[0,1.5]\n", 'line 2, column Glide: "[0,1.5]" is above 1'),
        (b"uid\tGlide\na\t[0,1]\nb\xff\t[0,1]\n", "line 3, byte 2: not UTF-8"),
    ],
)
def test_a_bad_rater_file_is_told_with_its_place(text: bytes, told: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read_raters(path)
    assert told in str(error.value)
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_is_not_there_or_too_large_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "none.tsv", tmp_path):
        with pytest.raises(UsageError, match="give a file that can be read"):
            read_raters(path)
    monkeypatch.setattr("editfoundry.eval.ratings.LARGEST_FILE", 10)
    with pytest.raises(UsageError, match="more than 0 MiB"):
        read_scores(written(tmp_path, "[" * 11))


def test_a_judge_scores_by_the_least_of_its_lists(tmp_path: Path) -> None:
    file = scores(tmp_path, {"Glide": {"a": {"SC": [8, 2.5], "PQ": [9], "reason": "fine"}}})
    assert file.samples == {("Glide", "a"): (2.5, 9.0)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1, column 2: not JSON"),
        ('{"a":\n x}', "line 2, column 2: not JSON"),
        ("[]", "expected {model: {uid: …}}, found a list"),
        ("{}", "no scores"),
        ('{"Glide": {}}', "no scores"),
        ('{"Glide": 3}', "Glide: expected {uid: {SC: […], PQ: […]}}, found a int"),
        ('{"Glide": {"a": [1, 2]}}', 'Glide / a: expected {"SC": […], "PQ": […]}'),
        ('{"Glide": {"a": {"SC": [1]}}}', "Glide / a: no PQ; give a list"),
        ('{"Glide": {"a": {"SC": [], "PQ": [1]}}}', "Glide / a / SC: expected a list with at least one number"),
        ('{"Glide": {"a": {"SC": 3, "PQ": [1]}}}', "Glide / a / SC: expected a list"),
        ('{"Glide": {"a": {"SC": [3], "PQ": [1, "2"]}}}', 'Glide / a / PQ: "2" is no number from 0 to 10'),
        ('{"Glide": {"a": {"SC": [true], "PQ": [1]}}}', '"True" is no number'),
        ('{"Glide": {"a": {"SC": [11], "PQ": [1]}}}', '"11" is no number from 0 to 10'),
        ('{"Glide": {"a": {"SC": [1e999], "PQ": [1]}}}', '"inf" is no number from 0 to 10'),
        ('{"Glide": {"a": {"SC": [NaN], "PQ": [1]}}}', "NaN is no number"),
        ('{"Glide": {"a": 1, "a": 2}}', 'the key "a" is there twice'),
        ("[" * 100_000, "not usable JSON"),
        ('{"Glide": {"a": {"SC": [' + "9" * 5000 + '], "PQ": [1]}}}', "not usable JSON"),
        ('{"\\u001b[31mred": 3}', " [31mred: expected"),
    ],
)
def test_a_bad_score_file_is_told_with_its_keys(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read_scores(written(tmp_path, text))
    assert told in str(error.value)


@given(st.binary(max_size=80) | st.text("uid\tGSD[],.01 \n\r", max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for read in (read_raters, read_scores):
            try:
                file = read(written(Path(folder), b"uid\tGlide\n" + data))
            except UsageError:
                continue
            assert all(0 <= score <= 1 for sample in file.samples.values() for score in sample)


def test_scores_are_laid_side_by_side_and_those_of_one_side_counted(tmp_path: Path) -> None:
    first = read_raters(
        written(tmp_path, "uid\tB\tA\ny\t[1,0.5]\t[0,0]\nx\t[0.5,1]\t[1,1]\nz\t[0,0]\t[0,0]\n", "1.tsv")
    )
    second = read_raters(written(tmp_path, "uid\tA\tB\nx\t[0,1]\t[1,1]\ny\t[0,0]\t[0.5,0.5]\n", "2.tsv"))
    judge = scores(
        tmp_path,
        {"A": {"x": {"SC": [4, 6], "PQ": [9]}, "w": {"SC": [1], "PQ": [1]}}, "B": {"y": {"SC": [10], "PQ": [5]}}},
    )
    ratings = lay_side_by_side([first, second], judge)
    assert (ratings.models, ratings.cases) == (("A", "B"), ("x", "y"))
    np.testing.assert_array_equal(ratings.raters["SC"], [[[1, np.nan], [np.nan, 1]], [[0, np.nan], [np.nan, 0.5]]])
    np.testing.assert_array_equal(ratings.judge["SC"], [[0.4, np.nan], [np.nan, 1]])
    np.testing.assert_array_equal(ratings.judge["PQ"], [[0.9, np.nan], [np.nan, 0.5]])
    np.testing.assert_allclose(ratings.judge["O"], [[0.6, np.nan], [np.nan, 50**0.5 / 10]], atol=1e-9)
    np.testing.assert_allclose(ratings.raters["O"][1], [[0, np.nan], [np.nan, 0.5]])
    assert ratings.counts == {
        "used": 2, "rated_by_all": 4, "rated_by_some": 2, "scored": 3, "rated_but_not_scored": 2,
        "scored_but_not_rated_by_all": 1, "models_not_scored": [],
        "left_out": ["A / w", "A / y", "A / z", "B / x", "B / z"],
    }  # fmt: skip


def test_models_and_cases_that_do_not_fit_are_told(tmp_path: Path) -> None:
    first = read_raters(written(tmp_path, "uid\tA\nx\t[0,1]\n", "1.tsv"))
    other = read_raters(written(tmp_path, "uid\tB\nx\t[0,1]\n", "2.tsv"))
    fine = {"SC": [1], "PQ": [1]}
    with pytest.raises(UsageError, match=r"2\.tsv: its models differ from those of .*1\.tsv in A, B"):
        lay_side_by_side([first, other], scores(tmp_path, {"A": {"x": fine}}))
    with pytest.raises(UsageError, match=r"nobody rated its models Glyde; rated are A"):
        lay_side_by_side([first], scores(tmp_path, {"A": {"x": fine}, "Glyde": {"x": fine}}))
    with pytest.raises(UsageError, match=r"none of its 1 samples was rated by all 1 raters"):
        lay_side_by_side([first], scores(tmp_path, {"A": {"x.jpg": fine}}))


def test_a_model_without_scores_is_left_out_and_named(tmp_path: Path) -> None:
    first = read_raters(written(tmp_path, "uid\tA\tB\nx\t[0,1]\t[1,1]\n"))
    ratings = lay_side_by_side([first], scores(tmp_path, {"B": {"x": {"SC": [1], "PQ": [1]}}}))
    assert ratings.models == ("B",)
    assert ratings.counts["models_not_scored"] == ["A"]
    assert ratings.counts["rated_but_not_scored"] == 1
