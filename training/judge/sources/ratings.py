"""`ratings`: a JSONL file of scores from people; several raters of one id are averaged."""

from dataclasses import dataclass, field

from editfoundry.core.text import one_line
from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.sources.entries import Entry, json_lines
from editfoundry.training.judge.sources.judged import BadRecord, Judged, score_of
from editfoundry.training.judge.sources.scores import record

_SAME = ("source", "result", "instruction")


@dataclass
class _Rated:
    """An edit, and what raters gave it by dimension."""

    entry: Entry
    type: str
    given: dict[str, list[float]] = field(default_factory=dict)
    raters: set[str] = field(default_factory=set)


def read_ratings(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """Fields: id, source, result, instruction, type, scores (an object of numbers by dimension), and maybe rater."""
    rated: dict[str, _Rated] = {}
    for where, value in json_lines(source):
        entry = Entry(source, value, where)
        name, type = entry.text("id"), entry.type(rubric)
        one = rated.setdefault(name, _Rated(entry, type))
        if one.type != type or any(one.entry.text(key) != entry.text(key) for key in _SAME):
            raise BadRecord(f"{where}: id {one_line(name, 40)} was another edit in {one.entry.where}")
        if entry.has("rater"):
            rater = entry.text("rater")
            if rater in one.raters:
                raise BadRecord(f"{where}: rater {one_line(rater, 40)} rates id {one_line(name, 40)} again")
            one.raters.add(rater)
        for key, score in _scores(entry, source, rubric, type).items():
            one.given.setdefault(key, []).append(score)
    for name, one in rated.items():
        means = {key: sum(scores) / len(scores) for key, scores in one.given.items()}
        judged.records.append(record(one.entry, f"{prefix}{name}", one.type, means, source))


def _scores(entry: Entry, source: Source, rubric: Rubric, type: str) -> dict[str, float]:
    keys = {source.columns.get(one.key, one.key): one.key for one in rubric.section(type).dimensions}
    scores = entry.field("scores")
    if not isinstance(scores, dict) or not scores or not set(scores) <= set(keys):
        raise BadRecord(f"{entry.where}: scores: expected an object with some of {', '.join(keys)}")
    return {keys[name]: score_of(score, rubric, f"{entry.where}: scores.{name}") for name, score in scores.items()}
