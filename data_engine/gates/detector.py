"""Gate 3: the detector runs again: what was removed is gone, what was added or replaced is there."""

from collections.abc import Sequence
from dataclasses import replace

from editfoundry.core.geometry import Box
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Image, Thresholds, Values, crop

MIN_OVERLAP = 0.3
"""IoU with the object's box from which a detection is about that object."""


def detector(view: EdgeView, limits: Thresholds) -> Values:
    """A removed real object is gone; every placed one can be recognised where it stands, and only there.

    What a generative model painted is looked for by its name, where the detector's vocabulary is open.
    """
    box = view.box()
    if view.inpainted is not None and box is not None:
        return _gone(view, view.inpainted, box, limits)
    if view.generated:
        return _painted(view, limits) if view.models["detector"].open_vocabulary else {}
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
    best = _seen(view, image, label, box)
    top = view.models["tagger"].tag(crop(image, box), top=1)[0].label if "tagger" in view.models else ""
    if best >= limits.still_there or top == label:
        said = f", tagger says {top}" if top else ""
        raise GateFailed("still_there", f"{label} is still seen (detector {best:.2f}{said})", best)
    return {"still_there": round(best, 4)}


def _seen(view: EdgeView, image: Image, label: str, box: Box) -> float:
    """The detector's best score for the label at the box, 0.0 where it finds none."""
    boxes = view.models["detector"].detect(image, [label])
    return max((float(d.score) for d in boxes if d.box.iou(box) > MIN_OVERLAP), default=0.0)


def _painted(view: EdgeView, limits: Thresholds) -> Values:
    """The new thing is where the old one was and the old one is gone; what keeps its class is still there."""
    operation = view.turn.operation
    if "steps" in operation:
        steps = [replace(view, turn=view.turn.model_copy(update=step)) for step in operation["steps"]]
        found = [_painted(step, limits) for step in steps if step.turn.type != "remove"]
        found += [_gone(s, view.result, box, limits) for s in steps if s.turn.type == "remove" and (box := s.box())]
        return {name: value for values in found for name, value in values.items()}
    box, label, kind = view.box(), view.turn.target_label, view.turn.type
    if box is None:
        return {}
    wanted = view.turn.result_phrase if kind in ("replace", "visual") else label
    values: Values = {"there": round(_seen(view, view.result, wanted, box), 4)}
    if float(values["there"] or 0) < limits.there:
        raise GateFailed("not_there", f"{wanted} is not seen in the result (detector {values['there']})")
    if kind in ("replace", "visual") and label.lower() not in wanted.lower():
        values |= _gone(view, view.result, box, limits)
    return values


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
