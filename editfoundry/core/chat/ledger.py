"""The account of what language models were asked: replies already paid for, every attempt, and what it may have cost.

One SQLite file for all processes of a run, with a write-ahead log on a local disk (a tenth of the time a commit takes
otherwise) and a rollback journal elsewhere, since the log's shared memory ends at the machine. Once a write returned it
survives the end of the process; a power failure may take the last ones back from a local disk, and damages nothing.
Money is counted in billionths of a USD.
"""

import errno
import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

from editfoundry.core.chat.account import Account, summarise, usd
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json

LOCK_WAIT_S = 60.0
FORMAT = 1
WAL, ROLLBACK = "wal", "delete"
LOCAL_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "apfs", "hfs")
State = Literal["answered", "refused", "failed", "in_doubt"]

_TABLES = """
CREATE TABLE requests(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, kind TEXT, reply TEXT);
CREATE TABLE subjects(subject TEXT NOT NULL, request INTEGER NOT NULL REFERENCES requests(id),
                      PRIMARY KEY(subject, request)) WITHOUT ROWID;
CREATE TABLE attempts(id INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests(id), purpose TEXT NOT NULL,
                      model TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
                      prompt_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
                      cost INTEGER NOT NULL);
CREATE INDEX unsettled ON attempts(state, cost) WHERE state IN ('started', 'in_doubt');
CREATE TABLE total(cost INTEGER NOT NULL);
INSERT INTO total VALUES(0);
PRAGMA user_version = 1;
"""


class BudgetReached(EditFoundryError):
    """The next attempt could cost more than the budget leaves. in_flight: the attempts that are still under way."""

    def __init__(self, message: str, in_flight: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.in_flight = in_flight


class LedgerError(EditFoundryError):
    """The ledger's file cannot be used."""


class StoredReply(NamedTuple):
    """A reply that was paid for: its kind, `answered` or `refused`, and what it held, as plain data."""

    kind: Literal["answered", "refused"]
    data: dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One attempt that was started, and what was set aside for it (billionths of a USD)."""

    id: int
    request: int
    reserved: int


class Ledger:
    """Replies and attempts in the file `path`, which is made when the first request comes; None: in memory only.

    A subject is the content hash of a photograph, or several with blanks between them: forgetting any of them removes
    the reply. Safe to use from several threads and processes at once. Raises LedgerError, naming the file and what to
    do, if the file is damaged or cannot be written, and OSError when the disk is full.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.cached_hits = 0
        self._lock = threading.Lock()
        self._open: tuple[int, sqlite3.Connection] | None = None

    def lookup(self, key: str, subject: str = "") -> StoredReply | None:
        """The reply to the request with this key, if it was paid for earlier; noted as being about `subject` too."""
        with self._use() as database:
            row = database.execute(
                "SELECT id, kind, reply FROM requests WHERE key = ? AND reply IS NOT NULL", (key,)
            ).fetchone()
            if row is None:
                return None
            self.cached_hits += 1
            known = database.execute("SELECT subject FROM subjects WHERE request = ?", (row[0],)).fetchall()
            if not {subject for (subject,) in known}.issuperset(subject.split()):
                _note_subject(database, row[0], subject)
            return StoredReply(row[1], json.loads(row[2]))

    def reserve(
        self, key: str, bound: int, *, subject: str = "", purpose: str = "", model: str = "", budget: int | None = None
    ) -> Attempt:
        """Start an attempt: set aside `bound`, the most it can cost. Raises BudgetReached if that exceeds `budget`.

        Until it is settled the whole bound counts as spent, whatever becomes of this process.
        """
        with self._use() as database, _transaction(database):
            spent = database.execute("SELECT cost FROM total").fetchone()[0]
            if budget is not None and spent + bound > budget:
                raise _used_up(database, spent, bound, budget)
            database.execute("INSERT OR IGNORE INTO requests(key) VALUES(?)", (key,))
            request = database.execute("SELECT id FROM requests WHERE key = ?", (key,)).fetchone()[0]
            if subject:
                _note_subject(database, request, subject)
            attempt = database.execute(
                "INSERT INTO attempts(request, purpose, model, state, cost) VALUES(?, ?, ?, 'started', ?)",
                (request, purpose, model, bound),
            ).lastrowid
            database.execute("UPDATE total SET cost = cost + ?", (bound,))
            assert attempt is not None
            return Attempt(attempt, request, bound)

    def settle(
        self,
        attempt: Attempt,
        state: State,
        *,
        cost: int | None,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        reason: str = "",
        reply: StoredReply | None = None,
    ) -> None:
        """End an attempt, once. cost None: not known, so all that was set aside stays spent. reply: kept for later."""
        final = attempt.reserved if cost is None else cost
        with self._use() as database, _transaction(database):
            changed = database.execute(
                "UPDATE attempts SET state = ?, reason = ?, prompt_tokens = ?, completion_tokens = ?, cost = ? "
                "WHERE id = ? AND state = 'started'",
                (state, reason, prompt_tokens, completion_tokens, final, attempt.id),
            ).rowcount
            if changed != 1:
                raise LedgerError(
                    f"{self._name}: attempt {attempt.id} was settled by someone else; is another driver "
                    "working with this file?"
                )
            database.execute("UPDATE total SET cost = cost + ?", (final - attempt.reserved,))
            if reply is not None:
                database.execute(
                    "UPDATE requests SET kind = ?, reply = ? WHERE id = ?",
                    (reply.kind, canonical_json(reply.data), attempt.request),
                )

    def abandon_started(self) -> int:
        """Mark attempts that were started and never settled as in doubt; their bound stays spent. Returns how many.

        Only for a driver that knows that no other process is asking.
        """
        if self.path is None or not self._exists():
            return 0
        with self._use() as database:
            # The file may have been moved to another kind of disk since it was made.
            database.execute(f"PRAGMA journal_mode = {journal_mode(self.path)}")
            with _transaction(database):
                return database.execute(
                    "UPDATE attempts SET state = 'in_doubt', reason = 'abandoned' WHERE state = 'started'"
                ).rowcount

    def forget(self, subjects: Iterable[str]) -> int:
        """Remove every reply about these subjects, so that none of their bytes stay in the file; returns how many.

        What was spent on them stays in the account, under no subject.
        """
        if not self._exists():
            return 0
        with self._use() as database:
            with _transaction(database):
                marks = [(subject,) for subject in set(subjects)]
                database.execute("CREATE TEMP TABLE gone(request INTEGER PRIMARY KEY)")
                database.executemany("INSERT OR IGNORE INTO gone SELECT request FROM subjects WHERE subject = ?", marks)
                removed = database.execute(
                    "UPDATE requests SET key = 'forgotten ' || id, reply = NULL WHERE id IN (SELECT request FROM gone)"
                ).rowcount
                database.execute("DELETE FROM subjects WHERE request IN (SELECT request FROM gone)")
                database.execute("DROP TABLE gone")
            database.execute("VACUUM")
            if database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise LedgerError(
                    f"{self._name}: another process is reading it, so what was removed may still be in "
                    f"{self._name}-wal; stop that process and forget again"
                )
        return removed

    def account(self) -> Account:
        """What was asked and what came of it, over every process that used the file."""
        if not self._exists():
            return Account()
        with self._use() as database:
            return summarise(database, self.cached_hits)

    def check(self) -> None:
        """Raise LedgerError if the file is damaged."""
        if self._exists():
            with self._use() as database:
                found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise LedgerError(self._damaged(str(found)))

    def close(self) -> None:
        """Let go of the file. The ledger opens it again when it is used again; what was in memory only is gone."""
        with self._lock:
            if self._open is not None:
                self._open[1].close()
                self._open = None

    @property
    def _name(self) -> str:
        return str(self.path) if self.path else "the ledger in memory"

    def _exists(self) -> bool:
        return self._open is not None or (self.path is not None and self.path.exists())

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        """This process's connection, for one caller at a time; SQLite's errors become the user's."""
        try:
            with self._lock:
                yield self._connection()
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._name) from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise LedgerError(
                    f"{self._name}: locked by another process for {LOCK_WAIT_S:.0f} s; stop that process "
                    "and repeat the command"
                ) from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise LedgerError(self._damaged(str(error))) from error
            raise LedgerError(
                f"{self._name}: cannot be used: {error}; check its folder's permissions and disk"
            ) from error

    def _damaged(self, detail: str) -> str:
        return (
            f"{self._name}: damaged ({detail}); restore it from a copy, or move it away: the replies it holds will "
            "then be asked and paid for again"
        )

    def _connection(self) -> sqlite3.Connection:
        # A connection must not be carried over a fork: the child opens one of its own.
        if self._open is None or self._open[0] != os.getpid():
            self._open = os.getpid(), self._connect()
        return self._open[1]

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            database.executescript(_TABLES)
            return database
        if not self.path.exists():
            self._make(self.path)
        database = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            LOCK_WAIT_S,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("PRAGMA temp_store = MEMORY")
            if database.execute("PRAGMA journal_mode").fetchone()[0] == WAL:
                database.execute("PRAGMA synchronous = NORMAL")
            found = database.execute("PRAGMA user_version").fetchone()[0]
            if found != FORMAT:
                raise LedgerError(
                    f"{self._name}: is no ledger of this version (format {found}, expected {FORMAT}); move it away"
                )
        except BaseException:
            database.close()
            raise
        return database

    def _make(self, path: Path) -> None:
        """Put an empty ledger at `path`, whole at once; if another process was faster, that one's stays."""
        try:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".ledger-") as folder:
                new = Path(folder) / path.name
                with closing(sqlite3.connect(new, isolation_level=None)) as database:
                    database.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
                    database.executescript(_TABLES)
                with suppress(FileExistsError):
                    os.link(new, path)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise LedgerError(f"{self._name}: cannot be made: {error.strerror}; check its folder") from error


def journal_mode(path: Path) -> str:
    """SQLite's journal for a ledger at `path`: the write-ahead log if that is on a disk of this machine."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    around = next((folder for folder in path.absolute().resolve().parents if folder in mounts), None)
    return WAL if around is not None and mounts[around].lower() in LOCAL_FILE_SYSTEMS else ROLLBACK


def forget_subjects(path: Path, subjects: Iterable[str]) -> int:
    """`Ledger.forget` on the file at `path`, if there is one; returns how many replies were removed."""
    with closing(Ledger(path)) as ledger:
        return ledger.forget(subjects)


def check_ledger(path: Path) -> None:
    """Raise LedgerError if the file at `path` is damaged; one that does not exist is not."""
    with closing(Ledger(path)) as ledger:
        ledger.check()


_current: Ledger | None = None


def use_ledger(path: Path | None, *, alone: bool = False) -> None:
    """From now on clients of this process without a ledger of their own use the one at `path`; None: theirs alone.

    alone: no other process is asking, so what dead ones left started is in doubt. Makes no file.
    """
    global _current
    if _current is not None:
        _current.close()
    _current = None if path is None else Ledger(path)
    if _current is not None and alone:
        _current.abandon_started()


def current_ledger() -> Ledger | None:
    """The process's ledger, if `use_ledger` set one."""
    return _current


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, with the write lock taken at its start, so that what is read in it still holds when it writes."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _note_subject(database: sqlite3.Connection, request: int, subject: str) -> None:
    database.executemany(
        "INSERT OR IGNORE INTO subjects(request, subject) VALUES(?, ?)", [(request, each) for each in subject.split()]
    )


def _used_up(database: sqlite3.Connection, spent: int, bound: int, budget: int) -> BudgetReached:
    started = database.execute("SELECT id, cost FROM attempts WHERE state = 'started' ORDER BY id").fetchall()
    doubt = database.execute("SELECT coalesce(sum(cost), 0) FROM attempts WHERE state = 'in_doubt'").fetchone()[0]
    aside = sum(cost for _, cost in started)
    parts = [f"{usd(spent - aside - doubt)} spent"]
    parts += [f"{usd(doubt)} in doubt (attempts whose bill is not known)"] * bool(doubt)
    parts += [f"{usd(aside)} set aside for requests in flight"] * bool(aside)
    return BudgetReached(
        f"the budget of {usd(budget)} is reached: {', '.join(parts)}, and the next request may cost {usd(bound)}; "
        "every reply so far is kept: raise budget_usd and repeat the command to go on",
        tuple(number for number, _ in started),
    )
