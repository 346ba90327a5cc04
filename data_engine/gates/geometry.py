"""Gate 1: the same grid, and nothing touched outside of the mask; and nothing that may not be touched inside."""

from editfoundry.core.geometry import Box, outside_difference
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Thresholds, Values


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
