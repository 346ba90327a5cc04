"""The entries of JSON and JSONL files, their fields by our names, and the pictures that they name."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from editfoundry.core.errors import EditFoundryError, ImageError, UsageError
from editfoundry.core.text import one_line
from editfoundry.data_engine.readers.records import parse, spans
from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.pictures import BadPicture, look
from editfoundry.training.judge.records import PictureRef
from editfoundry.training.judge.sources.judged import BadRecord

MAX_RECORD = 1 << 20
_FIELD = re.compile(r"\{(\w+)\}")


class Entry:
    """A JSON object of a source's file. where: the file and the line, for messages."""

    def __init__(self, source: Source, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise BadRecord(f"{where}: expected a JSON object")
        self._source, self._value, self.where = source, value, where
        folder = Path(source.images) if source.images else Path(source.path).parent
        self._folder = Path(os.path.normpath(folder.expanduser().absolute()))

    def field(self, name: str) -> Any:
        """The value of a field. Raises BadRecord for one that is not there."""
        column = self._source.columns.get(name, name)
        if column not in self._value:
            raise BadRecord(f"{self.where}: no {column!r}; name the file's own with `columns: {{{name}: …}}`")
        return self._value[column]

    def has(self, name: str) -> bool:
        """Whether the entry has that field."""
        return self._source.columns.get(name, name) in self._value

    def text(self, name: str) -> str:
        """A field's words; of several fields where its column is a pattern such as `{folder}/{name}.png`.

        Raises BadRecord for what is no text, is blank, or holds halves of characters.
        """
        column = self._source.columns.get(name, name)
        if fields := _FIELD.findall(column):
            parts = {one: self._words(one, self._value.get(one)) for one in fields}
            return _FIELD.sub(lambda match: parts[match[1]], column)
        return self._words(name, self.field(name))

    def type(self, rubric: Rubric) -> str:
        """The edit type by our name; `other` for a file without types. Raises BadRecord for one without a section."""
        named = self.text("type") if self.has("type") else "other"
        type = self._source.types.get(named, named)
        try:
            rubric.section(type)
        except UsageError as error:
            raise BadRecord(f"{self.where}: {error}; give our name for it with `types`") from error
        return type

    def picture(self, name: str) -> PictureRef:
        """The picture that a field names."""
        path = Path(os.path.normpath(self._folder / self.text(name)))
        if not path.is_relative_to(self._folder):
            raise BadRecord(
                f"{self.where}: {name}: {one_line(str(path), 120)} is outside of {self._folder}; "
                "set `images` to the folder that holds the pictures"
            )
        try:
            return look(path)
        except BadPicture as error:
            raise BadRecord(f"{self.where}: {name}: {error}") from error

    def photograph(self) -> str:
        """Which photograph the edit began with: the field `photograph`, else told by the bytes of the source."""
        return self.text("photograph") if self.has("photograph") else self.picture("source").digest

    def _words(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise BadRecord(f"{self.where}: {name}: expected text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRecord(f"{self.where}: {name}: not valid Unicode") from error
        return value


def json_records(source: Source, key: str) -> Iterator[tuple[str, Any]]:
    """The records of a JSON file, a list or an object of them by name, each with its line; `key`: what every one has.

    Memory is that of the largest record. Raises BadRecord where the file stops being JSON.
    """
    file = existing(source)
    line, done = 1, 0
    column = _FIELD.findall(source.columns.get(key, key))
    try:
        with file.open("rb") as stream:
            for offset, length in spans(os.fspath(file), column[0] if column else source.columns.get(key, key)):
                line += _newlines(stream, offset - done)
                where = f"{file}: line {line}"
                if length > MAX_RECORD:
                    raise BadRecord(f"{where}: a record of more than {MAX_RECORD} bytes")
                data = stream.read(length)
                yield where, parse(data, where)
                line, done = line + data.count(b"\n"), offset + length
    except ImageError as error:
        raise _unread(file, error) from error


def json_lines(source: Source) -> Iterator[tuple[str, Any]]:
    """The values of a JSONL file, each with its line. Raises BadRecord for what is not JSON."""
    file = existing(source)
    with file.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_RECORD + 1):
            number += 1
            where = f"{file}: line {number}"
            if len(line) > MAX_RECORD:
                raise BadRecord(f"{where}: longer than {MAX_RECORD} bytes")
            if line.isspace():
                continue
            try:
                yield where, parse(line, where)
            except ImageError as error:
                raise _unread(file, error) from error


def existing(source: Source) -> Path:
    """The file of a source. Raises UsageError where there is none."""
    file = Path(source.path).expanduser()
    if not file.is_file():
        raise UsageError(f"data.sources: {file} is no file; a source of kind `{source.kind}` needs one")
    return file


def _newlines(stream: Any, length: int) -> int:
    """Read on by `length` bytes, and say how many lines end in them."""
    found = 0
    while length:
        data = stream.read(min(length, MAX_RECORD))
        found, length = found + data.count(b"\n"), length - len(data)
    return found


def _unread(file: Path, error: EditFoundryError) -> BadRecord:
    text = one_line(str(error), 300)
    return BadRecord(text if text.startswith(str(file)) else f"{file}: {text}")
