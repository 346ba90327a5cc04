"""`scores`: a JSON file of records with a judge's reply, as the released `all_dataset_gpt_score.json` is described."""

from collections.abc import Sequence
from dataclasses import replace

from editfoundry.core.hashing import sha256
from editfoundry.models.judge.parser import Misread, parse_reason, parse_reply
from editfoundry.models.judge.rubric import Dimension, Rubric
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.records import Record
from editfoundry.training.judge.sources.entries import Entry, json_records
from editfoundry.training.judge.sources.judged import Judged


def read_scores(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """Fields: source, result, instruction, reply, and where the file has them id, type, photograph.

    `columns` also takes a dimension's key: the label that replies have for it. Replies that cannot be read strictly are
    left out.
    """
    for number, (where, value) in enumerate(json_records(source, "reply")):
        entry = Entry(source, value, where)
        type, reply = entry.type(rubric), entry.text("reply")
        dimensions = _labelled(rubric.section(type).dimensions, source)
        read = parse_reply(reply, dimensions, rubric.scale)
        if isinstance(read, Misread):
            judged.leave_out(where, read.reason, read.detail)
            continue
        scores = {key: float(score) for key, score in read.items()}
        name = entry.text("id") if entry.has("id") else str(number)
        judged.records.append(record(entry, f"{prefix}{name}", type, scores, source, parse_reason(reply, dimensions)))


def record(entry: Entry, id: str, type: str, scores: dict[str, float], source: Source, reason: str = "") -> Record:
    """The record of a file's entry."""
    shown, instruction = entry.picture("source"), entry.text("instruction")
    return Record(
        id=id,
        source=shown,
        result=entry.picture("result"),
        instruction=instruction,
        type=type,
        scores=scores,
        photograph=entry.photograph(),
        group=sha256("\0".join([shown.digest, type, instruction])),
        reason=reason,
        weight=source.weight,
    )


def _labelled(dimensions: Sequence[Dimension], source: Source) -> list[Dimension]:
    """The dimensions as the file's replies name them."""
    return [replace(one, label=source.columns.get(one.key, one.label)) for one in dimensions]
