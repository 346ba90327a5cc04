"""The OpenAI-compatible protocol, without the network: a request's body, key and bound, and what a response means."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np
from pydantic import SecretStr

from editfoundry.core.chat.endpoint import Endpoint
from editfoundry.core.chat.messages import Answered, ChatRequest, Failed, Image, Refused, Reply
from editfoundry.core.chat.structured import (
    MAX_REPLY_CHARACTERS,
    BadReply,
    schema_instruction,
    strict_schema,
    validate_reply,
)
from editfoundry.core.geometry import resize
from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.core.images import encode_jpeg
from editfoundry.core.text import one_line

_Pairs = tuple[tuple[str, float], ...]
MAX_DETAIL = 300
MAX_MODEL_NAME = 200
MAX_TOKENS_COUNTED = 1 << 40
RETRIED_STATUSES = (408, 409, 429)
UNKNOWN_BILL = (408, 502, 504, 524)
_OVERHEAD_TOKENS = 64
_IMAGE_OVERHEAD_TOKENS = 1500
_FILTERED = ("content_filter", "safety", "prohibited_content", "blocklist", "recitation")
_MIN_SECRET = 8  # placeholders such as EMPTY are no secrets, and may stand in a reply


@dataclass(frozen=True)
class Usage:
    """Tokens that the server says it billed."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Outcome:
    """What one attempt came to. usage: None if the server named none. billed: False if it certainly cost nothing,

    None if that cannot be known. retry: whether asking again may help; retry_after: seconds the server asks to wait.
    """

    reply: Reply
    usage: Usage | None = None
    billed: bool | None = False
    retry: bool = False
    retry_after: float | None = None


def request_key(endpoint: Endpoint, request: ChatRequest) -> str:
    """SHA-256 that names a question: its texts, pixels, schema, model, address and sampling settings; no secrets."""
    images = [pixel_hash(part) for part in request.parts if not isinstance(part, str)]
    body = _body(endpoint, request, images, request.seed)
    schema = request.schema.model_json_schema() if request.schema else None
    sent = {"quality": endpoint.jpeg_quality, "max_side": endpoint.max_image_side} if images else None
    return sha256(
        canonical_json({"url": endpoint.url, "body": body, "seed": request.seed, "schema": schema, "images": sent})
    )


def request_body(endpoint: Endpoint, request: ChatRequest, round_: int = 0) -> bytes:
    """The JSON that is posted. round_: how many unusable replies came before; a new seed makes another one likely."""
    images = [_data_url(endpoint, part) for part in request.parts if not isinstance(part, str)]
    return _written(_body(endpoint, request, images, request.seed + round_))


def cost_bound(endpoint: Endpoint, request: ChatRequest) -> int:
    """The most an attempt can cost, in billionths of a USD: no token is shorter than a byte of text."""
    images = [part for part in request.parts if not isinstance(part, str)]
    text = len(_written(_body(endpoint, request, [""] * len(images), request.seed)))
    per_image = [endpoint.tokens_per_image or _image_tokens(endpoint, image) for image in images]
    return endpoint.cost(text + _OVERHEAD_TOKENS + sum(per_image), request.max_tokens)


def read_response(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    request: ChatRequest,
    key: SecretStr | None,
) -> Outcome:
    """What a complete HTTP response means for the request. Never raises, whatever the body holds."""
    parsed = _parse(body)
    if status != 200:
        return _http_error(status, headers, parsed, body, key)
    if not isinstance(parsed, dict):
        return Outcome(Failed("invalid_json", "the response's body is no JSON object"), billed=None, retry=True)
    error = parsed.get("error")
    if isinstance(error, dict) and not parsed.get("choices"):
        code = error.get("code")
        code = code if type(code) is int and 400 <= code <= 599 else 500
        return _http_error(code, headers, parsed, body, key)
    usage = _usage(parsed.get("usage"))
    reply = _completion(parsed, request, usage, key)
    retry = isinstance(reply, Failed) and reply.reason != "truncated"
    return Outcome(reply, usage, billed=None if usage is None else True, retry=retry)


def restored(data: Mapping[str, Any], request: ChatRequest) -> Answered:
    """The reply that `storable` made plain. Raises BadReply if it does not satisfy the request's schema any more.

    Ledgers of older versions hold neither alternatives nor the model's name.
    """
    value = validate_reply(data["text"], request.schema) if request.schema else None
    return Answered(
        data["text"],
        value,
        data["prompt_tokens"],
        data["completion_tokens"],
        cached=True,
        logprobs=_pairs(data["logprobs"]),
        alternatives=tuple(map(_pairs, data.get("alternatives", ()))),
        model=data.get("model", ""),
    )


def storable(reply: Answered) -> dict[str, Any]:
    """An answer as plain data, without the validated object, which is made from the text again."""
    return {
        "text": reply.text,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "logprobs": reply.logprobs,
        "alternatives": reply.alternatives,
        "model": reply.model,
    }


def clean(text: str, key: SecretStr | None) -> str:
    """A server's words for a message of ours: on one line, short, without the key."""
    return one_line(_hide(text, key)[: 4 * MAX_DETAIL], MAX_DETAIL)


def _body(endpoint: Endpoint, request: ChatRequest, images: Sequence[str], seed: int) -> dict[str, Any]:
    urls = iter(images)
    content: list[dict[str, Any]] = [
        {"type": "text", "text": _encodable(part)}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": next(urls)}}
        for part in request.parts
    ]
    system = _encodable(request.system)
    if request.schema and endpoint.structured != "json_schema":
        system = f"{system}\n\n{schema_instruction(request.schema)}".strip()
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": content},
        ],
        endpoint.token_limit: request.max_tokens,
        "temperature": request.temperature,
        "seed": seed,
    }
    if request.logprobs:
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    if request.schema and endpoint.structured == "json_object":
        body["response_format"] = {"type": "json_object"}
    if request.schema and endpoint.structured == "json_schema":
        name = re.sub(r"[^A-Za-z0-9_-]", "_", request.schema.__name__)[:64]
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": name, "strict": True, "schema": strict_schema(request.schema)},
        }
    body.update(endpoint.extra)
    return {name: value for name, value in body.items() if value is not None}


def _encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which UTF-8 cannot hold, as question marks."""
    return text.encode("utf-8", "replace").decode()


def _written(body: dict[str, Any]) -> bytes:
    """The body as JSON, in its own order: models write the properties of a schema in the order they stand in it."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def pixel_hash(image: Image) -> str:
    """SHA-256 that names an image by its pixels, shape and type."""
    return sha256(f"{image.dtype}{list(image.shape)}".encode() + np.ascontiguousarray(image).tobytes())


def _sent_size(endpoint: Endpoint, image: Image) -> tuple[int, int]:
    height, width = image.shape[:2]
    scale = min(1.0, (endpoint.max_image_side or max(height, width)) / max(height, width))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _data_url(endpoint: Endpoint, image: Image) -> str:
    scaled = resize(image, *_sent_size(endpoint, image))
    return "data:image/jpeg;base64," + base64.b64encode(encode_jpeg(scaled, endpoint.jpeg_quality)).decode()


def _image_tokens(endpoint: Endpoint, image: Image) -> int:
    width, height = _sent_size(endpoint, image)
    return -(-width // 16) * -(-height // 16) + _IMAGE_OVERHEAD_TOKENS


def _parse(body: bytes) -> Any:
    """The body's JSON value, or None."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _http_error(status: int, headers: Mapping[str, str], parsed: Any, body: bytes, key: SecretStr | None) -> Outcome:
    error = parsed.get("error") if isinstance(parsed, dict) else None
    error = error if isinstance(error, dict) else {"message": error if isinstance(error, str) else None}
    message = error.get("message")
    if not isinstance(message, str):
        message = body.decode("utf-8", "replace")
    detail = f"HTTP {status}: {clean(message, key)}"
    if status == 400 and _is_content_filter(error):
        return Outcome(Refused(detail))
    billed = None if status in UNKNOWN_BILL else False
    if status in RETRIED_STATUSES or status >= 500:
        reason = {429: "rate_limited", 408: "timeout", 504: "timeout", 524: "timeout"}.get(status, "server_error")
        return Outcome(
            Failed(reason, detail),
            billed=billed,
            retry=True,
            retry_after=retry_after_seconds(headers.get("retry-after"), datetime.now(UTC)),
        )
    reason = "unauthorized" if status in (401, 403) else "wrong_address" if _is_elsewhere(status) else "bad_request"
    return Outcome(Failed(reason, detail), billed=billed)


def _is_elsewhere(status: int) -> bool:
    """Whether the server says that what was asked for is not here: no such model or path, or a redirection."""
    return status in (404, 405, 410) or 300 <= status < 400


def _is_content_filter(error: Mapping[str, Any]) -> bool:
    """Azure names it in `code`, or in the inner error; others in `type`."""
    inner = error.get("innererror")
    names = [error.get("code"), error.get("type"), inner.get("code") if isinstance(inner, dict) else None]
    return any(name in ("content_filter", "ResponsibleAIPolicyViolation", "content_policy_violation") for name in names)


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header (a number, or an HTTP date) asks to wait; None if it says nothing usable."""
    if value is None:
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,6})?\s*", value, re.ASCII):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
        return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    counts = [value.get("prompt_tokens"), value.get("completion_tokens", 0)]
    if not all(type(count) is int and 0 <= count <= MAX_TOKENS_COUNTED for count in counts):
        return None
    return Usage(*counts)


def _completion(parsed: dict[str, Any], request: ChatRequest, usage: Usage | None, key: SecretStr | None) -> Reply:
    choices = parsed.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return Failed("invalid_json", "the response holds no choices[0].message")
    finish, refusal = choice.get("finish_reason"), message.get("refusal")
    if isinstance(finish, str) and finish.lower() in _FILTERED:
        return Refused("the content filter stopped the reply")
    if isinstance(refusal, str) and refusal:
        return Refused(clean(refusal, key))
    if finish == "length":
        return Failed("truncated", f"the reply was cut off at {request.max_tokens} tokens; raise max_tokens")
    text = _text(message.get("content"))
    if text is None or not text.strip():
        return Failed("schema", "the reply holds no text")
    answered = _answer(_hide(text, key), choice, request, usage or Usage(0, 0), key)
    model = parsed.get("model")
    if isinstance(answered, Answered) and isinstance(model, str):
        return replace(answered, model=one_line(_hide(model, key), MAX_MODEL_NAME))
    return answered


def _answer(text: str, choice: dict[str, Any], request: ChatRequest, usage: Usage, key: SecretStr | None) -> Reply:
    try:
        value = validate_reply(text, request.schema) if request.schema else None
    except BadReply as error:
        return Failed(error.reason, clean(str(error), None))
    if len(text) > MAX_REPLY_CHARACTERS or not _is_unicode(text):
        return Failed("invalid_json", "the reply is too long, or holds half of a surrogate pair")
    logprobs, alternatives = _logprobs(choice, key)
    return Answered(
        text, value, usage.prompt_tokens, usage.completion_tokens, logprobs=logprobs, alternatives=alternatives
    )


def _text(content: Any) -> str | None:
    """A message's text; some servers send it in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None


def _logprobs(choice: dict[str, Any], key: SecretStr | None) -> tuple[_Pairs, tuple[_Pairs, ...]]:
    """Token and log-probability of each generated token, and the same of the most probable ones at each place.

    Either is empty if anything in it is not well formed, and the second if no place has any.
    """
    given = choice.get("logprobs")
    entries: Any = given.get("content") if isinstance(given, dict) else None
    chosen = _tokens(entries, key)
    if not chosen:
        return (), ()
    places = [_tokens(entry.get("top_logprobs"), key) for entry in entries]
    whole = all(place is not None for place in places) and any(places)
    return chosen, tuple(place for place in places if place is not None) if whole else ()


def _tokens(entries: Any, key: SecretStr | None) -> _Pairs | None:
    """Tokens with their log-probabilities; None if any is not well formed."""
    if not isinstance(entries, list):
        return None
    pairs: list[tuple[str, float]] = []
    for entry in entries:
        token, value = (entry.get("token"), entry.get("logprob")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, str) or not _is_unicode(token):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e30:
            return None
        pairs.append((_hide(token, key), float(value)))
    return tuple(pairs)


def _pairs(stored: Sequence[Sequence[Any]]) -> _Pairs:
    return tuple((token, value) for token, value in stored)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hide(text: str, key: SecretStr | None) -> str:
    secret = key.get_secret_value() if key else ""
    return text.replace(secret, "***") if len(secret) >= _MIN_SECRET else text
