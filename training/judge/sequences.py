"""Which sequences judged edits make, their tokens, and their lengths without reading a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import seed_for
from editfoundry.core.text import one_line
from editfoundry.models.judge.encode import Grid, PromptEncoder, Tokens, UnfitPicture
from editfoundry.models.judge.rubric import Dimension, Rubric, Slot, reply_text
from editfoundry.models.judge.types import Order
from editfoundry.training.judge.balance import nearest
from editfoundry.training.judge.config import Heads
from editfoundry.training.judge.packing import Item
from editfoundry.training.judge.pictures import BadPicture
from editfoundry.training.judge.records import Choice, PictureRef, Record

_SMALLEST: Grid = (1, 2, 2)
"""Stands for a picture where only the text's tokens are counted."""


@dataclass(frozen=True)
class Part:
    """One sequence: an edit with a reply, or a comparison. reasoned: the reply begins with the reason.

    length: in tokens.
    """

    shown: Record | Choice
    reasoned: bool
    length: int


class Plan(NamedTuple):
    """All sequences, and which of them stay together, by their numbers."""

    parts: tuple[Part, ...]
    items: tuple[Item, ...]


class Sequences:
    """Lays out sequences for the heads that have a weight.

    An edit makes a sequence for its scores: the prompt, and, unless only outputs on the prompt are trained, the reply
    of scores without a reason. Where replies are trained word by word, an edit with a reason makes another that begins
    with it, and it is that one whose words are trained.
    """

    def __init__(self, rubric: Rubric, encoder: PromptEncoder, order: Order, heads: Heads) -> None:
        self.rubric, self.encoder, self.order, self.heads = rubric, encoder, order, heads

    def plan(self, records: Sequence[Record], choices: Sequence[Choice], limit: int) -> Plan:
        """Every sequence, and which stay together. Reads nothing.

        Raises UsageError for a sequence of more than `limit` tokens, BadPicture for pictures that the model cannot see.
        """
        measure = _Lengths(self)
        parts: list[Part] = []
        groups: dict[object, list[int]] = {}
        shown: list[tuple[Record | Choice, bool]]
        shown = [(record, reasoned) for record in records for reasoned in self.forms(record)]
        shown += [(choice, False) for choice in choices if self.heads.preference]
        for one, reasoned in shown:
            length = measure(one, reasoned)
            if length > limit:
                raise UsageError(
                    f"{one_line(one.id, 80)}: {length} tokens, and a row has {limit}; raise data.pack or lower "
                    "data.max_pixels"
                )
            ranked = self.heads.ranking and not reasoned
            together = one.group if isinstance(one, Record) and ranked else len(parts)
            groups.setdefault(together, []).append(len(parts))
            parts.append(Part(one, reasoned, length))
        items = [Item(tuple(group), tuple(parts[number].length for number in group)) for group in groups.values()]
        return Plan(tuple(parts), tuple(items))

    def forms(self, record: Record) -> tuple[bool, ...]:
        """Whether the reply has the reason, of each sequence that an edit makes."""
        heads = self.heads
        scores = heads.expected or heads.regression or heads.ranking or (heads.generate and not record.reason)
        return (False,) * bool(scores) + (True,) * bool(heads.generate and record.reason)

    def worded(self, record: Record, reasoned: bool) -> bool:
        """Whether the reply is trained word by word."""
        return bool(self.heads.generate) and reasoned == bool(record.reason)

    def known(self, record: Record) -> tuple[Dimension, ...]:
        """The dimensions up to the first without a score: those that a reply can hold."""
        dimensions = self.rubric.section(record.type).dimensions
        unknown = [place for place, one in enumerate(dimensions) if one.key not in record.scores]
        return dimensions[: unknown[0]] if unknown else dimensions

    def reply(self, record: Record, reasoned: bool) -> tuple[str, bool]:
        """The reply, and whether its turn ends after it, which only a whole reply that is trained as such does."""
        if not (self.heads.expected or self.heads.generate):
            return "", False
        known = self.known(record)
        text = reply_text(known, [nearest(record.scores[one.key]) for one in known], record.reason if reasoned else "")
        whole = len(known) == len(self.rubric.section(record.type).dimensions)
        return text, whole and self.worded(record, reasoned)

    def tokens(self, shown: Record | Choice, reasoned: bool, grids: Mapping[Slot, Grid], epoch: int) -> Tokens:
        """The tokens of a sequence."""
        if isinstance(shown, Choice):
            swapped = is_swapped(shown, epoch)
            return self.encoder.tokens(
                self.rubric.comparison(shown.type, shown.instruction, self.order, swapped), grids
            )
        text, ends = self.reply(shown, reasoned)
        prompt = self.rubric.prompt(shown.type, shown.instruction, self.order)
        return self.encoder.tokens(prompt, grids, text, reply_ends=ends)


def is_swapped(choice: Choice, epoch: int) -> bool:
    """Whether the second result is shown as A: in every other epoch, for half of the choices in the first."""
    return (seed_for("swapped", choice.id) + epoch) % 2 == 1


def pictures_of(shown: Record | Choice) -> dict[Slot, PictureRef]:
    """The stored pictures by where they stand in the prompt."""
    if isinstance(shown, Choice):
        return {"source": shown.source, "first": shown.first, "second": shown.second}
    return {"source": shown.source, "result": shown.result}


class _Lengths:
    """Lengths of sequences in tokens. Prompts and replies come up again and again, and are counted once."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences, self._encoder = sequences, sequences.encoder
        self._prompt = lru_cache(maxsize=1 << 16)(self._count_prompt)
        self._reply = lru_cache(maxsize=1 << 16)(lambda text: len(self._encoder.reply_ids(text)))

    def __call__(self, shown: Record | Choice, reasoned: bool) -> int:
        pictures = 0
        for picture in pictures_of(shown).values():
            try:
                pictures += self._encoder.picture_tokens(self._encoder.grid(*picture.size))
            except UnfitPicture as error:
                raise BadPicture(f"{one_line(shown.id, 80)}: {one_line(str(picture.path), 160)}: {error}") from error
        length = pictures + self._prompt(isinstance(shown, Choice), shown.type, shown.instruction)
        if isinstance(shown, Choice):
            return length
        text, ends = self._sequences.reply(shown, reasoned)
        return length + int(self._reply(text)) + ends

    def _count_prompt(self, compares: bool, type: str, instruction: str) -> int:
        """Tokens of a prompt without those of its pictures."""
        rubric, order = self._sequences.rubric, self._sequences.order
        if compares:
            prompt = rubric.comparison(type, instruction, order, False)
        else:
            prompt = rubric.prompt(type, instruction, order)
        slots: tuple[Slot, ...] = ("source", "result", "first", "second")
        tokens = self._encoder.tokens(prompt, dict.fromkeys(slots, _SMALLEST))
        return len(tokens) - len(tokens.pictures) * self._encoder.picture_tokens(_SMALLEST)
