"""What a dataset's index says in numbers. One pass over the index, in memory that does not grow with the pairs."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from editfoundry.data_engine.stages.emit import SINGLE

AREA_BINS = 20
_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass
class Summary:
    """Counters that `add` fills, one index row (one edge) at a time.

    A single edit counts in `pairs` by type; a turn of a conversation counts in `turns`, and each conversation once in
    `conversations` by kind, at its first turn. `areas` counts edges by share of the image edited, in 20 equal bins.
    `photographs` counts edges by the hash of the photograph they were made from. `outside_max` is the largest
    difference, in levels of 255, of any pixel outside the mask of a local edit.
    """

    pairs: Counter[str] = field(default_factory=Counter)
    conversations: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    origins: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    photographs: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    areas: list[int] = field(default_factory=lambda: [0] * AREA_BINS)
    tokens: set[str] = field(default_factory=set)
    words: int = 0
    outside_max: float = 0.0

    @property
    def edges(self) -> int:
        """Edges of either sort: single edits and turns."""
        return self.pairs.total() + self.turns

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row of the index."""
        if row["conversation_kind"] == SINGLE:
            self.pairs[row["type"]] += 1
        else:
            self.turns += 1
            self.conversations[row["conversation_kind"]] += row["turn"] == 1
        self.origins[row["origin"]] += 1
        self.licences[row["licence"]] += 1
        self.photographs[row["photograph_sha256"]] += 1
        self.sizes[row["width"], row["height"]] += 1
        self.areas[min(int(row["mask_area"] * AREA_BINS), AREA_BINS - 1)] += 1
        tokens = _TOKEN.findall(row["instruction"].casefold())
        self.tokens.update(tokens)
        self.words += len(tokens)
        self.outside_max = max(self.outside_max, row["outside_max"] or 0.0)
