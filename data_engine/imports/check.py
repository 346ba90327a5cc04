"""verify, of an import: the gates that need no plan, on the decoded stored bytes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Mask
from editfoundry.core.images import decode_jpeg, decode_mask_png
from editfoundry.data_engine.direction import direction
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Thresholds, Values, attempt
from editfoundry.data_engine.gates.change import change
from editfoundry.data_engine.gates.geometry import geometry
from editfoundry.data_engine.gates.quality import quality
from editfoundry.data_engine.imports.config import ROLES, CheckConfig
from editfoundry.data_engine.records import Edge, Record, Sample
from editfoundry.data_engine.scene import Image
from editfoundry.data_engine.stages.base import Item, Outcome, Stage

MEASURE_ONLY = 255
"""The largest difference outside of a mask that there can be: the certificate measures and refuses nothing."""

Gate = Callable[[EdgeView, Thresholds], Values]


class Check(Stage):
    """One imported sample in; the same with gate values on its edges, or a reject with the gate's reason, out."""

    name: ClassVar[str] = "verify"
    row: ClassVar[type[Record]] = Sample
    blobs: ClassVar[str] = "render"
    roles: ClassVar[tuple[str, ...]] = tuple(sorted({role for roles in ROLES.values() for role in roles}))
    config: CheckConfig

    @classmethod
    def needs(cls, config: Any) -> tuple[str, ...]:
        return tuple(sorted({role for gate in config.verify.gates for role in ROLES.get(gate, ())}))

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._one(item) for item in batch]

    def _one(self, item: Item) -> Outcome:
        sample: Sample = item.record
        views = self._views(item)
        values: list[Values] = [dict(edge.gates) for edge in sample.edges]
        for name in self.config.gates:
            for view, measured in zip(views, values, strict=True):
                with self.meter.timed(name):
                    answer = attempt(self._gate(name), view, self._limits(view.edge))
                if isinstance(answer, GateFailed):
                    self.meter.refuse(name)
                    return [sample.reject(self.name, answer.reason, answer.detail, answer.score)]
                measured |= answer
        edges = [edge.model_copy(update={"gates": found}) for edge, found in zip(sample.edges, values, strict=True)]
        return [Item(sample.model_copy(update={"edges": tuple(edges)}))]

    def _gate(self, name: str) -> Gate:
        gates: dict[str, Gate] = {
            "geometry": geometry,
            "change": changed,
            "direction": partial(_direction, margin=self.config.direction_margin),
            "quality": quality,
        }
        return gates[name]

    def _limits(self, edge: Edge) -> Thresholds:
        """The thresholds; without a limit outside of the mask where the dataset's configuration lifts it."""
        limits = self.config.thresholds
        return limits if edge.render.get("certificate", True) else limits.model_copy(
            update={"outside_max": MEASURE_ONLY})  # fmt: skip

    def _views(self, item: Item) -> list[EdgeView]:
        sample: Sample = item.record
        pixels: dict[str, Image] = {name: decode_jpeg(data) for name, data in sorted(item.blobs.items())
                                    if name.startswith("node")}  # fmt: skip
        return [
            EdgeView(
                sample,
                sample.turns[edge.turn - 1],
                edge,
                pixels[edge.source_node],
                pixels[edge.result_node],
                _mask(item, edge),
                self.models,
                _no_donors,
            )
            for edge in sample.edges
        ]


def changed(view: EdgeView, limits: Thresholds) -> Values:
    """The engine's gate; of a motion, whose subject nobody has marked, only that something moved visibly."""
    if view.turn.type != "motion":
        return change(view, limits)
    share = float((view.difference > 3 * limits.visible_difference).mean())
    if share < limits.min_mask:
        raise GateFailed("no_visible_change", f"only {share:.2%} of the picture changed visibly", share)
    return {"change_share": round(share, 4)}


def _direction(view: EdgeView, limits: Thresholds, margin: float) -> Values:
    del limits
    return direction(view, margin)


def _mask(item: Item, edge: Edge) -> Mask | None:
    return decode_mask_png(item.blobs[edge.mask]) if edge.mask else None


def _no_donors(digest: str) -> NDArray[np.float32]:
    raise LookupError(f"an import has no donors, {digest} neither")
