"""Instructions in the words of a language model. Their words are the caller's to check; here only the shape is."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from editfoundry.core.chat.messages import ChatRequest
from editfoundry.models.language.base import ApiBackend, ApiOptions, Fault, LanguageModel, LocalBackend, LocalOptions
from editfoundry.models.protocols import Brief, TurnBrief, Unanswered, Written

INSTRUCTION_WORDS = 30
RESULT_WORDS = 8
MOST_OTHERS = 5
SINGLE = "single"
WITH_PREMISE = "content_memory"
FROM_CAPTION = frozenset({"add", "remove"})
"""Types whose wording leans on the whole caption; the others see the summary."""
OBJECT_ALONE = frozenset({"extract"})
"""Types that are told of the object and nothing else."""
WITHOUT_SIZE = frozenset({"background", "style", "motion", "compose", "move", "resize", "count", *OBJECT_ALONE})
WITH_OTHERS = frozenset({"background", "replace"})


class WrittenTurn(BaseModel):
    """The words of one edit."""

    model_config = ConfigDict(extra="forbid", strict=True)

    instruction: str
    result: str


class WriteReply(BaseModel):
    """The form of a writer's answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    premise: str
    turns: list[WrittenTurn]


class ChatWriter(LanguageModel):
    """`InstructionWriter` over a chat model."""

    purpose = "write"
    variables = frozenset({"turns", "kind_rule", "premise", "complaints", "instruction_words", "result_words"})
    schema = WriteReply

    def write(self, briefs: Sequence[Brief]) -> list[Written | Unanswered]:
        """One reply per brief, or why there is none: `wrong_turns`, `missing_result`, `missing_premise`…"""
        requests = [self._request(brief) for brief in briefs]
        return self.ask(requests, lambda index, reply: read_written(reply, briefs[index]))

    def _request(self, brief: Brief) -> ChatRequest:
        variables: dict[str, Any] = {
            "turns": [{"rule": self.prompt.section(t.type), "open_result": t.open_result} for t in brief.turns],
            "kind_rule": "" if brief.kind == SINGLE else self.prompt.kind(brief.kind),
            "premise": brief.kind == WITH_PREMISE,
            "complaints": bool(brief.complaints),
            "instruction_words": INSTRUCTION_WORDS,
            "result_words": RESULT_WORDS,
        }
        return self.question([self.prompt.user(brief_data(brief), **variables)], brief.sha256, **variables)


def brief_data(brief: Brief) -> dict[str, Any]:
    """What the model is told of a plan: for each type what its wording is conditioned on, and no more."""
    types = {turn.type for turn in brief.turns}
    data: dict[str, Any] = {"turns": [_turn_data(turn) for turn in brief.turns]}
    if types & FROM_CAPTION:
        data["caption"] = brief.caption
    elif types - OBJECT_ALONE:
        data["summary"] = brief.summary
    if types & WITH_OTHERS and brief.others:
        data["other_objects"] = list(brief.others[:MOST_OTHERS])
    if brief.kind == WITH_PREMISE:
        data["premise"] = brief.premise
    if brief.complaints:
        data["complaints"] = list(brief.complaints)
    return data


def _turn_data(turn: TurnBrief) -> dict[str, Any]:
    told = {
        "type": turn.type,
        "object": turn.label,
        "position": turn.position,
        "size": "" if turn.type in WITHOUT_SIZE else turn.size,
        "result": turn.result,
        "must_say": list(turn.names),
        "draft": turn.draft,
    }
    return {key: value for key, value in told.items() if value}


def read_written(reply: WriteReply, brief: Brief) -> Written | Fault:
    """Instructions from an answer, or what in its shape is wrong."""
    if len(reply.turns) != len(brief.turns):
        return Fault("wrong_turns", f"{len(reply.turns)} turns; {len(brief.turns)} were asked for")
    pairs = list(zip(reply.turns, brief.turns, strict=True))
    if empty := [number for number, (said, _) in enumerate(pairs, 1) if not said.instruction.strip()]:
        return Fault("missing_instruction", f"turn {empty[0]} has an empty instruction")
    unset = [number for number, (said, asked) in enumerate(pairs, 1) if asked.open_result and not said.result.strip()]
    if unset:
        return Fault("missing_result", f"the result of turn {unset[0]} was yours to choose and is empty")
    if brief.kind == WITH_PREMISE and not reply.premise.strip():
        return Fault("missing_premise", "the premise is empty")
    return Written(
        tuple(said.instruction.strip() for said, _ in pairs),
        tuple(said.result.strip() if asked.open_result else "" for said, asked in pairs),
        reply.premise.strip() if brief.kind == WITH_PREMISE else "",
    )


class ApiWriter(ChatWriter):
    """Asks an OpenAI-compatible server."""

    name = "openai"
    Options = ApiOptions

    def __init__(self, options: ApiOptions) -> None:
        super().__init__(ApiBackend(options))


class LocalWriter(ChatWriter):
    """Asks a model in this process."""

    name = "qwen2.5-vl"
    Options = LocalOptions
    default: ClassVar[LocalOptions] = LocalOptions()

    def __init__(self, options: LocalOptions = default) -> None:
        super().__init__(LocalBackend(options))
