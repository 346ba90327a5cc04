"""JSON without trust: strict parsing, and the records of a large file found without holding the file.

A file may be one record, an array of records, a mapping of names to records, or one after another (JSON Lines). What is
a record and what a mapping is told by a key that every record has.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from editfoundry.data_engine.readers.storage import ContainerError, open_input, storage_errors

CHUNK = 1 << 20
MAX_RECORD = 64 << 20
_TOKEN = re.compile(rb'"|[{}\[\],:]|[^\s"{}\[\],:]+')
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

Span = tuple[int, int]


def parse(data: bytes, where: str) -> Any:
    """The value of JSON text. Raises ContainerError `bad_record` for anything else, NaN and infinities included."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except RecursionError as error:
        raise ContainerError("bad_record", f"{where}: nested too deeply") from error
    except ValueError as error:
        raise ContainerError("bad_record", f"{where}: not JSON: {error}") from error


def spans(url: str, key: str) -> Iterator[Span]:
    """(offset, bytes) of every record of the file, in order; key: what tells a record from a mapping of records.

    Raises ContainerError `bad_record` where the file stops being JSON, after the records before that place. Memory is
    that of the largest record at most, and a record of more than 64 MiB is refused.
    """
    with open_input(url) as stream:
        tokens = _tokens(stream, url)
        for kind, start, _ in tokens:
            if kind == b"[":
                yield from _elements(tokens, url, key)
            elif kind == b"{":
                yield from _object(tokens, start, url, key)
            elif kind != b",":
                raise ContainerError("bad_record", f"{url}: a value that is no record at byte {start}")


def _elements(tokens: Iterator[tuple[bytes, int, int]], url: str, key: str) -> Iterator[Span]:
    for kind, start, _ in tokens:
        if kind == b"{":
            yield from _object(tokens, start, url, key)
        elif kind == b"]":
            return
        elif kind != b",":
            raise ContainerError("bad_record", f"{url}: an element that is no record at byte {start}")
    raise ContainerError("bad_record", f"{url}: ends inside an array")


def _object(tokens: Iterator[tuple[bytes, int, int]], start: int, url: str, key: str) -> Iterator[Span]:
    """The object that began at `start` if it has `key`, else its values that are objects."""
    quoted = json.dumps(key).encode()
    inner: list[Span] = []
    depth, value_start, is_record, is_key = 1, 0, False, True
    for kind, at, end in tokens:
        if end - start > MAX_RECORD and (is_record or (depth > 1 and end - value_start > MAX_RECORD)):
            raise ContainerError("bad_record", f"{url}: a record of more than {MAX_RECORD} bytes at byte {start}")
        if kind in (b"{", b"["):
            if depth == 1 and kind == b"{":
                value_start = at
            depth += 1
        elif kind in (b"}", b"]"):
            depth -= 1
            if depth == 1 and kind == b"}":
                inner.append((value_start, end - value_start))
            if depth == 0:
                yield from [(start, end - start)] if is_record or not inner else inner
                return
        elif depth == 1:
            is_record = is_record or (is_key and kind == quoted)
            is_key = kind == b","
    raise ContainerError("bad_record", f"{url}: ends inside the record at byte {start}")


def _tokens(stream: BinaryIO, url: str) -> Iterator[tuple[bytes, int, int]]:
    """(token, start, end) of braces, brackets, commas, strings (short ones with their text) and bare values."""
    buffer, base, at = b"", 0, 0
    ended = False
    while True:
        match = _TOKEN.search(buffer, at)
        string = _STRING.match(buffer, match.end()) if match and match.group() == b'"' else None
        whole = match is not None and (string is not None or (match.group() != b'"' and match.end() < len(buffer)))
        if not whole and not ended:
            at = match.start() if match else len(buffer)
            base, buffer, at = base + at, buffer[at:], 0
            if len(buffer) > MAX_RECORD:
                raise ContainerError("bad_record", f"{url}: a text of more than {MAX_RECORD} bytes at byte {base}")
            with storage_errors(url):
                more = stream.read(max(CHUNK, len(buffer)))
            buffer, ended = buffer + more, not more
            continue
        if match is None:
            return
        if match.group() == b'"' and string is None:
            raise ContainerError("bad_record", f"{url}: ends inside a text that began at byte {base + match.start()}")
        end = string.end() if string else match.end()
        token = match.group() if string is None else buffer[match.start() : min(end, match.start() + 256)]
        if token != b":":
            yield token, base + match.start(), base + end
        at = end


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number that JSON has")
