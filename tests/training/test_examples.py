"""Samples out of shards: what is read, and what damaged or lying shards are refused for."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from micro_batches import changed_rows, indexed, member, patch
from training_data import COLOURS, DrawnEdit, edits, scene, write_dataset

from editfoundry.core.geometry import Grid
from editfoundry.core.images import decode_jpeg, encode_jpeg
from editfoundry.data_engine.shards import tar_header
from editfoundry.training.data.examples import BadSample, MissingShard, read_example
from editfoundry.training.data.index import ShardIndex


@pytest.fixture
def index(tmp_path: Path) -> ShardIndex:
    """Five edits in shards of two; the fourth has a reference, the fifth no mask."""
    drawn = [
        *edits(3),
        DrawnEdit("with_reference", "swap it", "visual", reference=True),
        DrawnEdit("bare", "restyle", "style", mask=False),
    ]
    return indexed(write_dataset(tmp_path / "data", drawn, per_shard=2))


def test_a_sample_is_its_members(index: ShardIndex) -> None:
    drawn = edits(3)[1]
    source, result, area = scene(drawn)
    example = read_example(index, 1, history=True)
    assert (example.key, example.type) == ("edit00001", "add")
    assert example.instruction == "add a green square, number 1"
    assert example.history == ()
    assert np.array_equal(example.source, decode_jpeg(encode_jpeg(source)))
    assert np.array_equal(example.result, decode_jpeg(encode_jpeg(result)))
    assert example.mask is not None
    assert np.array_equal(example.mask, area)
    assert example.reference is None


def test_reference_and_missing_mask(index: ShardIndex) -> None:
    example = read_example(index, 3, history=True)
    assert example.reference is not None
    assert example.reference.shape == (48, 48, 3)
    assert np.abs(example.reference.astype(int) - COLOURS["red"]).max() <= 2
    assert read_example(index, 4, history=True).mask is None


def conversation() -> list[DrawnEdit]:
    """Three turns, the last of which goes back to the first one's result."""
    first = DrawnEdit("talk_t1", "add a duck", premise="everything new is red")
    second = DrawnEdit("talk_t2", "make it blue", parent="talk_t1", turn=2, premise="everything new is red")
    third = DrawnEdit("talk_t3", "no, yellow", parent="talk_t1", turn=3, premise="everything new is red")
    return [first, second, third, DrawnEdit("talk_t4", "remove it", parent="talk_t3", turn=4)]


def test_history_is_the_premise_and_the_turns_that_made_the_source(tmp_path: Path) -> None:
    index = indexed(write_dataset(tmp_path / "data", conversation(), per_shard=4))
    histories = [read_example(index, row, history=True).history for row in range(4)]
    premise = "everything new is red"
    assert histories == [(premise,), (premise, "add a duck"), (premise, "add a duck"), ("add a duck", "no, yellow")]
    assert read_example(index, 2, history=False).history == ()


@pytest.mark.parametrize(
    ("grid", "decoded"), [((64, 48), (64, 48)), ((80, 64), (128, 96)), ((144, 96), (256, 192)), ((32, 32), (64, 48))]
)
def test_pictures_are_decoded_at_the_smallest_scale_that_covers_the_grid(
    tmp_path: Path, grid: tuple[int, int], decoded: tuple[int, int]
) -> None:
    index = indexed(write_dataset(tmp_path / "data", edits(1, size=(256, 192))))
    example = read_example(index, 0, history=False, grid=Grid(*grid))
    assert example.source.shape == example.result.shape == (decoded[1], decoded[0], 3)
    assert example.mask is not None
    assert example.mask.shape == (192, 256)
    whole = read_example(index, 0, history=False).source
    scaled = cv2.resize(whole, decoded, interpolation=cv2.INTER_AREA)
    assert np.abs(example.source.astype(int) - scaled.astype(int)).max() <= 2


def test_a_missing_shard_is_named(index: ShardIndex) -> None:
    shard = index.shards[1].path
    shard.unlink()
    assert read_example(index, 1, history=True).key == "edit00001"
    with pytest.raises(MissingShard, match=rf"{shard}: the shard cannot be opened \(No such file or directory\)"):
        read_example(index, 2, history=True)


def broken_json(index: ShardIndex) -> ShardIndex:
    patch(index, 0, "json", b"[")
    return index


def other_type(index: ShardIndex) -> ShardIndex:
    patch(index, 0, "json", member(index, 0, "json").replace(b'"type":"add"', b'"type":"mov"'))
    return index


def other_key(index: ShardIndex) -> ShardIndex:
    patch(index, 0, "json", member(index, 0, "json").replace(b'"key":"edit00000"', b'"key":"edit00007"'))
    return index


def escaping_key(index: ShardIndex) -> ShardIndex:
    patch(index, 0, "json", member(index, 0, "json").replace(b'"key":"edit00000"', b'"key":"../../etc"'))
    return index


def cut_jpeg(index: ShardIndex) -> ShardIndex:
    half = len(member(index, 0, "result")) // 2
    patch(index, 0, "result", bytes(half), at=half)
    return index


def grey_mask(index: ShardIndex) -> ShardIndex:
    patch(index, 0, "mask", member(index, 0, "source")[: len(member(index, 0, "mask"))])
    return index


def bomb(index: ShardIndex) -> ShardIndex:
    """A header that declares 65,500 x 65,500 pixels."""
    data = member(index, 0, "source")
    patch(index, 0, "source", b"\xff\xdc\xff\xdc", at=data.index(b"\xff\xc0") + 5)
    return index


def other_size(index: ShardIndex) -> ShardIndex:
    data = member(index, 0, "source")
    patch(index, 0, "source", b"\x00\x38", at=data.index(b"\xff\xc0") + 5)
    return index


def other_offset(index: ShardIndex) -> ShardIndex:
    return changed_rows(
        index, 0, result_offset=index.rows["result_offset"][1], result_length=index.rows["result_length"][1]
    )


def shifted_offset(index: ShardIndex) -> ShardIndex:
    return changed_rows(index, 0, result_offset=int(index.rows["result_offset"][0]) + 512)


def other_length(index: ShardIndex) -> ShardIndex:
    return changed_rows(index, 0, source_length=int(index.rows["source_length"][0]) - 1)


def renamed_member(index: ShardIndex) -> ShardIndex:
    length = int(index.rows["source_length"][0])
    patch(index, 0, "source", tar_header("../edit00000.result.jpg", length), at=-512)
    return index


def truncated_shard(index: ShardIndex) -> ShardIndex:
    with index.shards[0].path.open("r+b") as file:
        file.truncate(int(index.rows["source_offset"][0]) + 100)
    return index


def endless_json(index: ShardIndex) -> ShardIndex:
    return changed_rows(index, 0, json_length=2_000_000)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (broken_json, r"the description is damaged: .*JSON"),
        (other_type, r"of 'edit00000', 'mov' on \(64, 64\) pixels, the sample is \('edit00000', 'add', \(64, 64\)\)"),
        (other_key, r"the description is of 'edit00007'.* restore the shard, or index the dataset again"),
        (escaping_key, r"the description is damaged: .*key"),
        (endless_json, r"a description of 2000000 bytes, where 1048576 are the most"),
        (cut_jpeg, r"the result of edit00000: the image/jpeg file "),
        (grey_mask, r"the mask of edit00000: "),
        (bomb, r"the source of edit00000: the header declares 65500x65500 pixels, more than the limit of 4096"),
        (other_size, r"the source of edit00000: 64x56 pixels, and 64x64 in the index"),
        (other_offset, r"the result of edit00000 belongs to 'edit00001'"),
        (shifted_offset, r"no tar header before the result"),
        (other_length, r"'edit00000.source.jpg' of \d+ bytes lies where a source.jpg of \d+ should"),
        (renamed_member, r"'../edit00000.result.jpg' of \d+ bytes lies where a source.jpg"),
        (truncated_shard, r"source.jpg' of \d+ bytes lies where"),
    ],
)
def test_damaged_and_lying_samples_are_refused(
    index: ShardIndex, damage: Callable[[ShardIndex], ShardIndex], said: str
) -> None:
    index = damage(index)
    with pytest.raises(BadSample, match=said) as caught:
        read_example(index, 0, history=True)
    place = f"{index.shards[0].path}: sample at byte {index.rows['json_offset'][0]}: "
    assert str(caught.value).startswith(place)
    assert len(str(caught.value)) <= len(place) + 300
    assert "\n" not in str(caught.value)
    if damage is not truncated_shard:
        assert read_example(index, 1, history=True).key == "edit00001"


def test_a_damaged_parent_is_refused_with_its_own_place(tmp_path: Path) -> None:
    index = indexed(write_dataset(tmp_path / "data", conversation(), per_shard=4))
    patch(index, 0, "json", b"[")
    with pytest.raises(BadSample, match=r"train-000000.tar: sample at byte 512: the description is damaged"):
        read_example(index, 1, history=True)
    assert read_example(index, 1, history=False).key == "talk_t2"
