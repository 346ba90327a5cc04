"""Gate 2: something visible changed, where it was planned, and by enough to be noticed."""

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Box
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Image, Thresholds, Values


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
