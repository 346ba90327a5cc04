"""Edges of a dataset: how they are read, and which ones a sample takes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_data import DrawnEdit, edits, write_dataset

from editfoundry.core.errors import UsageError
from editfoundry.data_engine.edges import Edge, _spread, other_instructions, read_edges, sample_edges
from editfoundry.data_engine.shards import DamagedFile

TYPES = ("add", "remove", "style")


def varied(count: int, **common: object) -> list[DrawnEdit]:
    """Edits of different photographs, types in turn."""
    return [replace(edit, type=TYPES[number % 3], **common) for number, edit in enumerate(edits(count))]  # type: ignore[arg-type]


def edge(photograph: str, type: str, key: str) -> Edge:
    """An edge without pictures."""
    row = {"key": key, "type": type, "instruction": f"{type} {key}", "photograph_sha256": photograph, "shard": "val-0"}
    return Edge(Path("nowhere"), row)


def test_edges_come_in_the_order_of_the_index_and_by_split(tmp_path: Path) -> None:
    drawn = [replace(one, split="val" if number > 2 else "train") for number, one in enumerate(varied(5))]
    dataset = write_dataset(tmp_path / "data", drawn)
    assert [one.key for one in read_edges(dataset)] == [one.key for one in drawn]
    assert [one.split for one in read_edges(dataset)] == ["train"] * 3 + ["val"] * 2
    assert [one.key for one in read_edges(dataset, "val")] == ["edit00003", "edit00004"]
    first = next(read_edges(dataset))
    assert (first.source.shape, first.result.shape) == ((64, 64, 3), (64, 64, 3))
    assert first.mask is not None and (first.source[~first.mask].astype(int) - first.result[~first.mask]).max() < 40


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a dataset"):
        list(read_edges(tmp_path))
    dataset = write_dataset(tmp_path / "data", edits(1))
    rows = pq.read_table(dataset / "index.parquet").to_pylist()
    for change, words in (({"shard": "../../etc/passwd"}, "which is no shard"), ({"offset_source": -1}, "no place"),
                          ({"instruction": None}, "row 0 has no instruction")):  # fmt: skip
        pq.write_table(pa.Table.from_pylist([{**rows[0], **change}]), dataset / "index.parquet")
        with pytest.raises(DamagedFile, match=words):
            list(read_edges(dataset))


def test_a_sample_is_of_the_split_val_and_of_train_only_where_val_has_too_few(tmp_path: Path) -> None:
    drawn = [replace(one, split="val" if number % 2 else "train") for number, one in enumerate(varied(10))]
    dataset = write_dataset(tmp_path / "data", drawn)
    assert Counter(one.split for one in sample_edges(dataset, 4)) == {"val": 4}
    assert Counter(one.split for one in sample_edges(dataset, 7)) == {"val": 5, "train": 2}
    keys = [one.key for one in sample_edges(dataset, 99)]
    assert sorted(keys) == sorted(one.key for one in drawn)
    assert keys == [one.key for one in sample_edges(dataset, 99)]
    assert keys != [one.key for one in sample_edges(dataset, 99, seed=1)]


def test_photographs_take_turns_and_types_are_spread() -> None:
    offered = [edge(f"p{place}", type, f"{place}-{type}") for place in range(3) for type in TYPES * 2]
    chosen = _spread(offered, 9, 0)
    assert [set(Counter(one.photograph for one in chosen[start : start + 3])) for start in (0, 3, 6)] == [
        {"p0", "p1", "p2"}
    ] * 3
    assert Counter(one.type for one in chosen) == dict.fromkeys(TYPES, 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from(TYPES)), max_size=40), st.integers(1, 12), st.randoms())
def test_a_sample_does_not_depend_on_the_order_of_the_index(
    drawn: list[tuple[int, str]], most: int, random: object
) -> None:
    offered = [edge(f"p{photograph}", type, f"k{number}") for number, (photograph, type) in enumerate(drawn)]
    shuffled = list(offered)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    chosen = [one.key for one in _spread(offered, most, 0)]
    assert chosen == [one.key for one in _spread(shuffled, most, 0)]
    assert len(set(chosen)) == len(chosen) == min(most, len(offered))


def test_the_other_instruction_is_the_next_one_of_another_type() -> None:
    def told(*types: str) -> list[str | None]:
        return other_instructions([edge("p", type, str(number)) for number, type in enumerate(types)])

    assert told("a", "a", "b", "c", "a") == ["b 2", "b 2", "c 3", "a 4", "b 2"]
    assert told("a", "a") == [None, None]
    assert told() == []
