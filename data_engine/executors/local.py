"""N worker processes on this machine. A free worker takes the next shard; a dead one is replaced, and what killed it

twice is searched for and rejected, so that a crash costs one sample and never the run.
"""

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.log import run_log
from editfoundry.data_engine.execution import Event, Plan, Task
from editfoundry.data_engine.executors.base import Advance, WorkerFailure
from editfoundry.data_engine.executors.worker import WORKER_ENVIRONMENT, Done, Failed, Ready, Release, Report, work
from editfoundry.data_engine.ledger import Commit

SETUP_TIMEOUT_S = 1800.0
FAREWELL_S = 10.0
DEATHS_BEFORE_SEARCH = 2
STRIKES_BEFORE_VERDICT = 2
FAILED_STARTS_ALLOWED = 1
UNEXPLAINED_DEATHS_ALLOWED = 4
CRASH, TIMEOUT = "worker_crash", "worker_timeout"


class StageFailed(EditFoundryError):
    """A worker reported an error, the user's or its own; carries the exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Trouble:
    """What is known of a shard whose workers die. strikes: deaths of careful workers, by the input they were at."""

    deaths: int = 0
    unexplained: int = 0
    careful: set[int] = field(default_factory=set)
    strikes: Counter[int] = field(default_factory=Counter)
    verdicts: dict[int, str] = field(default_factory=dict)

    def add(self, cause: str, event: Event | None) -> None:
        """Learn from one death. `event` is the last thing heard of the shard (None: it had not begun)."""
        self.deaths += 1
        if event and event.item is not None:
            self.strikes[event.item] += 1
            if self.strikes[event.item] >= STRIKES_BEFORE_VERDICT:
                self.verdicts[event.item] = cause
        elif event and event.batch is None:
            self.unexplained += 1
        elif self.deaths >= DEATHS_BEFORE_SEARCH:
            batch = event.batch if event and event.batch is not None else -1
            self.careful |= {max(batch, 0), batch + 1}


@dataclass
class Worker:
    """A process, what it is doing, and when it was last heard of."""

    name: str
    process: Any
    inbox: Connection
    lifeline: Connection
    heard: float
    plan: Plan | None = None
    ready: bool = False
    task: Task | None = None
    event: Event | None = None
    timed_out: bool = False
    gone: bool = False

    @property
    def advanced(self) -> int:
        return self.event.done if self.event else 0


class LocalExecutor:
    """Runs shards in `workers` spawned processes, kept from stage to stage; each holds the current stage's models only.

    A batch that takes longer than `batch_timeout_s` is killed and treated like a crash.
    """

    def __init__(self, run: Path, workers: int, batch_timeout_s: float) -> None:
        self.run, self.workers, self.batch_timeout_s = run, workers, batch_timeout_s
        self._context = get_context("spawn")
        self._pool: dict[str, Worker] = {}
        self._failed_starts = 0

    def execute(self, plan: Plan, tasks: Sequence[Task], advance: Advance) -> Iterator[Commit]:
        """See Executor. Shards are handed out in the order given, to whichever worker is free."""
        queue = deque(tasks)
        troubles: dict[int, Trouble] = {}
        while queue or any(worker.task for worker in self._pool.values()):
            self._staff(plan, len(queue))
            self._assign(queue)
            for worker in self._heard():
                yield from self._listen(worker, plan, advance)
                if worker.gone:
                    self._bury(worker, plan, queue, troubles, advance)
            self._kill_stuck(plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """After a whole run workers are asked to leave, so that what they hold is released; else they are killed."""
        if error[0] is None:
            for worker in self._pool.values():
                with suppress(OSError):
                    worker.inbox.send(None)
            for worker in self._pool.values():
                worker.process.join(FAREWELL_S)
        for worker in self._pool.values():
            worker.lifeline.close()
            worker.process.kill()
            worker.process.join()
            worker.inbox.close()
        self._pool.clear()

    def _staff(self, plan: Plan, waiting: int) -> None:
        """Hire up to the number of workers there is work for, and hand the stage to those that lack it."""
        busy = sum(worker.task is not None for worker in self._pool.values())
        for slot in range(min(self.workers, waiting + busy)):
            name = f"worker{slot}"
            if name not in self._pool:
                self._pool[name] = self._hire(name)
        idle = [worker for worker in self._pool.values() if worker.task is None and worker.plan is not plan]
        for worker in idle[:waiting]:
            worker.plan, worker.ready, worker.heard = plan, False, time.monotonic()
            _send(worker, plan)
        for worker in idle[waiting:]:
            if worker.plan:
                worker.plan, worker.ready = None, False
                _send(worker, Release())

    def _hire(self, name: str) -> Worker:
        inbox, theirs = self._context.Pipe()
        their_lifeline, lifeline = self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(theirs, their_lifeline, name, self.run), name=name,
                                        daemon=True)
        with _environment(WORKER_ENVIRONMENT):
            process.start()
        theirs.close()
        their_lifeline.close()
        return Worker(name, process, inbox, lifeline, time.monotonic())

    def _assign(self, queue: deque[Task]) -> None:
        for worker in self._pool.values():
            if queue and worker.ready and worker.task is None:
                worker.task, worker.event, worker.heard = queue.popleft(), None, time.monotonic()
                _send(worker, worker.task)

    def _heard(self) -> list[Worker]:
        """Workers that said something or died (which ends their pipe), within a second."""
        heard = wait([worker.inbox for worker in self._pool.values()], timeout=1.0)
        return [worker for worker in self._pool.values() if worker.inbox in heard]

    def _listen(self, worker: Worker, plan: Plan, advance: Advance) -> Iterator[Commit]:
        for message in _messages(worker):
            worker.heard = time.monotonic()
            if isinstance(message, Event):
                advance(message.done - worker.advanced)
                worker.event = message
            elif isinstance(message, Ready):
                worker.ready, self._failed_starts = True, 0
            elif isinstance(message, Done):
                worker.task = worker.event = None
                yield message.commit
            elif isinstance(message, Failed):
                self._failed(worker, plan, message)

    def _failed(self, worker: Worker, plan: Plan, failure: Failed) -> None:
        if failure.expected:
            raise StageFailed(failure.message, failure.exit_code)
        where = f"{plan.stage.name} shard {worker.task.shard}" if worker.task else f"{plan.stage.name}: setting up"
        text = f"{where}: {failure.message}; the traceback is in {self.run / 'logs' / worker.name}.jsonl"
        if worker.task:
            raise StageFailed(text, exit_code=1)
        self._count_failed_start(text)
        worker.plan = None

    def _bury(self, worker: Worker, plan: Plan, queue: deque[Task], troubles: dict[int, Trouble], advance: Advance,
              ) -> None:
        """Clear a dead worker away, and put its shard back with what its death teaches."""
        worker.process.kill()
        worker.process.join()
        worker.inbox.close()
        worker.lifeline.close()
        del self._pool[worker.name]
        cause = f"took longer than {self.batch_timeout_s:g} s" if worker.timed_out else _death(worker.process.exitcode)
        run_log().error("worker %s %s", worker.name, cause, extra={
            "stage": plan.stage.name, **({"shard": worker.task.shard} if worker.task else {})})
        if worker.task is None:
            if worker.plan and not worker.ready:
                self._count_failed_start(f"{plan.stage.name}: a worker {cause} while starting")
            return
        advance(-worker.advanced)
        trouble = troubles.setdefault(worker.task.shard, Trouble())
        trouble.add(TIMEOUT if worker.timed_out else CRASH, worker.event)
        if trouble.unexplained > UNEXPLAINED_DEATHS_ALLOWED or (plan.stage.barrier and trouble.deaths > 1):
            raise WorkerFailure(f"{plan.stage.name} shard {worker.task.shard}: its worker {cause}, {trouble.deaths} "
                                "times, and no sample can be blamed; see the logs, and check memory and disk")
        queue.appendleft(replace(worker.task, careful=frozenset(trouble.careful), verdicts=dict(trouble.verdicts)))

    def _count_failed_start(self, cause: str) -> None:
        self._failed_starts += 1
        if self._failed_starts > FAILED_STARTS_ALLOWED:
            raise WorkerFailure(f"no worker could start, {self._failed_starts} times in a row; {cause}")

    def _kill_stuck(self, plan: Plan) -> None:
        now = time.monotonic()
        for worker in self._pool.values():
            if worker.task and plan.stage.barrier:
                continue
            limit = self.batch_timeout_s if worker.task else SETUP_TIMEOUT_S
            if (worker.task or (worker.plan and not worker.ready)) and now - worker.heard > limit:
                worker.timed_out = True
                worker.process.kill()


def _send(worker: Worker, message: Plan | Task | Release) -> None:
    """Hand a message to a worker. One that died meanwhile is noticed by its pipe's end, not here."""
    try:
        worker.inbox.send(message)
    except (BrokenPipeError, ConnectionResetError):
        run_log().warning("worker %s was gone before it got its work", worker.name)


def _messages(worker: Worker) -> Iterator[Report]:
    """The whole messages that have arrived; notes when the pipe has ended, inside a message or not."""
    while not worker.gone and worker.inbox.poll():
        try:
            yield worker.inbox.recv()
        except (EOFError, OSError):
            worker.gone = True


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"exited with code {exit_code}"


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes started inside; restored afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
