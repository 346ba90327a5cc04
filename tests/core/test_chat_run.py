"""The ledger in a run: shared by its workers, resumed, verified, and forgotten in."""

from collections import Counter
from pathlib import Path

import chat_stage
import pytest
import toy_engine as toy
from chat_server import ChatServer, Received, Response, answer, failure, serve

from editfoundry.core.chat.ledger import Ledger, current_ledger
from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.forget import forget
from editfoundry.data_engine.repair import drop_rejected
from editfoundry.data_engine.rundir import RunDir

SECRET = "a face that nobody may see"


def echo(received: Received) -> Response:
    return answer(f"I see {received.text}!", prompt_tokens=100, completion_tokens=20)


def sources(tmp_path: Path) -> Path:
    return toy.write_sources(tmp_path / "src", 12, {4: SECRET})


def setting(monkeypatch: pytest.MonkeyPatch, server: ChatServer, budget: float) -> None:
    monkeypatch.setenv("TOY_CHAT", server.url)
    monkeypatch.setenv("TOY_BUDGET", str(budget))


def test_a_run_that_asks_nothing_has_no_ledger(tmp_path: Path) -> None:
    toy.run_here(sources(tmp_path), tmp_path / "run", stages=(toy.ToyIngest, toy.ToyFilter))
    assert not RunDir(tmp_path / "run").chat.exists()
    assert current_ledger() is None


@pytest.mark.slow
def test_the_budget_stops_a_run_of_several_workers_and_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reply costs 200 millionths of a USD, and 1000 are set aside for it."""
    folder, run = sources(tmp_path), RunDir(tmp_path / "run")
    with serve(echo) as server:
        setting(monkeypatch, server, budget=0.0016)
        with pytest.raises(EditFoundryError, match=r"budget of \$0\.0016 is reached: .* raise budget_usd and repeat"):
            chat_stage.run(folder, run.path)
        paid = Ledger(run.chat).account()
        assert paid.answered == paid.attempts == len(server.requests) == 4
        setting(monkeypatch, server, budget=1)
        toy.run_here(folder, run.path, stages=chat_stage.STAGES)
    assert Counter(received.text for received in server.requests).most_common(1)[0][1] == 1
    account = Ledger(run.chat).account()
    assert (account.answered, account.attempts, account.prompt_tokens, account.completion_tokens) == (12, 12, 1200, 240)
    assert account.purposes["toy"].cost_usd == pytest.approx(12 * 200e-6)
    assert (verify(run), funnel(run).problems) == ([], ())


@pytest.mark.parametrize("asked_twice", [False, True])
def test_forgetting_a_photograph_forgets_what_was_said_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_twice: bool
) -> None:
    folder, run = sources(tmp_path), RunDir(tmp_path / "run")
    with serve(echo) as server:
        setting(monkeypatch, server, budget=1)
        toy.run_here(folder, run.path, stages=chat_stage.STAGES)
        if asked_twice:
            ledger = Ledger(run.chat)
            ledger.reserve("left by a process that died", 10**6, subject=toy.sha256(SECRET))
            ledger.close()
            toy.run_here(folder, run.path, stages=chat_stage.STAGES)
    assert SECRET.encode() in run.chat.read_bytes()
    before = Ledger(run.chat).account()
    assert (before.open, before.in_doubt) == (0, int(asked_twice)), "a new driver knows that its forerunner is gone"
    forget(run, toy.sha256(SECRET))
    data = run.chat.read_bytes()
    assert SECRET.encode() not in data
    assert toy.sha256(SECRET).encode() not in data
    assert b"I see scene number 5!" in data
    assert Ledger(run.chat).account() == before
    assert verify(run) == []


def test_a_damaged_ledger_is_found_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, run = sources(tmp_path), RunDir(tmp_path / "run")
    with serve(echo) as server:
        setting(monkeypatch, server, budget=1)
        toy.run_here(folder, run.path, stages=chat_stage.STAGES)
        run.chat.write_bytes(b"overwritten" * 999)
        assert [(finding.kind, finding.path) for finding in verify(run)] == [("bad_file", "chat.sqlite")]
        with pytest.raises(
            EditFoundryError, match=r"chat\.sqlite: damaged .*; restore it from a copy, or move it away"
        ):
            toy.run_here(folder, run.path, stages=chat_stage.STAGES)


def test_what_an_outage_rejected_is_tried_again_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, run = sources(tmp_path), RunDir(tmp_path / "run")
    with serve(lambda received: failure(400, "no") if "3" in received.text else echo(received)) as server:
        setting(monkeypatch, server, budget=1)
        toy.run_here(folder, run.path, stages=chat_stage.STAGES)
        asked = len(server.requests)
    (before,) = [row for row in funnel(run).rows if row.stage == "filter"]
    assert before.rejects["unanswered"] > 0
    with pytest.raises(UsageError, match="--retry unanswred: nothing of this run was rejected for it; reasons: unans"):
        drop_rejected(run, ["unanswred"])
    with serve(echo) as server:
        setting(monkeypatch, server, budget=1)
        toy.run_here(folder, run.path, stages=chat_stage.STAGES)
        assert not server.requests, "a rejected source stays rejected until somebody says otherwise"
        assert drop_rejected(run, ["unanswered"]) > 0
        toy.run_here(folder, run.path, stages=chat_stage.STAGES)
        assert len(server.requests) <= asked
    (after,) = [row for row in funnel(run).rows if row.stage == "filter"]
    assert (after.rejects, after.accepted, after.inputs) == ({}, before.inputs, before.inputs)
    assert (verify(run), funnel(run).problems) == ([], ())
