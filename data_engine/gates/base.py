"""What a gate sees of an edge, the limits it applies, and how it fails one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.config import Config, require_known
from editfoundry.core.geometry import Box, Mask
from editfoundry.data_engine.records import Edge, Sample, Turn

Image = NDArray[np.uint8]
Values = dict[str, int | float | str | bool | None]


class Thresholds(Config):
    """Limits of the gates; differences of colour are CIE76, similarities are of the configured embedder.

    `min_clip_score`, `min_direction`: of CLIP scorers only (AnyEdit's cuts: cosine 0.2, which is CLIPScore 0.5, and
    directional 0.06). `still_there`, `there`: detector scores at which an object is gone, or present. `min_following`,
    `min_naturalness`: the judge's scores, 1 to 5.
    """

    outside_max: int = 0
    min_mask: float = 0.001
    max_mask: float = 0.75
    visible_difference: float = 6.0
    min_changed_share: float = 0.2
    min_changed_difference: float = 11.0
    min_prominence: float = 0.085
    min_style_difference: float = 8.0
    min_structure: float = 0.5
    max_background_motion: float = 0.004
    min_recognition_gain: float = 0.02
    max_scorer_drop: float = 0.08
    still_there: float = 0.3
    there: float = 0.3
    min_clip_score: float = 0.5
    min_direction: float = 0.06
    max_quality_drop: float = 22.0
    max_aesthetic_drop: float = 1.0
    max_seam: float = 2.2
    min_texture: float = 0.35
    max_texture: float = 2.2
    max_ghost: float = 0.08
    min_extract_share: float = 0.01
    min_following: float = 4.0
    min_naturalness: float = 3.0


class GateFailed(Exception):
    """The edge fails; the sample is rejected with this reason."""

    def __init__(self, reason: str, detail: str, score: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.score = reason, detail, score


Gate = Callable[[Sequence["EdgeView"], Thresholds], list[Values | GateFailed]]
"""One result per view, in order: what was measured, or why the edge fails."""


@dataclass
class EdgeView:
    """One edge as it will be stored: decoded pixels, mask, plan, the models gates may ask, donors' embeddings,

    and the reference image of a visual edit.
    """

    sample: Sample
    turn: Turn
    edge: Edge
    source: Image
    result: Image
    mask: Mask | None
    models: Mapping[str, Any]
    alone: Callable[[str], NDArray[np.float32]]
    reference: Image | None = None

    @cached_property
    def difference(self) -> NDArray[np.float32]:
        """CIE76 difference per pixel [H, W]."""
        first, second = (
            cv2.cvtColor(x.astype(np.float32) / 255, cv2.COLOR_RGB2LAB) for x in (self.source, self.result)
        )
        norm: NDArray[np.float32] = np.linalg.norm(first - second, axis=2)
        return norm

    @property
    def real(self) -> bool:
        return self.turn.origin == "photograph"

    @property
    def generated(self) -> bool:
        return self.turn.origin == "generated"

    @cached_property
    def inpainted(self) -> Image | None:
        """Which of the two pictures holds inpainted pixels, if any."""
        if self.turn.type == "remove" and (self.real or self.generated):
            return self.result
        if self.turn.type == "add" and (self.real or self.generated):
            return self.source
        return None

    def box(self) -> Box | None:
        """The box the edit is about, on the grid: the new object's, else the target's."""
        operation = self.turn.operation
        found = operation.get("placement", operation).get("box")
        if found is None:
            placed = [p.box for p in self.sample.initial if p.object == self.turn.target]
            regions = [r.box for r in self.sample.source.regions if r.id == self.turn.target]
            found = next(iter([*placed, *regions]), None)
        return Box.from_list(found) if found is not None else None


def crop(image: Image, box: Box, margin: float = 0.1) -> Image:
    """The pixels of a box grown by a share of its size, within the image."""
    grown = box.expand(pixels=margin * max(box.width, box.height)).clip(image.shape[1], image.shape[0])
    assert grown is not None
    x0, y0, x1, y1 = grown.to_ints()
    return np.ascontiguousarray(image[y0:y1, x0:x1])


def gate_order(names: tuple[str, ...], known: Collection[str]) -> tuple[str, ...]:
    """The names, if they are an order of gates: known, each once, geometry among them. Raises ValueError otherwise."""
    require_known(names, known, "gates")
    if len(set(names)) < len(names):
        raise ValueError("a gate is listed twice")
    if "geometry" not in names:
        raise ValueError("the geometry gate may not be left out: it is what every dataset file promises")
    return names


def each(gate: Callable[[EdgeView, Thresholds], Values]) -> Gate:
    """A gate over one edge as a gate over many."""

    def over(views: Sequence[EdgeView], limits: Thresholds) -> list[Values | GateFailed]:
        return [attempt(gate, view, limits) for view in views]

    return over


def attempt(gate: Callable[[EdgeView, Thresholds], Values], view: EdgeView, limits: Thresholds) -> Values | GateFailed:
    """The values, or the failure instead of raising it."""
    try:
        return gate(view, limits)
    except GateFailed as failed:
        return failed
