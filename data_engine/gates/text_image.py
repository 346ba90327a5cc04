"""Gate 4: the edited area is named by what it should have become, and the change points the way the words do."""

from typing import Any

from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Thresholds, Values, crop

NAMED = frozenset({"add", "replace", "visual"})
"""Types whose result phrase names a thing in the box."""
LOOKS = frozenset({"adjust", "background", "style"})
"""Types whose result phrase only a model that sees attributes and scenes can judge."""


def text_image(view: EdgeView, limits: Thresholds) -> Values:
    """Embedded (ConSE): the crop is named no worse than before. CLIP: it is named well, and the direction agrees."""
    if view.models["scorer"].directional:
        return _clip(view, limits)
    box = view.box()
    if box is None or view.turn.type not in NAMED or view.turn.operation.get("paint"):
        return {}
    scorer, phrase = view.models["scorer"], view.turn.result_phrase
    after, before = scorer.score([crop(image, box) for image in (view.result, view.source)], [phrase, phrase])
    if before - after > limits.max_scorer_drop:
        raise GateFailed(
            "text_mismatch", f"{scorer.metric} of {phrase!r} fell from {before:.3f} to {after:.3f}", after - before
        )
    return {f"{scorer.metric}_result": round(float(after), 4), f"{scorer.metric}_gain": round(float(after - before), 4)}


def _clip(view: EdgeView, limits: Thresholds) -> Values:
    kind, phrase = view.turn.type, view.turn.result_phrase
    if kind not in NAMED | LOOKS or not phrase:
        return {}
    scorer: Any = view.models["scorer"]
    box = view.box() if kind in NAMED or kind == "adjust" else None
    before, after = (image if box is None else crop(image, box) for image in (view.source, view.result))
    score = float(scorer.score([after], [phrase])[0])
    values: Values = {scorer.metric: round(score, 4)}
    if score < limits.min_clip_score:
        raise GateFailed("text_mismatch", f"{scorer.metric} of {phrase!r} is {score:.3f}", score)
    said = _said_before(view)
    if said:
        direction = float(scorer.direction(before, after, said, phrase))
        values["clip_direction"] = round(direction, 4)
        if direction < limits.min_direction:
            raise GateFailed("wrong_direction", f"directional similarity of {phrase!r} is {direction:.3f}", direction)
    return values


def _said_before(view: EdgeView) -> str:
    """What named the source: the old object, or the photograph's summary where the whole image changes."""
    if view.turn.type in ("replace", "visual", "adjust"):
        return view.turn.target_label
    caption = view.sample.source.caption
    return caption.summary if caption is not None and view.turn.type in ("background", "style") else ""
