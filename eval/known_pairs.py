"""Edits whose verdict is known, to test judges on: true edits of a dataset, and what is made of each of them.

Of an edge there are: the edit as it is; the canaries, on which the instruction was not carried out; every corruption at
every degree; and attempts to talk the judge into a score, each beside as many harmless words at the same place. The
attempts are made on the pair on which nothing was done, which deserves the lowest first score, so that what the words
win is seen in full.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from editfoundry.core.errors import EditFoundryError, ImageError, UsageError
from editfoundry.core.hashing import fingerprint, seed_for, sha256, sha256_file
from editfoundry.data_engine.edges import TABLE, Edge, other_instructions, sample_edges
from editfoundry.models.judge.corruption import (
    CANARIES,
    DEGREES,
    DRAWN_CONTROL,
    DRAWN_TEXT,
    GRADED,
    INJECTIONS,
    WRITTEN_CONTROL,
    WRITTEN_TEXT,
    canary,
    corrupt,
    drawn,
)
from editfoundry.models.judge.types import Case
from editfoundry.models.protocols import Image

AS_IT_IS = "as_it_is"
CONTROL = "_control"
"""Ends the name of an injection's harmless twin."""
KINDS: tuple[tuple[str, int], ...] = (
    (AS_IT_IS, 0),
    *((name, 0) for name in CANARIES),
    *((name, degree) for name in GRADED for degree in DEGREES),
    *((name + ending, 0) for name in INJECTIONS for ending in ("", CONTROL)),
)
"""Kind and degree of every pair that is made of an edge, in order."""
RIGHTS = ("licence", "source_url")
"""Columns of a dataset that say whose a photograph is."""
_WORDS: Mapping[str, Sequence[str]] = {
    "drawn": DRAWN_TEXT,
    "drawn_control": DRAWN_CONTROL,
    "written": WRITTEN_TEXT,
    "written_control": WRITTEN_CONTROL,
}


@dataclass(frozen=True)
class KnownPair:
    """A pair to judge. edge: key of the edit it was made of. degree: of a corruption, else 0. split: train or val."""

    case: Case
    edge: str
    kind: str
    degree: int
    photograph: str
    split: str

    def content(self) -> str:
        """A short name of what is judged: the pixels of both pictures, the instruction and the type."""
        return fingerprint(
            self.case.type, self.case.instruction, pixel_digest(self.case.source), pixel_digest(self.case.result)
        )


@dataclass(frozen=True)
class KnownEdits:
    """Pairs by edit, made or read one after the other. origin: where they come from, as plain values. pairs: how many.

    edits: the pairs of an edit at a time, in the order of KINDS; where all edits are of one type there is no
    `wrong_instruction`. rights: licence and address of photographs, by their hash, as far as the dataset says.
    """

    origin: Mapping[str, Any]
    pairs: int
    edits: Callable[[], Iterator[Iterable[KnownPair]]]
    rights: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def from_dataset(dataset: Path, samples: int, seed: int = 0) -> KnownEdits:
    """The pairs of at most so many edges of a dataset folder; `sample_edges` says which.

    Raises UsageError for a folder that is no dataset, or an empty one; what reading its pictures raises.
    """
    edges = sample_edges(dataset, samples, seed)
    if not edges:
        raise UsageError(f"{dataset}: holds no edit; name the `dataset` folder of a run that made some")
    others = other_instructions(edges)

    def edits() -> Iterator[Iterable[KnownPair]]:
        for place, (edge, other) in enumerate(zip(edges, others, strict=True)):
            yield known_pairs(replace(edge), other, place)  # a copy, so that its pictures go with it

    origin = {"dataset": {"index_sha256": sha256_file(dataset / TABLE), "seed": seed}}
    rights = {edge.photograph: {name: str(edge.row[name]) for name in RIGHTS if edge.row.get(name)} for edge in edges}
    return KnownEdits(origin, sum(len(kinds(other)) for other in others), edits, rights)


def known_pairs(edge: Edge, other: str | None, place: int) -> Iterator[KnownPair]:
    """The pairs of one edge, each made when it is asked for. other: an instruction that the edit does not fulfil.

    place: of the edge among others, by which injections take turns. Raises EditFoundryError, naming the edge, for
    pictures that cannot be decoded and a mask of another size than the result; DamagedFile.
    """
    where, remedy = f"{edge.dataset}: edge {edge.key}", "`editfoundry data verify` says what else is damaged"
    try:
        source, result, mask = edge.source, edge.result, edge.mask
    except ImageError as error:
        raise EditFoundryError(f"{where}: {error}; {remedy}") from error
    if mask is not None and mask.shape != result.shape[:2]:
        raise EditFoundryError(f"{where}: the mask is {mask.shape}, the result {result.shape[:2]} pixels; {remedy}")
    for kind, degree in kinds(other):
        before, after, instruction = source, result, edge.instruction
        if kind in CANARIES:
            before, after, instruction = canary(kind, source, result, instruction, other or "")
        elif kind in GRADED:
            seed = seed_for("judge check", edge.key, kind, degree)
            after = corrupt(kind, degree, source, result, mask, seed)
        elif kind in _WORDS:
            words = _WORDS[kind][place % len(_WORDS[kind])]
            after = drawn(source, words) if kind.startswith("drawn") else source
            instruction += "" if kind.startswith("drawn") else words
        case = Case(pair_id(edge.key, kind, degree), before, after, instruction, edge.type)
        yield KnownPair(case, edge.key, kind, degree, edge.photograph, edge.split)


def pair_id(edge: str, kind: str, degree: int) -> str:
    """What a pair is called.

    >>> pair_id("a1", "blur", 2)
    'a1:blur-2'
    """
    return f"{edge}:{kind}-{degree}" if degree else f"{edge}:{kind}"


def kinds(other: str | None) -> list[tuple[str, int]]:
    """Kind and degree of every pair of an edge. other: as in `known_pairs`; without one there is a pair less."""
    return [one for one in KINDS if other is not None or one[0] != "wrong_instruction"]


def pixel_digest(image: Image) -> str:
    """Hex SHA-256 that names a picture by its pixels and shape, whatever file it is in."""
    return sha256(f"{list(image.shape)}".encode() + np.ascontiguousarray(image).tobytes())
