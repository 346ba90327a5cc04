"""Small judged datasets with pictures, and builders of rows over the tiny Qwen2.5-VL's processor."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from training_data import DrawnEdit, write_dataset

from editfoundry.core.images import encode_jpeg
from editfoundry.models.judge.encode import PromptEncoder
from editfoundry.models.judge.rubric import FOLDER, Rubric, load_rubric
from editfoundry.training.judge.balance import weighting
from editfoundry.training.judge.config import Heads, Source
from editfoundry.training.judge.records import Choice, Record
from editfoundry.training.judge.rows import RowBuilder
from editfoundry.training.judge.sequences import Part, Plan

SMALLEST = 4 * 28 * 28
ALL = Heads(generate=1, expected=1, regression=1, ranking=1, preference=1)


def draw(seed: int, size: tuple[int, int] = (60, 84)) -> np.ndarray:
    """A picture uint8 [H, W, 3] of its own colours. size: height, width."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (4, 4, 3), np.uint8)
    return np.kron(coarse, np.ones((-(-size[0] // 4), -(-size[1] // 4), 1), np.uint8))[: size[0], : size[1]].copy()


def write_pictures(folder: Path, count: int, sizes: Sequence[tuple[int, int]] = ((60, 84), (84, 60), (56, 56))) -> None:
    """`<n>-source.jpg`, `<n>-first.jpg` and `<n>-second.jpg`, n from 0; all of one n have one size."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        for place, name in enumerate(("source", "first", "second")):
            picture = draw(3 * number + place, sizes[number % len(sizes)])
            (folder / f"{number}-{name}.jpg").write_bytes(encode_jpeg(picture))


def rating(number: int, **changes: Any) -> dict[str, Any]:
    """A person's scores of picture `number`, as a line of a file has them."""
    scores = {"following": 1 + number % 5, "naturalness": 5 - number % 5}
    return {
        "id": f"r{number}", "source": f"{number}-source.jpg", "result": f"{number}-first.jpg",
        "instruction": f"add a {'red ' * (number % 3)}square", "type": "add", "scores": scores, **changes,
    }  # fmt: skip


def preference(number: int, **changes: Any) -> dict[str, Any]:
    """A choice between the results of picture `number`."""
    return {
        "id": f"p{number}", "source": f"{number}-source.jpg", "first": f"{number}-first.jpg",
        "second": f"{number}-second.jpg", "instruction": "remove the square", "type": "remove",
        "preferred": ("first", "tie", "second")[number % 3], **changes,
    }  # fmt: skip


def write_lines(file: Path, rows: Sequence[Any]) -> Path:
    """A JSONL file."""
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def source(kind: str, path: Path, **changes: Any) -> Source:
    """A source of that kind."""
    return Source(kind=kind, path=str(path), **changes)  # type: ignore[arg-type]


def write_judged_dataset(folder: Path, drawn: Sequence[DrawnEdit], verdicts: Sequence[dict[str, Any]] = ()) -> Path:
    """A dataset of ours; verdicts: columns `gate_judge_…` of each edge, without that prefix."""
    write_dataset(folder, drawn)
    table = pq.read_table(folder / "index.parquet").to_pylist()
    for row, verdict in zip(table, verdicts or [{}] * len(table), strict=True):
        row.update({f"gate_judge_{name}": value for name, value in verdict.items()})
    pq.write_table(pa.Table.from_pylist(table), folder / "index.parquet")
    return folder


def tiny_encoder(folder: Path, most_pixels: int = 4 * SMALLEST) -> PromptEncoder:
    """The encoder of a tiny Qwen2.5-VL's folder."""
    from transformers import AutoConfig, AutoProcessor

    from editfoundry.models.language.local import Resident

    processor = AutoProcessor.from_pretrained(folder)
    tokens = Resident(None, processor, ()).control_tokens
    return PromptEncoder(processor, AutoConfig.from_pretrained(folder), SMALLEST, most_pixels, tokens)


def ten_points(folder: Path) -> Rubric:
    """The rubric `edit` on a scale from 0 to 10."""
    file = folder / "ten.yaml"
    file.write_text((FOLDER / "edit.yaml").read_text().replace("scale: [1, 5]", "scale: [0, 10]"), encoding="utf-8")
    return load_rubric(str(file))


def row_builder(
    encoder: PromptEncoder, heads: Heads = ALL, rubric: Rubric | None = None, records: Sequence[Record] = (),
    order: Any = "compat",
) -> RowBuilder:  # fmt: skip
    """A builder whose scores are weighed by their counts in `records`, or evenly."""
    rubric = rubric or load_rubric("edit")
    return RowBuilder(rubric, encoder, order, heads, weighting(records, rubric, "sqrt"))


def planned(
    builder: RowBuilder, records: Sequence[Record] = (), choices: Sequence[Choice] = (), limit: int = 1 << 20
) -> Plan:
    """Every sequence of these."""
    return builder.sequences.plan(records, choices, limit)


def parts_of(builder: RowBuilder, *shown: Record | Choice) -> tuple[Part, ...]:
    """The sequences of these, in order."""
    records = [one for one in shown if isinstance(one, Record)]
    return planned(builder, records, [one for one in shown if isinstance(one, Choice)]).parts
