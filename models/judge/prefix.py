"""Prefill with sharing: what several questions begin with is read once, and each picture is encoded once.

Questions are compared token by token, an image token by its picture and place in it. Their common beginnings form a
tree; a node's keys and values are computed after its parent's and reused by all that follow. What is left of each
question is read in batches, padded on the right: padding is masked, and positions are given, so no result depends on it
but for the rounding of batched arithmetic.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LEAST_SHARED = 8
"""Tokens that several questions must share beyond their parent for a node of their own."""


@dataclass
class Counts:
    """Work done: forward passes of the language model, tokens read before and after a reply began, pictures encoded."""

    forwards: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    vision_encodes: int = 0


@dataclass(frozen=True)
class Question:
    """A sequence to read. ids: int64 [L]; positions: int64 [3, L]; pictures: digest of the picture at each run of image

    tokens. keys: what is compared.
    """

    ids: Tensor
    positions: Tensor
    pictures: tuple[str, ...]
    runs: tuple[tuple[int, int], ...]
    keys: tuple[Any, ...]

    @classmethod
    def of(cls, ids: Tensor, positions: Tensor, pictures: Sequence[str], image_token: int) -> "Question":
        """pictures: one digest for each run of image tokens, in order."""
        listed, keys, runs = ids.tolist(), [], []
        for place, token in enumerate(listed):
            if token != image_token:
                keys.append(token)
                continue
            if place == 0 or listed[place - 1] != image_token:
                runs.append([place, place])
            runs[-1][1] = place + 1
            keys.append((pictures[len(runs) - 1], place - runs[-1][0]))
        assert len(runs) == len(pictures)
        return cls(ids, positions, tuple(pictures), tuple((start, end) for start, end in runs), tuple(keys))


@dataclass
class Branches:
    """Questions read to their ends. members: their numbers; hidden: [B, H], the state of each one's last token.

    cache, mask [B, T], following [B]: keys and values, which of them are real, and the next rotary position.
    """

    members: list[int]
    hidden: Tensor
    cache: Any
    mask: Tensor
    following: Tensor


class Features:
    """Encoded pictures, each [tokens, H], the last used ones kept. picture: gives the patches of a digest."""

    def __init__(self, model: Any, most_bytes: int, counts: Counts) -> None:
        self._model, self._most, self._counts = model, most_bytes, counts
        self._held: OrderedDict[str, Tensor] = OrderedDict()
        self._bytes = 0

    def get(self, digest: str, patches: Callable[[str], Any]) -> Tensor:
        """The features of a picture."""
        if digest in self._held:
            self._held.move_to_end(digest)
            return self._held[digest]
        made = patches(digest)
        device = self._model.device
        output = self._model.get_image_features(
            made.pixel_values.to(device), torch.tensor([made.grid], device=device), return_dict=True
        )
        features: Tensor = output.pooler_output[0]
        self._counts.vision_encodes += 1
        self._held[digest] = features
        self._bytes += features.nbytes
        while self._bytes > self._most and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes
        return features


def _no_pictures(digest: str) -> Any:
    raise KeyError(digest)


@dataclass
class Prefill:
    """Reads questions with one model. batch: most questions read side by side."""

    model: Any
    features: Features
    counts: Counts
    batch: int
    share: bool = True
    patches: Callable[[str], Any] = _no_pictures

    def run(self, questions: Sequence[Question]) -> Iterator[Branches]:
        """All questions, in batches, in an order of its own. One batch's keys and values are held at a time, and those

        of the beginnings that it shares.
        """
        left = yield from self._node(questions, list(range(len(questions))), 0, None)
        yield from self._leaves(questions, left, 0, None)

    def extend(self, branches: Branches, tokens: Sequence[Sequence[int]]) -> None:
        """Read some tokens more on every branch; one without any stays as it is."""
        device = branches.hidden.device
        width = max(len(row) for row in tokens)
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens], device=device)
        lengths = torch.tensor([len(row) for row in tokens], device=device)
        steps = torch.arange(width, device=device)
        positions = (branches.following[:, None] + steps).expand(3, -1, -1)
        branches.mask = torch.cat([branches.mask, (steps < lengths[:, None]).long()], 1)
        embeds = self.model.get_input_embeddings()(ids)
        states = self._forward(embeds, positions, branches.mask, branches.cache)
        last = states[torch.arange(len(tokens), device=device), (lengths - 1).clamp_min(0)]
        branches.hidden = torch.where(lengths[:, None] > 0, last, branches.hidden)
        branches.following = branches.following + lengths
        self.counts.decode_tokens += int(lengths.sum())

    def _node(
        self, questions: Sequence[Question], members: list[int], start: int, cache: Any
    ) -> Generator[Branches, None, list[int]]:
        """Questions that have `start` tokens in common, which `cache` holds. Gives back those that share too little."""
        end = _common(questions, members, start) if len(members) > 1 and self.share else start
        shared = end - start >= LEAST_SHARED
        if shared:
            cache = self._fork(cache, 1)
            embeds, positions = self._span(questions[members[0]], start, end)
            self._forward(embeds, positions, torch.ones(1, end, dtype=torch.int64, device=embeds.device), cache)
            self.counts.prefill_tokens += end - start
            start = end
        groups: OrderedDict[Any, list[int]] = OrderedDict()
        for member in members:
            groups.setdefault(questions[member].keys[end], []).append(member)
        left: list[int] = []
        for group in groups.values():
            smaller = self.share and 1 < len(group) < len(members)
            left += (yield from self._node(questions, group, start, cache)) if smaller else group
        if not shared:
            return left
        yield from self._leaves(questions, left, start, cache)
        return []

    def _leaves(self, questions: Sequence[Question], members: list[int], start: int, cache: Any) -> Iterator[Branches]:
        """The rest of the questions, those of about equal length side by side."""
        members = sorted(members, key=lambda member: len(questions[member].ids))
        for first in range(0, len(members), self.batch):
            yield self._leaf(questions, members[first : first + self.batch], start, cache)

    def _leaf(self, questions: Sequence[Question], members: list[int], start: int, cache: Any) -> Branches:
        """The rest of each question, read side by side."""
        cache = self._fork(cache, len(members))
        spans = [self._span(questions[member], start, len(questions[member].ids)) for member in members]
        lengths = torch.tensor([embeds.shape[1] for embeds, _ in spans], device=spans[0][0].device)
        width = int(lengths.max())
        pad = torch.nn.functional.pad
        embeds = torch.cat([pad(one, (0, 0, 0, width - one.shape[1])) for one, _ in spans])
        positions = torch.cat([pad(one, (0, width - one.shape[2])) for _, one in spans], 1)
        steps = torch.arange(width, device=embeds.device)
        rest = (steps < lengths[:, None]).long()
        mask = torch.cat([rest.new_ones(len(members), start), rest], 1)
        states = self._forward(embeds, positions, mask, cache)
        self.counts.prefill_tokens += int(lengths.sum())
        hidden = states[torch.arange(len(members), device=states.device), lengths - 1]
        following = torch.stack([questions[member].positions.max() + 1 for member in members]).to(states.device)
        return Branches(members, hidden, cache, mask, following)

    def _span(self, question: Question, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Embeddings [1, S, H] and positions [3, 1, S] of some of a question's tokens."""
        device = self.model.device
        embeds = self.model.get_input_embeddings()(question.ids[start:end].to(device))
        for digest, (first, last) in zip(question.pictures, question.runs, strict=True):
            if first < end and last > start:
                features = self.features.get(digest, self.patches).to(embeds.dtype)
                low, high = max(first, start), min(last, end)
                embeds[low - start : high - start] = features[low - first : high - first]
        return embeds[None], question.positions[:, None, start:end].to(device)

    def _forward(self, embeds: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        self.counts.forwards += 1
        states: Tensor = self.model.language_model(
            inputs_embeds=embeds, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True
        ).last_hidden_state
        return states

    def _fork(self, cache: Any, rows: int) -> Any:
        """A cache that starts with what a cache of one row holds, once for each row."""
        from transformers import DynamicCache

        made = DynamicCache(config=self.model.language_model.config)
        for number, layer in enumerate(cache.layers if cache is not None else ()):
            made.update(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1), number)
        return made


def _common(questions: Sequence[Question], members: Sequence[int], start: int) -> int:
    """Up to where the questions are equal; at least one token of each is left."""
    first = questions[members[0]].keys
    end = min(len(questions[member].keys) for member in members) - 1
    for member in members[1:]:
        keys = questions[member].keys
        end = next((place for place in range(start, end) if keys[place] != first[place]), end)
    return end
