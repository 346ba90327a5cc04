"""One sample out of its shard: read by offset, checked against the index, every picture decoded once.

Shards are hostile: a member is used only where its tar header names it, and a sample only if its JSON is that of the
row in the index.
"""

import math
import os
import tarfile
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from editfoundry.core.errors import EditFoundryError, ImageError
from editfoundry.core.geometry import Grid, grid_transform
from editfoundry.core.images import decode, decode_mask_png, read_info
from editfoundry.data_engine.dataset import MEMBER_NAMES
from editfoundry.data_engine.shards import BLOCK, ID_PATTERN
from editfoundry.models.protocols import Image
from editfoundry.training.data.index import ShardIndex

MAX_JSON_BYTES = 1 << 20
MAX_REFERENCE_PIXELS = 1 << 24


class BadSample(EditFoundryError):
    """A sample that cannot be used: the message names shard, place, sample and what is wrong."""


class MissingShard(EditFoundryError):
    """A shard that was there when the index was made and is not any more; no setting skips it."""


@dataclass(frozen=True)
class Example:
    """A decoded sample. Images are uint8 sRGB [H, W, 3], source and result of one size.

    history: what was said before the instruction, oldest first: the premise of the conversation, then the turns that
    made the source. mask: the exact edited area, bool, at the stored size; None where the sample has none.
    """

    key: str
    type: str
    instruction: str
    history: tuple[str, ...]
    source: Image
    result: Image
    mask: NDArray[np.bool_] | None
    reference: Image | None


class Conversation(BaseModel):
    """Where a sample stands in a conversation; `premise` is said before the first turn."""

    premise: str = ""


class Description(BaseModel):
    """What is used of a sample's JSON."""

    key: str = Field(pattern=f"^{ID_PATTERN.pattern}$")
    type: str
    instruction: str
    grid: tuple[int, int]
    conversation: Conversation


def read_example(index: ShardIndex, row: int, history: bool, grid: Grid | None = None) -> Example:
    """Row `row` of the index. history: read the turns before it too.

    grid: where the pictures will be put with `to_grid`; JPEGs are then decoded at the smallest of the scales 1/8, 1/4,
    1/2 and 1 that still covers it. None decodes them as they are stored.

    Raises MissingShard, and BadSample for damaged or mislabelled members and for pictures of another size than the
    index says (too many pixels are refused before decoding).
    """
    said = read_description(index, row)
    entry = index.rows[row]
    size = int(entry["width"]), int(entry["height"])
    members = {name: _member(index, row, name, said.key) for name in ("source", "result", "mask", "reference")}
    images = {}
    for name, data in members.items():
        if data is not None:
            try:
                images[name] = _image(name, data, size, grid)
            except ImageError as error:
                raise bad_sample(index, row, f"the {name} of {said.key}: {error}") from error
    return Example(
        key=said.key,
        type=said.type,
        instruction=said.instruction,
        history=_history(index, row, said) if history else (),
        source=images["source"],
        result=images["result"],
        mask=images["mask"] > 0 if "mask" in images else None,
        reference=images.get("reference"),
    )


def read_description(index: ShardIndex, row: int) -> Description:
    """The JSON of a row. Raises MissingShard, and BadSample unless it is that row's."""
    entry = index.rows[row]
    if entry["json_length"] > MAX_JSON_BYTES:
        raise bad_sample(
            index, row, f"a description of {entry['json_length']} bytes, where {MAX_JSON_BYTES} are the most"
        )
    key, data = _read(index, row, "json")
    try:
        said = Description.model_validate_json(data)
    except ValidationError as error:
        raise bad_sample(index, row, f"the description is damaged: {error}") from error
    wanted = key, index.types[entry["type"]], (int(entry["width"]), int(entry["height"]))
    if (said.key, said.type, said.grid) != wanted:
        raise bad_sample(
            index,
            row,
            f"the description is of {said.key!r}, {said.type!r} on {said.grid} pixels, the sample is {wanted}; "
            "restore the shard, or index the dataset again",
        )
    return said


def bad_sample(index: ShardIndex, row: int, what: str) -> BadSample:
    """The error of a row that cannot be used, in one bounded line."""
    place = f"{index.shards[index.rows[row]['shard']].path}: sample at byte {index.rows[row]['json_offset']}"
    return BadSample(f"{place}: {' '.join(what.split())[:300]}")


def _history(index: ShardIndex, row: int, said: Description) -> tuple[str, ...]:
    """What was said before a turn, oldest first."""
    turns: list[str] = []
    while (row := int(index.rows[row]["parent"])) >= 0:
        turns.append(read_description(index, row).instruction)
    premise = said.conversation.premise
    return (*([premise] if premise else []), *reversed(turns))


def _member(index: ShardIndex, row: int, name: str, key: str) -> bytes | None:
    """A member of the sample `key`, or None where the index has none."""
    if not index.rows[row][f"{name}_length"]:
        return None
    found, data = _read(index, row, name)
    if found != key:
        raise bad_sample(index, row, f"the {name} of {key} belongs to {found!r:.80}; index the dataset again")
    return data


def _read(index: ShardIndex, row: int, name: str) -> tuple[str, bytes]:
    """The key that a member's tar header names, and the member's bytes."""
    entry, ending = index.rows[row], f".{MEMBER_NAMES[name]}"
    path, length = index.shards[entry["shard"]].path, int(entry[f"{name}_length"])
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise MissingShard(
            f"{path}: the shard cannot be opened ({error.strerror}); restore it, and run again"
        ) from error
    try:
        data = os.pread(descriptor, BLOCK + length, int(entry[f"{name}_offset"]) - BLOCK)
    except OSError as error:
        raise bad_sample(index, row, f"the {name} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    try:
        header = tarfile.TarInfo.frombuf(data[:BLOCK], "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise bad_sample(index, row, f"no tar header before the {name}: {error}; index the dataset again") from error
    if not header.name.endswith(ending) or header.size != length or len(data) != BLOCK + length:
        what = f"{header.name!r:.80} of {header.size} bytes"
        raise bad_sample(index, row, f"{what} lies where a {ending[1:]} of {length} should; index the dataset again")
    return header.name.removesuffix(ending), data[BLOCK:]


def _image(name: str, data: bytes, size: tuple[int, int], grid: Grid | None) -> NDArray[np.uint8]:
    """A decoded picture, scaled down as far as the grid allows, or a mask (0 and 255). Raises ImageError."""
    limit = MAX_REFERENCE_PIXELS if name == "reference" else size[0] * size[1]
    info = read_info(data, max_pixels=limit)
    there = info.width, info.height
    if name != "reference" and there != size:
        raise ImageError("wrong_size", f"{there[0]}x{there[1]} pixels, and {size[0]}x{size[1]} in the index")
    if name == "mask":
        return decode_mask_png(data, max_pixels=limit).array.astype(np.uint8)
    target = None if grid is None else math.ceil(min(there) * grid_transform(*there, grid)[0])
    return decode(data, target=target, max_pixels=limit)
