"""The client for OpenAI-compatible servers: many requests at once, each asked until it is answered, refused or failed.

from editfoundry.core.chat.client import ChatClient, Endpoint
client = ChatClient(Endpoint(base_url="http://localhost:8000/v1", model="Qwen/Qwen2.5-VL-7B-Instruct"))
replies = client.ask([ChatRequest(system="You describe photographs.", parts=["Describe it.", pixels])])
"""

import asyncio
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial

from pydantic import SecretStr

from editfoundry.core.chat.account import NANO, usd
from editfoundry.core.chat.endpoint import Endpoint
from editfoundry.core.chat.ledger import Attempt, BudgetReached, Ledger, State, StoredReply, current_ledger
from editfoundry.core.chat.messages import Answered, ChatRequest, Failed, Refused, Reply
from editfoundry.core.chat.structured import BadReply
from editfoundry.core.chat.wire import (
    Outcome,
    clean,
    cost_bound,
    read_response,
    request_body,
    request_key,
    restored,
    storable,
)
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.log import run_log

try:
    import httpx
    from tenacity import (
        AsyncRetrying,
        RetryCallState,
        retry_if_result,
        stop_after_attempt,
        wait_exponential,
        wait_random,
    )
except ImportError as error:
    raise EditFoundryError(f"the API client needs {error.name}: pip install 'editfoundry[full]'") from error

__all__ = ["BudgetReached", "ChatClient", "Endpoint"]

MAX_BODY_BYTES = 16 * 1024 * 1024
LOOK_AGAIN_S = 0.5
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class ChatClient:
    """Asks one model of one server. Replies that were paid for before come from the ledger and cost nothing.

    ledger: where replies and costs are kept; None: the process's (`use_ledger`), or else one in memory for as long as
    the client lives.
    """

    def __init__(self, endpoint: Endpoint, ledger: Ledger | None = None) -> None:
        self.endpoint = endpoint
        self._ledger = ledger
        self._own = Ledger()

    @property
    def ledger(self) -> Ledger:
        """The ledger in use."""
        return self._ledger or current_ledger() or self._own

    def ask(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        """One reply per request, in order: see `ask_async`. Not for use inside a running event loop."""
        return asyncio.run(self.ask_async(requests))

    async def ask_async(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        """Ask all requests, at most `concurrency` at a time; equal ones are asked once.

        A request that cannot be answered is Refused or Failed, never an exception. Raises BudgetReached when the
        budget leaves too little for the next attempt, LedgerError and OSError (disk full) for the ledger's file, and
        BadApiKey; before raising, requests in flight are finished and kept.
        """
        key = self.endpoint.api_key()
        timeout = httpx.Timeout(self.endpoint.timeout_s)
        limits = httpx.Limits(max_connections=self.endpoint.concurrency)
        headers = self.endpoint.headers(key)
        async with httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers, verify=_tls()) as http:
            return await _Asking(self.endpoint, self.ledger, http, key).all(requests)


class _Asking:
    """One call of `ask`: a fixed number of workers that take the requests in order."""

    def __init__(self, endpoint: Endpoint, ledger: Ledger, http: httpx.AsyncClient, key: SecretStr | None) -> None:
        self.endpoint, self.ledger, self.http, self.key = endpoint, ledger, http, key
        self.stopped = False
        self.landed = asyncio.Event()

    async def all(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        positions: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            name = await asyncio.to_thread(request_key, self.endpoint, request)
            positions.setdefault(name, []).append(position)
        replies: dict[int, Reply] = {}
        left = iter(positions.items())
        workers = [self._work(left, requests, replies) for _ in range(min(self.endpoint.concurrency, len(positions)))]
        for end in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(end, BaseException):
                raise end
        return [replies[position] for position in range(len(requests))]

    async def _work(
        self, left: Iterator[tuple[str, list[int]]], requests: Sequence[ChatRequest], replies: dict[int, Reply]
    ) -> None:
        for name, positions in left:
            if self.stopped:
                return
            try:
                reply = replies[positions[0]] = await self._one(name, requests[positions[0]])
                for position in positions[1:]:
                    again = reply if isinstance(reply, Failed) else await self._one(name, requests[position])
                    replies[position] = again
            except BaseException:
                self.stopped = True
                raise

    async def _one(self, name: str, request: ChatRequest) -> Reply:
        """The reply the ledger holds, or a new one."""
        stored = await asyncio.to_thread(self.ledger.lookup, name, request.subject)
        if stored is not None and stored.kind == "refused":
            return Refused(stored.data["detail"])
        if stored is not None:
            try:
                return restored(stored.data, request)
            except BadReply:
                run_log().info("a stored reply does not satisfy its schema any more and is asked for again")
        return await self._until_usable(name, request)

    async def _until_usable(self, name: str, request: ChatRequest) -> Reply:
        unusable = 0

        async def attempt() -> Outcome:
            nonlocal unusable
            outcome = await self._attempt(name, request, unusable)
            unusable += isinstance(outcome.reply, Failed) and outcome.reply.reason in ("schema", "invalid_json")
            return outcome

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.endpoint.attempts),
            wait=self._wait,
            retry=retry_if_result(lambda outcome: outcome.retry),
            retry_error_callback=_last_outcome,
        )
        outcome: Outcome = await retrying(attempt)
        return outcome.reply

    def _wait(self, state: RetryCallState) -> float:
        """Exponential with jitter, and not before the server wants it, within `retry_max_s`."""
        smallest, largest = self.endpoint.retry_min_s, self.endpoint.retry_max_s
        own = (wait_exponential(multiplier=smallest, max=largest) + wait_random(0, smallest))(state)
        return min(max(own, _last_outcome(state).retry_after or 0.0), largest)

    async def _attempt(self, name: str, request: ChatRequest, unusable: int) -> Outcome:
        """One attempt, settled in the ledger whatever becomes of it."""
        body = await asyncio.to_thread(request_body, self.endpoint, request, unusable)
        attempt = await self._reserve(name, request)
        try:
            try:
                outcome = await self._post(body, request)
            except BaseException:
                self.ledger.settle(attempt, "in_doubt", cost=None, reason="interrupted")
                raise
            await asyncio.to_thread(self._settle, attempt, outcome)
            return outcome
        finally:
            self.landed.set()

    async def _reserve(self, name: str, request: ChatRequest) -> Attempt:
        """Set the attempt's bound aside. Where that is too much, wait for those in flight, here and in other processes:

        they mostly cost less than was set aside for them, and when the run then stops they are finished and kept.
        Attempts that stay in flight beyond the time they have are of a process that died.
        """
        budget = self.endpoint.budget_usd
        reserve = partial(
            self.ledger.reserve,
            name,
            cost_bound(self.endpoint, request),
            subject=request.subject,
            purpose=request.purpose,
            model=self.endpoint.model,
            budget=None if budget is None else round(budget * NANO),
        )
        in_flight, deadline = None, 0.0
        while True:
            try:
                return await asyncio.to_thread(reserve)
            except BudgetReached as error:
                if error.in_flight != in_flight:
                    in_flight, deadline = error.in_flight, time.monotonic() + self.endpoint.timeout_s + LOOK_AGAIN_S
                if not in_flight or time.monotonic() > deadline:
                    raise
            self.landed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.landed.wait(), LOOK_AGAIN_S)

    async def _post(self, body: bytes, request: ChatRequest) -> Outcome:
        """Send, and read all of the response, within `timeout_s` by the wall clock however slowly bytes come."""
        try:
            async with (
                asyncio.timeout(self.endpoint.timeout_s),
                self.http.stream("POST", self.endpoint.url, content=body) as response,
            ):
                if response.headers.get("content-encoding", "identity") != "identity":
                    return _no_reply("invalid_json", "the response is compressed, which was not asked for")
                received = bytearray()
                async for chunk in response.aiter_raw():
                    received += chunk
                    if len(received) > MAX_BODY_BYTES:
                        return _no_reply("invalid_json", f"the response is larger than {MAX_BODY_BYTES} bytes")
        except (TimeoutError, httpx.TimeoutException):
            return _no_reply("timeout", f"no complete response within {self.endpoint.timeout_s:g} s (timeout_s)")
        except (httpx.TransportError, OSError) as error:
            sent = not isinstance(error, _NEVER_SENT)
            return _no_reply("network", clean(f"{type(error).__name__}: {error}", self.key), sent)
        return read_response(response.status_code, response.headers, bytes(received), request, self.key)

    def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        reply, usage = outcome.reply, outcome.usage
        cost = None if outcome.billed is None else 0
        if usage is not None:
            cost = self.endpoint.cost(usage.prompt_tokens, usage.completion_tokens)
            if cost > attempt.reserved:
                run_log().warning(
                    "an attempt cost %s, more than the %s set aside for it: raise tokens_per_image",
                    usd(cost),
                    usd(attempt.reserved),
                )
        state: State = "in_doubt" if cost is None else "failed"
        stored, reason = None, reply.reason if isinstance(reply, Failed) else ""
        if isinstance(reply, Answered):
            state, stored = "answered", StoredReply("answered", storable(reply))
        elif isinstance(reply, Refused):
            state, stored = "refused", StoredReply("refused", {"detail": reply.detail})
        self.ledger.settle(
            attempt,
            state,
            cost=cost,
            reason=reason,
            reply=stored,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
        )


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than a request to a local server."""
    return httpx.create_ssl_context()


def _no_reply(reason: str, detail: str, sent: bool = True) -> Outcome:
    """Nothing usable arrived. Once a request was sent, its bill is not known."""
    return Outcome(Failed(reason, detail), billed=None if sent else False, retry=True)


def _last_outcome(state: RetryCallState) -> Outcome:
    assert state.outcome is not None
    outcome: Outcome = state.outcome.result()
    return outcome
