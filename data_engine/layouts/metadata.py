"""Columns by their usual names, and the cuts that are made by metadata before any pixel is read."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from editfoundry.core.errors import ConfigError, ImageError
from editfoundry.data_engine.source_spec import SourceSpec, clean_text

USUAL = {
    "image": ("image", "img", "jpg", "jpeg", "png", "webp"),
    "text": ("text", "caption", "txt"),
    "licence": ("licence", "license"),
    "url": ("url", "image_url"),
    "width": ("width",),
    "height": ("height",),
    "id": ("id", "key"),
    "aesthetic": ("aesthetic", "aesthetic_score", "aes"),
}
SHORT_SIDE = "short_side"


class MetadataCut(ImageError):
    """A photograph that its metadata rule out; `score` is the value that did."""

    def __init__(self, reason: str, message: str, score: float | None = None) -> None:
        super().__init__(reason, message)
        self.score = score


def find_column(name: str, columns: Sequence[str]) -> str | None:
    """The column of that name, or of a usual name for it, in any case; None when there is none."""
    lower: dict[str, str] = {}
    for column in columns:
        lower.setdefault(column.lower(), column)
    candidates = (name, *USUAL.get(name.lower(), ()))
    exact = next((candidate for candidate in candidates if candidate in columns), None)
    return exact or next((lower[one.lower()] for one in candidates if one.lower() in lower), None)


class Columns:
    """Which column of a table holds what: the specification's `columns`, else the usual names.

    roles: column by role. cuts: columns by name of the cut (two for `short_side`). Raises ConfigError, naming the
    columns there are, for one that is named and is not there.
    """

    def __init__(self, spec: SourceSpec, columns: Sequence[str], where: str) -> None:
        self._spec = spec
        there = f"{where}: no column {{}}; there are: {', '.join(columns)}"
        self.roles: dict[str, str] = {}
        for role in USUAL:
            named = spec.columns.get(role)  # type: ignore[call-overload]
            found = named if named in columns else None if named else find_column(role, columns)
            if named and found is None:
                raise ConfigError(f"ingest.sources: columns.{role}: {there.format(repr(named))}")
            if found:
                self.roles[role] = found
        self.cuts: dict[str, tuple[str, ...]] = {}
        for cut in spec.metadata:
            wanted = [cut]
            if cut == SHORT_SIDE and cut not in columns:
                wanted = [self.roles.get("width", "width"), self.roles.get("height", "height")]
            found_all = [find_column(name, columns) for name in wanted]
            if None in found_all:
                missing = wanted[found_all.index(None)]
                raise ConfigError(f"ingest.sources: metadata.{cut}: {there.format(repr(missing))}")
            self.cuts[cut] = tuple(name for name in found_all if name is not None)

    @property
    def metadata(self) -> list[str]:
        """Every column that is read before pixels, each once."""
        names = [column for role, column in self.roles.items() if role not in ("image", "aesthetic")]
        return list(dict.fromkeys([*names, *(name for cut in self.cuts.values() for name in cut)]))

    def check(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The values of the cuts by name, when all of them pass. Raises MetadataCut."""
        return check_cuts(self._spec, {cut: [row.get(name) for name in names] for cut, names in self.cuts.items()})

    def text(self, row: Mapping[str, Any], role: str) -> str:
        """The text in a role's column, printable and on one line; "" for none, or for a value that is no text."""
        value = row.get(self.roles.get(role, ""))
        return clean_text(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def check_cuts(spec: SourceSpec, values: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Compare the values of each cut (the least of several counts) with its limits. Raises MetadataCut."""
    passed = {}
    for cut, limits in spec.metadata.items():
        numbers = [number(value) for value in values[cut]]
        known = [value for value in numbers if value is not None]
        if not known or len(known) < len(numbers):
            raise MetadataCut("metadata_missing", f"no number for {cut}")
        value = min(known)
        problem = limits.problem(value)
        if problem:
            name = re.sub(r"[^0-9a-z]+", "_", cut.lower()).strip("_")
            raise MetadataCut(f"metadata_{name}", f"{cut} {value:.6g} {problem}", value)
        passed[cut] = round(value, 6)
    return passed


def number(value: Any) -> float | None:
    """A finite number as a float; None for NaN, infinities, texts and everything else."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        found = float(value)
    except (OverflowError, ValueError, TypeError):
        return None
    return found if math.isfinite(found) else None
