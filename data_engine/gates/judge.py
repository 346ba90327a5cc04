"""Gate 6: a judge looks at both pictures and the instruction. Refusals and failures are reasons of their own."""

from collections.abc import Sequence

from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Thresholds, Values
from editfoundry.models.protocols import Judgement, Pair, Unanswered


def judge(views: Sequence[EdgeView], limits: Thresholds) -> list[Values | GateFailed]:
    """All edges are judged in one call, so that a served judge works on many at once."""
    if not views:
        return []
    replies: list[Judgement | Unanswered] = views[0].models["judge"].judge([pair(view) for view in views])
    return [_verdict(reply, limits) for reply in replies]


def pair(view: EdgeView) -> Pair:
    """An edge as the judge sees it."""
    return Pair(
        source=view.source,
        result=view.result,
        instruction=view.turn.instruction,
        type=view.turn.type,
        sha256=view.sample.source.sha256,
        reference=view.reference,
    )


def _verdict(reply: Judgement | Unanswered, limits: Thresholds) -> Values | GateFailed:
    if isinstance(reply, Unanswered):
        return GateFailed(f"judge_{reply.kind}", f"{reply.reason}: {reply.detail}")
    if not reply.objects_match:
        return GateFailed("wrong_object", f"the judge says another object was edited: {reply.reason}")
    if reply.following < limits.min_following:
        return GateFailed("not_followed", f"following {reply.following:g}: {reply.reason}", reply.following)
    if reply.naturalness < limits.min_naturalness:
        return GateFailed("unnatural", f"naturalness {reply.naturalness:g}: {reply.reason}", reply.naturalness)
    return {"judge_following": reply.following, "judge_naturalness": reply.naturalness, "judge_reason": reply.reason}
