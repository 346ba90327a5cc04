"""Captions with nouns that a detector can look for: one structured question per photograph."""

import re
from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from editfoundry.core.chat.messages import ChatRequest
from editfoundry.core.text import one_line
from editfoundry.models.language.base import ApiBackend, ApiOptions, Fault, LanguageModel, LocalBackend, LocalOptions
from editfoundry.models.protocols import Described, Photograph, Unanswered

SUMMARY_WORDS = 15
LONGEST_TEXT = 4000
LONGEST_SUMMARY = 300
MOST_OBJECTS = 20
MOST_BACKGROUNDS = 8
LONGEST_NOUN = 60


class CaptionReply(BaseModel):
    """The form of a captioner's answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    objects: list[str]
    backgrounds: list[str]
    summary: str


class ChatCaptioner(LanguageModel):
    """`Captioner` over a chat model. A noun that the caption does not hold makes the answer faulty."""

    purpose = "caption"
    variables = frozenset({"most_objects", "most_backgrounds", "summary_words"})
    schema = CaptionReply

    def caption(self, photographs: Sequence[Photograph]) -> list[Described | Unanswered]:
        """One description per photograph, or why there is none: `bad_nouns`, `long_summary`, `empty_caption`…"""
        return self.ask([self._request(photograph) for photograph in photographs], lambda _, reply: read_caption(reply))

    def _request(self, photograph: Photograph) -> ChatRequest:
        limits = {"most_objects": MOST_OBJECTS, "most_backgrounds": MOST_BACKGROUNDS, "summary_words": SUMMARY_WORDS}
        words = self.prompt.user({"alternative_text": photograph.text}, **limits)
        return self.question([photograph.image, words], photograph.sha256, **limits)


def read_caption(reply: CaptionReply) -> Described | Fault:
    """A description from an answer, or what is wrong with it.

    Text and summary become one printable line each. Each noun stands in that text letter for letter and as whole words,
    none twice and none in both lists.
    """
    text, summary = one_line(reply.text, LONGEST_TEXT), one_line(reply.summary, LONGEST_SUMMARY)
    if not text or not summary:
        return Fault("empty_caption", "text and summary may not be empty")
    if (words := len(summary.split())) > SUMMARY_WORDS:
        return Fault("long_summary", f"the summary has {words} words, more than {SUMMARY_WORDS}")
    wrong = [noun for noun in (*reply.objects, *reply.backgrounds) if not _stands_in(noun, text)]
    if wrong:
        return Fault("bad_nouns", f"not in the text letter for letter as whole words: {_listed(wrong)}")
    if both := [noun for noun in reply.objects if noun in reply.backgrounds]:
        return Fault("bad_nouns", f"both among objects and backgrounds: {_listed(both)}")
    if len(reply.objects) > MOST_OBJECTS or len(reply.backgrounds) > MOST_BACKGROUNDS:
        return Fault("bad_nouns", f"more than {MOST_OBJECTS} objects or {MOST_BACKGROUNDS} backgrounds")
    objects, backgrounds = (tuple(dict.fromkeys(nouns)) for nouns in (reply.objects, reply.backgrounds))
    return Described(text, summary, objects, backgrounds)


def _stands_in(noun: str, text: str) -> bool:
    if not noun.strip() or noun != noun.strip() or len(noun) > LONGEST_NOUN:
        return False
    return re.search(rf"(?<!\w){re.escape(noun)}(?!\w)", text) is not None


def _listed(nouns: Sequence[str]) -> str:
    return ", ".join(repr(noun[:LONGEST_NOUN]) for noun in nouns[:10])


class ApiCaptioner(ChatCaptioner):
    """Asks an OpenAI-compatible server."""

    name = "openai"
    Options = ApiOptions

    def __init__(self, options: ApiOptions) -> None:
        super().__init__(ApiBackend(options))


class LocalCaptioner(ChatCaptioner):
    """Asks a model in this process."""

    name = "qwen2.5-vl"
    Options = LocalOptions
    default: ClassVar[LocalOptions] = LocalOptions()

    def __init__(self, options: LocalOptions = default) -> None:
        super().__init__(LocalBackend(options))
