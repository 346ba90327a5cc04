"""Readers of judged edits: one per kind of source, all giving records and choices.

What cannot be used is refused with its file and line; replies of other judges that cannot be read strictly are left out
and counted, never guessed.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import sha256
from editfoundry.core.text import one_line
from editfoundry.data_engine.edges import Edge, read_edges
from editfoundry.models.judge.corruption import CANARIES, DEGREES, GRADED, grades
from editfoundry.models.judge.parser import Misread, parse_reason, parse_reply
from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.records import Choice, PictureRef, Record

MAX_FILE_BYTES = 4 << 30
MAX_LINE = 1 << 20
_VERDICTS = {"following": "gate_judge_following", "naturalness": "gate_judge_naturalness"}


class BadRecord(EditFoundryError):
    """A record that cannot be used; names the file, the place in it, and what is wrong."""


@dataclass
class Judged:
    """What the sources hold. left_out: how many records had no usable scores, by reason."""

    records: list[Record] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def read_sources(sources: tuple[Source, ...], rubric: Rubric) -> Judged:
    """Everything that the sources hold, in order. Raises BadRecord, UsageError, and what datasets raise."""
    judged = Judged()
    for number, source in enumerate(sources):
        _READERS[source.kind](source, rubric, judged, f"{number}:")
    ids = {record.id for record in judged.records} | {choice.id for choice in judged.choices}
    if len(ids) != len(judged.records) + len(judged.choices):
        raise UsageError("data.sources: two records have one id; is a file named twice, or an id given twice in it?")
    if not ids:
        reasons = ", ".join(f"{reason} {count}" for reason, count in judged.left_out.items())
        raise UsageError(f"data.sources: no usable record ({reasons or 'they are empty'})")
    return judged


def _scores(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """A JSON list (or object) of records with the pictures' paths, the instruction and a reply of scores."""
    file = Path(source.path)
    content = _json(file)
    entries = content.items() if isinstance(content, dict) else enumerate(content)
    for key, entry in entries:
        where = f"{file}: record {one_line(str(key), 40)}"
        row = _Entry(source, file, entry, where)
        type = row.type(rubric)
        dimensions = rubric.section(type).dimensions
        reply = row.text("reply")
        read = parse_reply(reply, dimensions, rubric.scale)
        if isinstance(read, Misread):
            judged.left_out[read.reason] += 1
            continue
        scores = {name: float(value) for name, value in read.items()}
        judged.records.append(row.record(f"{prefix}{key}", type, scores, parse_reason(reply, dimensions)))


def _ratings(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """A JSONL file of people's scores; several raters of one id are averaged."""
    file = Path(source.path)
    rows: dict[str, tuple[_Entry, str]] = {}
    given: dict[str, dict[str, list[float]]] = {}
    for where, entry in _lines(file):
        row = _Entry(source, file, entry, where)
        name, type = row.text("id"), row.type(rubric)
        known = [dimension.key for dimension in rubric.section(type).dimensions]
        scores = row.field("scores")
        if not isinstance(scores, dict) or not set(scores) <= set(known) or not scores:
            raise BadRecord(f"{where}: scores: expected an object with some of {', '.join(known)}")
        before = rows.setdefault(name, (row, type))[0]
        if any(before.field(key) != row.field(key) for key in ("source", "result", "instruction")):
            raise BadRecord(f"{where}: id {one_line(name, 40)} is another edit than before")
        for key, value in scores.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadRecord(f"{where}: scores.{key}: not a number")
            if not rubric.scale.low <= value <= rubric.scale.high:
                raise BadRecord(
                    f"{where}: scores.{key}: {value} is not on the scale {rubric.scale.low} to {rubric.scale.high}"
                )
            given.setdefault(name, defaultdict(list))[key].append(float(value))
    for name, (row, type) in rows.items():
        means = {key: sum(values) / len(values) for key, values in given[name].items()}
        judged.records.append(row.record(f"{prefix}{name}", type, means, ""))


def _preferences(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """A JSONL file of choices between two results."""
    file = Path(source.path)
    for where, entry in _lines(file):
        row = _Entry(source, file, entry, where)
        preferred = row.text("preferred")
        if preferred not in ("first", "tie", "second"):
            raise BadRecord(f"{where}: preferred: expected first, tie or second")
        shown = row.picture("source")
        judged.choices.append(
            Choice(
                f"{prefix}{row.text('id')}",
                shown,
                row.picture("first"),
                row.picture("second"),
                row.text("instruction"),
                row.type(rubric),
                preferred,  # type: ignore[arg-type]
                sha256(str(shown.path)),
                source.weight,
            )
        )


def _verification(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """A dataset whose edges carry the verdict of the data engine's judge."""
    for edge in read_edges(Path(source.path)):
        verdict = {key: edge.row.get(column) for key, column in _VERDICTS.items()}
        known = {dimension.key for dimension in rubric.section(edge.type).dimensions}
        scores = {key: float(value) for key, value in verdict.items() if value is not None and key in known}
        if not scores:
            judged.left_out["no_verdict"] += 1
            continue
        reason = one_line(str(edge.row.get("gate_judge_reason") or ""), 300)
        judged.records.append(_of_edge(edge, prefix, scores, reason, source.weight))


def _graded(source: Source, rubric: Rubric, judged: Judged, prefix: str) -> None:
    """A dataset whose results are corrupted by known degrees, and its canaries."""
    edges = list(read_edges(Path(source.path)))
    for place, edge in enumerate(edges):
        dimensions, scale = rubric.section(edge.type).dimensions, rubric.scale
        other = next((one for one in (*edges[place + 1 :], *edges[:place]) if one.type != edge.type), None)
        kinds = [("", 0), *((name, degree) for name in GRADED for degree in DEGREES)]
        kinds += [(name, 0) for name in CANARIES if name != "wrong_instruction" or other is not None]
        for name, degree in kinds:
            corruption = f"{name}-{degree}" if degree else name
            record = _of_edge(edge, prefix, grades(name, degree, scale, dimensions), "", source.weight, corruption)
            if name == "wrong_instruction" and other is not None:
                record = _reworded(record, other.instruction)
            judged.records.append(record)


def _of_edge(
    edge: Edge, prefix: str, scores: Mapping[str, float], reason: str, weight: float, corruption: str = ""
) -> Record:
    return Record(
        id=f"{prefix}{edge.key}" + (f":{corruption}" if corruption else ""),
        source=PictureRef(*edge.span("source")),
        result=PictureRef(*edge.span("result")),
        instruction=edge.instruction,
        type=edge.type,
        scores=scores,
        photograph=edge.photograph,
        group=sha256(f"{prefix}{edge.key}"),
        reason=reason,
        corruption=corruption,
        weight=weight,
        size=(int(edge.row["height"]), int(edge.row["width"])),
    )


def _reworded(record: Record, instruction: str) -> Record:
    return replace(record, instruction=instruction, group=sha256(f"{record.group} {instruction}"))


_READERS: dict[str, Callable[[Source, Rubric, Judged, str], None]] = {
    "scores": _scores,
    "ratings": _ratings,
    "preferences": _preferences,
    "verification": _verification,
    "graded": _graded,
}


class _Entry:
    """One entry of a file, its fields by our names for them."""

    def __init__(self, source: Source, file: Path, entry: Any, where: str) -> None:
        if not isinstance(entry, dict):
            raise BadRecord(f"{where}: expected a JSON object")
        self._source, self._entry, self._where = source, entry, where
        self._folder = Path(source.images) if source.images else file.parent

    def field(self, name: str) -> Any:
        column = self._source.columns.get(name, name)
        if column not in self._entry:
            raise BadRecord(f"{self._where}: no {column!r}; name the file's own with data.sources columns.{name}")
        return self._entry[column]

    def text(self, name: str) -> str:
        value = self.field(name)
        if not isinstance(value, str) or not value.strip():
            raise BadRecord(f"{self._where}: {name}: expected text")
        return value

    def type(self, rubric: Rubric) -> str:
        """The edit type; `other` where the file has none and the rubric knows that."""
        column = self._source.columns.get("type", "type")
        named = str(self._entry[column]) if column in self._entry else "other"
        type = self._source.types.get(named, named)
        rubric.section(type)
        return type

    def picture(self, name: str) -> PictureRef:
        path = self._folder / self.text(name)
        if not path.is_file():
            raise BadRecord(f"{self._where}: {name}: {path} is not there; set data.sources images to the folder")
        return PictureRef(path)

    def record(self, id: str, type: str, scores: Mapping[str, float], reason: str) -> Record:
        source, instruction = self.picture("source"), self.text("instruction")
        group = sha256(f"{source.path}\0{instruction}")
        return Record(
            id, source, self.picture("result"), instruction, type, scores, sha256(str(source.path)), group, reason,
            weight=self._source.weight,
        )  # fmt: skip


def _json(file: Path) -> Any:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{file}: larger than {MAX_FILE_BYTES} bytes; split it")
        content = json.loads(file.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON ({one_line(str(error), 80)})") from error
    if not isinstance(content, list | dict):
        raise UsageError(f"{file}: expected a JSON list or object of records")
    return content


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a JSONL file, each with its place."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{file}: line {number}"
                if line.isspace():
                    continue
                if len(line) > MAX_LINE:
                    raise BadRecord(f"{where}: longer than {MAX_LINE} bytes")
                try:
                    yield where, json.loads(line, parse_constant=_refuse_constant)
                except (ValueError, RecursionError) as error:
                    raise BadRecord(f"{where}: not JSON ({one_line(str(error), 80)})") from error
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
