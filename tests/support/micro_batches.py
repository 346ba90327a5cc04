"""Micro-batches of the tiny editor over small datasets, and what loader tests need in worker processes."""

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from editfoundry.models.editor.prompt import EditorProcessor
from editfoundry.training.config import DataConfig, DatasetSpec, Timesteps
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.index import ShardIndex, build_index
from editfoundry.training.data.micro import MicroBatchBuilder

PLAIN = {"dropout": {"text": 0, "visual": 0, "all": 0}}


def tiny_processor(editor: Path) -> EditorProcessor:
    """Prompt and resize of a tiny editor's folder."""
    from transformers import AutoProcessor, SiglipImageProcessor

    processor = AutoProcessor.from_pretrained(editor / "processor")
    return EditorProcessor(processor, SiglipImageProcessor.from_pretrained(editor / "visual_processor"), 56 * 56, 256)


def settings(dataset: Path, **changes: Any) -> DataConfig:
    """64 x 64 pixels in three shapes, nothing dropped."""
    plain = {"size": 64, "aspect_ratios": (0.75, 1.0, 1.3333), **PLAIN}
    return DataConfig(datasets=(DatasetSpec(path=str(dataset)),), **{**plain, **changes})


def indexed(dataset: Path) -> ShardIndex:
    """The index of the dataset's `train` split, beside it."""
    return build_index((DatasetSpec(path=str(dataset)),), "train", dataset.with_name(f"{dataset.name}.index"))


def builder(
    dataset: Path,
    processor: EditorProcessor,
    *,
    seed: int = 7,
    references: bool = True,
    cache: Any = None,
    **changes: Any,
) -> MicroBatchBuilder:
    """A builder for latents of 4 channels at half the pixels."""
    data = settings(dataset, **changes)
    buckets = Buckets(data.size, data.aspect_ratios)
    return MicroBatchBuilder(
        indexed(dataset), data, buckets, processor, 4, 2, Timesteps(), seed, references=references, cache=cache
    )


def patch(index: ShardIndex, row: int, member: str, data: bytes, at: int = 0) -> None:
    """Overwrite bytes of a sample's member (from `at`; negative reaches into its tar header) in its shard."""
    entry = index.rows[row]
    with index.shards[int(entry["shard"])].path.open("r+b") as file:
        file.seek(int(entry[f"{member}_offset"]) + at)
        file.write(data)


def member(index: ShardIndex, row: int, name: str) -> bytes:
    """The bytes of a sample's member."""
    entry = index.rows[row]
    with index.shards[int(entry["shard"])].path.open("rb") as file:
        file.seek(int(entry[f"{name}_offset"]))
        return file.read(int(entry[f"{name}_length"]))


def changed_rows(index: ShardIndex, row: int, **fields: int) -> ShardIndex:
    """The index with some fields of a row set, in memory."""
    index.rows = np.array(index.rows)
    for name, value in fields.items():
        index.rows[name][row] = value
    return index


class ProcessBuilder:
    """Stands for a builder: says of the process that builds which threads it may use."""

    def build(self, rows: Any, bucket: int, position: int, slots: range) -> dict[str, int]:
        return {"pid": os.getpid(), "torch": torch.get_num_threads(), "cv2": cv2.getNumThreads()}
