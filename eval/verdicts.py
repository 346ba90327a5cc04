"""A file of verdicts: a JSON object a line, and beside it a file that says who judged, how, and how far it got.

Verdicts are appended and made durable chunk by chunk, so whatever ends the work, what was written is kept, and the next
call goes on from there. At the end the file has one line for each pair, in their order.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import canonical_json
from editfoundry.core.text import one_line
from editfoundry.data_engine.ledger import replace_file, sync_folder

FORMAT = 1
META = ".meta.json"
PART = ".part"
Row = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """A verdict in the file. pair: content of the pair that it is of (`pairs.content`)."""

    offset: int
    pair: str


class Verdicts:
    """An open file of verdicts. scored: those that are no errors, by id; a later line replaces an earlier one."""

    def __init__(self, path: Path, file: BinaryIO, about: Mapping[str, Any]) -> None:
        self.path, self._file, self._about = path, file, about
        self.scored = self._scan()

    def _scan(self) -> dict[str, Kept]:
        """What is there; the half line of a process that was killed is cut off."""
        scored: dict[str, Kept] = {}
        offset = 0
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(offset)
                break
            row = _parsed(self.path, number, line)
            if "error" not in row:
                scored[row["id"]] = Kept(offset, row["pair"])
            offset += len(line)
        return scored

    def append(self, rows: Sequence[Row]) -> list[int]:
        """Write rows at the end, durably, and return where each begins."""
        offset = self._file.seek(0, os.SEEK_END)
        lines = [_line(row) for row in rows]
        self._file.write(b"".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())
        return [offset + sum(map(len, lines[:number])) for number in range(len(lines))]

    def arrange(self, offsets: Sequence[int]) -> None:
        """Leave the rows at these offsets, in this order; the last that is done with the rows."""
        if self._is_whole(offsets):
            return
        part = self.path.with_name(self.path.name + PART)
        with part.open("wb") as ordered:
            for offset in offsets:
                self._file.seek(offset)
                ordered.write(self._file.readline())
            ordered.flush()
            os.fsync(ordered.fileno())
        part.replace(self.path)
        sync_folder(self.path.parent)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Say that the file is finished, and facts about it."""
        _write_meta(self.path, {**self._about, "finished": True, **facts})

    def _is_whole(self, offsets: Sequence[int]) -> bool:
        """Whether the file's lines are just these, in this order."""
        size, end = self._file.seek(0, os.SEEK_END), 0
        self._file.seek(0)
        for offset in offsets:
            if offset != end:
                return False
            end += len(self._file.readline())
        return end == size


@contextmanager
def open_verdicts(path: Path, about: Mapping[str, Any]) -> Iterator[Verdicts]:
    """Open a file of verdicts to write, or to go on with. about: what they depend on ("kind", "judge"), and more.

    Raises UsageError for a path that is no file of verdicts, for one whose verdicts depend on something else, naming
    it, and while another process writes the file; EditFoundryError for a damaged one.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: not a file; give -o the path of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    about = json.loads(canonical_json({"format": FORMAT, **about}))
    with path.open("a+b") as file:
        _lock(path, file)
        if file.seek(0, os.SEEK_END):
            _refuse_other(path, about)
        _write_meta(path, {**about, "finished": False})
        yield Verdicts(path, file, about)


def read_meta(path: Path) -> dict[str, Any]:
    """What is said beside a file of verdicts. Raises UsageError where nothing is, EditFoundryError for damage."""
    meta = path.with_name(path.name + META)
    if not path.is_file() or not meta.is_file():
        missing = path if not path.is_file() else meta
        raise UsageError(f"{path}: no file of verdicts ({missing.name} is not there); make one with `judge score`")
    try:
        said = json.loads(meta.read_bytes())
        fits = said["format"] == FORMAT and isinstance(said["judge"], dict) and isinstance(said["kind"], str)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EditFoundryError(f"{meta}: damaged; judge again with another -o") from error
    if not fits:
        raise EditFoundryError(f"{meta}: of another version; judge again with another -o")
    return dict(said)


def read_verdicts(path: Path) -> Iterator[Row]:
    """The rows of a file of verdicts, in order. Raises EditFoundryError for damage; a half line at the end is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield _parsed(path, number, line)


def settings(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) of every setting, keys dotted."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from settings(inner, f"{above}{name}.")
        else:
            yield above + name, inner


def _parsed(path: Path, number: int, line: bytes) -> Row:
    """A row: an error, or a verdict with its id and pair."""
    try:
        row = json.loads(line)
        sound = isinstance(row, dict) and (
            isinstance(row["error"], dict) if "error" in row else isinstance(row["id"] + row["pair"], str)
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise EditFoundryError(f"{path}: line {number}: damaged; judge again with another -o")
    return dict(row)


def _line(row: Row) -> bytes:
    """Keys stay in the order in which the row has them: the rubric's, for scores."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _lock(path: Path, file: BinaryIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{path}: another process is writing it; wait for its end") from error
    if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise UsageError(f"{path}: another process has just replaced it; repeat the command")


def _refuse_other(path: Path, about: Mapping[str, Any]) -> None:
    """Raise UsageError if the file's verdicts depend on something else, or it is no such file."""
    if not path.with_name(path.name + META).is_file():
        raise UsageError(f"{path}: is there already, and is no file of verdicts; give another -o")
    meta = read_meta(path)
    before = dict(settings({"kind": meta["kind"], "judge": meta["judge"]}))
    now = dict(settings({"kind": about["kind"], "judge": about["judge"]}))
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if differing:
        changes = "; ".join(f"{key} was {_shown(before.get(key))}, is {_shown(now.get(key))}" for key in differing[:4])
        more = f"; and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise UsageError(f"{path}: was judged otherwise ({changes}{more}); give another -o")


def _shown(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value), 40)


def _write_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """In ASCII, since names of files may be any bytes."""
    text = json.dumps(meta, sort_keys=True, indent=1, allow_nan=False)
    replace_file(path.with_name(path.name + META), text.encode("ascii") + b"\n")
