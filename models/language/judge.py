"""Scores of a finished edit from a vision-language model. What cannot be read strictly is no score."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from editfoundry.core.chat.messages import ChatRequest, Image
from editfoundry.core.text import one_line
from editfoundry.models.language.base import ApiBackend, ApiOptions, Fault, LanguageModel, LocalBackend, LocalOptions
from editfoundry.models.protocols import Judgement, Pair, Unanswered

REASON_WORDS = 20
LONGEST_REASON = 300
MOST_FOLLOWING_IF_NO_MATCH = 2
Score = Annotated[int, Field(ge=1, le=5)]


class JudgeReply(BaseModel):
    """The form of a judge's answer. The reason comes first: it is thought through before the scores are given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str
    following: Score
    naturalness: Score
    objects_match: Literal["yes", "no"]


class ChatJudge(LanguageModel):
    """`Judge` over a chat model."""

    purpose = "judge"
    variables = frozenset({"rubric", "reference", "reason_words", "most_following_if_no_match"})
    schema = JudgeReply

    def judge(self, pairs: Sequence[Pair]) -> list[Judgement | Unanswered]:
        """One judgement per pair, or why there is none: `contradictory`, `schema`, `invalid_json`, `refused`…"""
        return self.ask([self._request(pair) for pair in pairs], lambda _, reply: read_judgement(reply))

    def _request(self, pair: Pair) -> ChatRequest:
        pictures = {"before": pair.source, "after": pair.result, "reference": pair.reference}
        parts: list[str | Image] = []
        for name, picture in pictures.items():
            if picture is not None:
                parts += [self.prompt.image_label(name), picture]
        variables = {
            "rubric": self.prompt.section(pair.type),
            "reference": pair.reference is not None,
            "reason_words": REASON_WORDS,
            "most_following_if_no_match": MOST_FOLLOWING_IF_NO_MATCH,
        }
        parts.append(self.prompt.user({"instruction": pair.instruction}, **variables))
        return self.question(parts, pair.sha256, **variables)


def read_judgement(reply: JudgeReply) -> Judgement | Fault:
    """A judgement from an answer, or what is wrong with it. The reason is cut to its 20 words on one line.

    Scores are whole numbers from 1 to 5. An answer that says the wrong thing was edited, and yet that the instruction
    was followed, contradicts itself.
    """
    if reply.objects_match == "no" and reply.following > MOST_FOLLOWING_IF_NO_MATCH:
        return Fault(
            "contradictory",
            f'objects_match is "no", so following is at most {MOST_FOLLOWING_IF_NO_MATCH}, but it is {reply.following}',
        )
    reason = " ".join(one_line(reply.reason, LONGEST_REASON).split()[:REASON_WORDS])
    return Judgement(float(reply.following), float(reply.naturalness), reply.objects_match == "yes", reason)


class ApiJudge(ChatJudge):
    """Asks an OpenAI-compatible server."""

    name = "openai"
    Options = ApiOptions

    def __init__(self, options: ApiOptions) -> None:
        super().__init__(ApiBackend(options))


class LocalJudgeOptions(LocalOptions):
    """Those of every local role; a judgement is short."""

    max_new_tokens: int = Field(default=256, ge=16)


class LocalJudge(ChatJudge):
    """Asks a model in this process."""

    name = "qwen2.5-vl"
    Options = LocalJudgeOptions
    default: ClassVar[LocalJudgeOptions] = LocalJudgeOptions()

    def __init__(self, options: LocalJudgeOptions = default) -> None:
        super().__init__(LocalBackend(options))
