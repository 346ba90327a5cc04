"""Has a judge changed? The scores of two checks of the same pairs, pair by pair."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from editfoundry.core.errors import UsageError
from editfoundry.core.text import one_line
from editfoundry.eval.judge_check import FORMAT, KIND, Report, Row
from editfoundry.eval.trust import Scores, correlation, mean_of
from editfoundry.eval.verdicts import settings
from editfoundry.models.judge.rubric import Rubric

LARGEST_REPORT = 1 << 30


def read_report(path: Path) -> Report:
    """The report of an earlier check. Raises UsageError for a file that is none, or is damaged."""
    if not path.is_file():
        raise UsageError(f"--against {path}: no such file; make one with `judge check -o`")
    if path.stat().st_size > LARGEST_REPORT:
        raise UsageError(f"--against {path}: larger than {LARGEST_REPORT >> 20} MiB, so no report of `judge check`")
    try:
        report = json.loads(path.read_bytes())
        fits = report["format"] == FORMAT and report["kind"] == KIND and isinstance(report["judge"], dict)
        fits = fits and isinstance(report["rubric"]["digest"], str)
        fits = fits and all(isinstance(row["id"] + row["content"], str) for row in report["verdicts"])
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise UsageError(f"--against {path}: not a report of `judge check -o`, or of another version; check again")
    return dict(report)


def refuse_other_rubric(before: Report, rubric: Rubric) -> None:
    """Raise UsageError if the report `before` is of another rubric."""
    said = before["rubric"]
    if said["digest"] != rubric.digest:
        name = one_line(str(said.get("name")), 40)
        raise UsageError(
            f"--against: was checked with another rubric ({name} {said['digest'][:12]}, now {rubric.name} "
            f"{rubric.digest[:12]}); use one --rubric for both"
        )


def drift(report: Report, before: Report, rubric: Rubric) -> dict[str, Any]:
    """How the scores of `report` differ from those of the report `before`; `changed`: settings of the judge, each as

    it was and as it is. Raises UsageError, with what differs, where the reports are not of the same pairs and rubric.
    """
    refuse_other_rubric(before, rubric)
    _refuse_other_pairs(report, before)
    earlier = {row["id"]: row for row in before["verdicts"]}
    rows = report["verdicts"]
    then, now = Scores([_as_it_was(row, earlier[row["id"]], rubric) for row in rows], rubric), Scores(rows, rubric)
    was, is_now = dict(settings(before["judge"])), dict(settings(report["judge"]))
    changed = {
        key: [was.get(key), is_now.get(key)] for key in sorted({*was, *is_now}) if was.get(key) != is_now.get(key)
    }
    return {
        "changed": changed,
        "dimensions": {name: _drifted(then, now, place) for place, name in enumerate(now.names)},
    }


def _drifted(then: Scores, now: Scores, place: int) -> dict[str, Any]:
    """difference: of the mean, now minus then. correlation: Spearman's, of the pairs. missing: without either score."""
    first, second, clusters = then.every(place), now.every(place), now.every_cluster(place)
    there = ~np.isnan(first - second)
    difference, interval = mean_of((second - first)[there], clusters[there])
    rho, rho_interval = correlation(first[there], second[there], clusters[there])
    return {
        "difference": difference,
        "interval": interval,
        "correlation": rho,
        "correlation_interval": rho_interval,
        "n": int(there.sum()),
        "missing": int((~there).sum()),
        "drifted": interval is not None and not interval[0] <= 0 <= interval[1],
    }


def _refuse_other_pairs(report: Report, before: Report) -> None:
    was, is_now = ({row["id"]: row["content"] for row in one["verdicts"]} for one in (before, report))
    if len(was) < len(before["verdicts"]):
        raise UsageError("--against: an id is there twice in the report; check again")
    groups = {
        "only in the earlier report": sorted(was.keys() - is_now.keys()),
        "only now": sorted(is_now.keys() - was.keys()),
        "other pictures or words": sorted(id for id in was.keys() & is_now.keys() if was[id] != is_now[id]),
    }
    if any(groups.values()):
        said = "; ".join(f"{words}: {len(ids)}, such as {one_line(ids[0], 60)}" for words, ids in groups.items() if ids)
        raise UsageError(
            f"--against: was checked on other pairs ({said}); use the same --anchors, or dataset and --samples"
        )


def _as_it_was(row: Row, earlier: Mapping[str, Any], rubric: Rubric) -> Row:
    """The row with the earlier scores, or with none."""
    kept = {key: value for key, value in row.items() if key not in ("scores", "unanswered")}
    scores = earlier.get("scores")
    if scores is None:
        return kept
    keys: Sequence[str] = [one.key for one in rubric.section(row["type"]).dimensions]
    if not isinstance(scores, dict) or not all(_is_number(scores.get(key)) for key in keys):
        raise UsageError(f"--against: {one_line(row['id'], 60)} has no scores of {', '.join(keys)}; check again")
    return {**kept, "scores": scores}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
