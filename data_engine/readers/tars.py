"""Reading tars where they lie: what is in them, and one member's bytes. Nothing is ever extracted to disk.

An archive is a list of parts whose concatenation is the tar: one file, or `x.tar.split.000`, `x.tar.split.001`, … which
are read as one stream. Every header is hostile: names, sizes and types are checked before anything is read by them.
"""

import io
import itertools
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from editfoundry.data_engine.readers.storage import ContainerError, open_input, size, storage_errors

BLOCK = 512
MAX_HEADER = 1 << 20
_COMPRESSED = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"))
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_KINDS = {tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link", tarfile.CHRTYPE: "a device",
          tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a pipe", tarfile.GNUTYPE_SPARSE: "a sparse file"}  # fmt: skip


@dataclass(frozen=True)
class Member:
    """A file in a tar: `size` bytes from byte `offset` of the whole stream.

    name: as stored; bytes that are not UTF-8 are shown as `\\xNN`. problem: why it must not be read, "" if it may be:
    an absolute path, `..`, control characters, a link, a device, a sparse file.
    """

    name: str
    offset: int
    size: int
    problem: str = ""


def members(parts: Sequence[str]) -> Iterator[Member]:
    """Every entry of the tar but folders, in stored order, from its headers alone.

    Raises ContainerError after the last member that is whole: `damaged_tar`, `compressed_tar`, or `truncated_tar` when
    the stream ends inside a member or without the two empty blocks that end every tar.
    """
    with Archive(parts) as archive:
        yield from archive.members()


def read(parts: Sequence[str], member: Member) -> bytes:
    """The bytes of a member. Raises ContainerError, `unsafe_member` for one that has a problem."""
    with Archive(parts) as archive:
        return archive.read(member)


def split_parts(urls: Sequence[str]) -> list[list[str]]:
    """Groups addresses into archives: `x.tar.split.000`, `x.tar.split.001`, … are one, any other is one by itself.

    Raises ContainerError `truncated_tar` when a number is missing between the parts of one archive.
    """
    groups: dict[str, list[str]] = {}
    for url in sorted(urls):
        stem, dot, number = url.rpartition(".")
        split = dot and number.isdecimal() and ".tar" in stem.rsplit("/", 1)[-1]
        groups.setdefault(stem if split else url, []).append(url)
    for stem, parts in groups.items():
        numbers = [int(part.rpartition(".")[2]) for part in parts] if parts != [stem] else [0]
        if sorted(numbers) != list(range(len(numbers))):
            missing = next(number for number in itertools.count() if number not in numbers)
            raise ContainerError("truncated_tar", f"{stem}: part {missing} of the split tar is missing")
        parts.sort(key=lambda part: int(part.rpartition(".")[2]) if len(numbers) > 1 else 0)
    return list(groups.values())


class Archive:
    """An opened tar, whole or in parts; parts are opened when they are first needed, and one is open at a time."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.parts = list(parts)
        self.name = self.parts[0]
        ends = list(itertools.accumulate(size(part) for part in self.parts))
        self.size = ends[-1]
        self._spans = list(zip([0, *ends[:-1]], ends, strict=True))
        self._file: BinaryIO | None = None
        self._open = -1

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the part that is open."""
        if self._file is not None:
            self._file.close()
        self._file, self._open = None, -1

    def read(self, member: Member) -> bytes:
        """The bytes of a member. Raises ContainerError."""
        if member.problem:
            raise ContainerError("unsafe_member", f"{self.name}: {member.name}: {member.problem}")
        return self.read_span(member.offset, member.size)

    def read_span(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset` of the stream. Raises ContainerError `truncated_tar` where it ends before."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise ContainerError("truncated_tar", f"{self.name}: ends inside the member at byte {offset}")
        chunks = []
        for index, (start, end) in enumerate(self._spans):
            if start < offset + count and offset < end:
                first, last = max(offset, start), min(offset + count, end)
                chunks.append(self._part(index, first - start, last - first))
        return b"".join(chunks)

    def members(self) -> Iterator[Member]:
        """See the function of this name."""
        position, long_name, pax = 0, "", dict[str, str]()
        self._check_start()
        while (block := self._block(position)) is not None:
            info = self._header(block, position)
            position += BLOCK
            count = info.size
            if info.type in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
                payload = self._payload(position, count)
                position += _padded(count)
                if info.type == _LONG_NAME:
                    long_name = _text(payload.split(b"\0", 1)[0])
                elif info.type != _LONG_LINK:
                    self._read_pax(payload, info.type, pax, position)
                continue
            if info.type == tarfile.GNUTYPE_SPARSE:
                position = self._after_sparse_map(block, position)
            count = self._size_of(pax.get("size"), count, position)
            has_data = info.type in (*_FILES, tarfile.GNUTYPE_SPARSE) or info.type not in _KINDS
            count = count if has_data and info.type != tarfile.DIRTYPE else 0
            if position + count > self.size:
                raise ContainerError("truncated_tar", f"{self.name}: ends inside the member at byte {position}")
            if info.type != tarfile.DIRTYPE:
                name = pax.get("path") or long_name or info.name
                yield Member(name, position, count, _problem(name, info.type, pax))
            position += _padded(count)
            long_name, pax = "", {}

    def _check_start(self) -> None:
        if not self.size:
            raise ContainerError("truncated_tar", f"{self.name}: is empty")
        head = self.read_span(0, min(self.size, 6))
        kind = next((kind for magic, kind in _COMPRESSED if head.startswith(magic)), None)
        if kind is not None:
            raise ContainerError(
                "compressed_tar",
                f"{self.name}: compressed with {kind}; decompress it, members of a "
                "compressed tar cannot be read by themselves",
            )

    def _block(self, position: int) -> bytes | None:
        """The header at `position`; None where the tar ends as it should."""
        if position + BLOCK > self.size:
            raise ContainerError(
                "truncated_tar",
                f"{self.name}: ends at byte {self.size} without its end mark; copy it "
                "again, or take its missing parts along",
            )
        block = self.read_span(position, BLOCK)
        return None if not block.strip(b"\0") else block

    def _header(self, block: bytes, position: int) -> "_Header":
        try:
            return _Header.parse(block)
        except ValueError as error:
            raise ContainerError("damaged_tar", f"{self.name}: no header at byte {position}: {error}") from error

    def _payload(self, position: int, count: int) -> bytes:
        if count > MAX_HEADER:
            raise ContainerError("damaged_tar", f"{self.name}: a header of {count} bytes at byte {position}")
        return self.read_span(position, count)

    def _read_pax(self, payload: bytes, kind: bytes, pax: dict[str, str], position: int) -> None:
        """Take a pax header's records into `pax`. Global ones may not name or size members: no writer does that."""
        while payload.strip(b"\0"):
            digits, space, _ = payload.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
            key, equals, value = payload[len(digits) + 1 : length - 1].partition(b"=")
            ends_well = payload[length - 1 : length] == b"\n"
            if not (space and equals and key and ends_well and len(digits) + 1 < length <= len(payload)):
                raise ContainerError("damaged_tar", f"{self.name}: a pax header that is none before byte {position}")
            name = _text(key)
            if kind == _PAX:
                pax[name] = _text(value)
            elif name in ("path", "size"):
                raise ContainerError("damaged_tar", f"{self.name}: a global pax header sets {name}")
            payload = payload[length:]

    def _after_sparse_map(self, header: bytes, position: int) -> int:
        """Where a sparse member's data start: behind the blocks that go on with its map."""
        extended = header[482]
        while extended:
            extended = self.read_span(position, BLOCK)[504]
            position += BLOCK
        return position

    def _size_of(self, text: str | None, otherwise: int, position: int) -> int:
        if text is None:
            return otherwise
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise ContainerError("damaged_tar", f"{self.name}: a size of {text[:20]!r} before byte {position}")
        return int(text)

    def _part(self, index: int, offset: int, count: int) -> bytes:
        if self._open != index:
            self.close()
            self._file, self._open = open_input(self.parts[index]), index
        assert self._file is not None
        with storage_errors(self.parts[index]):
            self._file.seek(offset, io.SEEK_SET)
            data = self._file.read(count)
        if len(data) != count:
            raise ContainerError("truncated_tar", f"{self.parts[index]}: became shorter while it was read")
        return data


@dataclass(frozen=True)
class _Header:
    """The fields of a ustar, GNU or old header that matter here; tarfile's own parser reads all and takes five times

    as long, which a million members feel.
    """

    name: str
    size: int
    type: bytes

    @classmethod
    def parse(cls, block: bytes) -> "_Header":
        """Raises ValueError for a block that is no header."""
        if _number(block[148:156]) not in _checksums(block):
            raise ValueError("its checksum is wrong")
        count = _number(block[124:136])
        if count < 0:
            raise ValueError("its size is negative")
        kind = block[156:157]
        name = block[:100].split(b"\0", 1)[0]
        if block[257:263] == b"ustar\0" and block[345]:
            name = block[345:500].split(b"\0", 1)[0] + b"/" + name
        if kind == tarfile.AREGTYPE and name.endswith(b"/"):
            kind = tarfile.DIRTYPE
        return cls(_text(name), count, kind)


def _checksums(block: bytes) -> tuple[int, ...]:
    """The sum of a header's bytes with its own sum taken as blanks, of unsigned bytes and, as old tars did, signed."""
    rest = block[:148] + b" " * 8 + block[156:]
    unsigned = sum(rest)
    return unsigned, unsigned - 256 * sum(byte > 127 for byte in rest) if not rest.isascii() else unsigned


def _number(digits: bytes) -> int:
    """A number of a header: octal digits, or, for large ones, big-endian bytes after one that says so."""
    if digits[0] in (0x80, 0xFF):
        return int.from_bytes(digits[1:], "big") - (256 ** (len(digits) - 1) if digits[0] == 0xFF else 0)
    text = digits.split(b"\0", 1)[0].strip()
    return int(text, 8) if text else 0


def _padded(count: int) -> int:
    return count + -count % BLOCK


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _problem(name: str, kind: bytes, pax: dict[str, str]) -> str:
    if kind in _KINDS:
        return f"{_KINDS[kind]}, not a file"
    if kind not in _FILES:
        return f"of an unknown type {kind!r}"
    if any(key.startswith("GNU.sparse") for key in pax):
        return "a sparse file, not a plain one"
    if name.startswith("/"):
        return "an absolute path"
    if ".." in name.split("/"):
        return "a path that leaves its folder"
    if not name or not name.isprintable():
        return "a name without or with unprintable characters"
    return ""
