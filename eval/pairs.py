"""Files of edits to judge: one JSON object a line, with the paths of its pictures, the instruction and the type."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import fingerprint, sha256
from editfoundry.core.images import decode
from editfoundry.core.text import one_line
from editfoundry.models.judge.rubric import Slot
from editfoundry.models.protocols import Image

LONGEST_LINE = 1 << 20
LONGEST_ID = 200
LONGEST_INSTRUCTION = 10_000
LARGEST_PICTURE = 256 << 20
_BOM = b"\xef\xbb\xbf"
_WORDS = {"missing_picture": "no such file", "not_a_file": "not a file"}


@dataclass(frozen=True)
class Listed:
    """An edit of a pairs file. line: its number, from 1. pictures: paths by slot."""

    line: int
    id: str
    type: str
    instruction: str
    pictures: Mapping[Slot, Path]


@dataclass(frozen=True)
class Unusable:
    """A line that names no edit to judge. id, type: where it has them. reason: a stable code; detail: for people."""

    line: int
    id: str | None
    type: str | None
    reason: str
    detail: str


@dataclass(frozen=True)
class Overview:
    """What a pairs file holds. lines: those that are not blank. ids: of those that can be judged, in order."""

    sha256: str
    lines: int
    ids: tuple[str, ...]


class UnusablePicture(EditFoundryError):
    """A picture that cannot be read; `reason` is a stable code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Refused(Exception):
    """Why a line is no pair: code and words."""


def read_pairs(path: Path, slots: Sequence[Slot]) -> Iterator[Listed | Unusable]:
    """The lines of a pairs file, in order; blank ones are no lines. slots: the pictures that each has to name.

    Paths in it are relative to its folder. Keys that are not known are let through. An id may be there once. Raises
    UsageError when the file cannot be opened.
    """
    seen: set[str] = set()
    with _opened(path) as file:
        for number, line in _lines(file):
            entry = _entry(number, line, path.parent, slots)
            if isinstance(entry, Listed) and entry.id in seen:
                entry = Unusable(number, entry.id, entry.type, "duplicate_id", "an earlier line has the same id")
            elif isinstance(entry, Listed):
                seen.add(entry.id)
            yield entry


def listed(source: Path, result: Path, instruction: str, type: str) -> Listed:
    """One pair that no file lists. Raises UsageError for a text that no file could list either."""
    try:
        fields = {"instruction": instruction, "type": type}
        texts = [_text(fields, key, most) for key, most in (("instruction", LONGEST_INSTRUCTION), ("type", LONGEST_ID))]
    except _Refused as refused:
        raise UsageError(refused.args[1]) from refused
    return Listed(0, "one", texts[1], texts[0], {"source": source, "result": result})


def overview(path: Path, slots: Sequence[Slot]) -> Overview:
    """What is in a pairs file. Raises UsageError for one that holds no pair at all, with what is wrong in it."""
    ids, lines, first = [], 0, None
    for entry in read_pairs(path, slots):
        lines += 1
        if isinstance(entry, Listed):
            ids.append(entry.id)
        else:
            first = first or entry
    if not ids:
        wrong = f"line {first.line}: {first.detail}" if first else "it is empty"
        keys = ", ".join(("id", *slots, "instruction", "type"))
        raise UsageError(f"{path}: no pair to judge ({wrong}); expected a JSON object a line, with {keys}")
    with path.open("rb") as file:
        return Overview(hashlib.file_digest(file, "sha256").hexdigest(), lines, tuple(ids))


def _opened(path: Path) -> BinaryIO:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give a file with a JSON object a line")
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from error


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number, line) of what is not blank, each cut one byte after the longest length that is allowed."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        kept = line.removeprefix(_BOM) if number == 1 else line
        while not line.endswith(b"\n") and len(line) > LONGEST_LINE:
            line = file.readline(LONGEST_LINE + 1)
        if kept.strip():
            yield number, kept


def _entry(number: int, line: bytes, folder: Path, slots: Sequence[Slot]) -> Listed | Unusable:
    id = type = None
    try:
        fields = _object(line)
        id = _text(fields, "id", LONGEST_ID)
        type = _text(fields, "type", LONGEST_ID)
        instruction = _text(fields, "instruction", LONGEST_INSTRUCTION)
        pictures = {slot: _path(fields, slot, folder) for slot in slots}
    except _Refused as refused:
        reason, detail = refused.args
        return Unusable(number, id, type, reason, detail)
    return Listed(number, id, type, instruction, pictures)


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise _Refused("too_long", f"the line is longer than {LONGEST_LINE} bytes")
    try:
        fields = json.loads(line.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _Refused("not_utf8", f"byte {error.start + 1} of the line is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _Refused("not_json", f"not JSON ({error.msg}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise _Refused("not_json", f"not JSON ({one_line(str(error), 100)})") from error
    if not isinstance(fields, dict):
        raise _Refused("not_json", "not a JSON object")
    return fields


def _text(fields: Mapping[str, Any], key: str, most: int) -> str:
    """A text that is there, not blank, of at most that many characters, and can be written as UTF-8."""
    if key not in fields:
        raise _Refused(f"bad_{key}", f"no {key}")
    value = fields[key]
    if not isinstance(value, str):
        raise _Refused(f"bad_{key}", f"the {key} is not a text")
    if not value.strip():
        raise _Refused(f"bad_{key}", f"the {key} is empty")
    if len(value) > most:
        raise _Refused(f"bad_{key}", f"the {key} has {len(value)} characters, more than {most}")
    if any("\ud800" <= sign <= "\udfff" for sign in value):
        raise _Refused(f"bad_{key}", f"the {key} holds half of a surrogate pair")
    return value


def _path(fields: Mapping[str, Any], slot: Slot, folder: Path) -> Path:
    """A picture's path. A byte of a name that is not UTF-8 is written as \\udc80 to \\udcff, as Python does."""
    value = fields.get(slot)
    if not isinstance(value, str) or not value:
        raise _Refused("bad_path", f"{slot}: expected the path of a picture")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _Refused("bad_path", f"{slot}: the path holds half of a surrogate pair") from None
    if "\0" in value:
        raise _Refused("bad_path", f"{slot}: the path holds a zero byte")
    return folder / value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {one_line(twice, 40)!r} is there twice")
    return fields


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


class Pictures:
    """The pictures of some pairs: each distinct one decoded once, whatever file it is in. bytes: of their pixels."""

    def __init__(self) -> None:
        self.bytes = 0
        self._images: dict[str, Image] = {}

    def decoded(self, digest: str, data: bytes) -> Image:
        """uint8 [H, W, 3] of a file's content. Raises ImageError."""
        if digest not in self._images:
            self._images[digest] = decode(data)
            self.bytes += self._images[digest].nbytes
        return self._images[digest]


def read_picture(path: Path) -> tuple[str, bytes]:
    """SHA-256 and content of a picture's file. Raises UnusablePicture for one that is not there or cannot be read."""
    try:
        if not path.is_file():
            reason = "not_a_file" if path.exists() else "missing_picture"
            raise UnusablePicture(reason, f"{path.name}: {_WORDS[reason]}; correct the path")
        with path.open("rb") as file:
            data = file.read(LARGEST_PICTURE + 1)
    except OSError as error:
        raise UnusablePicture("unreadable_picture", f"{path.name}: {error.strerror}") from error
    if len(data) > LARGEST_PICTURE:
        raise UnusablePicture("too_large", f"{path.name}: larger than {LARGEST_PICTURE >> 20} MiB")
    return sha256(data), data


def content(listed: Listed, digests: Mapping[Slot, str]) -> str:
    """A short name of what is judged: the pictures' bytes, the instruction and the type."""
    return fingerprint(listed.type, listed.instruction, dict(digests))
