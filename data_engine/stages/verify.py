"""verify: gates from cheap to expensive, in the order the configuration lists, each with a reason code."""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from editfoundry.core.config import Config
from editfoundry.core.geometry import Mask
from editfoundry.core.images import decode_jpeg, decode_mask_png, decode_rgba
from editfoundry.data_engine.gates import GATES, ROLES, EdgeView, GateFailed, Thresholds, Values
from editfoundry.data_engine.recipes.base import plain_reference
from editfoundry.data_engine.records import Edge, Reject, Sample
from editfoundry.data_engine.scene import Image
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage

CACHED_EMBEDDINGS = 4096


class VerifyConfig(Config):
    """gates: names in the order they run. thresholds: the limits they apply."""

    gates: tuple[str, ...] = tuple(GATES)
    thresholds: Thresholds = Field(default_factory=Thresholds)

    @field_validator("gates")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(value) - set(GATES))
        if unknown:
            raise ValueError(f"unknown gates {unknown}; known: {', '.join(GATES)}")
        if len(set(value)) < len(value):
            raise ValueError("a gate is listed twice")
        if "geometry" not in value:
            raise ValueError("the geometry gate may not be left out: it is what every dataset file promises")
        return value


class Verify(Stage):
    """One rendered sample in; the same with gate values on its edges, or a reject with the gate's reason, out."""

    name = "verify"
    version = 1
    row = Sample
    blobs = "render"
    roles: ClassVar[tuple[str, ...]] = ("detector", "tagger", "image_embedder", "scorer", "quality", "segmenter")
    artifacts: ClassVar[tuple[str, ...]] = ("catalogue",)

    def setup(self, artifacts: Artifacts) -> None:
        for role in sorted({role for gate in self.config.gates for role in ROLES.get(gate, ())}):
            self.models[role].load()

        @lru_cache(CACHED_EMBEDDINGS)
        def alone(digest: str) -> NDArray[np.float32]:
            rgba = decode_rgba(artifacts.blob("catalogue", 0, digest, "original"))
            embedding: NDArray[np.float32] = self.models["image_embedder"].embed([plain_reference(rgba)])[0]
            return embedding

        self.alone = alone

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [[self._verify(item)] for item in batch]

    def _verify(self, item: Item) -> Item | Reject:
        sample: Sample = item.record
        pixels = {name: decode_jpeg(data) for name, data in sorted(item.blobs.items()) if name.startswith("node")}
        views = [self._view(sample, edge, pixels, item) for edge in sample.edges]
        values: list[Values] = [{} for _ in views]
        for gate in self.config.gates:
            with self.meter.timed(gate):
                try:
                    for view, measured in zip(views, values, strict=True):
                        measured |= GATES[gate](view, self.config.thresholds)
                except GateFailed as failed:
                    self.meter.refuse(gate)
                    return sample.reject(self.name, failed.reason, failed.detail, failed.score)
        edges = tuple(
            edge.model_copy(update={"gates": measured}) for edge, measured in zip(sample.edges, values, strict=True)
        )
        return Item(sample.model_copy(update={"edges": edges}))

    def _view(self, sample: Sample, edge: Edge, pixels: dict[str, Image], item: Item) -> EdgeView:
        mask: Mask | None = decode_mask_png(item.blobs[edge.mask]) if edge.mask else None
        return EdgeView(
            sample,
            sample.turns[edge.turn - 1],
            edge,
            pixels[edge.source_node],
            pixels[edge.result_node],
            mask,
            self.models,
            self.alone,
        )
