"""The order of the data: exact shares, nothing lost, one function of the position, and the same for ever."""

import pickle
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_data import SIDES, Many, data_config, hollow_dataset, index_of
from pydantic import ValidationError
from torchdata.stateful_dataloader import StatefulDataLoader

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.training.config import DataConfig, DatasetSpec
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.index import NoSamples, ShardIndex, build_index
from editfoundry.training.data.order import Order, Positions, slots

MIXED = (
    Many(37, "add"),
    Many(11, "style", "wide"),
    Many(20, "remove", "wide"),
    Many(5, "visual", "tall", reference=True),
    Many(16, "add", "tall"),
    Many(9, "replace"),
    Many(1, "motion"),
    Many(13, "visual", reference=True),
)
BUCKETS = Buckets(512, (0.5, 1.0, 2.0))
RECORDED = [
    (2, [2, 7, 5]),
    (4, [11, 9, 10]),
    (2, [3, 1, 6]),
    (2, [4, 7, 0]),
    (4, [8, 9, 8]),
    (2, [0, 6, 6]),
    (2, [5, 4, 2]),
    (2, [5, 3, 1]),
    (4, [11, 10, 8]),
    (4, [9, 10, 11]),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ShardIndex:
    return index_of(tmp_path_factory.mktemp("order"), *MIXED)


def order_of(index: ShardIndex, global_batch: int, seed: int = 0, data: DataConfig | None = None) -> Order:
    return Order(index, BUCKETS, data or data_config(), global_batch, seed, index.folder)


def visits(order: Order, epochs: int) -> Counter[int]:
    """How often each row is seen in the first epochs."""
    count = sum(order.epoch_batches(epoch) for epoch in range(epochs))
    return Counter(row for position in range(count) for row in order.batch(position)[1].tolist())


many = st.builds(
    Many, st.integers(1, 23), st.sampled_from(["add", "style", "visual"]), st.sampled_from(sorted(SIDES)), st.booleans()
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    samples=st.lists(many, min_size=1, max_size=6),
    global_batch=st.integers(1, 7),
    seed=st.integers(0, 2**32),
    weights=st.fixed_dictionaries({}, optional={name: st.floats(0.05, 3) for name in ("add", "style", "visual")}),
)
def test_every_sample_is_seen_as_often_as_its_weight_says(
    samples: list[Many], global_batch: int, seed: int, weights: dict[str, float]
) -> None:
    """After `global_batch` epochs every bucket has whole batches only, so the counts are exact."""
    with TemporaryDirectory() as name:
        index = index_of(Path(name), *samples)
        order = order_of(index, global_batch, seed, data_config(types=weights))
        seen = visits(order, global_batch)
        assert sum(seen.values()) == global_batch * order.items
        for share in order.shares:
            group = share.group
            rows = np.flatnonzero(
                (index.rows["type"] == group.type)
                & (
                    BUCKETS.of(index.rows["width"], index.rows["height"], 1 + (index.rows["reference_length"] > 0))
                    == group.bucket
                )
            )
            counts = [seen[row] for row in rows.tolist()]
            assert len(rows) == group.rows
            assert share.items == max(1, round(weights.get(index.types[group.type], 1) * group.rows))
            assert sum(counts) == global_batch * share.items
            assert max(counts) - min(counts) <= 1


def test_a_whole_weight_repeats_every_sample_just_so_often(index: ShardIndex) -> None:
    seen = visits(order_of(index, 4, data=data_config(3.0, types={"style": 2.0, "remove": 0.0})), 4)
    expected = {"style": 4 * 6, "remove": 0}
    for row, kind in enumerate(index.rows["type"]):
        assert seen[row] == expected.get(index.types[kind], 4 * 3)


def test_shares_of_types_and_datasets_are_their_weights(tmp_path: Path) -> None:
    first = hollow_dataset(tmp_path / "a", [Many(300, "add"), Many(100, "style", "wide")])
    second = hollow_dataset(tmp_path / "b", [Many(200, "add"), Many(100, "style")])
    datasets = (DatasetSpec(path=str(first), weight=0.5), DatasetSpec(path=str(second), weight=2.0))
    data = DataConfig(datasets=datasets, types={"style": 0.3}, size=512, aspect_ratios=(0.5, 1.0, 2.0))
    index = build_index(data.datasets, "train", tmp_path / "index")
    order = order_of(index, 16, 3, data)
    assert order.items == 150 + 15 + 400 + 60
    epochs = 10
    seen: Counter[tuple[int, str]] = Counter()
    for row, count in visits(order, epochs).items():
        seen[int(index.rows[row]["dataset"]), index.types[index.rows[row]["type"]]] += count
    for part, items in {(0, "add"): 150, (0, "style"): 15, (1, "add"): 400, (1, "style"): 60}.items():
        assert seen[part] / epochs == pytest.approx(items, rel=0.06)


@pytest.mark.parametrize("global_batch", [1, 3, 8, 64, 500])
def test_epochs_agree_with_brute_force(index: ShardIndex, global_batch: int) -> None:
    """A batch belongs to the epoch of its bucket's stream in which its last item lies."""
    order = order_of(index, global_batch)
    epochs = 12 if global_batch < 500 else 60
    counted: Counter[int] = Counter()
    for bucket in {share.group.bucket for share in order.shares}:
        total = sum(share.items for share in order.shares if share.group.bucket == bucket)
        ends = range(global_batch - 1, epochs * total, global_batch)
        counted.update(end // total for end in ends)
    assert [order.epoch_batches(epoch) for epoch in range(epochs)] == [counted[epoch] for epoch in range(epochs)]
    position = 0
    for epoch in range(epochs):
        for place in range(counted[epoch]):
            assert order.epoch(position) == epoch + place / counted[epoch]
            position += 1


def test_a_far_position_is_as_exact_as_a_near_one(index: ShardIndex) -> None:
    order = order_of(index, 8)
    epoch = 10**9 + 7
    position = order._before(epoch)
    assert order.epoch(position) == epoch and order.epoch(position - 1) < epoch
    bucket, rows = order.batch(position)
    assert len(rows) == 8 and rows.min() >= 0 and rows.max() < len(index)
    assert bucket in {share.group.bucket for share in order.shares}


@given(position=st.integers(0, 10**6))
@settings(max_examples=50)
def test_a_batch_is_of_one_bucket_and_depends_on_its_position_only(index: ShardIndex, position: int) -> None:
    used = order_of(index, 8, 1)
    for other in (position + 1, 3, position // 2):
        used.batch(other)
    bucket, rows = used.batch(position)
    fresh_bucket, fresh = pickle.loads(pickle.dumps(order_of(index, 8, 1))).batch(position)  # noqa: S301
    assert bucket == fresh_bucket and rows.tolist() == fresh.tolist()
    entries = index.rows[rows]
    pictures = 1 + (entries["reference_length"] > 0)
    assert set(BUCKETS.of(entries["width"], entries["height"], pictures).tolist()) == {bucket}


def test_seeds_and_epochs_give_other_orders(index: ShardIndex) -> None:
    order = order_of(index, 1)
    first, second = (
        [order.batch(epoch * order.items + place)[1][0] for place in range(order.items)] for epoch in range(2)
    )
    assert sorted(first) == sorted(second) == list(range(len(index)))
    other = [order_of(index, 1, 1).batch(place)[1][0] for place in range(order.items)]
    assert sorted(other) == sorted(first)
    for one, another in ((first, second), (first, other), (first, sorted(first))):
        assert np.mean(np.array(one) == np.array(another)) < 0.1


def test_moving_the_data_or_the_run_changes_nothing(tmp_path: Path) -> None:
    orders = []
    for place in ("here", "there"):
        index = index_of(tmp_path / place, *MIXED)
        orders.append(order_of(index, 4))
    assert [orders[0].batch(position)[1].tolist() for position in range(50)] == [
        orders[1].batch(position)[1].tolist() for position in range(50)
    ]


def test_a_small_order_is_what_it_always_was(tmp_path: Path) -> None:
    """Recorded: a run that resumes under a later version has to go on in the same order."""
    index = index_of(tmp_path, Many(5), Many(3, "style"), Many(4, "remove", "wide"))
    order = order_of(index, 3, 7, data_config(types={"style": 1.5}))
    assert [(bucket, rows.tolist()) for bucket, rows in map(order.batch, range(10))] == RECORDED


@given(ranks=st.integers(1, 8), accumulation=st.integers(1, 5), micro_batch=st.integers(1, 6))
def test_ranks_and_steps_share_a_batch_exactly(ranks: int, accumulation: int, micro_batch: int) -> None:
    taken = [
        slot
        for micro in range(accumulation)
        for rank in range(ranks)
        for slot in slots(rank, ranks, micro, micro_batch)
    ]
    assert taken == list(range(ranks * accumulation * micro_batch))


@pytest.mark.parametrize(
    ("ranks", "accumulation", "micro_batch"), [(1, 1, 24), (2, 1, 12), (1, 12, 2), (3, 4, 2), (24, 1, 1), (4, 3, 2)]
)
def test_the_order_is_the_same_for_any_number_of_ranks(
    index: ShardIndex, ranks: int, accumulation: int, micro_batch: int
) -> None:
    order = order_of(index, 24)
    streams = [Positions(order, rank, ranks, accumulation, micro_batch, start=3, stop=9) for rank in range(ranks)]
    seen: dict[int, dict[int, int]] = {}
    for positions in streams:
        for position, micro in positions:
            rows = order.batch(position)[1]
            for slot in positions.slots(micro):
                assert seen.setdefault(position, {}).setdefault(slot, int(rows[slot])) == rows[slot]
    assert sorted(seen) == list(range(3, 9))
    for position, taken in seen.items():
        assert [taken[slot] for slot in range(24)] == order.batch(position)[1].tolist()


@pytest.mark.parametrize(
    ("rank", "ranks", "accumulation", "micro_batch"), [(0, 3, 1, 2), (0, 1, 1, 9), (2, 2, 1, 4), (-1, 2, 1, 4)]
)
def test_ranks_that_do_not_divide_the_batch_are_refused(
    index: ShardIndex, rank: int, ranks: int, accumulation: int, micro_batch: int
) -> None:
    with pytest.raises(UsageError, match="is not the global batch of 8"):
        Positions(order_of(index, 8), rank, ranks, accumulation, micro_batch)


class Rows:
    """A map-style data set over an order, as the loader's workers see it."""

    def __init__(self, order: Order, positions: Positions) -> None:
        self.order, self.positions = order, positions

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, int, list[int]]:
        rows = self.order.batch(item[0])[1]
        return *item, [int(rows[slot]) for slot in self.positions.slots(item[1])]


def loader(order: Order, workers: int, accumulation: int = 2, stop: int = 11) -> StatefulDataLoader[Any]:
    positions = Positions(order, 1, 2, accumulation, 8 // (2 * accumulation), start=2, stop=stop)
    return StatefulDataLoader(Rows(order, positions), batch_size=None, sampler=positions, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 7, 8])
def test_a_stateful_loader_goes_on_where_it_stopped(index: ShardIndex, workers: int, taken: int) -> None:
    order = order_of(index, 8)
    whole = [
        (position, micro, order.batch(position)[1][list(slots(1, 2, micro, 2))].tolist())
        for position in range(2, 11)
        for micro in range(2)
    ]
    first = loader(order, workers)
    iterator = iter(first)
    begun = list(islice(iterator, taken))
    state = first.state_dict()
    del iterator
    second = loader(order, workers)
    second.load_state_dict(state)
    rest = list(second)
    assert [tuple(item) for item in begun + rest] == whole


def test_positions_keep_their_place(index: ShardIndex) -> None:
    order = order_of(index, 8)
    iterator = iter(Positions(order, 0, 1, 4, 2, start=5))
    assert list(islice(iterator, 6)) == [(5, 0), (5, 1), (5, 2), (5, 3), (6, 0), (6, 1)]
    state = iterator.state_dict()
    assert state == {"position": 6, "micro": 2, "accumulation": 4}
    again = iter(Positions(order, 0, 1, 4, 2))
    again.load_state_dict(state)
    assert list(islice(again, 3)) == [(6, 2), (6, 3), (7, 0)]
    other = iter(Positions(order, 0, 2, 2, 2))
    with pytest.raises(UsageError, match="inside global batch 6 with 4 accumulation steps, now there are 2"):
        other.load_state_dict(state)
    other.load_state_dict({**state, "micro": 0})
    assert next(other) == (6, 0)


def test_weights_that_leave_nothing_are_refused(index: ShardIndex) -> None:
    types = {index.types[share.group.type]: 0.0 for share in order_of(index, 8).shares}
    for data in (data_config(types=types), data_config(0.0)):
        with pytest.raises(NoSamples, match=r"no sample is left of 112; raise a weight of data.types or data.datasets"):
            order_of(index, 8, data=data)


def test_weights_that_are_no_numbers_are_refused() -> None:
    for weight in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValidationError, match=r"finite|negative|greater"):
            data_config(weight)
        with pytest.raises(ValidationError, match=r"finite|negative|greater"):
            data_config(types={"add": weight})
    with pytest.raises(ValidationError, match="unknown edit types"):
        data_config(types={"ad": 1.0})


def test_an_endless_epoch_is_refused(index: ShardIndex) -> None:
    with pytest.raises(UsageError, match="lower them"):
        order_of(index, 8, data=data_config(1e15))


def test_a_negative_position_is_refused(index: ShardIndex) -> None:
    with pytest.raises(ValueError, match="position -1 is negative"):
        order_of(index, 8).batch(-1)


@pytest.mark.parametrize(("suffix", "content"), [("json", "["), ("json", "[[1]]"), ("json", "[]"), ("bin", "short")])
def test_damaged_groups_are_refused(tmp_path: Path, suffix: str, content: str) -> None:
    index = index_of(tmp_path, Many(5))
    order_of(index, 2)
    (path,) = index.folder.glob(f"groups-*.{suffix}")
    path.write_text(content)
    with pytest.raises(EditFoundryError, match=r"groups-.*; delete .* to have it built again"):
        order_of(index, 2)
    (listing,) = index.folder.glob("groups-*.json")
    listing.unlink()
    assert sorted(order_of(index, 5).batch(0)[1].tolist()) == [0, 1, 2, 3, 4]
