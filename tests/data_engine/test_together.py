"""Coroutines run side by side: every one gets its own replies, and what waits for one role is one call."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editfoundry.data_engine.together import Ask, gather, run_together

Steps = Sequence[Any]
"""What a coroutine does: a string asks that role, "!" raises, a list runs such coroutines side by side inside it."""

ROLES = st.sampled_from(["style", "painter", "judge"])
STEPS = st.recursive(
    st.lists(ROLES | st.just("!"), max_size=4),
    lambda inner: st.lists(ROLES | st.lists(inner, max_size=3), max_size=4),
    max_leaves=12,
)


class Failed(Exception):
    pass


async def worker(name: str, steps: Steps) -> list[Any]:
    """The replies it got; each names the request, so that a reply gone astray would be seen."""
    seen: list[Any] = []
    for number, step in enumerate(steps):
        if step == "!":
            raise Failed(name)
        if isinstance(step, str):
            seen.append(await ask(step, f"{name}.{number}"))
        else:
            seen.append(await gather([worker(f"{name}.{number}.{i}", inner) for i, inner in enumerate(step)]))
    return seen


async def ask(role: str, request: str) -> Any:
    """One level deeper, so that awaits nest."""
    return await Ask(role, request)


class Server:
    """Echoes role and request; keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, role: str, requests: list[str]) -> list[str]:
        self.calls.append((role, list(requests)))
        return [f"{role}:{request}" for request in requests]


def expected(name: str, steps: Steps) -> list[Any] | str:
    """What `worker` returns, computed without any machinery; a string stands for the Failed it raises."""
    seen: list[Any] = []
    for number, step in enumerate(steps):
        if step == "!":
            return f"Failed({name})"
        if isinstance(step, str):
            seen.append(f"{step}:{name}.{number}")
        else:
            seen.append([expected(f"{name}.{number}.{i}", inner) for i, inner in enumerate(step)])
    return seen


def plain(result: Any) -> Any:
    if isinstance(result, Exception):
        assert isinstance(result, Failed)
        return f"Failed({result})"
    return [plain(part) for part in result] if isinstance(result, list) else result


def rounds(steps: Steps) -> int:
    """How many times a worker waits before it ends."""
    total = 0
    for step in steps:
        if step == "!":
            break
        total += 1 if isinstance(step, str) else max((rounds(inner) for inner in step), default=0)
    return total


@given(st.lists(STEPS, max_size=6))
def test_each_gets_its_own_replies_in_order_and_an_exception_ends_only_its_own(plans: list[Steps]) -> None:
    results = run_together([worker(str(i), steps) for i, steps in enumerate(plans)], Server())
    assert plain(results) == [expected(str(i), steps) for i, steps in enumerate(plans)]


@given(st.lists(STEPS, max_size=6))
def test_a_role_is_called_once_a_round_and_the_calls_are_always_the_same(plans: list[Steps]) -> None:
    first, again = Server(), Server()
    for server in (first, again):
        run_together([worker(str(i), steps) for i, steps in enumerate(plans)], server)
    assert first.calls == again.calls
    longest = max((rounds(steps) for steps in plans), default=0)
    assert len(first.calls) <= longest * 3
    for role in ("style", "painter", "judge"):
        assert sum(called == role for called, _ in first.calls) <= longest


def test_requests_of_a_role_go_out_in_order_of_the_coroutines_and_roles_in_order_of_their_names() -> None:
    server = Server()
    run_together([worker("a", ["style"]), worker("b", ["painter", "style"]), worker("c", ["style"])], server)
    assert server.calls == [("painter", ["b.0"]), ("style", ["a.0", "c.0"]), ("style", ["b.1"])]


def test_eight_workers_of_three_asks_cost_three_calls() -> None:
    server = Server()
    results = run_together([worker(str(i), ["painter"] * 3) for i in range(8)], server)
    assert [len(requests) for _, requests in server.calls] == [8, 8, 8]
    assert results[5] == ["painter:5.0", "painter:5.1", "painter:5.2"]


def test_what_the_server_raises_ends_everything_and_closes_the_coroutines() -> None:
    closed = []

    async def tidy(name: str) -> None:
        try:
            await ask("painter", name)
        finally:
            closed.append(name)

    def broken(role: str, requests: list[str]) -> list[str]:
        raise MemoryError(f"{role} {requests}")

    with pytest.raises(MemoryError, match=r"painter \['a', 'b'\]"):
        run_together([tidy("a"), tidy("b")], broken)
    assert closed == ["a", "b"]


def test_a_server_must_answer_every_request() -> None:
    with pytest.raises(ValueError, match="shorter"):
        run_together([worker("a", ["painter"]), worker("b", ["painter"])], lambda _, requests: requests[:1])


def test_interrupts_are_not_taken_for_results() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_together([worker("a", ["painter"]), interrupted()], Server())
