"""Verification gates: each measures one thing on the decoded stored bytes and fails an edge with a reason code.

A gate is a function of an `EdgeView` and the thresholds; it returns the values it measured, which become index columns.
The order of gates is the configuration's; the first that fails ends the sample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.config import Config
from editfoundry.core.geometry import Box, Mask, outside_difference
from editfoundry.data_engine.records import Edge, Sample, Turn
from editfoundry.data_engine.taxonomy import TYPES

Image = NDArray[np.uint8]
Values = dict[str, int | float | str | bool | None]


class Thresholds(Config):
    """Limits of the gates; differences of colour are CIE76, similarities are of the configured embedder."""

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
    max_quality_drop: float = 22.0
    max_seam: float = 2.2
    min_texture: float = 0.35
    max_texture: float = 2.2
    max_ghost: float = 0.08
    min_extract_share: float = 0.01


class GateFailed(Exception):
    """The edge fails; the sample is rejected with this reason."""

    def __init__(self, reason: str, detail: str, score: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.score = reason, detail, score


@dataclass
class EdgeView:
    """One edge as it will be stored: decoded pixels, mask, plan, the models gates may ask, and donors' embeddings."""

    sample: Sample
    turn: Turn
    edge: Edge
    source: Image
    result: Image
    mask: Mask | None
    models: Mapping[str, Any]
    alone: Callable[[str], NDArray[np.float32]]

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

    @cached_property
    def inpainted(self) -> Image | None:
        """Which of the two pictures holds inpainted pixels, if any."""
        if self.turn.type == "remove" and self.real:
            return self.result
        if self.turn.type == "add" and self.real:
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


def geometry(view: EdgeView, limits: Thresholds) -> Values:
    """Same size on the grid; nothing changed in any 8×8 block that the mask of a local edit does not touch."""
    width, height = view.sample.source.grid
    if view.source.shape != (height, width, 3) or view.result.shape != (height, width, 3):
        raise GateFailed(
            "size_mismatch", f"{view.source.shape} and {view.result.shape} are not the grid {width}×{height}"
        )
    if view.mask is None:
        return {"outside_max": None, "outside_mean": None}
    if view.mask.array.shape != (height, width):
        raise GateFailed("size_mismatch", f"mask {view.mask.array.shape} is not on the grid {width}×{height}")
    largest, mean = outside_difference(view.source, view.result, view.mask)
    if largest > limits.outside_max:
        raise GateFailed("changed_outside_mask", f"a pixel outside the mask moved by {largest}", float(largest))
    most = 1.0 if view.turn.type == "background" else limits.max_mask
    if not limits.min_mask <= view.mask.fraction <= most:
        raise GateFailed("mask_size", f"the mask covers {view.mask.fraction:.2%} of the image", view.mask.fraction)
    return {"outside_max": float(largest), "outside_mean": round(mean, 6)}


def change(view: EdgeView, limits: Thresholds) -> Values:
    """Something visible changed, where it was planned."""
    visible = view.difference > limits.visible_difference
    if view.mask is None:
        return _global_change(view, limits, visible)
    inside = view.mask.array
    share = float(visible[inside].mean()) if inside.any() else 0.0
    strength = float(view.difference[inside & visible].mean()) if (inside & visible).any() else 0.0
    union = float((visible | inside).sum())
    values: Values = {
        "change_share": round(share, 4),
        "change_strength": round(strength, 2),
        "change_iou": round(float((visible & inside).sum()) / union if union else 0.0, 4),
    }
    prominence = share * view.mask.fraction * strength
    values["prominence"] = round(prominence, 4)
    if share < limits.min_changed_share or strength < limits.min_changed_difference:
        raise GateFailed(
            "no_visible_change", f"{share:.0%} of the mask changed visibly, by {strength:.1f} on average", share
        )
    if prominence < limits.min_prominence:
        raise GateFailed(
            "easily_missed", f"changed share of the image times its difference is {prominence:.3f}", prominence
        )
    return values


def _global_change(view: EdgeView, limits: Thresholds, visible: NDArray[np.bool_]) -> Values:
    if view.turn.type == "motion":
        return _motion_change(view, limits, visible)
    mean = float(view.difference.mean())
    values: Values = {"change_share": round(float(visible.mean()), 4), "change_strength": round(mean, 2)}
    if mean < limits.min_style_difference:
        raise GateFailed("no_visible_change", f"mean difference {mean:.1f}", mean)
    if view.turn.type == "style":
        kept = structure(view.source, view.result)
        values["structure"] = round(kept, 4)
        if kept < limits.min_structure:
            raise GateFailed("structure_lost", f"edge correlation {kept:.2f}", kept)
    if view.turn.type == "extract":
        share = float((view.result < 250).any(axis=2).mean())
        values["object_share"] = round(share, 4)
        if share < limits.min_extract_share:
            raise GateFailed("empty_extract", f"only {share:.2%} of the result is not white", share)
    return values


def _motion_change(view: EdgeView, limits: Thresholds, visible: NDArray[np.bool_]) -> Values:
    motion = view.sample.source.motion
    assert motion is not None
    outside = np.ones(visible.shape, bool)
    for corners in (motion.before, motion.after):
        x0, y0, x1, y1 = Box.from_list(corners).to_ints()
        margin = max(4, (y1 - y0) // 8)
        outside[max(0, y0 - margin) : y1 + margin, max(0, x0 - margin) : x1 + margin] = False
    strong = view.difference > 3 * limits.visible_difference
    elsewhere = float((strong & outside).mean())
    if elsewhere > limits.max_background_motion:
        raise GateFailed("background_moved", f"{elsewhere:.2%} of the pixels away from the subject changed", elsewhere)
    moved = float(strong[~outside].mean())
    if moved < 0.05:
        raise GateFailed("no_visible_change", f"only {moved:.1%} of the subject's surroundings changed", moved)
    return {"change_share": round(moved, 4), "background_motion": round(elsewhere, 6)}


def structure(first: Image, second: Image) -> float:
    """Correlation in [-1, 1] of the two images' gradient magnitudes, at a quarter of their size."""
    magnitudes = []
    for image in (first, second):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
        grey = cv2.GaussianBlur(grey, (0, 0), 2.0)[::4, ::4]
        magnitudes.append(np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)).ravel())
    a, b = (m - m.mean() for m in magnitudes)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else 0.0


def detector(view: EdgeView, limits: Thresholds) -> Values:
    """A removed real object is gone; every placed one can be recognised where it stands, and only there."""
    box = view.box()
    if view.inpainted is not None and box is not None:
        return _gone(view, view.inpainted, box, limits)
    found = [_recognised(view, *shown, limits) for shown in _shown(view)]
    worst = min(found, key=lambda values: values["recognition_gain"], default={})
    return {**worst}


Shown = tuple[str, Box, Image, Image]


def _shown(view: EdgeView) -> list[Shown]:
    """(donor, box, the picture that shows it, the one that does not) of every donor that came or went unpainted."""
    operation = view.turn.operation
    if "steps" in operation:
        steps = [view.turn.model_copy(update=step) for step in operation["steps"]]
        return [shown for step in steps for shown in _shown(replace(view, turn=step))]
    if "copies" in operation:
        low, high = sorted((operation["before"], operation["after"]))
        added = operation["after"] > operation["before"]
        return [_as_shown(view, copy["donor"], copy["box"], in_result=added) for copy in operation["copies"][low:high]]
    placed = next((p for p in view.sample.initial if p.object == view.turn.target), None)
    if view.turn.type == "remove" and placed is not None:
        return [_as_shown(view, placed.donor, placed.box, in_result=False)]
    placement = operation.get("placement", operation)
    if "donor" not in placement or operation.get("paint"):
        return []
    return [_as_shown(view, placement["donor"], placement["box"], in_result=True)]


def _as_shown(view: EdgeView, donor: str, box: Sequence[float], *, in_result: bool) -> Shown:
    pictures = (view.result, view.source) if in_result else (view.source, view.result)
    return donor, Box.from_list(box), *pictures


def _gone(view: EdgeView, image: Image, box: Box, limits: Thresholds) -> Values:
    label = view.turn.target_label
    boxes = view.models["detector"].detect(image, [label])
    best = max((d.score for d in boxes if d.box.iou(box) > 0.3), default=0.0)
    top = view.models["tagger"].tag(crop(image, box), top=1)[0]
    if best >= limits.still_there or top.label == label:
        raise GateFailed("still_there", f"{label} is still seen (detector {best:.2f}, tagger says {top.label})", best)
    return {"still_there": round(float(best), 4)}


def _recognised(
    view: EdgeView, donor: str, box: Box, with_object: Image, without: Image, limits: Thresholds
) -> dict[str, float]:
    embedded = view.models["image_embedder"].embed([crop(with_object, box), crop(without, box)])
    present, absent = (embedded @ view.alone(donor)).tolist()
    if present - absent < limits.min_recognition_gain:
        raise GateFailed(
            "not_recognised", f"similarity to the object {present:.3f} with it, {absent:.3f} without", present - absent
        )
    return {"recognition": round(present, 4), "recognition_gain": round(present - absent, 4)}


def text_image(view: EdgeView, limits: Thresholds) -> Values:
    """The result's crop is named by the result phrase no worse than the source's (embedded: ConSE, never CLIPScore)."""
    box = view.box()
    if box is None or view.turn.type not in {"add", "replace", "visual"} or view.turn.operation.get("paint"):
        return {}
    scorer, phrase = view.models["scorer"], view.turn.result_phrase
    after, before = (scorer.score(crop(image, box), [phrase])[0] for image in (view.result, view.source))
    if before - after > limits.max_scorer_drop:
        raise GateFailed(
            "text_mismatch", f"{scorer.metric} of {phrase!r} fell from {before:.3f} to {after:.3f}", after - before
        )
    return {f"{scorer.metric}_result": round(float(after), 4), f"{scorer.metric}_gain": round(float(after - before), 4)}


def quality(view: EdgeView, limits: Thresholds) -> Values:
    """No loss of technical quality, and no visible seam or mush where pixels were invented."""
    if not TYPES[view.turn.type].local:
        return {}
    scorer = view.models["quality"]
    drop = scorer.quality(view.result) - scorer.quality(view.source)
    drop = -drop if view.turn.type == "add" and view.real else drop
    values: Values = {"quality_drop": round(float(drop), 2)}
    if drop > limits.max_quality_drop:
        raise GateFailed("quality_drop", f"{scorer.name} rose by {drop:.1f}", float(drop))
    if view.inpainted is not None:
        assert view.mask is not None
        values |= _invented(view.inpainted, view.mask, limits)
        values |= _ghost(view.inpainted, view.mask, view.models["segmenter"], limits)
    return values


def _invented(image: Image, mask: Mask, limits: Thresholds) -> Values:
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    gradient = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
    inside, ring = mask.erode(6).array, (mask.dilate(24) - mask.dilate(4)).array
    rim = (mask.dilate(2) - mask.erode(4)).array
    around = max(float(gradient[ring].mean()) if ring.any() else 0.0, 4.0)
    seam = float(gradient[rim].mean()) / around if rim.any() else 0.0
    texture = (float(gradient[inside].mean()) + 2) / (around + 2) if inside.any() else 1.0
    if seam > limits.max_seam:
        raise GateFailed("visible_seam", f"gradient along the fill's rim is {seam:.1f} times its surroundings'", seam)
    if not limits.min_texture <= texture <= limits.max_texture:
        raise GateFailed("texture_mismatch", f"the fill's texture is {texture:.2f} times its surroundings'", texture)
    return {"seam": round(seam, 3), "texture": round(texture, 3)}


def _ghost(image: Image, mask: Mask, segmenter: Any, limits: Thresholds) -> Values:
    """A fill that stands out as an object of its own: a salient matte inside the mask, and none around it."""
    box = mask.box()
    assert box is not None
    around = box.expand(0.5).clip(image.shape[1], image.shape[0])
    alpha = segmenter.segment(image, [around])[0].alpha
    ring = (mask.dilate(40) - mask).array
    ghost = float(alpha[mask.array].mean() - (alpha[ring].mean() if ring.any() else 0.0))
    if ghost > limits.max_ghost:
        raise GateFailed(
            "ghost", f"the fill stands out as an object ({ghost:.2f} more salient than its surroundings)", ghost
        )
    return {"ghost": round(ghost, 3)}


def protected(view: EdgeView, limits: Thresholds) -> Values:
    """No face and no text is touched by a local edit: outside the mask they are kept to the bit."""
    del limits
    if view.mask is None or view.turn.type == "background":
        return {}
    for corners in view.sample.source.protected:
        box = Box.from_list(corners)
        x0, y0, x1, y1 = box.to_ints()
        if view.mask.array[y0:y1, x0:x1].any() and not _belongs(view, box):
            raise GateFailed("protected_area", "the edit touches a face or a line of text")
    return {}


def _belongs(view: EdgeView, box: Box) -> bool:
    """Text printed on the edited real object itself may change with it."""
    target = next((r for r in view.sample.source.regions if r.id == view.turn.target), None)
    return target is not None and Box.from_list(target.box).contains(box, 4)


GATES: dict[str, Callable[[EdgeView, Thresholds], Values]] = {
    "geometry": geometry,
    "change": change,
    "protected": protected,
    "detector": detector,
    "text_image": text_image,
    "quality": quality,
}
ROLES = {
    "detector": ("detector", "tagger", "image_embedder"),
    "text_image": ("scorer",),
    "quality": ("quality", "segmenter"),
}
