"""The API client against a real HTTP server that misbehaves in every way it is known to."""

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import Received, Response, answer, failure, serve
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from editfoundry.core.chat.client import MAX_BODY_BYTES, ChatClient, Endpoint
from editfoundry.core.chat.endpoint import BadApiKey
from editfoundry.core.chat.ledger import BudgetReached, Ledger, LedgerError, current_ledger, use_ledger
from editfoundry.core.chat.messages import Answered, ChatRequest, Failed, Refused, Reply
from editfoundry.core.chat.wire import request_key, retry_after_seconds
from editfoundry.core.config import Config, validate
from editfoundry.core.errors import ConfigError
from editfoundry.core.log import close_log, open_log

KEY = "sk-0123456789abcdef"
GOOD = {"caption": "a red cup", "score": 4}


class Caption(Config):
    score: int = Field(ge=1, le=5)
    caption: str = Field(max_length=60)


def endpoint(url: str, **settings: Any) -> Endpoint:
    quick = {"retry_min_s": 0.001, "retry_max_s": 0.01, "timeout_s": 10, "price_input": 1, "price_output": 10}
    return Endpoint.model_validate({"base_url": url, "model": "m", **quick, **settings})


def question(text: str = "Describe it.", **how: Any) -> ChatRequest:
    return ChatRequest(**{"system": "You see.", "parts": [text], "schema": Caption, "max_tokens": 20, **how})


def ask(url: str, *requests: ChatRequest, **settings: Any) -> list[Reply]:
    return ChatClient(endpoint(url, **settings)).ask(requests)


def kind(reply: Reply) -> str:
    return reply.reason if isinstance(reply, Failed) else type(reply).__name__.lower()


def cut(content: Any) -> Response:
    whole = answer(content)
    return Response(whole.body[:-20], billed=whole.billed)


TROUBLES: dict[str, tuple[Response, str, bool]] = {
    # what the server does always: how the request ends, and whether it is asked again before
    "429": (failure(429), "rate_limited", True),
    "500": (failure(500), "server_error", True),
    "503 without JSON": (Response(b"<html>busy</html>", 503), "server_error", True),
    "408": (failure(408), "timeout", True),
    "409": (failure(409), "server_error", True),
    "gateway timeout": (failure(504), "timeout", True),
    "connection dropped": (Response(drop=True), "network", True),
    "body cut off": (Response(answer(GOOD).body, keep=40), "network", True),
    "truncated JSON": (cut(GOOD), "invalid_json", True),
    "no JSON": (Response(b"hello"), "invalid_json", True),
    "a list": (Response(b"[]"), "invalid_json", True),
    "deep": (Response(b"[" * 200_000), "invalid_json", True),
    "NaN outside": (Response(answer(GOOD).body[:-1] + b', "x": NaN}'), "invalid_json", True),
    "no choices": (Response(b'{"choices": []}'), "invalid_json", True),
    "choices of nonsense": (Response(b'{"choices": [7]}'), "invalid_json", True),
    "compressed": (Response(answer(GOOD).body, headers={"Content-Encoding": "gzip"}), "invalid_json", True),
    "error with status 200": (Response(b'{"error": {"message": "overloaded", "code": 529}}'), "server_error", True),
    "prose": (answer("It is a cup."), "invalid_json", True),
    "NaN": (answer('{"caption": "x", "score": NaN}'), "invalid_json", True),
    "deep reply": (answer('{"caption":' + "[" * 100_000), "invalid_json", True),
    "surrogate": (answer('{"caption": "\ud800", "score": 1}'), "invalid_json", True),
    "wrong type": (answer({"caption": "x", "score": "4"}), "schema", True),
    "out of range": (answer({"caption": "x", "score": 6}), "schema", True),
    "extra key": (answer({**GOOD, "more": 1}), "schema", True),
    "too long": (answer({"caption": "x" * 61, "score": 1}), "schema", True),
    "no text": (answer(None), "schema", True),
    "blank": (answer(" \n"), "schema", True),
    "cut at max_tokens": (answer('{"capt', finish="length"), "truncated", False),
    "400": (failure(400, "no such parameter"), "bad_request", False),
    "401": (failure(401), "unauthorized", False),
    "404": (failure(404, "no such model"), "wrong_address", False),
    "redirect": (Response(b"", 307, {"Location": "http://127.0.0.1:9/v1"}), "wrong_address", False),
    "no content": (Response(b"", 206), "bad_request", False),
    "content filter": (answer("", finish="content_filter"), "refused", False),
    "refusal": (answer(None, refusal="I can't help with that."), "refused", False),
    "Azure's filter": (failure(400, "The response was filtered", code="content_filter"), "refused", False),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_ends_in_its_kind(trouble: str) -> None:
    response, expected, retried = TROUBLES[trouble]
    with serve([response]) as server:
        client = ChatClient(endpoint(server.url, attempts=3))
        (reply,) = client.ask([question()])
        account = client.ledger.account()
    assert kind(reply) == expected
    assert len(server.requests) == account.attempts == (3 if retried else 1)
    assert account.answered + account.refused + account.failed == account.requests == 1
    assert account.refused == (expected == "refused")


@pytest.mark.parametrize("trouble", [name for name, case in TROUBLES.items() if case[2]])
def test_a_passing_trouble_is_got_over(trouble: str) -> None:
    with serve([TROUBLES[trouble][0], answer(GOOD, prompt_tokens=7, completion_tokens=3)]) as server:
        (reply,) = ask(server.url, question())
    assert reply == Answered(json.dumps(GOOD), Caption(caption="a red cup", score=4), 7, 3, model="m-2026")
    assert len(server.requests) == 2
    # After an unusable reply another one is drawn; after a lost one the same question is sent.
    lost = TROUBLES[trouble][1] in ("rate_limited", "server_error", "timeout", "network")
    assert [received.body["seed"] for received in server.requests] == ([0, 0] if lost else [0, 1])


def test_nobody_listens() -> None:
    with serve([answer(GOOD)]) as server:
        url = server.url
    client = ChatClient(endpoint(url, attempts=2))
    (reply,) = client.ask([question()])
    assert kind(reply) == "network"
    account = client.ledger.account()
    assert (account.attempts, account.in_doubt, account.cost_usd) == (2, 0, 0.0), "nothing was sent, so nothing is owed"


@pytest.mark.parametrize("slow", [Response(delay_s=30), Response(b"", drip_s=0.02)], ids=["silent", "dripping"])
def test_time_is_up_by_the_clock(slow: Response) -> None:
    with serve([slow]) as server:
        client = ChatClient(endpoint(server.url, attempts=2, timeout_s=0.3))
        start = time.monotonic()
        (reply,) = client.ask([question()])
        elapsed = time.monotonic() - start
        account = client.ledger.account()
    assert kind(reply) == "timeout"
    assert 0.6 <= elapsed < 5
    assert account.in_doubt == account.attempts == 2
    assert account.cost_usd == account.in_doubt_usd > 0, "what may have been billed counts as spent"


def test_an_endless_body_is_cut_off() -> None:
    with serve([Response(b" " * (MAX_BODY_BYTES + 1))]) as server:
        (reply,) = ask(server.url, question(), attempts=1)
    assert isinstance(reply, Failed)
    assert (reply.reason, "larger than" in reply.detail) == ("invalid_json", True)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_obeyed_and_capped(form: str) -> None:
    times: list[float] = []

    def handler(_: Received) -> Response:
        times.append(time.monotonic())
        wait = "3600" if form == "seconds" else format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
        return failure(429, Retry_After=wait) if len(times) == 1 else answer(GOOD)

    with serve(handler) as server:
        (reply,) = ask(server.url, question(), retry_max_s=0.4)
    assert kind(reply) == "answered"
    assert 0.4 <= times[1] - times[0] < 3


def test_retry_after_forms() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert retry_after_seconds(None, now) is None
    assert retry_after_seconds(" 7 ", now) == 7
    assert retry_after_seconds("1.5", now) == 1.5
    assert retry_after_seconds("Fri, 02 Jan 2026 03:04:15 GMT", now) == 10
    assert retry_after_seconds("Fri, 02 Jan 2026 03:03:05 GMT", now) == 0
    assert retry_after_seconds("soon", now) is None
    assert retry_after_seconds("-5", now) is None


@given(st.text(max_size=40))
def test_retry_after_never_breaks(value: str) -> None:
    found = retry_after_seconds(value, datetime(2026, 1, 1, tzinfo=UTC))
    assert found is None or found >= 0


def test_accounts_agree_with_the_server_whatever_happens() -> None:
    """80 requests, and every third response is some trouble: one kind each, and every attempt and token is counted."""
    troubles = [case[0] for case in TROUBLES.values()]

    def handler(received: Received) -> Response:
        number = received.number
        return troubles[number // 3 % len(troubles)] if number % 3 == 0 else answer(GOOD, prompt_tokens=number)

    requests = [question(f"Number {number}", purpose="even" if number % 2 == 0 else "odd") for number in range(80)]
    with serve(handler) as server:
        client = ChatClient(endpoint(server.url, attempts=2, concurrency=8))
        replies = client.ask(requests)
        account = client.ledger.account()
    kinds = Counter(map(kind, replies))
    assert account.requests == sum(kinds.values()) == 80
    assert (account.answered, account.refused) == (kinds["answered"], kinds["refused"])
    assert account.failed == 80 - kinds["answered"] - kinds["refused"] > 0
    assert account.attempts == len(server.requests)
    # Of bodies that cannot be read the tokens cannot be known: those attempts are in doubt.
    unread = [response for response in server.responses if response in (cut(GOOD), TROUBLES["compressed"][0])]
    unread += [response for response in server.responses if response == TROUBLES["NaN outside"][0]]
    known = [sum(pair) for pair in zip(*(r.billed for r in server.responses if r not in unread), strict=True)]
    assert [account.prompt_tokens, account.completion_tokens] == known
    assert sum(spent.attempts for spent in account.purposes.values()) == account.attempts
    assert account.cost_usd == pytest.approx((known[0] + 10 * known[1]) / 1e6 + account.in_doubt_usd)


def test_only_so_many_are_in_flight() -> None:
    with serve(lambda _: answer(GOOD, delay_s=0.05)) as server:
        ask(server.url, *[question(f"{number}") for number in range(20)], concurrency=5)
    assert server.peak == 5
    assert len(server.requests) == 20


def test_equal_requests_are_asked_once_and_answered_each() -> None:
    with serve([answer(GOOD, delay_s=0.05)]) as server:
        client = ChatClient(endpoint(server.url))
        replies = client.ask([question(subject="one"), question(subject="two"), question("Another?")])
        again = client.ask([question(subject="three")])
    assert len(server.requests) == 2
    assert [reply.cached for reply in [*replies, *again] if isinstance(reply, Answered)] == [False, True, False, True]
    assert client.ledger.account().cached_hits == 2
    assert client.ledger.forget(["three"]) == 1, "a reply is about everyone who asked for it"


def test_refusals_are_kept_and_failures_are_not() -> None:
    responses = [answer(None, refusal="No."), failure(400, "bad"), answer(GOOD)]
    with serve(responses) as server:
        client = ChatClient(endpoint(server.url, concurrency=1))
        requests = [question("first"), question("second")]
        assert client.ask(requests) == [Refused("No."), Failed("bad_request", "HTTP 400: bad")]
        replies = client.ask(requests)
    assert replies[0] == Refused("No.")
    assert kind(replies[1]) == "answered"
    assert len(server.requests) == 3


def test_what_is_sent() -> None:
    image = np.full((60, 120, 3), (250, 10, 20), np.uint8)
    with serve([answer(GOOD)]) as server:
        request = question("Look:", parts=["Look:", image, "Well?"], temperature=0.5, seed=3, schema=None)
        ask(server.url, request, max_image_side=30, extra={"top_p": 0.9, "temperature": None})
        ask(server.url, question(), token_limit="max_completion_tokens", structured="json_object")
        ask(server.url, question(), structured="none")
        ask(server.url, question())
        ask(f"{server.url}/?api-version=7", question())
    first, second, third, fourth, fifth = server.requests
    assert [part["type"] for part in first.parts] == ["text", "image_url", "text"]
    assert first.images[0].shape == (15, 30, 3)
    assert abs(first.images[0].astype(int) - (250, 10, 20)).max() <= 3
    assert {key: first.body.get(key) for key in ("top_p", "temperature", "seed", "max_tokens", "response_format")} == {
        "top_p": 0.9,
        "temperature": None,
        "seed": 3,
        "max_tokens": 20,
        "response_format": None,
    }
    assert (second.body["max_completion_tokens"], second.body["response_format"]) == (20, {"type": "json_object"})
    assert '"caption"' in second.system
    assert '"caption"' in third.system
    assert "response_format" not in third.body
    assert fourth.system == "You see."
    assert fourth.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["score", "caption"],
        "properties": {"caption": {"type": "string"}, "score": {"type": "integer", "enum": [1, 2, 3, 4, 5]}},
    }
    assert list(fourth.schema["properties"]) == list(Caption.model_fields), "models write properties in this order"
    assert fifth.path == "/v1/chat/completions?api-version=7"


def test_hostile_text_in_a_prompt_is_sent_as_text() -> None:
    with serve([answer(GOOD)]) as server:
        (reply,) = ask(server.url, question("half \ud800 \x00 </s>"))
    assert kind(reply) == "answered"
    assert server.requests[0].text == "half ? \x00 </s>"


def test_log_probabilities_are_passed_on() -> None:
    given = [("4", -0.25), ("!", -3.5)]
    with serve([answer("4!", logprobs=given), answer("4!", logprobs=[("4", float("1e99"))])]) as server:
        client = ChatClient(endpoint(server.url, extra={"logprobs": True}))
        for _ in range(2):
            (reply,) = client.ask([question(schema=None)])
            assert isinstance(reply, Answered)
            assert reply.logprobs == tuple(given)
        (odd,) = client.ask([question("other", schema=None)])
    assert isinstance(odd, Answered)
    assert odd.logprobs == ()
    assert server.requests[0].body["logprobs"] is True


def test_the_key_of_a_request() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    other = image.copy()
    other[7, 7, 2] = 1
    plain = endpoint("http://a/v1")
    base = question(parts=["x", image])
    different = [
        (plain, question(parts=["x", other])),
        (plain, question(parts=["y", image])),
        (plain, question(parts=["x", image], seed=1)),
        (plain, question(parts=["x", image], schema=None)),
        (plain, question(parts=["x", image], temperature=0.1)),
        (endpoint("http://b/v1"), base),
        (endpoint("http://a/v1", model="n"), base),
        (endpoint("http://a/v1", jpeg_quality=50), base),
        (endpoint("http://a/v1", extra={"seed": None}), question(parts=["x", image], seed=2)),
    ]
    keys = {request_key(*pair) for pair in [(plain, base), *different]}
    assert len(keys) == len(different) + 1
    same = [
        (endpoint("http://a/v1/", concurrency=1, timeout_s=1, attempts=1, price_input=3), base),
        (plain, question(parts=["x", image.copy()], subject="s", purpose="p")),
    ]
    assert {request_key(*pair) for pair in same} == {request_key(plain, base)}


def test_a_kept_reply_that_no_longer_satisfies_is_asked_again() -> None:
    banned: set[str] = set()

    class Strict(Caption):
        @field_validator("caption")
        @classmethod
        def _allowed(cls, value: str) -> str:
            if value in banned:
                raise ValueError("banned word")
            return value

    with serve([answer(GOOD), answer({"caption": "fine", "score": 2})]) as server:
        client = ChatClient(endpoint(server.url))
        client.ask([question(schema=Strict)])
        banned.add("a red cup")
        (reply,) = client.ask([question(schema=Strict)])
        (kept,) = client.ask([question(schema=Strict)])
    assert isinstance(reply, Answered)
    assert isinstance(kept, Answered)
    assert (reply.value.caption, reply.cached, kept.value, kept.cached) == ("fine", False, reply.value, True)


def test_the_cap_stops_in_time_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    """100 + 10 * 20 = 300 millionths of a USD each; what is set aside before is more, since it goes by bytes."""
    requests = [question(f"Number {number}") for number in range(30)]
    with serve(lambda _: answer(GOOD, prompt_tokens=100, completion_tokens=20, delay_s=0.01)) as server:
        client = ChatClient(endpoint(server.url, budget_usd=0.004, concurrency=6), Ledger(tmp_path / "l.sqlite"))
        with pytest.raises(BudgetReached, match=r"budget of \$0\.004 is reached.*raise budget_usd and repeat"):
            client.ask(requests)
        first = client.ledger.account()
        assert first.answered == len(server.requests) == first.attempts
        assert 10 <= first.answered <= 13
        assert first.cost_usd == pytest.approx(first.answered * 300e-6)
        assert (first.in_doubt, first.open) == (0, 0)
        with pytest.raises(BudgetReached):
            client.ask(requests)
        assert len(server.requests) == first.attempts, "what is answered already costs nothing, and nothing new fits"
        client.ledger.close()
        more = ChatClient(endpoint(server.url, budget_usd=1, concurrency=6), Ledger(tmp_path / "l.sqlite"))
        replies = more.ask(requests)
    assert {kind(reply) for reply in replies} == {"answered"}
    assert sum(reply.cached for reply in replies if isinstance(reply, Answered)) == first.answered
    assert len(server.requests) == 30
    assert server.billed == (more.ledger.account().prompt_tokens, more.ledger.account().completion_tokens)


def test_a_reservation_that_a_dead_process_left_is_waited_for_only_as_long_as_it_could_live() -> None:
    with serve([answer(GOOD)]) as server:
        client = ChatClient(endpoint(server.url, budget_usd=0.001, timeout_s=0.3), Ledger())
        client.ledger.reserve("of a process that died", 900_000)
        start = time.monotonic()
        with pytest.raises(BudgetReached, match=r"\$0\.0009 set aside for requests in flight"):
            client.ask([question()])
    assert time.monotonic() - start >= 0.3
    assert server.requests == []


def test_a_server_that_names_no_usage_is_charged_in_full() -> None:
    body = json.dumps({"choices": [{"message": {"content": json.dumps(GOOD)}, "finish_reason": "stop"}]})
    with serve([Response(body.encode())]) as server:
        client = ChatClient(endpoint(server.url))
        (reply,) = client.ask([question()])
    assert kind(reply) == "answered"
    assert client.ledger.account().cost_usd > 20 * 10e-6


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": -1}, {"prompt_tokens": True}, {"prompt_tokens": 1 << 70}, {"prompt_tokens": 1.5}, "many", None],
)
def test_odd_usage_counts_as_none(usage: Any) -> None:
    body = {**json.loads(answer(GOOD).body), "usage": usage}
    with serve([Response(json.dumps(body).encode())]) as server:
        client = ChatClient(endpoint(server.url))
        (reply,) = client.ask([question()])
    assert kind(reply) == "answered"
    assert client.ledger.account().prompt_tokens == 0


def test_a_cancelled_attempt_is_in_doubt() -> None:
    with serve([answer(GOOD, delay_s=30)]) as server:
        client = ChatClient(endpoint(server.url))

        async def impatient() -> None:
            await asyncio.wait_for(client.ask_async([question()]), 0.3)

        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
    account = client.ledger.account()
    assert (account.attempts, account.in_doubt, account.failed) == (1, 1, 1)


def test_the_key_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    open_log(tmp_path / "logs", "w")
    responses = [
        failure(401, f"Incorrect API key {KEY}."),
        answer({"caption": KEY, "score": 1}),
        answer(None, refusal=f"not with {KEY}"),
        answer({"caption": "x", "score": 1, KEY: 1}),
        Response(KEY.encode(), 400),
        answer("x", logprobs=[(KEY, -1.0)], prompt_tokens=9_999_999),
    ]
    with serve(responses) as server:
        client = ChatClient(
            endpoint(server.url, api_key_env="MY_KEY", attempts=1, concurrency=1), Ledger(tmp_path / "l.sqlite")
        )
        replies = client.ask([question(str(number)) for number in range(5)] + [question("5", schema=None)])
        client.ledger.close()
    close_log()
    assert [kind(reply) for reply in replies] == [
        "unauthorized",
        "answered",
        "refused",
        "schema",
        "bad_request",
        "answered",
    ]
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(replies) + repr(client) + repr(vars(client)) + repr(client.endpoint) + str(replies[-1])
    assert replies[0] == Failed("unauthorized", "HTTP 401: Incorrect API key ***.")
    assert isinstance(replies[5], Answered)
    assert replies[5].logprobs == (("***", -1.0),)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"l.sqlite", "w.jsonl"}
    assert b"raise tokens_per_image" in (tmp_path / "logs/w.jsonl").read_bytes()
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_a_broken_key_is_named_not_quoted(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(BadApiKey, match="MY_KEY") as caught:
        ask("http://127.0.0.1:9/v1", question(), api_key_env="MY_KEY")
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url: expected an address"),
        ({"base_url": "https://me:pw@host/v1"}, "must not carry a secret"),
        ({"base_url": "https://host/v1?api_key=1"}, "must not carry a secret"),
        ({"budget_usd": 5, "price_input": 0, "price_output": 0}, "budget_usd needs price_input and price_output"),
        ({"extra": {"stream": True}}, "extra must not set stream"),
        ({"extra": {"top_p": float("nan")}}, "extra cannot be written as JSON"),
        ({"retry_min_s": 5, "retry_max_s": 1}, "retry_max_s must not be below"),
    ],
)
def test_a_wrong_endpoint_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Endpoint, {"base_url": "http://a/v1", "model": "m", **settings}, where="f.yaml")


def test_azure_gets_the_key_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    azure = endpoint("https://x.openai.azure.com/openai/deployments/d?api-version=2024-10-21")
    assert azure.headers(azure.api_key())["api-key"] == KEY
    assert azure.url == "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21"
    assert "api-key" not in endpoint("http://a/v1").headers(azure.api_key())


def test_the_process_ledger_is_used_unless_the_client_has_one(tmp_path: Path) -> None:
    with serve([answer(GOOD)]) as server:
        client = ChatClient(endpoint(server.url))
        use_ledger(tmp_path / "run.sqlite")
        try:
            assert not (tmp_path / "run.sqlite").exists(), "made when a model is asked"
            client.ask([question()])
            ledger = current_ledger()
            assert ledger is not None
            assert ledger.account().answered == 1
            own = ChatClient(endpoint(server.url), Ledger())
            own.ask([question()])
            assert own.ledger.account().answered == 1
        finally:
            use_ledger(None)
        assert (client.ledger.account().answered, current_ledger()) == (0, None)
    assert len(server.requests) == 2


def test_a_ledger_that_cannot_be_used_stops_at_once(tmp_path: Path) -> None:
    (tmp_path / "l.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 50)
    with serve([answer(GOOD)]) as server:
        for path, words in ((tmp_path / "l.sqlite", "damaged"), (tmp_path / "none/l.sqlite", "cannot be made")):
            with pytest.raises(LedgerError, match=words):
                ChatClient(endpoint(server.url), Ledger(path)).ask([question(), question("b")])
    assert server.requests == []


def test_a_named_key_that_is_not_set_is_an_error_and_an_unnamed_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(BadApiKey, match="MY_KEY: api_key_env names this environment variable, and it is not set"):
        endpoint("http://x/v1", api_key_env="MY_KEY").api_key()
    assert endpoint("http://x/v1").api_key() is None
