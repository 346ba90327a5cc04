"""Tests a judge on edits whose verdict is known, and says for which score it can be trusted."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import canonical_json, fingerprint
from editfoundry.core.progress import Advance
from editfoundry.core.text import one_line
from editfoundry.data_engine.ledger import replace_file
from editfoundry.eval.judging import CHUNK_BYTES, LONGEST_DETAIL
from editfoundry.eval.known_pairs import KnownEdits, KnownPair
from editfoundry.eval.trust import RULE, Scores, dimension_report, injections
from editfoundry.models.judge.rubric import Rubric
from editfoundry.models.judge.types import EditJudge
from editfoundry.models.protocols import Unanswered

FORMAT = 1
KIND = "judge_check"
WORDS_ASK_FOR = 5
"""The score that the words of the injections ask for."""
Report = dict[str, Any]
Row = dict[str, Any]


def check_judge(
    judge: EditJudge, edits: KnownEdits, progress: Callable[[int], AbstractContextManager[Advance]]
) -> Report:
    """The report, as plain data: `dimensions` with their verdicts, `injection`, `unanswered`, and every pair's scores.

    Memory holds the pictures of one edit at a time. Edits of a type for which the rubric has no section are left out
    and counted. progress: is given the number of pairs. Raises UsageError where none is left; what the judge and the
    reading of pictures raise.
    """
    rubric, rows, left_out = judge.rubric, list[Row](), dict[str, str]()
    with progress(edits.pairs) as advance:
        for pairs in edits.edits():
            for chunk in _chunks(pairs):
                type = chunk[0].case.type
                if _has_section(rubric, type):
                    rows += _judged(judge, chunk)
                else:
                    left_out[chunk[0].edge] = type
                advance(len(chunk))
    if not rows:
        raise UsageError(f"the rubric `{rubric.name}` has no section for any of the edits; use another --rubric")
    scores, said = Scores(rows, rubric), judge.provenance()
    splits = Counter({row["edge"]: row["split"] for row in rows}.values())
    report: Report = {
        "format": FORMAT,
        "kind": KIND,
        "judge": said,
        "served": sorted(judge.served),
        "rubric": {**said["rubric"], "scale": [rubric.scale.low, rubric.scale.high], "capped": rubric.capped},
        **edits.origin,
        "samples": splits.total(),
        "splits": dict(sorted(splits.items())),
        "left_out": dict(sorted(Counter(left_out.values()).items())),
        "pairs": {"count": len(rows), "digest": fingerprint([[row["id"], row["content"]] for row in rows])},
        "dimensions": {name: dimension_report(scores, place) for place, name in enumerate(scores.names)},
        "injection": injections(scores),
        "unanswered": _unanswered(rows),
        "rule": RULE,
        "verdicts": rows,
    }
    return {**report, "notes": list(_notes(report))}


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON, in one step. Folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, canonical_json(report).encode() + b"\n")


def _has_section(rubric: Rubric, type: str) -> bool:
    try:
        rubric.section(type)
    except UsageError:
        return False
    return True


def _chunks(pairs: Iterable[KnownPair]) -> Iterator[list[KnownPair]]:
    """The pairs of an edit, together as far as their pictures fit."""
    chunk: list[KnownPair] = []
    size = 0
    for pair in pairs:
        chunk.append(pair)
        size += pair.case.result.nbytes
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _judged(judge: EditJudge, pairs: Sequence[KnownPair]) -> Iterator[Row]:
    verdicts = judge.score([pair.case for pair in pairs])
    for pair, verdict in zip(pairs, verdicts, strict=True):
        row: Row = {
            "id": pair.case.id,
            "edge": pair.edge,
            "kind": pair.kind,
            "degree": pair.degree,
            "photograph": pair.photograph,
            "split": pair.split,
            "type": pair.case.type,
            "content": pair.content(),
        }
        if isinstance(verdict, Unanswered):
            detail = one_line(verdict.detail, LONGEST_DETAIL)
            yield {**row, "unanswered": {"kind": verdict.kind, "reason": verdict.reason, "detail": detail}}
        elif not all(map(math.isfinite, verdict.scores.values())):
            yield {**row, "unanswered": {"kind": "failed", "reason": "not_finite", "detail": "a score is no number"}}
        else:
            yield {**row, "scores": dict(verdict.scores)}


def _unanswered(rows: Sequence[Row]) -> dict[str, Any]:
    """How many pairs have no verdict: in all, by reason, and by kind and reason."""
    missing = [row for row in rows if "unanswered" in row]
    by_kind: dict[str, Counter[str]] = {}
    for row in missing:
        by_kind.setdefault(row["kind"], Counter())[row["unanswered"]["reason"]] += 1
    reasons = Counter(row["unanswered"]["reason"] for row in missing)
    return {
        "count": len(missing),
        "reasons": dict(sorted(reasons.items())),
        "kinds": {kind: dict(sorted(counts.items())) for kind, counts in sorted(by_kind.items())},
    }


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    """What must be said beside the verdicts."""
    splits, unanswered = report["splits"], report["unanswered"]
    if known := splits.get("train", 0):
        within = f"; --samples {splits['val']} keeps to the others" if "dataset" in report and splits.get("val") else ""
        yield (
            f"{known} of {report['samples']} edits are of the split train, which a judge trained on this dataset has "
            f"seen{within}"
        )
    if report["judge"].get("miniature"):
        yield "the judge is a miniature, made of random weights: it shows that the parts work"
    for type, count in report["left_out"].items():
        yield f"{count} edits of type {one_line(type, 40)} are left out: the rubric has no section for it"
    for kind, reasons in unanswered["kinds"].items():
        counts = ", ".join(f"{one_line(reason, 40)} {count}" for reason, count in reasons.items())
        yield f"no verdict on {sum(reasons.values())} pairs of kind {kind}: {counts}"
    low, high = report["rubric"]["scale"]
    if high != WORDS_ASK_FOR:
        yield f"the words to the judge ask for {WORDS_ASK_FOR}, and the scale is {low} to {high}"
