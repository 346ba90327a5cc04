"""People's ratings and a judge's scores of the same edits, read from files and laid side by side.

Rater files are those released with VIEScore (arXiv 2312.14867, the human ratings of ImagenHub): tab-separated, a header
`uid<TAB>model<TAB>…`, one line per case, a cell `[sc,pq]` per model, both between 0 and 1 (0, 0.5 or 1 as released).
Score files are JSON `{model: {uid: {"SC": [...], "PQ": [...]}}}` with numbers from 0 to 10.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import sha256
from editfoundry.core.text import one_line

JUDGE_TOP = 10
DECIMALS = 9
LARGEST_FILE = 64 * 2**20
EXAMPLES = 5
CELL = re.compile(r"\[ *([0-9]+(?:\.[0-9]+)?) *, *([0-9]+(?:\.[0-9]+)?) *\]")

Floats = NDArray[np.float64]
Samples = dict[tuple[str, str], tuple[float, float]]
"""(SC, PQ) by (model, case)."""


@dataclass(frozen=True)
class ScoredFile:
    """One file of scores: its name fit for any text, its SHA-256, its models in order, and (SC, PQ) per sample."""

    name: str
    digest: str
    models: tuple[str, ...]
    samples: Samples


@dataclass(frozen=True)
class Ratings:
    """What people and a judge gave the same samples, a sample being the result of one model for one case.

    raters: per dimension float64 [raters, models, cases]. judge: per dimension float64 [models, cases]. All scores lie
    between 0 and 1 (the judge's divided by 10). A sample counts if every rater and the judge scored it, else it is NaN
    everywhere. `models` and `cases` are sorted, those without any sample left out. `counts` says how many samples were
    on which side, with the first few of those left out.
    """

    files: tuple[ScoredFile, ...]
    scores: ScoredFile
    models: tuple[str, ...]
    cases: tuple[str, ...]
    raters: Mapping[str, Floats]
    judge: Mapping[str, Floats]
    counts: Mapping[str, Any]


def read_raters(path: Path) -> ScoredFile:
    """A rater's file. Raises UsageError with file, line and column for anything but the released layout."""
    data, text = _read(path)
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    first, *models = (name.strip() for name in lines[0].split("\t"))
    if first != "uid" or not models or not all(models):
        raise UsageError(f"{path}: line 1: expected a header `uid<TAB>model<TAB>…`, found {_shown(lines[0])}")
    if len(set(models)) < len(models):
        twice = next(model for model in models if models.count(model) > 1)
        raise UsageError(f"{path}: line 1: the model {_shown(twice)} has two columns; remove or rename one")
    samples: Samples = {}
    seen: dict[str, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        uid, *cells = (cell.strip() for cell in line.split("\t"))
        where = f"{path}: line {number}"
        if not uid:
            raise UsageError(f"{where}, column uid: empty; give the case's name or remove the line")
        if len(cells) != len(models):
            raise UsageError(f"{where}: {len(cells)} ratings for {len(models)} models; give one cell per model")
        if seen.setdefault(uid, number) != number:
            raise UsageError(f"{where}, column uid: {_shown(uid)} is on line {seen[uid]} too; keep one of them")
        for model, cell in zip(models, cells, strict=True):
            samples[model, uid] = _cell(cell, f"{where}, column {one_line(model, 60)}")
    if not samples:
        raise UsageError(f"{path}: a header and no ratings; expected one line per case")
    return ScoredFile(_name(path), sha256(data), tuple(models), samples)


def _cell(cell: str, where: str) -> tuple[float, float]:
    match = CELL.fullmatch(cell)
    if match is None:
        raise UsageError(f"{where}: expected [sc,pq] such as [0.5,1], found {_shown(cell)}")
    semantic, quality = float(match[1]), float(match[2])
    if max(semantic, quality) > 1:
        raise UsageError(f"{where}: {_shown(cell)} is above 1; ratings go from 0 to 1")
    return semantic, quality


def read_scores(path: Path) -> ScoredFile:
    """A judge's score file; SC and PQ are the least of their lists. Raises UsageError with file and keys."""
    data, text = _read(path)
    try:
        plain = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not usable JSON ({one_line(str(error), 200)}); correct the file") from error
    samples: Samples = {}
    for model, cases in _object(plain, f"{path}", "{model: {uid: …}}").items():
        for uid, score in _object(cases, f"{path}: {one_line(model, 60)}", "{uid: {SC: […], PQ: […]}}").items():
            where = f"{path}: {one_line(model, 60)} / {one_line(uid, 60)}"
            fields = _object(score, where, '{"SC": […], "PQ": […]}')
            samples[model, uid] = (_least(fields, "SC", where), _least(fields, "PQ", where))
    if not samples:
        raise UsageError(f'{path}: no scores; expected {{model: {{uid: {{"SC": […], "PQ": […]}}}}}}')
    return ScoredFile(_name(path), sha256(data), tuple(plain), samples)


def _least(fields: Mapping[str, Any], key: str, where: str) -> float:
    """The least number of a list, as VIEScore takes it."""
    if key not in fields:
        raise UsageError(f"{where}: no {key}; give a list of numbers from 0 to {JUDGE_TOP}")
    values = fields[key]
    if not isinstance(values, list) or not values:
        raise UsageError(f"{where} / {key}: expected a list with at least one number; score the sample or leave it out")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= JUDGE_TOP:
            raise UsageError(f"{where} / {key}: {_shown(str(value))} is no number from 0 to {JUDGE_TOP}; correct it")
    return float(min(values))


def lay_side_by_side(files: Sequence[ScoredFile], scores: ScoredFile) -> Ratings:
    """The samples that all raters and the judge scored. UsageError if the models do not fit or nothing is left."""
    models = tuple(sorted(files[0].models))
    for file in files[1:]:
        odd = set(file.models) ^ set(models)
        if odd:
            raise UsageError(f"{file.name}: its models differ from those of {files[0].name} in {_few(odd)}; "
                             "every rater must have rated the same models")  # fmt: skip
    unknown = set(scores.models) - set(models)
    if unknown:
        raise UsageError(f"{scores.name}: nobody rated its models {_few(unknown)}; rated are {_few(models)}: "
                         "correct the names or take the models out of the file")  # fmt: skip
    rated = set.intersection(*(set(file.samples) for file in files))
    partly = set.union(*(set(file.samples) for file in files)) - rated
    used = rated & set(scores.samples)
    if not used:
        raise UsageError(f"{scores.name}: none of its {len(scores.samples)} samples was rated by all {len(files)} "
                         "raters; check that the uids are written the same way")  # fmt: skip
    counts = {
        "used": len(used),
        "rated_by_all": len(rated),
        "rated_by_some": len(partly),
        "scored": len(scores.samples),
        "rated_but_not_scored": len(rated - used),
        "scored_but_not_rated_by_all": len(set(scores.samples) - used),
        "models_not_scored": [one_line(model, 60) for model in models if model not in scores.models],
        "left_out": [f"{model} / {uid}" for model, uid in _first((rated | partly | set(scores.samples)) - used)],
    }
    kept = tuple(model for model in models if any(model == sample[0] for sample in used))
    cases = tuple(sorted({uid for _, uid in used}))
    arrays = [_arrays(file.samples, used, kept, cases, 1.0) for file in files]
    return Ratings(
        files=tuple(files),
        scores=scores,
        models=kept,
        cases=cases,
        raters={dimension: np.stack([array[dimension] for array in arrays]) for dimension in arrays[0]},
        judge=_arrays(scores.samples, used, kept, cases, JUDGE_TOP),
        counts=counts,
    )


def _arrays(
    samples: Samples, used: set[tuple[str, str]], models: tuple[str, ...], cases: tuple[str, ...], top: float
) -> dict[str, Floats]:
    """SC, PQ and O = √(SC·PQ) as [models, cases] between 0 and 1, NaN for what is not used.

    Rounded, so that scores that are the same number by another order of sums are a tie.
    """
    plain = np.full((2, len(models), len(cases)), np.nan)
    rows = {model: row for row, model in enumerate(models)}
    columns = {uid: column for column, uid in enumerate(cases)}
    for model, uid in used:
        plain[:, rows[model], columns[uid]] = samples[model, uid]
    semantic, quality = plain / top
    overall = np.sqrt(plain[0] * plain[1]) / top
    return {"SC": semantic.round(DECIMALS), "PQ": quality.round(DECIMALS), "O": overall.round(DECIMALS)}


def _read(path: Path) -> tuple[bytes, str]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from error
    if len(data) > LARGEST_FILE:
        raise UsageError(f"{path}: more than {LARGEST_FILE // 2**20} MiB; this is no file of ratings or scores")
    if not data.strip():
        raise UsageError(f"{path}: empty; give a file of ratings or scores")
    try:
        return data, data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        raise UsageError(f"{path}: line {line}, byte {column}: not UTF-8; save the file as UTF-8") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {_shown(twice)} is there twice")
    return plain


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _object(value: object, where: str, shape: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected {shape}, found a {type(value).__name__}")
    return value


def _name(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _shown(text: str) -> str:
    return f'"{one_line(text, 60)}"'


def _first(samples: set[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted((one_line(model, 60), one_line(uid, 60)) for model, uid in samples)[:EXAMPLES]


def _few(names: Sequence[str] | set[str]) -> str:
    shown = [one_line(name, 60) for name in sorted(names)]
    return ", ".join(shown[:EXAMPLES]) + (f" and {len(shown) - EXAMPLES} more" if len(shown) > EXAMPLES else "")
