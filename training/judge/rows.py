"""Packed rows from judged edits: tokens, positions, pictures, and where each head has to say what."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from editfoundry.core.text import one_line
from editfoundry.models.judge.encode import Grid, Patches, PromptEncoder, Tokens, UnfitPicture
from editfoundry.models.judge.expected import ScoreTokens, score_tokens
from editfoundry.models.judge.folder import DIMENSIONS
from editfoundry.models.judge.rubric import CHOICES, Dimension, Rubric, Scale, Slot
from editfoundry.models.judge.types import Order
from editfoundry.models.protocols import Image
from editfoundry.training.judge.balance import Weighting, nearest
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads
from editfoundry.training.judge.pictures import BadPicture, Pictures
from editfoundry.training.judge.records import Choice, Record
from editfoundry.training.judge.sequences import Part, Sequences, is_swapped


class RowBuilder:
    """Builds rows of planned sequences, in the trainer's process and in workers; pickles, and holds no data."""

    def __init__(self, rubric: Rubric, encoder: PromptEncoder, order: Order, heads: Heads, weights: Weighting) -> None:
        self.rubric, self.encoder, self.heads, self.weights = rubric, encoder, heads, weights
        self.sequences = Sequences(rubric, encoder, order, heads)
        self.choice_ids = [encoder.reply_ids(choice)[0] for choice in CHOICES]
        self._layouts: dict[tuple[Dimension, ...], ScoreTokens] = {}

    def row(self, parts: Sequence[Part], position: int = 0, slot: int = 0, epoch: int = 0) -> Row:
        """The row of these sequences, which stands at `slot` of the global batch at `position`, in that epoch.

        Raises BadPicture.
        """
        made, pictures = _Row(self.encoder), Pictures()
        for part in parts:
            shown, seen = part.shown, pictures.of(part.shown)
            start = made.length
            try:
                grids = made.see(seen)
            except UnfitPicture as error:
                raise BadPicture(f"{one_line(shown.id, 80)}: {error}") from error
            tokens = self.sequences.tokens(shown, part.reasoned, grids, epoch)
            if len(tokens) != part.length:
                raise BadPicture(
                    f"{one_line(shown.id, 80)}: {len(tokens)} tokens where {part.length} were planned: a picture has "
                    "changed since; start again, so that rows are planned anew"
                )
            made.say(tokens)
            if isinstance(shown, Choice):
                made.choices.append(_Chosen(made.length - 1, _verdict(shown, epoch), shown.weight, shown.id))
            else:
                self._add_record(made, shown, part.reasoned, tokens, start)
        rankings = self._rankings(made.records) if self.heads.ranking else []
        return made.row(position, slot, rankings, self.rubric.scale)

    def layout(self, dimensions: Sequence[Dimension]) -> ScoreTokens:
        """Where the scores of these dimensions stand in a reply."""
        key = tuple(dimensions)
        if key not in self._layouts:
            self._layouts[key] = score_tokens(self.encoder.reply_ids, dimensions, self.rubric.scale)
        return self._layouts[key]

    def _add_record(self, made: "_Row", record: Record, reasoned: bool, tokens: Tokens, start: int) -> None:
        last = start + tokens.prompt - 1
        if self.sequences.worded(record, reasoned):
            places = range(last, made.length - 1)
            made.replies += [_Word(place, int(tokens.ids[place + 1 - start]), record.weight) for place in places]
        if reasoned:
            return
        number = len(made.records)
        made.records.append(record)
        made.prompts.append(last)
        given = [record.scores.get(one.key) for one in self.rubric.section(record.type).dimensions]
        made.targets.append(given)
        made.weights.append([
            0.0 if score is None else record.weight * self.weights.of(place, score) for place, score in enumerate(given)
        ])  # fmt: skip
        if self.heads.expected:
            self._add_scores(made, record, number, last)

    def _add_scores(self, made: "_Row", record: Record, number: int, place: int) -> None:
        """Where the scores of a reply stand, and what they should be. place: the last token of the prompt."""
        known = self.sequences.known(record)
        if not known:
            return
        layout = self.layout(known)
        for which, dimension in enumerate(known):
            score = record.scores[dimension.key]
            place += len(layout.pieces[which])
            written = layout.value(nearest(score))
            second = place + 1 if layout.two_steps and written[0] == layout.digits[1] else -1
            made.scores.append(_Score(place, second, score, made.weights[number][which], number, which))
            place += len(written)

    def _rankings(self, records: Sequence[Record]) -> list["_Pair"]:
        """Pairs of results of one picture and instruction. However many a group has, each result is weighed as one."""
        pairs = []
        for one, first in enumerate(records):
            others = [number for number, record in enumerate(records) if record.group == first.group and number != one]
            for two in (number for number in others if number > one):
                second = records[two]
                weight = (first.weight * second.weight) ** 0.5 / len(others)
                for place, dimension in enumerate(self.rubric.section(first.type).dimensions):
                    if dimension.key in first.scores and dimension.key in second.scores:
                        difference = first.scores[dimension.key] - second.scores[dimension.key]
                        pairs.append(_Pair(one, two, int(np.sign(difference)), place, weight))
        return pairs


def _verdict(choice: Choice, epoch: int) -> int:
    """Place in CHOICES of the answer, as the pictures are shown."""
    answer = {"first": 0, "second": 1, "tie": 2}[choice.preferred]
    return 1 - answer if answer < 2 and is_swapped(choice, epoch) else answer


class _Word(NamedTuple):
    """A token of a reply: where it is predicted, itself, its weight."""

    place: int
    token: int
    weight: float


class _Score(NamedTuple):
    """A score of a reply, as in `Row`: score_places and what goes with them."""

    place: int
    second: int
    score: float
    weight: float
    record: int
    dimension: int


class _Pair(NamedTuple):
    """Two results that are ranked, by number, and whether the first is better (1), or worse (-1), or neither (0)."""

    first: int
    second: int
    better: int
    dimension: int
    weight: float


class _Chosen(NamedTuple):
    """A comparison: where its answer is predicted, the answer's place in CHOICES, its weight and id."""

    place: int
    answer: int
    weight: float
    id: str


class _Row:
    """A row in the making."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder
        self._ids: list[Tensor] = []
        self._positions: list[Tensor] = []
        self._pictures: dict[str, tuple[int, Patches]] = {}
        self._numbers: dict[Slot, int] = {}
        self._runs: list[int] = []
        self.length = 0
        self.replies: list[_Word] = []
        self.scores: list[_Score] = []
        self.records: list[Record] = []
        self.prompts: list[int] = []
        self.targets: list[list[float | None]] = []
        self.weights: list[list[float]] = []
        self.choices: list[_Chosen] = []

    def see(self, pictures: Mapping[Slot, Image]) -> dict[Slot, Grid]:
        """Take the next sequence's pictures, those that the row has already but once; gives their grids."""
        grids: dict[Slot, Grid] = {}
        for slot, picture in pictures.items():
            digest = self._encoder.digest(picture)
            if digest not in self._pictures:
                self._pictures[digest] = len(self._pictures), self._encoder.patches(picture)
            self._numbers[slot], patches = self._pictures[digest]
            grids[slot] = patches.grid
        return grids

    def say(self, tokens: Tokens) -> None:
        """Append the sequence whose pictures were taken."""
        self._ids.append(tokens.ids)
        self._positions.append(torch.cat([torch.arange(len(tokens))[None], tokens.positions]))
        self._runs += [self._numbers[slot] for slot in tokens.pictures]
        self.length += len(tokens)

    def row(self, position: int, slot: int, pairs: Sequence[_Pair], scale: Scale) -> Row:
        """What was taken and said, as tensors."""
        patches = [one for _, one in self._pictures.values()]
        shares = [soft(one.score - scale.low, len(scale.values)) for one in self.scores]
        targets, mask, weights = self._regression()
        return Row(
            ids=torch.cat(self._ids)[None],
            positions=torch.cat(self._positions, 1)[:, None],
            pixel_values=torch.cat([one.pixel_values for one in patches]),
            grids=_whole([one.grid for one in patches]),
            picture_of_run=_whole(self._runs),
            reply_places=_whole([one.place for one in self.replies]),
            reply_ids=_whole([one.token for one in self.replies]),
            reply_weights=_real([one.weight for one in self.replies]),
            score_places=_whole([one.place for one in self.scores]),
            second_places=_whole([one.second for one in self.scores]),
            score_targets=torch.stack(shares) if shares else torch.zeros(0, len(scale.values)),
            score_weights=_real([one.weight for one in self.scores]),
            score_records=_whole([one.record for one in self.scores]),
            score_dimensions=_whole([one.dimension for one in self.scores]),
            regression_places=_whole(self.prompts),
            regression_targets=targets,
            regression_mask=mask,
            regression_weights=weights,
            ranking_pairs=_whole([[one.first, one.second] for one in pairs]).reshape(-1, 2),
            ranking_targets=_whole([one.better for one in pairs]),
            ranking_dimensions=_whole([one.dimension for one in pairs]),
            ranking_weights=_real([one.weight for one in pairs]),
            choice_places=_whole([one.place for one in self.choices]),
            choice_targets=torch.eye(len(CHOICES))[[one.answer for one in self.choices]],
            choice_weights=_real([one.weight for one in self.choices]),
            position=position,
            slot=slot,
            records=tuple(record.id for record in self.records),
            choices=tuple(one.id for one in self.choices),
        )

    def _regression(self) -> tuple[Tensor, Tensor, Tensor]:
        """Targets, mask and weights, each [R, 3]."""
        targets, mask, weights = torch.zeros(3, len(self.records), DIMENSIONS)
        for number, (given, weighed) in enumerate(zip(self.targets, self.weights, strict=True)):
            for place, score in enumerate(given):
                if score is not None:
                    targets[number, place], mask[number, place], weights[number, place] = score, 1, weighed[place]
        return targets, mask, weights


def soft(score: float, count: int) -> Tensor:
    """Shares [count] of the values 0, 1, … count - 1: a score between two is shared between them."""
    low = min(int(score), count - 1)
    shares = torch.zeros(count)
    shares[low] = 1 - (score - low)
    if score > low:
        shares[low + 1] = score - low
    return shares


def _whole(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _real(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
