"""`graded`: a dataset of ours whose results are corrupted by known degrees, and its canaries."""

from dataclasses import replace
from pathlib import Path

from editfoundry.data_engine.edges import Edge, other_instructions, read_edges
from editfoundry.models.judge.corruption import CANARIES, DEGREES, GRADED, grades
from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.records import Record
from editfoundry.training.judge.sources.judged import Judged
from editfoundry.training.judge.sources.verification import edge_record


def read_graded(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """Every edge as it is, with every corruption asked for at every degree, and as every canary asked for."""
    edges = list(read_edges(Path(source.path).expanduser()))
    for edge, other in zip(edges, other_instructions(edges), strict=True):
        judged.records += _versions(edge, other, source, rubric, prefix)


def _versions(edge: Edge, other: str | None, source: Source, rubric: Rubric, prefix: str) -> list[Record]:
    """An edge's records. Those with another picture before, or another instruction, are not ranked with the rest."""
    dimensions, records = rubric.section(edge.type).dimensions, []
    wanted = source.corruptions or (*GRADED, *CANARIES)
    graded = ((name, degree) for name in GRADED if name in wanted for degree in DEGREES)
    for name, degree in (("", 0), *graded, *((name, 0) for name in CANARIES if name in wanted)):
        if name == "wrong_instruction" and other is None:
            continue
        corruption = f"{name}-{degree}" if degree else name
        id = f"{prefix}{edge.key}:{corruption or 'as_it_is'}"
        scores = grades(name, degree, rubric.scale, dimensions, rubric.capped)
        record = edge_record(edge, id, scores, source.weight, corruption=corruption)
        if name not in ("swapped", "wrong_instruction"):
            record = replace(record, group=f"{prefix}{edge.key}")
        if name == "wrong_instruction" and other is not None:
            record = replace(record, instruction=other)
        records.append(record)
    return records
