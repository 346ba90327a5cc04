"""Packing of judged edits: nothing lost or doubled, rows in their limit, groups together, rows by position alone."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.training.data.order import Positions
from editfoundry.training.judge.packing import OPEN_ROWS, Item, RowOrder, in_order, pack, pieces

LIMIT = 50
groups_of_lengths = st.lists(st.lists(st.integers(1, LIMIT), min_size=1, max_size=7), min_size=1, max_size=60)


def items_of(groups: list[list[int]]) -> list[Item]:
    items, number = [], 0
    for lengths in groups:
        items.append(Item(tuple(range(number, number + len(lengths))), tuple(lengths)))
        number += len(lengths)
    return items


def length_of(items: list[Item]) -> dict[int, int]:
    return {member: length for item in items for member, length in zip(item.members, item.lengths, strict=True)}


@settings(max_examples=60, deadline=None)
@given(groups_of_lengths, st.integers(0, 2**40), st.integers(0, 9))
def test_every_sequence_is_in_one_row_within_the_limit_and_groups_that_fit_stay_together(
    groups: list[list[int]], seed: int, epoch: int
) -> None:
    items = items_of(groups)
    lengths = length_of(items)
    for rows in (pack(items, LIMIT, seed, epoch), in_order(items, LIMIT)):
        assert Counter(member for row in rows for member in row) == Counter(list(lengths))
        assert all(0 < sum(lengths[member] for member in row) <= LIMIT for row in rows)
        for item in items:
            if sum(item.lengths) <= LIMIT:
                assert sum(bool(set(item.members) & set(row)) for row in rows) == 1
    assert pack(items, LIMIT, seed, epoch) == pack(items, LIMIT, seed, epoch)


@given(st.lists(st.integers(1, LIMIT), min_size=2, max_size=20), st.integers(0, 2**40))
def test_a_group_longer_than_a_row_is_cut_as_coarsely_as_its_order_allows(lengths: list[int], key: int) -> None:
    [item] = items_of([lengths])
    cut = list(pieces(item, LIMIT, key))
    assert sorted(member for members, _ in cut for member in members) == list(item.members)
    assert all(tokens == sum(lengths[member] for member in members) <= LIMIT for members, tokens in cut)
    for (_, before), (members, _) in pairwise(cut):
        assert before + lengths[members[0]] > LIMIT


def test_a_cut_group_meets_in_other_pieces_in_another_epoch() -> None:
    items = items_of([[20] * 10])
    epochs = [{frozenset(row) for row in pack(items, LIMIT, 0, epoch)} for epoch in range(2)]
    assert all(len(row) == 2 for rows in epochs for row in rows)
    assert epochs[0] != epochs[1]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    items = items_of([[10]] * 40)
    orders = {tuple(pack(items, LIMIT, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert pack(items, LIMIT, 0, 0)[0] == (11, 14, 10, 29, 3)  # recorded: a run goes on after an update


def test_first_fit_wastes_less_than_filling_one_row_after_the_other() -> None:
    lengths = np.random.default_rng(0).integers(5, 26, 400).tolist()
    items = items_of([[length] for length in lengths])
    least = sum(lengths) / LIMIT
    assert len(pack(items, LIMIT, 0, 0)) < 1.06 * least < 1.12 * least < len(in_order(items, LIMIT))


def test_only_some_rows_are_open_at_a_time_and_the_fullest_is_closed() -> None:
    """So a small item that comes late finds no place in a row that was closed."""
    order = {member: place for place, (member,) in enumerate(pack(items_of([[LIMIT]] * 40), LIMIT, 3, 0))}
    came = sorted(range(40), key=order.__getitem__)  # rows of whole items are closed in the order they came
    lengths = [30] * 40
    lengths[came[-1]] = 20
    rows = pack(items_of([[length] for length in lengths]), LIMIT, 3, 0)
    [shared] = [row for row in rows if len(row) == 2]
    assert shared[1] == came[-1]
    assert shared[0] in came[-1 - OPEN_ROWS : -1]


@settings(max_examples=8, deadline=None)
@given(groups_of_lengths, st.integers(1, 6), st.integers(0, 99))
def test_positions_run_through_the_epochs_without_a_gap(groups: list[list[int]], global_batch: int, seed: int) -> None:
    items = items_of(groups)
    order = RowOrder(items, LIMIT, global_batch, seed)
    rows = [order.row(position, slot) for position in range(6) for slot in range(global_batch)]
    endless = [(epoch, row) for epoch in range(6 * global_batch) for row in pack(items, LIMIT, seed, epoch)][
        : len(rows)
    ]
    assert [tuple(row) for row in rows] == endless
    fresh = RowOrder(items, LIMIT, global_batch, seed)
    assert fresh.row(5, global_batch - 1) == rows[-1]
    assert fresh.row(2, 0) == rows[2 * global_batch]  # and back
    assert order.epoch(0) == 0
    assert [order.epoch(position) for position in range(6)] == sorted(order.epoch(position) for position in range(6))


def test_the_epoch_counts_rows_and_the_fill_tokens() -> None:
    order = RowOrder(items_of([[30]] * 4), LIMIT, 2, 0)
    assert [order.epoch(position) for position in range(4)] == [0, 0.5, 1, 1.5]
    assert order.fill() == 0.6


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 4), (2, 2), (4, 1)])
def test_ranks_and_accumulation_share_the_rows_of_a_step_and_change_none(ranks: int, accumulation: int) -> None:
    order = RowOrder(items_of([[10], [40], [25], [30]] * 9), LIMIT, 4, 5)
    steps: dict[int, set[int]] = {}
    for rank in range(ranks):
        positions = Positions(order, rank, ranks, accumulation, 1, start=3, stop=6)
        places = [(position, *positions.slots(micro)) for position, micro in positions]
        assert len(places) == 3 * accumulation  # every rank takes as many steps
        for position, slot in places:
            steps.setdefault(position, set()).add(slot)
    assert steps == {3: {0, 1, 2, 3}, 4: {0, 1, 2, 3}, 5: {0, 1, 2, 3}}
