"""The judge in this process: Qwen2.5-VL through transformers, with the work that questions share done once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.text import one_line
from editfoundry.models.checkpoint import checkpoint_digest, checkpoint_path
from editfoundry.models.judge.encode import PromptEncoder, UnfitPicture
from editfoundry.models.judge.expected import ScoreTokens, score_tokens
from editfoundry.models.judge.folder import DIMENSIONS, read_regression, read_settings
from editfoundry.models.judge.parser import Misread, parse_reason, parse_reply
from editfoundry.models.judge.preference import preference
from editfoundry.models.judge.prefix import Branches, Counts, Features, Prefill, Question
from editfoundry.models.judge.rubric import CHOICES, REASON, Dimension, Prompt, Rubric, Slot, load_rubric
from editfoundry.models.judge.shown import Shown, TooLong
from editfoundry.models.judge.types import Case, Comparison, Head, Order, Preference, Scored, Steps
from editfoundry.models.language.local import ChatModelOptions, Resident, resident
from editfoundry.models.protocols import Image, Unanswered

FEATURE_BYTES = 1 << 29
"""Encoded pictures that are kept, in bytes."""
LONGEST_REASON = 300


class LocalJudgeOptions(ChatModelOptions):
    """How a local judge is loaded and asked. checkpoint: a folder, or an id of the model store.

    max_new_tokens: most tokens of a reply, or of its reason. batch: questions side by side, by default as many as
    `benchmarks/judge/inference.py` found enough: more gain nothing, and each holds keys and values of its own.
    share: read what questions share once; off, each question is read by itself, for comparison.
    """

    rubric: str = "edit"
    head: Head = "expected"
    steps: Steps = "chained"
    order: Order = "compat"
    batch: int = Field(default=4, ge=1)
    min_pixels: int = Field(default=4 * 28 * 28, ge=4 * 28 * 28)
    max_new_tokens: int = Field(default=256, ge=8)
    share: bool = True


@dataclass(frozen=True)
class Asked:
    """One question to the model: whose it is, for which dimension (None: all), and what it shows."""

    case: int
    dimension: int | None
    question: Question


class LocalJudge:
    """`EditJudge` on a local model. counts: the work done so far."""

    served: frozenset[str] = frozenset()

    def __init__(self, options: LocalJudgeOptions) -> None:
        if options.max_pixels < options.min_pixels:
            raise UsageError(f"max_pixels {options.max_pixels} is below min_pixels {options.min_pixels}")
        self.options = options
        self.rubric: Rubric = load_rubric(options.rubric)
        if options.head == "expected" or (options.head == "generate" and options.order == "fast"):
            self.rubric.scale.require_digits()
        self.counts = Counts()
        self._resident: Resident | None = None

    def provenance(self) -> dict[str, Any]:
        """What a score depends on; see `EditJudge`."""
        options, settings = self.options, read_settings(self._folder())
        written = (
            "the whole reply" if options.order == "compat" else "its reason; the scores are read from probabilities"
        )
        return {
            "kind": "local",
            "model": Path(options.checkpoint).name or options.checkpoint,
            "digest": checkpoint_digest(options.checkpoint),
            "trained": settings is not None,
            "miniature": settings is not None and settings.miniature,
            "dtype": options.dtype,
            "rubric": self.rubric.provenance(),
            "head": options.head,
            "steps": options.steps if options.head == "expected" else None,
            "order": options.order,
            "min_pixels": options.min_pixels,
            "max_pixels": options.max_pixels,
            "reason": written if options.head == "generate" else "none is written",
            "max_new_tokens": options.max_new_tokens if options.head == "generate" else None,
        }

    def load(self) -> None:
        """Load the weights unless they are loaded. Raises ModelMissing, and UsageError for a head that it lacks."""
        if self._resident is not None:
            return
        options = self.options
        held = resident(options.checkpoint, options.where(), options.precision())
        self.encoder = PromptEncoder(
            held.processor, held.model.config, options.min_pixels, options.max_pixels, held.control_tokens
        )
        self._most = int(held.model.config.text_config.max_position_embeddings)
        features = Features(held.model.model, FEATURE_BYTES, self.counts)
        self._prefill = Prefill(held.model.model, features, self.counts, options.batch, options.share)
        self._regression: dict[str, Tensor] = {}
        if options.head == "regression":
            loaded = read_regression(self._folder(), int(held.model.config.text_config.hidden_size))
            self._regression = {name: tensor.to(held.model.device) for name, tensor in loaded.items()}
        self._resident = held

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def score(self, cases: Sequence[Case]) -> list[Scored | Unanswered]:
        """One verdict per case, in order. A picture that cannot be shown is Unanswered(bad_picture); a question longer

        than the model reads, Unanswered(too_long). Raises UsageError for a type that the rubric does not know.
        """
        self.load()
        shown = Shown(self.encoder, self._most)
        results: dict[int, Scored | Unanswered] = {}
        asked: list[Asked] = []
        for number, case in enumerate(cases):
            prompt = self.rubric.prompt(case.type, case.instruction, self.options.order)
            try:
                asked += list(self._ask(number, case, prompt, shown))
            except (UnfitPicture, TooLong) as error:
                results[number] = Unanswered("failed", error.reason, str(error))
        read = {"expected": self._expected, "generate": self._generated, "regression": self._regressed}
        results.update(read[self.options.head](cases, asked, shown))
        return [results[number] for number in range(len(cases))]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def prefer(self, comparisons: Sequence[Comparison]) -> list[Preference | Unanswered]:
        """One preference per comparison, in order: the mean over both orders of showing the results."""
        self.load()
        shown, results = Shown(self.encoder, self._most), dict[int, Preference | Unanswered]()
        asked: list[Asked] = []
        for number, one in enumerate(comparisons):
            pictures: dict[Slot, Image] = {"source": one.source, "first": one.first, "second": one.second}
            try:
                for swapped in (False, True):
                    prompt = self.rubric.comparison(one.type, one.instruction, self.options.order, swapped)
                    asked.append(Asked(number, int(swapped), shown.question(prompt, pictures)))
            except (UnfitPicture, TooLong) as error:
                results[number] = Unanswered("failed", error.reason, str(error))
        asked = [one for one in asked if one.case not in results]
        choices = [self._single(choice) for choice in CHOICES]
        shares: dict[tuple[int, int], list[float]] = {}
        for branches in self._run(asked, shown):
            given = torch.softmax(self._logits(branches).double(), -1)[:, choices].tolist()
            for member, row in zip(branches.members, given, strict=True):
                shares[asked[member].case, int(asked[member].dimension or 0)] = row
        for number in {one.case for one in asked}:
            results[number] = preference(shares[number, 0], shares[number, 1])
        return [results[number] for number in range(len(comparisons))]

    def _ask(self, number: int, case: Case, prompt: Prompt, shown: Shown) -> Iterator[Asked]:
        """The questions about one case; a forced beginning of the reply is part of them."""
        pictures: dict[Slot, Image] = {"source": case.source, "result": case.result}
        options, dimensions = self.options, self.rubric.section(case.type).dimensions
        if options.head == "expected" and options.steps == "independent":
            for place in range(len(dimensions)):
                yield Asked(
                    number, place, shown.question(prompt, pictures, list(self._alone(dimensions[place]).pieces[0]))
                )
            return
        begun: list[int] = []
        if options.head == "expected":
            begun = list(self._tokens_of(dimensions).pieces[0])
        elif options.head == "generate" and options.order == "fast":
            begun = self.encoder.reply_ids(REASON)
        yield Asked(number, None, shown.question(prompt, pictures, begun))

    def _expected(self, cases: Sequence[Case], asked: Sequence[Asked], shown: Shown) -> dict[int, Scored | Unanswered]:
        found: dict[int, dict[int, tuple[list[float], float]]] = {}
        for branches in self._run(asked, shown):
            mine = [asked[member] for member in branches.members]
            if self.options.steps == "independent":
                places = [int(one.dimension or 0) for one in mine]
                tokens = [
                    self._alone(self._dimensions(cases, one)[place]) for one, place in zip(mine, places, strict=True)
                ]
                self._note(found, mine, places, *tokens[0].distribution(*self._score_logits(branches, tokens, 0)))
                continue
            self._chain(branches, mine, [self._tokens_of(self._dimensions(cases, one)) for one in mine], found)
        return {number: self._scored(cases[number], by_place) for number, by_place in found.items()}

    def _chain(
        self,
        branches: Branches,
        mine: Sequence[Asked],
        tokens: Sequence[ScoreTokens],
        found: dict[int, dict[int, tuple[list[float], float]]],
    ) -> list[list[int]]:
        """Read score after score of one reply, each after the written ones before it; gives those by row."""
        assert self._resident is not None
        chosen: list[list[int]] = [[] for _ in mine]
        for place in range(max(len(one.pieces) for one in tokens)):
            if place:
                self._prefill.extend(branches, [
                    [*one.value(picked[-1]), *one.pieces[place]] if place < len(one.pieces) else []
                    for one, picked in zip(tokens, chosen, strict=True)
                ])  # fmt: skip
            first, after_one = self._score_logits(branches, tokens, place)
            probabilities, uncovered = tokens[0].distribution(first, after_one)
            rows = [row for row, one in enumerate(tokens) if place < len(one.pieces)]
            for row in rows:
                second = None if after_one is None else after_one[row]
                chosen[row].append(tokens[row].written(place, first[row], second, self._resident.end))
            self._note(found, [mine[row] for row in rows], [place] * len(rows), probabilities[rows], uncovered[rows])
        return chosen

    def _score_logits(
        self, branches: Branches, tokens: Sequence[ScoreTokens], place: int
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, vocabulary] of the score that stands next on each branch and, on a scale to 10, of what follows a

        1 there, which is read and forgotten.
        """
        first = self._logits(branches)
        if not tokens[0].two_steps:
            return first, None
        hidden, mask, following = branches.hidden, branches.mask, branches.following
        self._prefill.extend(branches, [[one.digits[1]] if place < len(one.pieces) else [] for one in tokens])
        after_one = self._logits(branches)
        branches.cache.crop(-1)
        branches.hidden, branches.mask, branches.following = hidden, mask, following
        return first, after_one

    def _generated(self, cases: Sequence[Case], asked: Sequence[Asked], shown: Shown) -> dict[int, Scored | Unanswered]:
        results: dict[int, Scored | Unanswered] = {}
        for branches in self._run(asked, shown):
            mine = [asked[member] for member in branches.members]
            if self.options.order == "compat":
                replies = self._decode(branches, until_line=False)
                for one, reply in zip(mine, replies, strict=True):
                    results[one.case] = self._parsed(cases[one.case], reply)
                continue
            reasons = self._decode(branches, until_line=True)
            tokens = [self._tokens_of(self._dimensions(cases, one)) for one in mine]
            line = self.encoder.reply_ids("\n")
            self._prefill.extend(branches, [[*line, *one.pieces[0]] for one in tokens])
            found: dict[int, dict[int, tuple[list[float], float]]] = {}
            chosen = self._chain(branches, mine, tokens, found)
            for one, reason, picked in zip(mine, reasons, chosen, strict=True):
                keys = [dimension.key for dimension in self._dimensions(cases, one)]
                scores = dict(zip(keys, map(float, picked), strict=True))
                results[one.case] = Scored(scores, reason=one_line(reason or "", LONGEST_REASON), reply=reason or "")
        return results

    def _decode(self, branches: Branches, *, until_line: bool) -> list[str | None]:
        """Greedy text on every branch, up to the end of the turn (or of the line, which is not part of it); None where

        the end did not come within the limit (for a line: the text so far).
        """
        assert self._resident is not None
        written: list[list[int]] = [[] for _ in branches.members]
        going = set(range(len(written)))
        for step in range(1, self.options.max_new_tokens + 1):
            following = self._logits(branches).argmax(-1).tolist()
            for row in sorted(going):
                ends = following[row] in self._resident.end or (until_line and "\n" in self._text([following[row]]))
                if ends:
                    going.discard(row)
                else:
                    written[row].append(following[row])
            if not going or (step == self.options.max_new_tokens and not until_line):
                break  # what is last is read only where something follows
            self._prefill.extend(branches, [[written[row][-1]] if row in going else [] for row in range(len(written))])
        texts = [self._text(tokens) for tokens in written]
        return [None if row in going and not until_line else text for row, text in enumerate(texts)]

    def _parsed(self, case: Case, reply: str | None) -> Scored | Unanswered:
        dimensions = self.rubric.section(case.type).dimensions
        if reply is None:
            return Unanswered("failed", "truncated", f"no end within {self.options.max_new_tokens} tokens")
        read = parse_reply(reply, dimensions, self.rubric.scale)
        if isinstance(read, Misread):
            return Unanswered("failed", read.reason, read.detail)
        scores = {dimension.key: float(read[dimension.key]) for dimension in dimensions}
        return Scored(scores, reason=parse_reason(reply, dimensions), reply=reply)

    def _regressed(self, cases: Sequence[Case], asked: Sequence[Asked], shown: Shown) -> dict[int, Scored | Unanswered]:
        results: dict[int, Scored | Unanswered] = {}
        for branches in self._run(asked, shown):
            out = self._finite(
                torch.nn.functional.linear(
                    branches.hidden.float(), self._regression["weight"], self._regression["bias"]
                )
            )
            means, deviations = out[:, :DIMENSIONS].double(), (out[:, DIMENSIONS:] / 2).exp().double()
            for member, mean, deviation in zip(branches.members, means.tolist(), deviations.tolist(), strict=True):
                one = asked[member]
                keys = [dimension.key for dimension in self._dimensions(cases, one)]
                results[one.case] = Scored(
                    dict(zip(keys, mean, strict=False)), deviations=dict(zip(keys, deviation, strict=False))
                )
        return results

    def _run(self, asked: Sequence[Asked], shown: Shown) -> Iterator[Branches]:
        """The questions' ends, in batches of one kind of reply."""
        self._prefill.patches = shown.patches
        return self._prefill.run([one.question for one in asked])

    def _scored(self, case: Case, by_place: dict[int, tuple[list[float], float]]) -> Scored | Unanswered:
        keys = [dimension.key for dimension in self.rubric.section(case.type).dimensions]
        values = list(self.rubric.scale.values)
        probabilities = {key: tuple(by_place[place][0]) for place, key in enumerate(keys)}
        if unread := [key for key, row in probabilities.items() if not any(row)]:
            return Unanswered("failed", "uncovered", f"the model gives no value of {unread[0]} any probability")
        scores = {
            key: sum(p * value for p, value in zip(row, values, strict=True)) for key, row in probabilities.items()
        }
        return Scored(scores, probabilities, max(by_place[place][1] for place in range(len(keys))))

    def _note(
        self,
        found: dict[int, dict[int, tuple[list[float], float]]],
        mine: Sequence[Asked],
        places: Sequence[int],
        probabilities: Tensor,
        uncovered: Tensor,
    ) -> None:
        rows = zip(mine, places, probabilities.tolist(), uncovered.tolist(), strict=True)
        for one, place, row, mass in rows:
            found.setdefault(one.case, {})[place] = (row, max(0.0, mass))

    def _dimensions(self, cases: Sequence[Case], one: Asked) -> tuple[Dimension, ...]:
        return self.rubric.section(cases[one.case].type).dimensions

    def _tokens_of(self, dimensions: Sequence[Dimension]) -> ScoreTokens:
        key = tuple(dimensions)
        if key not in self._layouts:
            self._layouts[key] = score_tokens(self.encoder.reply_ids, dimensions, self.rubric.scale)
        return self._layouts[key]

    def _alone(self, dimension: Dimension) -> ScoreTokens:
        return self._tokens_of((dimension,))

    @cached_property
    def _layouts(self) -> dict[tuple[Dimension, ...], ScoreTokens]:
        return {}

    def _logits(self, branches: Branches) -> Tensor:
        assert self._resident is not None
        logits: Tensor = self._resident.model.lm_head(branches.hidden)
        return self._finite(logits.float())

    def _finite(self, out: Tensor) -> Tensor:
        if not bool(torch.isfinite(out).all()):
            raise EditFoundryError(
                f"{self.options.checkpoint}: the model's output is not finite; its weights are damaged, or too large "
                f"for float16: use --dtype bfloat16 or float32"
            )
        return out

    def _text(self, tokens: list[int]) -> str:
        text: str = self.encoder.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def _single(self, choice: str) -> int:
        tokens = self.encoder.reply_ids(choice)
        if len(tokens) != 1:
            raise EditFoundryError(f"the tokenizer does not write the answer {choice} as one token")
        return tokens[0]

    def _folder(self) -> Path:
        return checkpoint_path(self.options.checkpoint)
