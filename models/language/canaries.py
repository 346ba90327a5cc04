"""Judge canaries: pairs whose verdict is known. A judge that does not tell them from the true edit is not believed."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from editfoundry.models.protocols import Image, Judge, Judgement, Pair, Unanswered

MID_GREY = 128
CANARIES = ("identity", "swapped", "blank", "wrong_instruction")
STRICT = ("identity", "blank", "wrong_instruction")
"""Canaries on which the instruction was surely not carried out."""


@dataclass(frozen=True)
class CanaryReport:
    """`following` and `overall` of the true edit ("true") and of each canary that was answered.

    verdict: passed, failed (with the reason), or unknown where the judge left the true edit or any canary unanswered.
    """

    verdict: Literal["passed", "failed", "unknown"]
    reason: str
    following: dict[str, float]
    overall: dict[str, float]


def judge_canaries(
    judge: Judge,
    source: Image,
    result: Image,
    instruction: str,
    type: str,
    other_instruction: str,
    sha256: str,
    margin: float = 1.0,
    reference: Image | None = None,
) -> CanaryReport:
    """Judge a true edit beside four canaries made of it, in one call.

    identity: nothing was done. swapped: source and result exchanged. blank: a grey picture. wrong_instruction: the edit
    against `other_instruction`, which it does not fulfil. The judge passes when no canary is rated above the true edit
    overall, and those on which nothing was carried out lie at least `margin` below it in following.
    """
    blank = np.full_like(result, MID_GREY)
    shown = {
        "true": (source, result, instruction),
        "identity": (source, source, instruction),
        "swapped": (result, source, instruction),
        "blank": (source, blank, instruction),
        "wrong_instruction": (source, result, other_instruction),
    }
    replies = judge.judge([Pair(*each, type, sha256, reference) for each in shown.values()])
    answered = {name: reply for name, reply in zip(shown, replies, strict=True) if isinstance(reply, Judgement)}
    following = {name: judgement.following for name, judgement in answered.items()}
    overall = {name: round(judgement.overall, 4) for name, judgement in answered.items()}
    unanswered = [name for name, reply in zip(shown, replies, strict=True) if isinstance(reply, Unanswered)]
    if unanswered:
        return CanaryReport("unknown", f"unanswered: {', '.join(unanswered)}", following, overall)
    for name in CANARIES:
        if overall[name] > overall["true"]:
            reason = f"{name} is rated {overall[name]:g}, above the true edit's {overall['true']:g}"
            return CanaryReport("failed", reason, following, overall)
        if name in STRICT and following[name] > following["true"] - margin:
            reason = (
                f"{name} follows the instruction with {following[name]:g}, the true edit with {following['true']:g}"
            )
            return CanaryReport("failed", reason, following, overall)
    return CanaryReport("passed", "", following, overall)
