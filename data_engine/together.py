"""Runs many coroutines side by side, so that what they ask of models is served in batches. No threads, no event loop.

A coroutine awaits `Ask(role, request)`. When every coroutine still running waits, all requests of one role are served
by one call, and each coroutine goes on with its own reply.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Serve = Callable[[str, list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Ask:
    """One request to the model of a role; awaiting it gives the reply."""

    role: str
    request: Any

    def __await__(self) -> Generator[tuple["Ask", ...], Sequence[Any], Any]:
        [reply] = yield (self,)
        return reply


@dataclass(frozen=True)
class _Round:
    asks: tuple[Ask, ...]

    def __await__(self) -> Generator[tuple[Ask, ...], Sequence[Any], Sequence[Any]]:
        return (yield self.asks)


async def gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T | Exception]:
    """What each coroutine returned or raised, in order, run side by side inside another coroutine.

    An exception ends only the coroutine that raised it. On the way out all are closed.
    """
    results: dict[int, T | Exception] = {}
    replies: dict[int, Sequence[Any] | None] = dict.fromkeys(range(len(coroutines)))
    try:
        while replies:
            waiting: dict[int, tuple[Ask, ...]] = {}
            for index, reply in replies.items():
                try:
                    waiting[index] = coroutines[index].send(reply)
                except StopIteration as done:
                    results[index] = done.value
                except Exception as error:  # noqa: BLE001 - returned to the caller, who decides
                    results[index] = error
            answers = iter(await _Round(tuple(ask for asks in waiting.values() for ask in asks)) if waiting else ())
            replies = {index: [next(answers) for _ in asks] for index, asks in waiting.items()}
    finally:
        for coroutine in coroutines:
            coroutine.close()
    return [results[index] for index in range(len(coroutines))]


def run_together(coroutines: Sequence[Coroutine[Any, Any, T]], serve: Serve) -> list[T | Exception]:
    """What each coroutine returned or raised, in order.

    `serve(role, requests)` answers all requests of a role that wait at the same time, in order: by coroutine, then as
    asked. Roles are served in the order of their names. What `serve` raises is raised here, and ends them all.
    """
    whole = gather(coroutines)
    try:
        asks: tuple[Ask, ...] = whole.send(None)
        while True:
            replies: dict[int, Any] = {}
            for role in sorted({ask.role for ask in asks}):
                mine = [index for index, ask in enumerate(asks) if ask.role == role]
                answers = serve(role, [asks[index].request for index in mine])
                replies |= zip(mine, answers, strict=True)
            asks = whole.send([replies[index] for index in range(len(asks))])
    except StopIteration as done:
        results: list[T | Exception] = done.value
        return results
    finally:
        whole.close()
