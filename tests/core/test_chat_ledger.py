"""The ledger on its own, between processes, and across a kill."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import chat_server
import pytest
from chat_server import Received, Response, answer, serve
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.core.chat import ledger as ledger_module
from editfoundry.core.chat.account import usd
from editfoundry.core.chat.client import ChatClient, Endpoint
from editfoundry.core.chat.ledger import (
    LOCAL_FILE_SYSTEMS,
    BudgetReached,
    Ledger,
    LedgerError,
    StoredReply,
    check_ledger,
    forget_subjects,
    journal_mode,
)
from editfoundry.core.chat.messages import Answered, ChatRequest, Reply

BUDGET_EXIT = 7


def ask_from_a_child(url: str, path: str, budget: float, first: int) -> list[Reply]:
    """What the child processes of these tests do: thirty questions, beginning somewhere."""
    endpoint = Endpoint(
        base_url=url,
        model="m",
        concurrency=4,
        price_input=1,
        price_output=10,
        budget_usd=budget,
        retry_min_s=0.01,
        retry_max_s=0.05,
    )
    texts = [f"Question {(first + number) % 30}" for number in range(30)]
    requests = [ChatRequest("", [text], max_tokens=20, subject=text[9:]) for text in texts]
    return ChatClient(endpoint, Ledger(Path(path))).ask(requests)


def child(url: str, path: Path, budget: float = 1.0, first: int = 0) -> subprocess.Popen[bytes]:
    """A process that asks from the ledger at `path`; it ends with BUDGET_EXIT when the budget stops it."""
    code = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(chat_server.__file__).parent)!r}]\n"
        "from test_chat_ledger import BUDGET_EXIT, BudgetReached, ask_from_a_child\n"
        f"try: ask_from_a_child({url!r}, {str(path)!r}, {budget}, {first})\n"
        "except BudgetReached: sys.exit(BUDGET_EXIT)\n"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def echo(received: Received) -> Response:
    return answer(received.text, prompt_tokens=100, completion_tokens=20, delay_s=0.03)


def answered(text: str) -> StoredReply:
    return StoredReply("answered", {"text": text})


@pytest.mark.slow
def test_a_kill_bills_nothing_twice_but_what_was_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with serve(echo) as server:
        process = child(server.url, path)
        while len(server.requests) < 12:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        ledger = Ledger(path)
        started = ledger.account().in_doubt
        assert ledger.abandon_started() == started <= 4
        before = ledger.account()
        assert before.in_doubt_usd > 0 or started == 0
        ledger.close()
        replies = ask_from_a_child(server.url, str(path), 1.0, 0)
        after = Ledger(path).account()
    assert [reply.text for reply in replies if isinstance(reply, Answered)] == [f"Question {n}" for n in range(30)]
    assert sum(reply.cached for reply in replies if isinstance(reply, Answered)) == before.answered >= 8
    asked = Counter(received.text for received in server.requests)
    assert sum(asked.values()) - 30 <= started, "only what the killed process had in flight is asked again"
    assert (after.answered, after.prompt_tokens, after.completion_tokens) == (30, 3000, 600)
    assert after.attempts == 30 + started >= len(server.requests)
    assert after.in_doubt == started
    assert after.cost_usd == pytest.approx(30 * 300e-6 + before.in_doubt_usd)


@pytest.mark.slow
def test_several_processes_share_one_budget(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with serve(echo) as server:
        processes = [child(server.url, path, budget=0.006, first=first) for first in (0, 10, 20)]
        assert [process.wait() for process in processes] == [BUDGET_EXIT] * 3
        account = Ledger(path).account()
    spent = server.billed[0] * 1e-6 + server.billed[1] * 10e-6
    assert account.cost_usd == pytest.approx(spent)
    assert 0.004 < spent <= 0.006
    assert (account.prompt_tokens, account.completion_tokens) == server.billed
    assert account.attempts == len(server.requests)
    assert account.in_doubt == 0


def test_threads_share_one_ledger(tmp_path: Path) -> None:
    ledger, refused = Ledger(tmp_path / "l.sqlite"), []

    def work(name: str) -> None:
        for number in range(20):
            try:
                attempt = ledger.reserve(f"{name}{number}", 10, budget=500)
                ledger.settle(attempt, "answered", cost=10, reply=answered(name))
            except BudgetReached:
                refused.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ledger.account().answered, len(refused)) == (50, 30)


def test_a_fork_opens_a_connection_of_its_own(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.reserve("parent", 1)
    process = os.fork()
    if process == 0:
        ledger.reserve("child", 2)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    ledger.reserve("parent again", 4)
    assert ledger.account().cost_usd == 7e-9


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 1000),
            st.sampled_from(["answered", "refused", "failed", "in_doubt", None]),
            st.one_of(st.none(), st.integers(0, 1500)),
        ),
        max_size=25,
    ),
    st.integers(0, 6000),
)
def test_money_adds_up(steps: list[tuple[int, int, Any, int | None]], budget: int) -> None:
    """What counts as spent is the sum over attempts, never exceeds the budget before an attempt, and is never freed."""
    ledger, spent = Ledger(), 0
    for key, bound, state, cost in steps:
        try:
            attempt = ledger.reserve(str(key), bound, budget=budget)
        except BudgetReached as error:
            assert spent + bound > budget
            assert usd(budget) in str(error)
            continue
        assert spent + bound <= budget
        spent += bound
        if state is not None:
            ledger.settle(attempt, state, cost=cost)
            spent += 0 if cost is None else cost - bound
        assert ledger.account().cost_usd == pytest.approx(spent / 1e9)
    account = ledger.account()
    assert account.requests == account.answered + account.refused + account.failed + account.open
    assert sum(part.cost_usd for part in account.purposes.values()) == pytest.approx(account.cost_usd)


def test_the_message_says_what_was_spent_and_how_to_go_on() -> None:
    ledger = Ledger()
    ledger.settle(ledger.reserve("a", 3 * 10**9), "answered", cost=2_500_000_000)
    ledger.settle(ledger.reserve("b", 10**9), "in_doubt", cost=None)
    ledger.reserve("c", 5 * 10**8)
    with pytest.raises(BudgetReached) as caught:
        ledger.reserve("d", 2_000_000, budget=4 * 10**9)
    assert caught.value.in_flight == (3,)
    assert str(caught.value) == (
        "the budget of $4.00 is reached: $2.50 spent, $1.00 in doubt (attempts whose bill is not known), $0.5 set "
        "aside for requests in flight, and the next request may cost $0.002; every reply so far is kept: raise "
        "budget_usd and repeat the command to go on"
    )


def test_an_attempt_is_settled_once() -> None:
    ledger = Ledger()
    attempt = ledger.reserve("a", 5)
    ledger.settle(attempt, "failed", cost=0)
    with pytest.raises(LedgerError, match="settled by someone else"):
        ledger.settle(attempt, "answered", cost=5)
    assert ledger.account().cost_usd == 0


def test_reading_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    assert Ledger(path).account().requests == Ledger(path).abandon_started() == forget_subjects(path, ["x"]) == 0
    check_ledger(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("local", [True, False])
def test_forgetting_leaves_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    if not local:
        monkeypatch.setattr(ledger_module, "LOCAL_FILE_SYSTEMS", ())
    path = tmp_path / "l.sqlite"
    assert journal_mode(path) == ("wal" if local else "delete"), "tests run on a local disk"
    ledger = Ledger(path)
    for number in range(40):
        text = f"SECRET{number}; " * (2000 if number % 7 == 0 else 3)
        attempt = ledger.reserve(f"key{number}", 10, subject=f"photo{number % 3} donor{number}", purpose="caption")
        ledger.settle(attempt, "answered", cost=7, prompt_tokens=2, reply=answered(text))
    before = ledger.account()
    assert ledger.forget(["photo1", "donor3", "nobody"]) == 14
    assert ledger.forget(["photo1"]) == 0
    after = ledger.account()
    ledger.close()
    gone = [number for number in range(40) if number % 3 == 1 or number == 3]
    data = path.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["l.sqlite"]
    assert {f"SECRET{number};".encode() in data for number in gone} == {False}
    assert [word in data for word in (b"photo0", b"photo1", b"photo2", b"donor5", b"donor4")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert [ledger.lookup(f"key{number}") is None for number in range(40)] == [number in gone for number in range(40)]
    assert after == before, "what was spent stays spent"
    again = ledger.reserve("key1", 10, subject="photo1")
    ledger.settle(again, "answered", cost=7, reply=answered("anew"))
    assert ledger.lookup("key1") == answered("anew")


def test_a_ledger_moved_to_another_kind_of_disk_changes_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, modes = tmp_path / "l.sqlite", []
    for systems in (LOCAL_FILE_SYSTEMS, (), LOCAL_FILE_SYSTEMS):
        monkeypatch.setattr(ledger_module, "LOCAL_FILE_SYSTEMS", systems)
        ledger = Ledger(path)
        ledger.abandon_started()
        ledger.reserve("k", 1)
        ledger.close()
        with closing(sqlite3.connect(path)) as database:
            modes.append(database.execute("PRAGMA journal_mode").fetchone()[0])
    assert modes == ["wal", "delete", "wal"]
    assert [path.name for path in tmp_path.iterdir()] == ["l.sqlite"]


def test_a_reader_in_the_way_of_forgetting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "LOCK_WAIT_S", 0.2)
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.settle(ledger.reserve("k", 1, subject="s"), "answered", cost=1, reply=answered("SECRET"))
    other = sqlite3.connect(tmp_path / "l.sqlite", isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM requests").fetchall()
    with pytest.raises(LedgerError, match="stop that process and forget again"):
        ledger.forget(["s"])
    other.close()
    ledger.forget(["s"])
    ledger.close()
    assert b"SECRET" not in (tmp_path / "l.sqlite").read_bytes()


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 4000, b"text " * 2000])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "l.sqlite"
    path.write_bytes(content)
    for use in (check_ledger, lambda file: Ledger(file).account(), lambda file: Ledger(file).reserve("k", 1)):
        with pytest.raises(LedgerError, match=r"l\.sqlite: (damaged|is no ledger of this version)"):
            use(path)


def test_a_page_overwritten_inside_is_found(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    for number in range(30):
        ledger.settle(ledger.reserve(f"k{number}", 1, subject="s t"), "answered", cost=1, reply=answered("x" * 3000))
    ledger.close()
    check_ledger(tmp_path / "l.sqlite")
    with (tmp_path / "l.sqlite").open("r+b") as file:
        file.seek(9 * 4096)
        file.write(b"\xee" * 4096)
    with pytest.raises(LedgerError, match="damaged"):
        check_ledger(tmp_path / "l.sqlite")


def test_another_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "l.sqlite") as database:
        database.execute("CREATE TABLE mine(x)")
    database.close()
    with pytest.raises(LedgerError, match="no ledger of this version"):
        Ledger(tmp_path / "l.sqlite").reserve("k", 1)


def test_a_full_disk_is_a_full_disk(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    attempt = ledger.reserve("k", 1)
    with ledger._use() as database:
        database.execute("PRAGMA max_page_count = 12")
    with pytest.raises(OSError, match="No space left") as caught:
        ledger.settle(attempt, "answered", cost=1, reply=answered("x" * 100_000))
    assert caught.value.filename == str(tmp_path / "l.sqlite")
    assert ledger.account().in_doubt == 1, "nothing was half written"


def test_a_locked_file_is_waited_for_and_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "LOCK_WAIT_S", 0.2)
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.reserve("k", 1)
    other = sqlite3.connect(tmp_path / "l.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerError, match="locked by another process"):
        ledger.reserve("l", 1)
    other.close()
    ledger.reserve("l", 1)
