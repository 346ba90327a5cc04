"""Samples as pictures on their bucket's grid, ready for the encoders: what a run without a feature cache reads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from editfoundry.core.geometry import Grid, to_grid
from editfoundry.models.editor.prompt import EditorProcessor, InstructionTooLong, levels, request_on_grid
from editfoundry.models.editor.types import EditRequest
from editfoundry.models.protocols import Image
from editfoundry.training.config import DataConfig
from editfoundry.training.data.batch import Features, Pictures
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.examples import BadSample, Example, bad_sample, read_example
from editfoundry.training.data.index import ShardIndex
from editfoundry.training.mask_weight import changed


class Contents(NamedTuple):
    """What is read of some samples of one bucket, one entry per sample in every list.

    areas: bool [H, W] of where the edit changed the picture, at the grid's size or in whole fractions of it. problems:
    why a sample cannot be used; empty for one that can.
    """

    content: Pictures | Features
    keys: list[str]
    areas: list[NDArray[np.bool_]]
    problems: list[str]


@dataclass(frozen=True)
class Sample:
    """A sample on its grid; target is uint8 [H, W, 3], area bool [H, W]."""

    key: str
    request: EditRequest
    target: Image
    area: NDArray[np.bool_]
    problem: str = ""


class PictureReader:
    """Reads rows of an index as pictures. references: also as pixels, for an editor that sees their latents."""

    def __init__(
        self, index: ShardIndex, data: DataConfig, buckets: Buckets, processor: EditorProcessor, references: bool
    ) -> None:
        self.index, self.data, self.buckets, self.processor = index, data, buckets, processor
        self.references = references

    def read(self, rows: Sequence[int], bucket: int, text_kept: Sequence[bool]) -> Contents:
        """The samples `rows`, all of `bucket`; one whose text is not kept has an empty instruction and no history.

        Raises MissingShard, and BadSample for a sample that cannot be used; with `bad_samples: skip` a grey picture
        takes its place.
        """
        samples = [self.sample(int(row), bucket) for row in rows]
        requests = [
            sample.request if kept else without_text(sample.request)
            for sample, kept in zip(samples, text_kept, strict=True)
        ]
        return Contents(
            self.pictures(samples, requests),
            [sample.key for sample in samples],
            [sample.area for sample in samples],
            [sample.problem for sample in samples],
        )

    def pictures(self, samples: Sequence[Sample], requests: Sequence[EditRequest]) -> Pictures:
        """The tensors of samples, asked for as in `requests`."""
        references = torch.stack([levels(request.images) for request in requests]) if self.references else None
        return Pictures(self.processor(requests), levels([sample.target for sample in samples]), references)

    def bucket(self, row: int) -> int:
        """The bucket of a row."""
        return int(self.buckets.of_rows(self.index.rows[row]))

    def sample(self, row: int, bucket: int) -> Sample:
        """One sample on its grid. Raises as `read`."""
        grid, pictures = self.buckets.grid(bucket), self.buckets.pictures(bucket)
        try:
            example = read_example(self.index, row, self.data.history, grid)
            self._check_length(row, example)
        except BadSample as error:
            if self.data.bad_samples == "stop":
                raise
            grey = np.full((*grid.shape, 3), 127, np.uint8)
            nothing = np.zeros(grid.shape, np.bool_)
            return Sample(f"row_{row}", EditRequest("", (grey,) * pictures), grey, nothing, str(error))
        images = [example.source, *([example.reference] if example.reference is not None else [])]
        request = request_on_grid(example.instruction, images, grid, example.history)
        target = to_grid(example.result, grid)
        return Sample(example.key, request, target, self._area(example, request, target, grid))

    def _check_length(self, row: int, example: Example) -> None:
        try:
            self.processor.text_tokens(example.instruction, example.history)
        except InstructionTooLong as error:
            raise bad_sample(self.index, row, f"{example.key}: {error}") from error

    def _area(self, example: Example, request: EditRequest, target: Image, grid: Grid) -> NDArray[np.bool_]:
        """The sample's mask, any pixel of the grid that it touches; without one, what differs from every picture."""
        if example.mask is None:
            return changed(request.images, target, self.data.mask_weight.threshold)
        return to_grid(example.mask.astype(np.uint8) * np.uint8(255), grid) > 0


def without_text(request: EditRequest) -> EditRequest:
    """The same pictures with an empty instruction."""
    return replace(request, instruction="", history=())
