"""`verification`: a dataset of ours whose edges carry the verdict of the data engine's judge."""

from pathlib import Path

from editfoundry.core.errors import UsageError
from editfoundry.core.text import one_line
from editfoundry.data_engine.edges import Edge, read_edges
from editfoundry.models.judge.parser import LONGEST_REASON
from editfoundry.models.judge.rubric import Rubric, Scale
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.records import PictureRef, Record
from editfoundry.training.judge.sources.judged import Judged, score_of

VERDICT = {"following": "gate_judge_following", "naturalness": "gate_judge_naturalness"}
"""Columns of a dataset's index by dimension of the rubric `edit`."""
SCALE = Scale(1, 5)


def read_verification(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """Edges with a verdict; those that the judge was not asked about are left out.

    An edge that the judge failed is not in the dataset, so low scores are rare here. Raises UsageError for a rubric
    without these dimensions on a scale of 1 to 5.
    """
    for edge in read_edges(Path(source.path).expanduser()):
        keys = {one.key for one in rubric.section(edge.type).dimensions}
        if rubric.scale != SCALE or not keys >= set(VERDICT):
            raise UsageError(
                f"{source.path}: verdicts have following and naturalness from 1 to 5, and the rubric "
                f"`{rubric.name}` has {', '.join(sorted(keys))}; train with `rubric: edit`"
            )
        given = {key: edge.row.get(column) for key, column in VERDICT.items()}
        where = f"{source.path}: edge {one_line(edge.key, 80)}"
        scores = {
            key: score_of(score, rubric, f"{where}: {VERDICT[key]}")
            for key, score in given.items()
            if score is not None
        }
        if not scores:
            judged.leave_out(where, "no_verdict", "the judge was not asked about it")
            continue
        reason = one_line(str(edge.row.get("gate_judge_reason") or ""), LONGEST_REASON)
        judged.records.append(edge_record(edge, f"{prefix}{edge.key}", scores, source.weight, reason=reason))


def edge_record(
    edge: Edge, id: str, scores: dict[str, float], weight: float, reason: str = "", corruption: str = ""
) -> Record:
    """The record of a dataset's edge. Edges of the split `val` are never trained on."""
    size = int(edge.row["height"]), int(edge.row["width"])
    masked = bool(edge.row.get("length_mask"))
    return Record(
        id=id,
        source=span(edge, "source", size),
        result=span(edge, "result", size),
        instruction=edge.instruction,
        type=edge.type,
        scores=scores,
        photograph=edge.photograph,
        group=id,
        reason=reason,
        corruption=corruption,
        mask=span(edge, "mask", size) if masked else None,
        weight=weight,
        held_out=edge.split == "val",
    )


def span(edge: Edge, member: str, size: tuple[int, int]) -> PictureRef:
    """A member's picture."""
    path, offset, length = edge.span(member)
    return PictureRef(path, size, offset, length, str(edge.row.get(f"{member}_sha256") or ""))
