"""What is asked of a language model and what comes back. A reply is answered, refused or failed, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

Image = NDArray[np.uint8]
MAX_ALTERNATIVES = 20
"""The most tokens that servers name at one place of a reply."""


@dataclass(frozen=True)
class ChatRequest:
    """One question. `parts` of the user's turn are texts and images (uint8 RGB [H, W, 3]) in their order.

    schema: the pydantic model that the reply has to satisfy; None for plain text. subject: content hash of the
    photograph it is about, by which `forget` finds the reply. purpose: who asks ("caption"), for the ledger.
    logprobs: how many of the most probable tokens to ask for at every place of the reply, 0 to `MAX_ALTERNATIVES`.
    """

    system: str
    parts: Sequence[str | Image]
    schema: type[BaseModel] | None = None
    max_tokens: int = 1024
    temperature: float = 0.0
    seed: int = 0
    subject: str = ""
    purpose: str = ""
    logprobs: int = 0


@dataclass(frozen=True)
class Answered:
    """A usable reply: its text, and the validated object where a schema was given.

    cached: it was paid for earlier. logprobs: log-probability of each generated token, where the server gave them.
    alternatives: for each of those tokens, the most probable ones at its place with their log-probabilities, itself
    mostly among them; empty where the server gave none. model: the answering model's name as the server says it.
    """

    text: str
    value: Any = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: bool = False
    logprobs: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    alternatives: tuple[tuple[tuple[str, float], ...], ...] = field(default=(), repr=False)
    model: str = ""


@dataclass(frozen=True)
class Refused:
    """The model or the provider's content filter declined. Not an error, not a score, and not asked again."""

    detail: str


@dataclass(frozen=True)
class Failed:
    """No usable reply after all attempts. `reason`: timeout, server_error, rate_limited, network (the server's fault);

    unauthorized, wrong_address (the configuration's); bad_request, truncated, invalid_json, schema (this request's).
    """

    reason: str
    detail: str


Reply = Answered | Refused | Failed


class Chat(Protocol):
    """A language model that can be asked: the API client and the local models of `models.language`."""

    def ask(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        """One reply per request, in order."""
        ...
