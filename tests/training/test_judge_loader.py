"""The loader of packed rows: the same rows for any ranks, accumulation steps, workers and place of resuming."""

import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from judge_data import (
    ALL,
    planned,
    preference,
    rating,
    row_builder,
    source,
    tiny_encoder,
    write_lines,
    write_pictures,
)
from tiny.language import qwen_vl

from editfoundry.models.judge.rubric import load_rubric
from editfoundry.training.data.loader import WorkerLost
from editfoundry.training.data.order import Positions
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.loader import row_loader
from editfoundry.training.judge.packing import RowOrder
from editfoundry.training.judge.pictures import BadPicture
from editfoundry.training.judge.rows import RowBuilder
from editfoundry.training.judge.sequences import Part
from editfoundry.training.judge.sources import read_sources

GLOBAL_BATCH = 4
LIMIT = 2200


class Data:
    """Eight edits and four comparisons, planned."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        write_pictures(folder, 4)
        files = (
            source("ratings", write_lines(folder / "r.jsonl", [rating(n % 4, id=f"r{n}") for n in range(8)])),
            source("preferences", write_lines(folder / "p.jsonl", [preference(n) for n in range(4)])),
        )
        judged = read_sources(files, load_rubric("edit"))
        self.builder: RowBuilder = row_builder(tiny_encoder(checkpoint), ALL, records=judged.records)
        plan = planned(self.builder, judged.records, judged.choices, LIMIT)
        self.parts: tuple[Part, ...] = plan.parts
        self.order = RowOrder(plan.items, LIMIT, GLOBAL_BATCH, 7)

    def rows(self, rank: int, ranks: int, accumulation: int, start: int, stop: int, workers: int = 0) -> list[Row]:
        positions = Positions(self.order, rank, ranks, accumulation, 1, start, stop)
        return list(row_loader(self.builder, self.order, self.parts, positions, workers, 2))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("qwen"))


@pytest.fixture
def data(tmp_path: Path, checkpoint: Path) -> Data:
    return Data(tmp_path, checkpoint)


def same(one: Row, other: Row) -> bool:
    def equal(mine: Any, theirs: Any) -> bool:
        return torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else bool(mine == theirs)

    return all(map(equal, one, other))


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 4), (2, 2), (4, 1)])
def test_rows_are_the_same_for_any_number_of_ranks(data: Data, ranks: int, accumulation: int) -> None:
    whole = {(row.position, row.slot): row for row in data.rows(0, 1, GLOBAL_BATCH, 1, 4)}
    assert list(whole) == [(position, slot) for position in (1, 2, 3) for slot in range(GLOBAL_BATCH)]
    seen = []
    for rank in range(ranks):
        mine = data.rows(rank, ranks, accumulation, 1, 4)
        assert len(mine) == 3 * accumulation
        assert all(same(row, whole[row.position, row.slot]) for row in mine)
        seen += [(row.position, row.slot) for row in mine]
    assert sorted(seen) == sorted(whole)


def test_resuming_needs_the_position_alone(data: Data, checkpoint: Path, tmp_path: Path) -> None:
    whole = data.rows(0, 1, GLOBAL_BATCH, 0, 8)
    resumed = Data(tmp_path, checkpoint).rows(0, 1, GLOBAL_BATCH, 5, 8)
    assert all(same(one, other) for one, other in zip(whole[5 * GLOBAL_BATCH :], resumed, strict=True))
    assert data.order.epoch(8) > 2  # it went through more than two epochs


def test_comparisons_change_sides_from_epoch_to_epoch(data: Data) -> None:
    answers: dict[str, dict[int, int]] = {}
    for row in data.rows(0, 1, GLOBAL_BATCH, 0, 8):
        epoch = data.order.row(row.position, row.slot).epoch
        for name, answer in zip(row.choices, row.choice_targets.argmax(1).tolist(), strict=True):
            answers.setdefault(name, {})[epoch] = answer
    for name in ("1:p0", "1:p2", "1:p3"):
        assert answers[name][0] == 1 - answers[name][1]
    assert set(answers["1:p1"].values()) == {2}  # a tie


def test_an_epoch_shows_everything_once(data: Data) -> None:
    """Each edit once, each comparison once, in orders that change from epoch to epoch."""
    rows = [data.order.row(position, slot) for position in range(8) for slot in range(GLOBAL_BATCH)]
    first, second = ([row for row in rows if row.epoch == epoch] for epoch in range(2))
    for epoch in (first, second):
        assert sorted(member for row in epoch for member in row.members) == list(range(len(data.parts)))
    assert [row.members for row in first] != [row.members for row in second]
    built = [data.builder.row([data.parts[member] for member in row.members], epoch=row.epoch) for row in first]
    assert sorted(name for row in built for name in row.records) == [f"0:r{n}" for n in range(8)]
    assert sorted(name for row in built for name in row.choices) == [f"1:p{n}" for n in range(4)]
    assert all(row.ids.shape[1] <= LIMIT for row in built)


def test_workers_are_given_rows_and_not_the_data(data: Data) -> None:
    """What goes to a worker at its start does not grow with the number of records."""
    builder = pickle.dumps(data.builder)
    assert b"r0" not in builder
    assert b"source.jpg" not in builder


@pytest.mark.slow
def test_worker_processes_build_the_same_rows_and_say_what_goes_wrong(data: Data, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    alone, apart = (data.rows(0, 2, 2, 0, 4, workers) for workers in (0, 2))
    assert len(alone) == 8
    assert all(same(one, other) for one, other in zip(alone, apart, strict=True))
    assert torch.equal(torch.get_rng_state(), before)

    positions = Positions(data.order, 0, 1, GLOBAL_BATCH, 1)
    endless = iter(row_loader(data.builder, data.order, data.parts, positions, 2, 2))
    for _ in range(2):  # one of each worker, so that both have started
        next(endless)
    for child in multiprocessing.active_children():
        os.kill(child.pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerLost, match=r"a data worker process ended by itself"):
        list(endless)

    picture = tmp_path / "2-first.jpg"
    picture.write_bytes(picture.read_bytes()[:-100])
    messages = []
    for workers in (0, 2):
        with pytest.raises(BadPicture, match=r"2-first\.jpg") as caught:
            data.rows(0, 1, GLOBAL_BATCH, 0, 4, workers)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
