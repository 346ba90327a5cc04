"""Which accepted samples came closest to failing a gate: ranks of their gate values among all that are shown."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

RANKS = 1000
_LOWER_IS_BETTER = frozenset({"outside_max", "outside_mean", "background_motion", "still_there", "quality_drop",
                              "seam", "ghost"})
_HIGHER_IS_BETTER = frozenset({"change_share", "prominence", "change_strength", "change_iou", "structure",
                               "object_share",                                "recognition", "recognition_gain"})
_NEAR_ONE_IS_BETTER = frozenset({"texture"})


def worst_ranks(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[int, str]]:
    """For every sample, given the gate values of its edges: its lowest rank, 0 (the worst) to 1000, and "gate value".

    A gate ranks a value by the share of the other values that are no better. Gates that say nothing of better and
    worse, or have one value everywhere, are left out; a sample without any other gate gets (1000, "").
    """
    lowest: dict[str, tuple[int, str]] = dict.fromkeys(samples, (RANKS, ""))
    for gate in sorted({name for edges in samples.values() for edge in edges for name in edge}):
        scores = [(unit, edge[gate], score) for unit, edges in samples.items() for edge in edges
                  if gate in edge and (score := goodness(gate, edge[gate])) is not None]
        ordered = sorted(score for _, _, score in scores)
        if not ordered or ordered[0] == ordered[-1]:
            continue
        for unit, value, score in scores:
            rank = RANKS * (bisect_right(ordered, score) - 1) // (len(ordered) - 1)
            if rank < lowest[unit][0]:
                lowest[unit] = (rank, f"{gate} {value:.4g}")
    return lowest


def goodness(gate: str, value: Any) -> float | None:
    """The value on a scale where more is better, or None if it has no such scale."""
    if isinstance(value, (bool, str)) or value is None:
        return None
    if gate in _LOWER_IS_BETTER:
        return -float(value)
    if gate in _NEAR_ONE_IS_BETTER:
        return -abs(math.log(max(float(value), 1e-6)))
    if gate in _HIGHER_IS_BETTER or gate.endswith(("_result", "_gain")):
        return float(value)
    return None
