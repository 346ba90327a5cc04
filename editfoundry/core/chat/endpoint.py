"""Where a language model is reached and what it costs: the configuration of the API client."""

import math
import os
import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from editfoundry.core.config import SECRET, Config
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json

OWN_KEYS = ("messages", "model", "n", "response_format", "stream", "seed", "max_tokens", "max_completion_tokens")


class BadApiKey(EditFoundryError):
    """The environment variable of the API key is not set, or holds something that cannot be a key."""


class Endpoint(Config):
    """An OpenAI-compatible server (vLLM, SGLang, OpenAI, Azure, Gemini's compatible endpoint) and one of its models.

    base_url: everything before `/chat/completions`, e.g. `http://localhost:8000/v1`; a query such as `?api-version=`
        stays behind it. The key is read from the environment variable `api_key_env` when asking, and may be absent.
    concurrency: requests in flight at once, per process. timeout_s: of one attempt, from sending to the last byte.
    attempts: of one request, in all. Between two of them the wait grows from `retry_min_s` to `retry_max_s`, with
        jitter; a server's Retry-After is obeyed up to `retry_max_s`.
    price_input, price_output: USD per million tokens. budget_usd: once the run may have cost this, nothing more is
        asked; needs the prices. tokens_per_image: the most one image is billed as, for that bound; None: one per
        16x16 pixels and 1,500, which holds for models that bill by patch or tile (not gpt-4o-mini: 48,169).
    structured: what the server understands: `json_schema` (strict), `json_object`, or `none`; the reply is validated
        in any case. token_limit: the name the server has for the most tokens of a reply.
    jpeg_quality, max_image_side: how images are sent; longer ones are scaled down to `max_image_side` pixels.
    extra: merged into every request's body, e.g. `{logprobs: true}`; a null takes a key out (`temperature: null`).
    """

    base_url: str
    model: str = Field(min_length=1)
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = Field(default=16, ge=1, le=1024)
    timeout_s: float = Field(default=120, gt=0)
    attempts: int = Field(default=5, ge=1)
    retry_min_s: float = Field(default=1, ge=0)
    retry_max_s: float = Field(default=60, ge=0)
    price_input: float = Field(default=0, ge=0)
    price_output: float = Field(default=0, ge=0)
    budget_usd: float | None = Field(default=None, gt=0)
    tokens_per_image: int | None = Field(default=None, ge=1)
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    jpeg_quality: int = Field(default=90, ge=1, le=100)
    max_image_side: int | None = Field(default=None, ge=16)
    extra: dict[str, Any] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an address such as http://localhost:8000/v1")
        if parts.username or parts.password or re.search(r"key|token|secret|sig=", parts.query, re.IGNORECASE):
            raise PydanticCustomError(
                SECRET,
                "an address must not carry a secret; put the key into an environment variable and name that in "
                "api_key_env",
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.budget_usd is not None and not (self.price_input or self.price_output):
            raise ValueError("budget_usd needs price_input and price_output (USD per million tokens) to count with")
        if self.retry_max_s < self.retry_min_s:
            raise ValueError("retry_max_s must not be below retry_min_s")
        own = sorted({key for key, value in self.extra.items() if value is not None or key != "seed"} & set(OWN_KEYS))
        if own:
            raise ValueError(f"extra must not set {', '.join(own)}: the client does")
        try:
            canonical_json(self.extra)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra cannot be written as JSON: {error}") from error
        return self

    @property
    def url(self) -> str:
        """Where requests are sent to."""
        parts = urlsplit(self.base_url)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/chat/completions"))

    def api_key(self) -> SecretStr | None:
        """The key of the environment; None if there is none, which servers of one's own need not have.

        Raises BadApiKey for a variable that the configuration names and that is not set, and, without quoting it, for a
        broken key.
        """
        key = os.environ.get(self.api_key_env, "").strip()
        if not key and "api_key_env" in self.model_fields_set:
            raise BadApiKey(f"{self.api_key_env}: api_key_env names this environment variable, and it is not set")
        if not re.fullmatch(r"[!-~]*", key):
            raise BadApiKey(
                f"{self.api_key_env}: holds blanks, line breaks or characters outside ASCII; set it to the bare key"
            )
        return SecretStr(key) if key else None

    def headers(self, key: SecretStr | None) -> dict[str, str]:
        """Headers of a request. Azure's deployments want the key under a name of their own."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
            if (urlsplit(self.base_url).hostname or "").endswith(".azure.com"):
                headers["api-key"] = key.get_secret_value()
        return headers

    def cost(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Price of so many tokens in billionths of a USD, rounded up."""
        micro_usd = prompt_tokens * self.price_input + completion_tokens * self.price_output
        return math.ceil(round(micro_usd * 1000, 3))
