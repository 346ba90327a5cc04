"""Judging a file of pairs: chunk by chunk, so that memory is flat, and resumable from any moment."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from editfoundry.core.errors import ImageError, UsageError
from editfoundry.core.progress import Advance
from editfoundry.core.text import one_line
from editfoundry.eval.pairs import (
    Listed,
    Pictures,
    Unusable,
    UnusablePicture,
    content,
    overview,
    read_pairs,
    read_picture,
)
from editfoundry.eval.verdicts import Row, Verdicts, open_verdicts, read_verdicts
from editfoundry.models.judge.rubric import Rubric, Slot
from editfoundry.models.judge.types import Case, Comparison, EditJudge, Preference, Scored
from editfoundry.models.protocols import Image, Unanswered

CHUNK = 64
"""Pairs that a judge is asked about at once: it shares work among them."""
CHUNK_BYTES = 256 << 20
"""Of decoded pictures that are held at once, about."""
LONGEST_CHUNK = 4096
"""Lines of a chunk, those with a verdict among them."""
UNUSABLE = "unusable"
"""Kind of an error that is the pair's own; `refused` and `failed` are the judge's."""
LONGEST_DETAIL = 300


@dataclass(frozen=True)
class Loaded:
    """A pair with its pictures, uint8 [H, W, 3]. pair: its content's name."""

    listed: Listed
    pair: str
    source: str
    images: Mapping[Slot, Image]


@dataclass(frozen=True)
class Task:
    """What is asked about a pair. slots: the pictures it has. ask: verdicts, one each. row: what a verdict is on file.

    means: numbers of a row that have a mean.
    """

    kind: str
    slots: tuple[Slot, ...]
    ask: Callable[[EditJudge, Sequence[Loaded]], Sequence[Any]]
    row: Callable[[Rubric, str, Any], Row]
    means: tuple[str, ...]


@dataclass
class _Chunk:
    """Lines that follow each other: where a verdict is already, why there is none, or the pair to judge.

    loaded: the pairs to judge. fresh: how many lines had no verdict when the work began.
    """

    pictures: Pictures = field(default_factory=Pictures)
    entries: list[int | Row | Loaded] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    fresh: int = 0

    def full(self) -> bool:
        """Whether it is time to judge them."""
        return (
            len(self.loaded) >= CHUNK or self.pictures.bytes >= CHUNK_BYTES or len(self.entries) >= LONGEST_CHUNK
        )  # fmt: skip


def judge_pairs(
    task: Task, judge: EditJudge, pairs: Path, out: Path, progress: Callable[[int], AbstractContextManager[Advance]]
) -> dict[str, Any]:
    """Judge every pair of a file, and write verdicts to `out`, one line a pair, in order; returns `summary` of them.

    A pair that cannot be judged has a line that says why. Verdicts that are there already are kept, if the pair's
    pictures, instruction and type are as they were; what has no verdict is tried again. progress: is given the number
    of pairs that are left. Raises UsageError for a file that holds no pair, and what `open_verdicts` and the judge do.
    """
    held = overview(pairs, task.slots)
    scale = judge.rubric.scale
    about = {
        "kind": task.kind,
        "judge": judge.provenance(),
        "scale": [scale.low, scale.high],
        "pairs": {"file": str(pairs.absolute()), "sha256": held.sha256, "lines": held.lines},
    }
    with open_verdicts(out, about) as verdicts:
        offsets = array("q")
        with progress(held.lines - sum(id in verdicts.scored for id in held.ids)) as advance:
            for chunk in _chunks(task, judge.rubric, pairs, verdicts):
                offsets.extend(_judged(task, judge, chunk, verdicts))
                advance(chunk.fresh)
        verdicts.arrange(offsets)
        counts = summary(task, read_verdicts(out))
        verdicts.finish({"counts": counts, "served": sorted(judge.served)})
    return counts


def judge_one(judge: EditJudge, listed: Listed) -> Row:
    """The row of one pair of two pictures. Raises EditFoundryError where the pair is what cannot be judged."""
    judge.rubric.section(listed.type)
    pictures = Pictures()
    loaded = _load(listed, {slot: read_picture(path) for slot, path in listed.pictures.items()}, pictures)
    [verdict] = SCORE.ask(judge, [loaded])
    return _row(SCORE, judge.rubric, loaded, verdict)


def summary(task: Task, rows: Iterable[Row]) -> dict[str, Any]:
    """attempted: pairs; judged: those with a verdict; unanswered: the others by reason; means, over the judged."""
    unanswered, judged, sums = Counter[str](), 0, dict.fromkeys(task.means, 0.0)
    for row in rows:
        if "error" in row:
            unanswered[row["error"]["reason"]] += 1
            continue
        judged += 1
        for name in sums:
            sums[name] += row[name]
    means = {name: total / judged for name, total in sums.items()} if judged else {}
    attempted = judged + unanswered.total()
    return {"attempted": attempted, "judged": judged, "unanswered": dict(sorted(unanswered.items())), "means": means}


def _chunks(task: Task, rubric: Rubric, pairs: Path, verdicts: Verdicts) -> Iterator[_Chunk]:
    chunk = _Chunk()
    for entry in read_pairs(pairs, task.slots):
        prepared = _prepared(entry, rubric, verdicts, chunk.pictures)
        chunk.entries.append(prepared)
        if isinstance(prepared, Loaded):
            chunk.loaded.append(prepared)
        chunk.fresh += not (isinstance(entry, Listed) and entry.id in verdicts.scored)
        if chunk.full():
            yield chunk
            chunk = _Chunk()
    if chunk.entries:
        yield chunk


def _prepared(entry: Listed | Unusable, rubric: Rubric, verdicts: Verdicts, pictures: Pictures) -> int | Row | Loaded:
    """The place of the pair's verdict where it has one, else the pair with its pictures, or why that cannot be."""
    if isinstance(entry, Unusable):
        return _refusal(entry.id, entry.type, entry.line, entry.reason, entry.detail)
    try:
        rubric.section(entry.type)
        files = {slot: read_picture(path) for slot, path in entry.pictures.items()}
        kept = verdicts.scored.get(entry.id)
        if kept and kept.pair == content(entry, {slot: digest for slot, (digest, _) in files.items()}):
            return kept.offset
        return _load(entry, files, pictures)
    except UsageError as error:
        return _refusal(entry.id, entry.type, entry.line, "unknown_type", str(error))
    except (UnusablePicture, ImageError) as error:
        return _refusal(entry.id, entry.type, entry.line, error.reason, str(error))


def _load(listed: Listed, files: Mapping[Slot, tuple[str, bytes]], pictures: Pictures) -> Loaded:
    digests = {slot: digest for slot, (digest, _) in files.items()}
    images = {slot: pictures.decoded(*file) for slot, file in files.items()}
    return Loaded(listed, content(listed, digests), digests["source"], images)


def _judged(task: Task, judge: EditJudge, chunk: _Chunk, verdicts: Verdicts) -> Iterator[int]:
    """Judge what is to be judged of a chunk, write its new lines, and give where each of its verdicts is."""
    loaded = _side_by_side(chunk.loaded)
    answers = task.ask(judge, loaded) if loaded else ()
    rows = {one.listed.line: _row(task, judge.rubric, one, answer) for one, answer in zip(loaded, answers, strict=True)}
    fresh = (entry for entry in chunk.entries if not isinstance(entry, int))
    written = iter(verdicts.append([rows[one.listed.line] if isinstance(one, Loaded) else one for one in fresh]))
    return (entry if isinstance(entry, int) else next(written) for entry in chunk.entries)


def _side_by_side(loaded: Sequence[Loaded]) -> list[Loaded]:
    """The pairs so that those of one type, and in it those of one source, come after each other."""
    types: dict[str, int] = {}
    sources: dict[str, int] = {}
    for place, one in enumerate(loaded):
        types.setdefault(one.listed.type, place)
        sources.setdefault(one.source, place)
    return sorted(loaded, key=lambda one: (types[one.listed.type], sources[one.source]))


def _row(task: Task, rubric: Rubric, loaded: Loaded, verdict: Any) -> Row:
    """What is written of a verdict; a number that is none makes it no verdict."""
    listed = loaded.listed
    about = {"id": listed.id, "type": listed.type, "pair": loaded.pair}
    if isinstance(verdict, Unanswered):
        return {**about, "error": _error(verdict.kind, verdict.reason, verdict.detail)}
    row = task.row(rubric, listed.type, verdict)
    if not all(map(math.isfinite, _numbers(row))):
        return {**about, "error": _error("failed", "not_finite", "the model's numbers are not finite")}
    return {**about, **row}


def _refusal(id: str | None, type: str | None, line: int, reason: str, detail: str) -> Row:
    return {"id": id, "type": type, "line": line, "error": _error(UNUSABLE, reason, detail)}


def _error(kind: str, reason: str, detail: str) -> dict[str, str]:
    return {"kind": kind, "reason": reason, "detail": one_line(detail, LONGEST_DETAIL)}


def _numbers(value: Any) -> Iterator[float]:
    """All numbers of a row."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(inner)


def _score(judge: EditJudge, loaded: Sequence[Loaded]) -> Sequence[Scored | Unanswered]:
    return judge.score([
        Case(one.listed.id, one.images["source"], one.images["result"], one.listed.instruction, one.listed.type)
        for one in loaded
    ])  # fmt: skip


def _scored(rubric: Rubric, type: str, verdict: Scored) -> Row:
    row: Row = {
        "scores": dict(verdict.scores),
        "overall": rubric.overall(type, verdict.scores),
        "above_first": list(rubric.above_first(type, verdict.scores)),
        "reason": _encodable(verdict.reason),
    }
    if verdict.probabilities:
        row |= {"probabilities": dict(verdict.probabilities), "uncovered": verdict.uncovered}
    if verdict.deviations:
        row["deviations"] = dict(verdict.deviations)
    if verdict.reply:
        row["reply"] = _encodable(verdict.reply)
    return row


def _prefer(judge: EditJudge, loaded: Sequence[Loaded]) -> Sequence[Preference | Unanswered]:
    return judge.prefer([
        Comparison(one.listed.id, one.images["source"], one.images["first"], one.images["second"],
                   one.listed.instruction, one.listed.type)
        for one in loaded
    ])  # fmt: skip


def _preferred(rubric: Rubric, type: str, verdict: Preference) -> Row:
    del rubric, type
    return {
        "first": verdict.first,
        "tie": verdict.tie,
        "second": verdict.second,
        "consistent": verdict.consistent,
        "uncovered": verdict.uncovered,
    }


def _encodable(text: str) -> str:
    """The text without halves of surrogate pairs, which UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode("utf-8")


SCORE = Task("score", ("source", "result"), _score, _scored, ("overall",))
PREFER = Task("prefer", ("source", "first", "second"), _prefer, _preferred, ("first", "tie", "second"))
