"""Gate 5: no loss of technical or aesthetic quality, and no visible seam, mush or ghost where pixels were invented."""

from typing import Any

import cv2
import numpy as np

from editfoundry.core.geometry import Mask
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Image, Thresholds, Values
from editfoundry.data_engine.taxonomy import TYPES


def quality(view: EdgeView, limits: Thresholds) -> Values:
    """No loss of technical quality, and no visible seam or mush where pixels were invented."""
    if not TYPES[view.turn.type].local:
        return {}
    scorer = view.models["quality"]
    drop = scorer.quality(view.result) - scorer.quality(view.source)
    drop = -drop if view.turn.type == "add" and view.inpainted is not None else drop
    values: Values = {"quality_drop": round(float(drop), 2)}
    if drop > limits.max_quality_drop:
        raise GateFailed("quality_drop", f"{scorer.name} rose by {drop:.1f}", float(drop))
    if "aesthetic" in view.models:
        values |= _aesthetic(view, limits)
    if view.inpainted is not None:
        assert view.mask is not None
        values |= _invented(view.inpainted, view.mask, limits)
        if "segmenter" in view.models:
            values |= _ghost(view.inpainted, view.mask, view.models["segmenter"], limits)
    return values


def _aesthetic(view: EdgeView, limits: Thresholds) -> Values:
    before, after = view.models["aesthetic"].aesthetic([view.source, view.result])
    drop = float(after - before if view.turn.type == "add" and view.inpainted is not None else before - after)
    if drop > limits.max_aesthetic_drop:
        raise GateFailed("aesthetic_drop", f"the aesthetic score fell by {drop:.2f}", drop)
    return {"aesthetic_drop": round(drop, 3)}


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
    if box is None:
        raise GateFailed("mask_size", "the mask is empty")
    around = box.expand(0.5).clip(image.shape[1], image.shape[0])
    alpha = segmenter.segment(image, [around])[0].alpha
    ring = (mask.dilate(40) - mask).array
    ghost = float(alpha[mask.array].mean() - (alpha[ring].mean() if ring.any() else 0.0))
    if ghost > limits.max_ghost:
        raise GateFailed(
            "ghost", f"the fill stands out as an object ({ghost:.2f} more salient than its surroundings)", ghost
        )
    return {"ghost": round(ghost, 3)}
