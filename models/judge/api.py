"""The judge behind an OpenAI-compatible server."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, create_model, field_validator

from editfoundry.core.chat.account import Account
from editfoundry.core.chat.endpoint import Endpoint
from editfoundry.core.chat.ledger import Ledger
from editfoundry.core.chat.messages import MAX_ALTERNATIVES, Answered, ChatRequest, Failed, Reply
from editfoundry.core.chat.wire import pixel_hash
from editfoundry.core.config import Config
from editfoundry.core.errors import ConfigError
from editfoundry.models.judge.logprobs import Unread, choice, read_choice, read_scores
from editfoundry.models.judge.parser import Misread, parse_reason, parse_reply
from editfoundry.models.judge.preference import preference
from editfoundry.models.judge.rubric import (
    CHOICES,
    REASON,
    Dimension,
    Picture,
    Prompt,
    Rubric,
    Scale,
    Slot,
    load_rubric,
    scored_line,
)
from editfoundry.models.judge.types import Case, Comparison, Head, Order, Preference, Scored, Steps
from editfoundry.models.language.base import DECISIVE, Watch, unanswered
from editfoundry.models.protocols import Image, Unanswered

if TYPE_CHECKING:
    from editfoundry.core.chat.client import ChatClient

_REASON = REASON.rstrip(":")
PURPOSE = "judge"
"""Under which the ledger counts what a judge costs."""
_REJECTED = ("bad_request", "unauthorized")
_CONTROL = re.compile(r"<(?=[|/A-Za-z_])|\[(?=/?INST\])")


class ApiJudgeOptions(Endpoint):
    """An endpoint and how it is asked to judge.

    structured: for our rubrics with the head `generate`, what holds the reply to a form; `none`: the rubric's words.
    alternatives: how many tokens the server is asked to name at each place, for the head `expected`; fewer where a
    server gives no more. ledger: a file that keeps replies; None: the process's ledger (`use_ledger`), else memory.
    """

    rubric: str = "edit"
    head: Head = "expected"
    steps: Steps = "chained"
    order: Order = "compat"
    max_tokens: int = Field(default=512, ge=16)
    alternatives: int = Field(default=MAX_ALTERNATIVES, ge=1, le=MAX_ALTERNATIVES)
    ledger: Path | None = None

    @field_validator("head")
    @classmethod
    def _served(cls, value: Head) -> Head:
        if value == "regression":
            raise ValueError("regression needs the state of a model in this process; use expected or generate")
        return value


class ApiJudge:
    """`EditJudge` on a server. served: names of the models that answered so far, as the server says them."""

    def __init__(self, options: ApiJudgeOptions) -> None:
        self.options = options
        self.rubric: Rubric = load_rubric(options.rubric)
        self.served: frozenset[str] = frozenset()
        self._expects = options.head == "expected"
        if self._expects:
            self.rubric.scale.require_digits()
        self._client: ChatClient | None = None
        self._watch = Watch(options)
        self._shows = False

    def provenance(self) -> dict[str, Any]:
        """What a score depends on; see `EditJudge`. The address holds no secret, since `Endpoint` takes none."""
        options = self.options
        return {
            "kind": "api",
            **options.model_dump(include=set(DECISIVE), mode="json"),
            "url": options.url,
            "rubric": self.rubric.provenance(),
            "head": options.head,
            "steps": options.steps if self._expects else None,
            "order": options.order,
            "reason": "none: the question ends by asking for none" if self._expects else "the whole reply",
            "temperature": 0,
            "max_tokens": options.max_tokens,
            "alternatives": options.alternatives if self._expects else None,
        }

    def load(self) -> None:
        """Open the client, unless that is done. Raises BadApiKey for a key that is named and not set."""
        if self._client is None:
            from editfoundry.core.chat.client import ChatClient  # its libraries are an extra

            self.options.api_key()
            self._client = ChatClient(self.options, Ledger(self.options.ledger) if self.options.ledger else None)

    def account(self) -> Account:
        """What was asked and what it cost, over all that is in the ledger."""
        return self._client.ledger.account() if self._client else Account()

    def score(self, cases: Sequence[Case]) -> list[Scored | Unanswered]:
        """One verdict per case, in order; equal questions are asked once.

        Raises UsageError for a type that the rubric does not know, ConfigError for a server that shows no
        log-probabilities to the head `expected`, EndpointError when it serves nothing, BudgetReached.
        """
        asked = [
            (number, dimensions, self._question(case, dimensions))
            for number, case in enumerate(cases)
            for dimensions in self._together(self.rubric.section(case.type).dimensions)
        ]
        replies = self._ask([request for _, _, request in asked])
        parts: list[list[Scored | Unanswered]] = [[] for _ in cases]
        for (number, dimensions, _), reply in zip(asked, replies, strict=True):
            parts[number].append(self._scored(dimensions, reply))
        return [_joined(verdicts) for verdicts in parts]

    def prefer(self, comparisons: Sequence[Comparison]) -> list[Preference | Unanswered]:
        """One preference per comparison, in order: the mean over both orders of showing the results.

        By the probabilities of the answers with the head `expected`; with `generate` each answer counts wholly.
        """
        replies = self._ask([self._comparison(one, swapped) for one in comparisons for swapped in (False, True)])
        shares = [self._choice(reply) for reply in replies]
        return [_both(*pair) for pair in zip(shares[::2], shares[1::2], strict=True)]

    def _together(self, dimensions: tuple[Dimension, ...]) -> list[tuple[Dimension, ...]]:
        """The dimensions of each question."""
        if self._expects and self.options.steps == "independent":
            return [(one,) for one in dimensions]
        return [dimensions]

    def _question(self, case: Case, dimensions: tuple[Dimension, ...]) -> ChatRequest:
        prompt = self.rubric.prompt(case.type, self._plain(case.instruction), self.options.order)
        pictures: dict[Slot, Image] = {"source": case.source, "result": case.result}
        scale = self.rubric.scale
        if self._expects:
            return self._request(prompt, pictures, _only_lines(dimensions, scale))
        if self.rubric.official or self.options.structured == "none":
            return self._request(prompt, pictures)
        return self._request(prompt, pictures, _as_json(dimensions), _schema(dimensions, scale))

    def _comparison(self, one: Comparison, swapped: bool) -> ChatRequest:
        prompt = self.rubric.comparison(one.type, one.instruction, self.options.order, swapped)
        return self._request(prompt, {"source": one.source, "first": one.first, "second": one.second})

    def _request(
        self, prompt: Prompt, pictures: dict[Slot, Image], ending: str = "", schema: type[BaseModel] | None = None
    ) -> ChatRequest:
        parts = [pictures[part.slot] if isinstance(part, Picture) else part for part in prompt.parts]
        return ChatRequest(
            system=prompt.system,
            parts=(*parts, *([ending] if ending else [])),
            schema=schema,
            max_tokens=self.options.max_tokens,
            subject=" ".join(pixel_hash(picture) for picture in pictures.values()),
            purpose=PURPOSE,
            logprobs=self.options.alternatives if self._expects else 0,
        )

    def _plain(self, instruction: str) -> str:
        """An instruction that released prompts show as it is, without what might be a control token of some model."""
        return _CONTROL.sub(lambda match: f"{match[0]} ", instruction) if self.rubric.official else instruction

    def _ask(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        self.load()
        assert self._client is not None
        replies = self._client.ask(requests)
        self.served |= {reply.model for reply in replies if isinstance(reply, Answered) and reply.model}
        if self._expects:
            self._require_logprobs(replies)
        self._watch.seen(replies)
        return replies

    def _require_logprobs(self, replies: Sequence[Reply]) -> None:
        """Raise ConfigError if the server has not shown any so far, and left them out or refused them now."""
        self._shows |= any(isinstance(reply, Answered) and reply.alternatives for reply in replies)
        lacking = [
            reply.detail if isinstance(reply, Failed) else "none came with its reply"
            for reply in replies
            if isinstance(reply, Answered)
            or (isinstance(reply, Failed) and reply.reason in _REJECTED and "logprob" in reply.detail.lower())
        ]
        if lacking and not self._shows:
            raise ConfigError(
                f"{self.options.base_url}: {self.options.model} shows no log-probabilities of "
                f"{self.options.alternatives} tokens at a place ({lacking[0]}), and expected scores are read from "
                "them; use --head generate, or another server"
            )

    def _scored(self, dimensions: tuple[Dimension, ...], reply: Reply) -> Scored | Unanswered:
        if not isinstance(reply, Answered):
            return unanswered(reply)
        scale = self.rubric.scale
        said = parse_reply(reply.text, dimensions, scale)
        if isinstance(said, Misread):
            return Unanswered("failed", said.reason, said.detail)
        reason = parse_reason(reply.text, dimensions)
        if not self._expects:
            return Scored({key: float(score) for key, score in said.items()}, reason=reason, reply=reply.text)
        try:
            readings = read_scores(reply, dimensions, scale, said)
        except Unread as error:
            return Unanswered("failed", error.reason, str(error))
        return Scored(
            {key: reading.mean(scale) for key, reading in readings.items()},
            {key: reading.probabilities for key, reading in readings.items()},
            max(reading.uncovered for reading in readings.values()),
            reason=reason,
            reply=reply.text,
        )

    def _choice(self, reply: Reply) -> tuple[float, ...] | Unanswered:
        if not isinstance(reply, Answered):
            return unanswered(reply)
        try:
            if self._expects:
                return read_choice(reply)
            said = choice(reply.text)
            return tuple(float(one == said) for one in CHOICES)
        except Unread as error:
            return Unanswered("failed", error.reason, str(error))


def _joined(verdicts: Sequence[Scored | Unanswered]) -> Scored | Unanswered:
    """One verdict of those that one or more questions about a case brought: unanswered if any is."""
    scored = [verdict for verdict in verdicts if isinstance(verdict, Scored)]
    for verdict in verdicts:
        if isinstance(verdict, Unanswered) or len(verdicts) == 1:
            return verdict
    return Scored(
        {key: score for one in scored for key, score in one.scores.items()},
        {key: shares for one in scored for key, shares in one.probabilities.items()},
        max(one.uncovered for one in scored),
        reason=" ".join(filter(None, (one.reason for one in scored))),
        reply="\n".join(one.reply for one in scored),
    )


def _both(straight: tuple[float, ...] | Unanswered, swapped: tuple[float, ...] | Unanswered) -> Preference | Unanswered:
    if isinstance(straight, Unanswered):
        return straight
    return swapped if isinstance(swapped, Unanswered) else preference(straight, swapped)


def _only_lines(dimensions: Sequence[Dimension], scale: Scale) -> str:
    """Asks for the scores without a reason, whatever the rubric says before."""
    lines = "\n".join(f"{scored_line(one)}a whole number from {scale.low} to {scale.high}" for one in dimensions)
    return f"Write no reasoning this time. Answer in exactly these lines and nothing else:\n{lines}"


def _as_json(dimensions: Sequence[Dimension]) -> str:
    """Asks for the rubric's lines as an object."""
    keys = ", ".join(f'"{name}"' for name in (_REASON, *(one.label for one in dimensions)))
    return f"Write these lines as one JSON object with the keys {keys}, the scores as numbers."


@cache
def _schema(dimensions: tuple[Dimension, ...], scale: Scale) -> type[BaseModel]:
    """The form of a reply that a server is held to: the words of the lines as keys, the reason first."""
    fields: dict[str, Any] = {"reason": (str, Field(alias=_REASON))}
    for number, one in enumerate(dimensions):
        fields[f"score_{number}"] = (int, Field(alias=one.label, ge=scale.low, le=scale.high))
    return create_model("Scores", __base__=Config, **fields)
