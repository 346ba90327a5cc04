"""`preferences`: a JSONL file of choices between two results of one instruction."""

from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.records import Choice
from editfoundry.training.judge.sources.entries import Entry, json_lines
from editfoundry.training.judge.sources.judged import BadRecord, Judged


def read_preferences(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """Fields: id, source, first, second, instruction, type, and preferred: `first`, `tie` or `second`."""
    for where, value in json_lines(source):
        entry = Entry(source, value, where)
        preferred = entry.text("preferred")
        if preferred not in ("first", "tie", "second"):
            raise BadRecord(f"{where}: preferred: expected first, tie or second")
        judged.choices.append(
            Choice(
                id=f"{prefix}{entry.text('id')}",
                source=entry.picture("source"),
                first=entry.picture("first"),
                second=entry.picture("second"),
                instruction=entry.text("instruction"),
                type=entry.type(rubric),
                preferred=preferred,  # type: ignore[arg-type]
                photograph=entry.photograph(),
                weight=source.weight,
            )
        )
