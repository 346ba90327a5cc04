"""Log-probabilities, their alternatives and the answering model's name: asked for, read, kept, and read from of old."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import Received, Response, answer, serve

from editfoundry.core.chat.client import ChatClient, Endpoint
from editfoundry.core.chat.ledger import Ledger, StoredReply
from editfoundry.core.chat.messages import MAX_ALTERNATIVES, Answered, ChatRequest
from editfoundry.core.chat.wire import request_key

CHOSEN = [("4", -0.25), ("!", -3.5)]
PLACES = [{"4": -0.25, " 4": -2.0, "5": -9999.0}, {"!": -3.5}]
ASKED = ChatRequest("", ["Rate it."], logprobs=MAX_ALTERNATIVES, subject="s")


def endpoint(url: str) -> Endpoint:
    return Endpoint(base_url=url, model="m", attempts=1)


def ask(response: Response, ledger: Ledger | None = None) -> tuple[Answered, list[Received]]:
    with serve([response]) as server:
        (reply,) = ChatClient(endpoint(server.url), ledger).ask([ASKED])
        assert isinstance(reply, Answered)
        return reply, server.requests


def test_alternatives_are_asked_for_and_read() -> None:
    reply, (received,) = ask(answer("4!", logprobs=CHOSEN, alternatives=PLACES))
    assert (received.body["logprobs"], received.body["top_logprobs"]) == (True, 20)
    assert reply.logprobs == tuple(CHOSEN)
    assert reply.alternatives == tuple(tuple(place.items()) for place in PLACES)
    assert reply.model == "m-2026"


def test_without_asking_nothing_is_sent_and_the_key_stays() -> None:
    plain = ChatRequest("", ["Rate it."])
    with serve([answer("4")]) as server:
        ChatClient(endpoint(server.url)).ask([plain])
    assert not {"logprobs", "top_logprobs"} & set(server.requests[0].body)
    keys = {request_key(endpoint("http://a/v1"), ChatRequest("", ["x"], logprobs=count)) for count in (0, 5, 20)}
    assert len(keys) == 3


def test_they_are_kept_in_the_ledger(tmp_path: Path) -> None:
    with serve([answer("4!", logprobs=CHOSEN, alternatives=PLACES, model="m-of-today")]) as server:
        first, again = (
            ChatClient(endpoint(server.url), Ledger(tmp_path / "l.sqlite")).ask([ASKED])[0] for _ in range(2)
        )
    assert isinstance(first, Answered) and isinstance(again, Answered)
    assert len(server.requests) == 1
    assert (again.cached, again.alternatives, again.logprobs) == (True, first.alternatives, first.logprobs)
    assert again.alternatives[0][1] == (" 4", -2.0)
    assert again.model == "m-of-today"


def test_a_ledger_from_before_is_read(tmp_path: Path) -> None:
    with serve([answer("no")]) as server:
        ledger = Ledger(tmp_path / "l.sqlite")
        attempt = ledger.reserve(request_key(endpoint(server.url), ASKED), 0)
        old = {"text": "4", "prompt_tokens": 7, "completion_tokens": 1, "logprobs": [["4", -0.5]]}
        ledger.settle(attempt, "answered", cost=0, reply=StoredReply("answered", old))
        assert ChatClient(endpoint(server.url), ledger).ask([ASKED]) == [
            Answered("4", None, 7, 1, cached=True, logprobs=(("4", -0.5),))
        ]
    assert not server.requests


@pytest.mark.parametrize(
    "places",
    [
        None,
        [None, None],
        "text",
        [{"token": "4"}],
        [{"token": 4, "logprob": 0.0}],
        [7],
        [{"token": "x", "logprob": 1e99}],
    ],
    ids=str,
)
def test_damaged_alternatives_are_none(places: Any) -> None:
    body = json.loads(answer("4!", logprobs=CHOSEN).body)
    body["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = places
    body["choices"][0]["logprobs"]["content"][1]["top_logprobs"] = [{"token": "!", "logprob": -3.5}]
    reply, _ = ask(Response(json.dumps(body).encode()))
    assert reply.logprobs == tuple(CHOSEN)
    assert reply.alternatives == ()


def test_a_server_that_shows_only_the_chosen_tokens_gives_no_alternatives() -> None:
    assert ask(answer("4!", logprobs=CHOSEN, alternatives=[{}, {}]))[0].alternatives == ()
    assert ask(answer("4!", logprobs=CHOSEN))[0].alternatives == ()
    reply = ask(answer("4!", logprobs=[]))[0]
    assert (reply.logprobs, reply.alternatives) == ((), ())


@pytest.mark.parametrize(
    ("said", "kept"),
    [(None, ""), (7, ""), ("a\u202e\nb", "a b"), ("x" * 999, "x" * 200)],
    ids=["none", "7", "line", "long"],
)
def test_a_models_name_is_one_short_line(said: Any, kept: str) -> None:
    assert ask(answer("4", model=said))[0].model == kept
