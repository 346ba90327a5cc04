"""What captioner, writer and judge share: a prompt, a chat model behind it, and one more try for a faulty answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, Field

from editfoundry.core.chat.endpoint import Endpoint
from editfoundry.core.chat.messages import Answered, Chat, ChatRequest, Failed, Image, Refused, Reply
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json, seed_for, sha256
from editfoundry.models.language.local import ChatModelOptions, LocalChat
from editfoundry.models.language.prompts import Prompt
from editfoundry.models.protocols import Unanswered

T = TypeVar("T")
REPAIRABLE = ("invalid_json", "schema")
"""Failures of a local model that naming the fault may mend; the API client has tried again by itself."""
CONFIGURATION = ("unauthorized", "wrong_address")
"""Failures that every further request would share until somebody mends the configuration."""
OUTAGE = ("network", "timeout", "server_error", "rate_limited")
"""Failures of the server, not of what it was asked."""
PATIENCE = 16
"""Requests in a row that may end in an outage before it counts as one."""
DECISIVE = ("model", "structured", "jpeg_quality", "max_image_side", "extra")
"""Settings of an endpoint that change what is answered."""


class EndpointError(EditFoundryError):
    """A server takes no request: a wrong key or address, or it is down. The run stops before anything is lost to it."""


class Watch:
    """Looks at what a server answers, and stops a run that it does not serve."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._unserved = 0

    def seen(self, replies: Sequence[Reply]) -> None:
        """Take note of replies in the order of their requests; unless some were served, none is rejected for it.

        Raises EndpointError, which stops the run; what was answered is kept, and the same command goes on.
        """
        address = self.endpoint.base_url
        for reply in replies:
            trouble = reply if isinstance(reply, Failed) else Failed("", "")
            if trouble.reason in CONFIGURATION:
                raise EndpointError(
                    f"{address}: {trouble.reason}: {trouble.detail}; mend base_url, model or the key in "
                    f"{self.endpoint.api_key_env}, and repeat the command"
                )
            self._unserved = self._unserved + 1 if trouble.reason in OUTAGE else 0
            if self._unserved >= PATIENCE:
                raise EndpointError(
                    f"{address}: served none of the last {PATIENCE} requests, each asked {self.endpoint.attempts} "
                    f"times ({trouble.reason}: {trouble.detail}); repeat the command when it is back"
                )


def unanswered(reply: Refused | Failed) -> Unanswered:
    """What a role gives in place of an answer."""
    if isinstance(reply, Refused):
        return Unanswered("refused", "refused", reply.detail)
    return Unanswered("failed", reply.reason, reply.detail)


class ApiOptions(Endpoint):
    """An endpoint and how it is asked. prompt: a file in place of the shipped one."""

    prompt: Path | None = None
    max_tokens: int = Field(default=1024, ge=16)
    temperature: float = Field(default=0.0, ge=0, le=2)


class LocalOptions(ChatModelOptions):
    """A local model and how it is asked. prompt: a file in place of the shipped one."""

    prompt: Path | None = None
    max_new_tokens: int = Field(default=1024, ge=16)
    temperature: float = Field(default=0.0, ge=0, le=2)


@dataclass(frozen=True)
class Fault:
    """Why an answer cannot be used: a stable code, and words that the model is told."""

    code: str
    detail: str


class Backend(Protocol):
    """A chat model with its sampling settings."""

    prompt: Path | None
    max_tokens: int
    temperature: float

    def settings(self) -> dict[str, object]:
        """Whatever decides what a request is answered; nothing else. Loads nothing."""
        ...

    def load(self) -> Chat:
        """The model, ready to be asked."""
        ...


class ApiBackend:
    """Any OpenAI-compatible server. Its address, key, prices and concurrency are no part of what it answers."""

    def __init__(self, options: ApiOptions) -> None:
        self.options = options
        self.prompt, self.max_tokens, self.temperature = options.prompt, options.max_tokens, options.temperature

    def settings(self) -> dict[str, object]:
        return self.options.model_dump(include=set(DECISIVE), mode="json")

    def load(self) -> Chat:
        from editfoundry.core.chat.client import ChatClient  # its libraries are an extra that local models do not need

        return ChatClient(self.options)


class LocalBackend:
    """A model in this process; captioner, writer and judge of one checkpoint share its weights."""

    def __init__(self, options: LocalOptions) -> None:
        self.chat = LocalChat(options)
        self.prompt, self.max_tokens, self.temperature = options.prompt, options.max_new_tokens, options.temperature

    def settings(self) -> dict[str, object]:
        return {"model": self.chat.digest()}

    def load(self) -> Chat:
        self.chat.load()
        return self.chat


class LanguageModel:
    """Base of the three roles. A subclass sets `name`, `version`, `purpose` (its prompt's name) and `variables`."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    purpose: ClassVar[str]
    variables: ClassVar[frozenset[str]]
    schema: ClassVar[type[BaseModel]]

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.prompt = Prompt.load(self.purpose, self.variables, backend.prompt)
        self._chat: Chat | None = None
        self._watch = Watch(backend.options) if isinstance(backend, ApiBackend) else None

    def digest(self) -> str:
        """Hash of the model, the prompt and the sampling settings; loads nothing."""
        settings = {
            **self.backend.settings(),
            "temperature": self.backend.temperature,
            "max_tokens": self.backend.max_tokens,
            "prompt": self.prompt.digest,
        }
        return sha256(canonical_json([self.purpose, self.name, self.version, settings]))

    def load(self) -> None:
        """Load the weights, or open the client, unless that is done. Raises ModelMissing naming the remedy."""
        if self._chat is None:
            self._chat = self.backend.load()

    def question(self, parts: Sequence[str | Image], sha256: str, **variables: object) -> ChatRequest:
        """A request of this role. At a temperature its seed follows from its words and the photograph."""
        seed = seed_for(self.purpose, sha256, [part for part in parts if isinstance(part, str)])
        return ChatRequest(
            system=self.prompt.system(**variables),
            parts=tuple(parts),
            schema=self.schema,
            max_tokens=self.backend.max_tokens,
            temperature=self.backend.temperature,
            seed=seed % 2**31 if self.backend.temperature else 0,
            subject=sha256,
            purpose=self.purpose,
        )

    def ask(self, requests: Sequence[ChatRequest], read: Callable[[int, Any], T | Fault]) -> list[T | Unanswered]:
        """What `read` makes of each answer's validated object, given the request's index.

        Where it finds a fault, the model is told of it and asked once more; then the request is Unanswered, with the
        fault's code.
        """
        self.load()
        replies = self._asked(requests)
        results = [self._use(index, reply, read) for index, reply in enumerate(replies)]
        faulty = [(index, result) for index, result in enumerate(results) if isinstance(result, Fault)]
        repairs = [self._again(requests[index], replies[index], fault) for index, fault in faulty]
        repaired = self._asked(repairs) if repairs else []
        for (index, _), reply in zip(faulty, repaired, strict=True):
            results[index] = self._use(index, reply, read)
        return [Unanswered("failed", r.code, r.detail) if isinstance(r, Fault) else r for r in results]

    def _asked(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        """The replies, unless they show that no request is being served: then EndpointError is raised."""
        assert self._chat is not None
        replies = self._chat.ask(requests)
        if self._watch:
            self._watch.seen(replies)
        return replies

    def _use(self, index: int, reply: Reply, read: Callable[[int, Any], T | Fault]) -> T | Fault | Unanswered:
        match reply:
            case Answered():
                return read(index, reply.value)
            case Failed() if reply.reason in REPAIRABLE and isinstance(self.backend, LocalBackend):
                return Fault(reply.reason, reply.detail)
            case _:
                return unanswered(reply)

    def _again(self, request: ChatRequest, reply: Reply, fault: Fault) -> ChatRequest:
        answer = reply.text if isinstance(reply, Answered) else ""
        return replace(request, parts=(*request.parts, self.prompt.again(answer, fault.detail)))
