"""Packed rows from judged edits: tokens, positions, pictures, and where each head has to say what."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from editfoundry.core.errors import EditFoundryError, ImageError
from editfoundry.core.hashing import seed_for
from editfoundry.core.images import decode, read_info
from editfoundry.core.text import one_line
from editfoundry.models.judge.corruption import CANARIES, canary, corrupt
from editfoundry.models.judge.encode import Grid, PromptEncoder, Tokens
from editfoundry.models.judge.expected import ScoreTokens, score_tokens
from editfoundry.models.judge.rubric import CHOICES, Dimension, Rubric, Scale, Slot, reply_text
from editfoundry.models.judge.types import Order
from editfoundry.models.protocols import Image
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads
from editfoundry.training.judge.packing import Item, RowOrder
from editfoundry.training.judge.records import Choice, PictureRef, Record

DIMENSIONS = 3
MOST_WEIGHT = 10.0


class BadPicture(EditFoundryError):
    """A picture of a record that cannot be used; names the record and the file."""


@dataclass(frozen=True)
class Part:
    """One sequence of a row. record, choice: number of what it shows, one of them. reasoned: the reply has a reason.

    swapped: of a comparison, whether the second result is shown as A. length: in tokens.
    """

    record: int | None
    choice: int | None
    reasoned: bool
    swapped: bool
    length: int


@dataclass(frozen=True)
class Weighting:
    """Weight of each score by (dimension's place, rounded score), on average 1 over the records."""

    table: Mapping[tuple[int, int], float]

    def of(self, place: int, score: float) -> float:
        """Weight of a score; 1 for one that was not among the records."""
        return self.table.get((place, round(score)), 1.0)


def weighting(records: Sequence[Record], rubric: Rubric, balance: str) -> Weighting:
    """How scores are weighed against how often they are given; see `JudgeData.balance`."""
    counts: Counter[tuple[int, int]] = Counter()
    for record in records:
        for place, dimension in enumerate(rubric.section(record.type).dimensions):
            if dimension.key in record.scores:
                counts[place, round(record.scores[dimension.key])] += 1
    power = {"none": 0.0, "sqrt": 0.5, "inverse": 1.0}[balance]
    raw = {key: count**-power for key, count in counts.items()}
    mean = sum(raw[key] * count for key, count in counts.items()) / max(1, sum(counts.values()))
    return Weighting({key: min(MOST_WEIGHT, value / mean) for key, value in raw.items()})


class RowBuilder:
    """Builds rows, in the trainer's process and in workers; pickles with all that it needs.

    parts: every sequence, whose number rows name; made by `plan`. order_of_rows: which stand in which row; to be set
    before `build`.
    """

    def __init__(
        self,
        records: Sequence[Record],
        choices: Sequence[Choice],
        rubric: Rubric,
        encoder: PromptEncoder,
        order: Order,
        heads: Heads,
        weights: Weighting,
    ) -> None:
        self.records, self.choices, self.rubric, self.encoder = tuple(records), tuple(choices), rubric, encoder
        self.order, self.heads, self.weights = order, heads, weights
        self.choice_ids = [encoder.reply_ids(choice)[0] for choice in CHOICES]
        self._layouts: dict[tuple[Dimension, ...], ScoreTokens] = {}
        self.parts: list[Part] = []
        self.order_of_rows: RowOrder | None = None

    def plan(self, limit: int) -> list[Item]:
        """Lay out every sequence, and say which stay together. Raises BadPicture, and EditFoundryError for an item of

        more than `limit` tokens.
        """
        groups: dict[str, list[int]] = {}
        scored = self.heads.generate or self.heads.expected or self.heads.regression or self.heads.ranking
        for number, record in enumerate(self.records if scored else ()):
            for reasoned in (False, True) if self.heads.generate and record.reason else (False,):
                tokens = self._record_tokens(record, self._grids(record), reasoned)
                together = record.group if self.heads.ranking else f"{record.id} {reasoned}"
                groups.setdefault(together, []).append(len(self.parts))
                self.parts.append(Part(number, None, reasoned, False, len(tokens)))
        for number, choice in enumerate(self.choices if self.heads.preference else ()):
            swapped = bool(seed_for("swapped", choice.id) % 2)
            tokens = self._choice_tokens(choice, self._grids(choice), swapped)
            groups[f"choice {number}"] = [len(self.parts)]
            self.parts.append(Part(None, number, False, swapped, len(tokens)))
        items = [Item(tuple(parts), sum(self.parts[part].length for part in parts)) for parts in groups.values()]
        for item in items:
            if item.tokens > limit:
                raise EditFoundryError(
                    f"{self._name(self.parts[item.members[0]])}: {item.tokens} tokens in {len(item.members)} "
                    f"sequences that stay together, but a row has {limit}; raise data.pack or lower data.max_pixels"
                )
        return items

    def build(self, rows: list[int], bucket: int, position: int, slots: range) -> Row:
        """The row of a rank's place in a global batch, as the loader asks for it. Raises BadPicture."""
        [number] = rows
        assert self.order_of_rows is not None
        return self.row(self.order_of_rows.row(number), position, slots.start)

    def row(self, members: Sequence[int], position: int = 0, slot: int = 0) -> Row:
        """The row of these sequences."""
        made = _Made(self.encoder)
        for member in members:
            part = self.parts[member]
            if part.choice is not None:
                self._add_choice(made, self.choices[part.choice], part.swapped)
            else:
                assert part.record is not None
                self._add_record(made, part)
        rankings = self._rankings(made) if self.heads.ranking else []
        return made.row(position, slot, rankings, self.rubric.scale)

    def layout(self, dimensions: Sequence[Dimension]) -> ScoreTokens:
        """Where the scores of these dimensions stand in a reply."""
        key = tuple(dimensions)
        if key not in self._layouts:
            self._layouts[key] = score_tokens(self.encoder.reply_ids, dimensions, self.rubric.scale)
        return self._layouts[key]

    def pictures(self, record: Record) -> tuple[Image, Image]:
        """What a record shows: before and after, with its corruption. Raises BadPicture."""
        source, result = self._read(record.id, record.source), self._read(record.id, record.result)
        if record.corruption in CANARIES:
            source, result, _ = canary(record.corruption, source, result, "", "")
        elif record.corruption:
            name, _, degree = record.corruption.rpartition("-")
            seed = seed_for("corruption", record.id) % 2**63
            result = corrupt(name, int(degree), source, result, None, seed)
        return source, result

    def _known(self, record: Record) -> tuple[Dimension, ...]:
        """The dimensions up to the first without a score: those that a reply can hold."""
        dimensions = self.rubric.section(record.type).dimensions
        unknown = [place for place, one in enumerate(dimensions) if one.key not in record.scores]
        return dimensions[: unknown[0]] if unknown else dimensions

    def _reply(self, record: Record, reasoned: bool) -> str:
        known = self._known(record)
        scores = [_whole(record.scores[one.key]) for one in known]
        return reply_text(known, scores, record.reason if reasoned else "")

    def _record_tokens(self, record: Record, grids: Mapping[Slot, Grid], reasoned: bool) -> Tokens:
        prompt = self.rubric.prompt(record.type, record.instruction, self.order)
        whole = len(self._known(record)) == len(self.rubric.section(record.type).dimensions)
        ends = bool(self.heads.generate) and whole
        return self.encoder.tokens(prompt, grids, self._reply(record, reasoned), reply_ends=ends)

    def _choice_tokens(self, choice: Choice, grids: Mapping[Slot, Grid], swapped: bool) -> Tokens:
        prompt = self.rubric.comparison(choice.type, choice.instruction, self.order, swapped)
        return self.encoder.tokens(prompt, grids)

    def _add_record(self, made: "_Made", part: Part) -> None:
        assert part.record is not None
        record = self.records[part.record]
        source, result = self.pictures(record)
        tokens = made.show(
            {"source": source, "result": result}, lambda grids: self._record_tokens(record, grids, part.reasoned)
        )
        start, last = made.length - len(tokens), made.length - len(tokens) + tokens.prompt - 1
        known = self._known(record)
        if self.heads.generate:
            places = range(last, made.length - 1)
            made.replies += [(place, int(tokens.ids[place + 1 - start]), record.weight) for place in places]
        if part.reasoned:
            return
        number = len(made.records)
        made.records.append(record)
        made.prompts.append(last)
        given = [record.scores.get(one.key) for one in self.rubric.section(record.type).dimensions]
        made.targets.append(given)
        made.weights.append([
            0.0 if score is None else record.weight * self.weights.of(place, score) for place, score in enumerate(given)
        ])  # fmt: skip
        if not (self.heads.expected and known):
            return
        layout, place = self.layout(known), last
        for which, dimension in enumerate(known):
            score = record.scores[dimension.key]
            place += len(layout.pieces[which])
            written = layout.value(_whole(score))
            second = place + 1 if layout.two_steps and written[0] == layout.digits[1] else -1
            made.scores.append((place, second, score, made.weights[number][which], number, which))
            place += len(written)

    def _add_choice(self, made: "_Made", choice: Choice, swapped: bool) -> None:
        pictures: dict[Slot, Image] = {
            "source": self._read(choice.id, choice.source),
            "first": self._read(choice.id, choice.first),
            "second": self._read(choice.id, choice.second),
        }
        made.show(pictures, lambda grids: self._choice_tokens(choice, grids, swapped))
        verdict = {"first": 0, "second": 1, "tie": 2}[choice.preferred]
        shown = {0: 1, 1: 0, 2: 2}[verdict] if swapped else verdict
        made.choices.append((made.length - 1, shown, choice.weight, choice.id))

    def _rankings(self, made: "_Made") -> list[tuple[int, int, int, int, float]]:
        """Pairs of results of one picture and instruction: both numbers, which is better, dimension, weight."""
        pairs = []
        for one, first in enumerate(made.records):
            for two in range(one + 1, len(made.records)):
                second = made.records[two]
                if first.group != second.group:
                    continue
                for place, dimension in enumerate(self.rubric.section(first.type).dimensions):
                    if dimension.key in first.scores and dimension.key in second.scores:
                        difference = first.scores[dimension.key] - second.scores[dimension.key]
                        weight = (first.weight * second.weight) ** 0.5
                        pairs.append((one, two, int(np.sign(difference)), place, weight))
        return pairs

    def _grids(self, one: Record | Choice) -> dict[Slot, Grid]:
        """The grids of a record's pictures, from their headers."""
        slots: dict[Slot, PictureRef] = {"source": one.source}
        if isinstance(one, Record):
            slots["result"] = one.result
            if one.size is not None:
                return dict.fromkeys(slots, self.encoder.grid(*one.size))
        else:
            slots |= {"first": one.first, "second": one.second}
        return {slot: self.encoder.grid(*self._size(one.id, reference)) for slot, reference in slots.items()}

    def _size(self, name: str, reference: PictureRef) -> tuple[int, int]:
        try:
            info = read_info(_bytes(reference))
        except (ImageError, OSError) as error:
            raise _bad(name, reference, error) from error
        return info.height, info.width

    def _read(self, name: str, reference: PictureRef) -> Image:
        try:
            return decode(_bytes(reference))
        except (ImageError, OSError) as error:
            raise _bad(name, reference, error) from error

    def _name(self, part: Part) -> str:
        return self.records[part.record].id if part.record is not None else self.choices[part.choice or 0].id


class _Made:
    """A row in the making."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder
        self._ids: list[Tensor] = []
        self._positions: list[Tensor] = []
        self._pictures: dict[str, tuple[int, Tensor, Grid]] = {}
        self._runs: list[int] = []
        self.length = 0
        self.replies: list[tuple[int, int, float]] = []
        self.scores: list[tuple[int, int, float, float, int, int]] = []
        self.records: list[Record] = []
        self.prompts: list[int] = []
        self.targets: list[list[float | None]] = []
        self.weights: list[list[float]] = []
        self.choices: list[tuple[int, int, float, str]] = []

    def show(self, pictures: Mapping[Slot, Image], tokens_of: Any) -> Tokens:
        """Append a sequence; a picture that the row shows already is kept once."""
        grids: dict[Slot, Grid] = {}
        numbers: dict[Slot, int] = {}
        for slot, picture in pictures.items():
            digest = self._encoder.digest(picture)
            if digest not in self._pictures:
                patches = self._encoder.patches(picture)
                self._pictures[digest] = len(self._pictures), patches.pixel_values, patches.grid
            numbers[slot], _, grids[slot] = self._pictures[digest]
        tokens: Tokens = tokens_of(grids)
        text = torch.arange(len(tokens))[None]
        self._ids.append(tokens.ids)
        self._positions.append(torch.cat([text, tokens.positions]))
        self._runs += [numbers[slot] for slot in tokens.pictures]
        self.length += len(tokens)
        return tokens

    def row(self, position: int, slot: int, rankings: list[tuple[int, int, int, int, float]], scale: Scale) -> Row:
        """What was shown, as tensors."""
        whole, real = torch.int64, torch.float32
        targets, mask, weights = torch.zeros(3, len(self.records), DIMENSIONS)
        for number, (given, weighed) in enumerate(zip(self.targets, self.weights, strict=True)):
            for place, score in enumerate(given):
                if score is not None:
                    targets[number, place], mask[number, place], weights[number, place] = score, 1, weighed[place]
        shares = [soft(one[2] - scale.low, len(scale.values)) for one in self.scores]
        return Row(
            ids=torch.cat(self._ids)[None],
            positions=torch.cat(self._positions, 1)[:, None],
            pixel_values=torch.cat([pixels for _, pixels, _ in self._pictures.values()]),
            grids=torch.tensor([grid for _, _, grid in self._pictures.values()], dtype=whole),
            picture_of_run=torch.tensor(self._runs, dtype=whole),
            reply_places=torch.tensor([place for place, _, _ in self.replies], dtype=whole),
            reply_ids=torch.tensor([token for _, token, _ in self.replies], dtype=whole),
            reply_weights=torch.tensor([weight for _, _, weight in self.replies], dtype=real),
            score_places=torch.tensor([one[0] for one in self.scores], dtype=whole),
            second_places=torch.tensor([one[1] for one in self.scores], dtype=whole),
            score_targets=torch.stack(shares) if shares else torch.zeros(0, len(scale.values)),
            score_weights=torch.tensor([one[3] for one in self.scores], dtype=real),
            score_records=torch.tensor([one[4] for one in self.scores], dtype=whole),
            score_dimensions=torch.tensor([one[5] for one in self.scores], dtype=whole),
            regression_places=torch.tensor(self.prompts, dtype=whole),
            regression_targets=targets,
            regression_mask=mask,
            regression_weights=weights,
            ranking_pairs=torch.tensor([one[:2] for one in rankings], dtype=whole).reshape(-1, 2),
            ranking_targets=torch.tensor([one[2] for one in rankings], dtype=whole),
            ranking_dimensions=torch.tensor([one[3] for one in rankings], dtype=whole),
            ranking_weights=torch.tensor([one[4] for one in rankings], dtype=real),
            choice_places=torch.tensor([one[0] for one in self.choices], dtype=whole),
            choice_targets=torch.eye(len(CHOICES))[[one[1] for one in self.choices]],
            choice_weights=torch.tensor([one[2] for one in self.choices], dtype=real),
            position=position,
            slot=slot,
            records=tuple(record.id for record in self.records),
            choices=tuple(one[3] for one in self.choices),
        )


def soft(score: float, count: int) -> Tensor:
    """Shares [count] of the values 0, 1, … count - 1: a score between two is shared between them."""
    low = min(int(score), count - 1)
    shares = torch.zeros(count)
    shares[low] = 1 - (score - low)
    if score > low:
        shares[low + 1] = score - low
    return shares


def _whole(score: float) -> int:
    """The nearest whole score, halves up."""
    return int(score + 0.5)


def _bytes(reference: PictureRef) -> bytes:
    with reference.path.open("rb") as file:
        file.seek(reference.offset)
        return file.read(reference.length or -1)


def _bad(name: str, reference: PictureRef, error: Exception) -> BadPicture:
    return BadPicture(f"{one_line(name, 80)}: {reference.path}: {one_line(str(error), 200)}")
