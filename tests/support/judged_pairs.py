"""A judge that scores pixels, at once and exactly, and files of pairs for it to score."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.images import encode_jpeg
from editfoundry.core.progress import Advance
from editfoundry.models.judge.rubric import Rubric, load_rubric
from editfoundry.models.judge.types import Case, Comparison, Preference, Scored
from editfoundry.models.protocols import Unanswered

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> & 'x' \u202e"


class PixelJudge:
    """Scores a result by its brightness, whatever was asked: black 1, white 5.

    calls: ids of each call, in the order asked. Of an instruction "refuse" it says nothing, of "broken" NaN. before:
    called before each answer.
    """

    def __init__(
        self, rubric: str = "edit", *, name: str = "pixels", before: Callable[[int], None] = lambda _: None,
        facts: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.rubric: Rubric = load_rubric(rubric)
        self.name, self.before, self.facts = name, before, facts or {}
        self.served = frozenset({"pixels-2"})
        self.calls: list[list[str]] = []
        self.pictures: list[set[int]] = []

    def provenance(self) -> dict[str, Any]:
        rubric = {"name": self.rubric.name, "version": self.rubric.version, "digest": self.rubric.digest}
        made = {"head": "expected", "steps": "chained", "order": "compat", "reason": "none is written"}
        return {"kind": "toy", "model": self.name, "rubric": rubric, **made, **self.facts}

    def load(self) -> None:
        pass

    def score(self, cases: Sequence[Case]) -> list[Scored | Unanswered]:
        self.before(len(self.calls))
        self.calls.append([case.id for case in cases])
        self.pictures.append({id(picture) for case in cases for picture in (case.source, case.result)})
        return [self._one(case) for case in cases]

    def _one(self, case: Case) -> Scored | Unanswered:
        if case.instruction == "refuse":
            return Unanswered("refused", "declined", "not\nthis one")
        score = float("nan") if case.instruction == "broken" else brightness(case.result)
        keys = [dimension.key for dimension in self.rubric.section(case.type).dimensions]
        shares = tuple(np.exp(-np.abs(np.arange(1, 6) - score)) / np.exp(-np.abs(np.arange(1, 6) - score)).sum())
        return Scored(dict.fromkeys(keys, score), dict.fromkeys(keys, shares), 0.25, reason=f"as bright as {score:.2f}")

    def prefer(self, comparisons: Sequence[Comparison]) -> list[Preference | Unanswered]:
        self.calls.append([one.id for one in comparisons])
        firsts = [brightness(one.first) > brightness(one.second) for one in comparisons]
        return [Preference(0.7, 0.1, 0.2, True) if first else Preference(0.2, 0.1, 0.7, False) for first in firsts]


def brightness(picture: NDArray[np.uint8]) -> float:
    """1 to 5."""
    return 1 + 4 * float(picture.mean()) / 255


def flat(level: int, width: int = 48, height: int = 32) -> bytes:
    """A JPEG of one grey."""
    return encode_jpeg(np.full((height, width, 3), level, np.uint8))


def write_pairs(folder: Path, levels: Sequence[int], sources: int = 3, **others: Any) -> Path:
    """A pairs file with one pair a level, of `sources` source pictures in turn, and its pictures in `pictures/`."""
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for number in range(sources):
        (pictures / f"source-{number}.jpg").write_bytes(flat(40 + number))
    rows = []
    for number, level in enumerate(levels):
        (pictures / f"result-{number}.jpg").write_bytes(flat(level))
        rows.append({
            "id": f"pair {number}", "source": f"pictures/source-{number % sources}.jpg",
            "result": f"pictures/result-{number}.jpg", "instruction": f"Brighten it {number} times",
            "type": ("add", "style")[number % 2], **others,
        })  # fmt: skip
    return write_lines(folder / "pairs.jsonl", rows)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change(pairs: Path, number: int, **values: Any) -> None:
    """Give a pair other values."""
    rows = read_lines(pairs)
    rows[number].update(values)
    write_lines(pairs, rows)


def write_choices(folder: Path) -> Path:
    """A file of two results to choose between, two of them, in `choices/`."""
    pairs = write_pairs(folder / "choices", [10, 200])
    rows = [{"first": row.pop("result"), "second": "pictures/result-1.jpg", **row} for row in read_lines(pairs)]
    return write_lines(pairs, rows)


def meta(out: Path) -> dict[str, Any]:
    """What is said beside a file of verdicts."""
    return dict(json.loads(out.with_name(out.name + ".meta.json").read_text()))


@contextmanager
def unseen(total: int) -> Iterator[Advance]:
    """Progress that nobody sees."""
    del total
    yield lambda _: None
