"""What a layout is: how its photographs are listed without reading pixels, and how one is read on a worker."""

import bisect
import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from editfoundry.core.errors import ImageError
from editfoundry.data_engine.readers.storage import ContainerError, open_input, storage_errors
from editfoundry.data_engine.readers.storage import size as file_size
from editfoundry.data_engine.readers.tables import Table
from editfoundry.data_engine.readers.tars import Archive, Member
from editfoundry.data_engine.records import Caption
from editfoundry.data_engine.source_spec import Locator, SourceFile, SourceSpec, id_of, uri_of

OPEN = {"table": 3, "tar": 8, "index": 8}
T = TypeVar("T")


@dataclass(frozen=True)
class Marked:
    """A region that somebody marked before, in pixels of the upright photograph. mask: COCO counts; box: xyxy."""

    label: str
    kind: str
    box: tuple[float, float, float, float]
    mask: str | None
    score: float
    clip_score: float | None
    aesthetic: float | None


@dataclass(frozen=True)
class Annotation:
    """What is known of a photograph's content already: caption, regions and counts. size: (width, height) of masks."""

    caption: Caption | None
    regions: tuple[Marked, ...]
    counts: dict[str, int]
    size: tuple[int, int]


@dataclass(frozen=True)
class Found:
    """A photograph that was read: its bytes, and what its layout says of it. scores: numbers of the metadata."""

    data: bytes
    text: str = ""
    licence: str = ""
    url: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    annotation: Annotation | None = None


class Block(ABC):
    """Consecutive sources of one listing, made when they are asked for, so that a million rows cost no memory.

    order: what blocks are sorted by. address: the container or file, "" for none; `layout` tells what it was read as.
    """

    order: bytes
    address: str
    layout: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def source(self, index: int) -> SourceFile:
        """The source at that position."""

    def identities(self) -> Iterator[str]:
        """Texts that change when one of its sources does; what many sources share is said once."""
        for index in range(len(self)):
            yield self.source(index).identity()


class Single(Block):
    """A block of one."""

    def __init__(self, source: SourceFile, order: bytes, address: str = "") -> None:
        self._source, self.order, self.address, self.layout = source, order, address, source.format

    def __len__(self) -> int:
        return 1

    def source(self, index: int) -> SourceFile:
        return self._source


class Refused(Single):
    """Something that cannot be used, known while listing; reading it gives the reject."""

    def __init__(self, layout: "Layout", address: str, name: str, reason: str, detail: str) -> None:
        uri = f"{uri_of(address)}#{name}" if name else uri_of(address)
        source = SourceFile(id=id_of(uri), uri=uri, spec=layout.number, format=layout.format, reason=reason,
                            detail=detail, state=reason)  # fmt: skip
        super().__init__(source, uri_of(address).encode())


class Listed(Sequence[SourceFile]):
    """The sources of a run in order: a sequence whose items are made when they are asked for.

    A slice is a view; pickled, it is a tuple of its items, so that a shard brings its own sources and no more.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._starts = [0, *itertools.accumulate(len(block) for block in blocks)]
        self._range = range(self._starts[-1])

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> SourceFile: ...

    @overload
    def __getitem__(self, index: slice) -> "Listed": ...

    def __getitem__(self, index: int | slice) -> "SourceFile | Listed":
        if isinstance(index, slice):
            view = Listed.__new__(Listed)
            view._blocks, view._starts, view._range = self._blocks, self._starts, self._range[index]
            return view
        position = self._range[index]
        number = bisect.bisect_right(self._starts, position) - 1
        return self._blocks[number].source(position - self._starts[number])

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)

    def identities(self) -> Iterator[str]:
        """What changes when any of the sources of the whole listing does, in order; see `Block`."""
        for block in self._blocks:
            yield from block.identities()


class Opened:
    """Containers a worker has open: the last few tables and tars, and the indices of tars by key.

    bytes_read: bytes of photographs and sidecars that were read.
    """

    def __init__(self) -> None:
        self._open: dict[str, OrderedDict[tuple[str, ...], Any]] = {kind: OrderedDict() for kind in OPEN}
        self.bytes_read = 0

    def table(self, url: str) -> Table:
        """The table, open. Raises ContainerError."""
        return self._held("table", (url,), lambda: Table(url))

    def archive(self, parts: Sequence[str]) -> Archive:
        """The tar, open. Raises ContainerError."""
        return self._held("tar", tuple(parts), lambda: Archive(parts))

    def members(self, parts: Sequence[str]) -> "TarIndex":
        """The members of a tar by name, from its headers."""
        return self._held("index", tuple(parts), lambda: TarIndex(self.archive(parts)))

    def span(self, parts: Sequence[str], span: tuple[int, int], max_bytes: int) -> bytes:
        """Bytes of a tar. Raises ContainerError, and ImageError `too_many_bytes` before reading."""
        check_bytes(span[1], max_bytes)
        data = self.archive(parts).read_span(*span)
        self.bytes_read += len(data)
        return data

    def file(self, url: str, max_bytes: int) -> bytes:
        """A whole file. Raises ContainerError, and ImageError `too_many_bytes` before reading."""
        check_bytes(file_size(url), max_bytes)
        with open_input(url) as stream, storage_errors(url):
            data = stream.read(max_bytes + 1)
        check_bytes(len(data), max_bytes)
        self.bytes_read += len(data)
        return data

    def close(self) -> None:
        """Close everything."""
        for containers in self._open.values():
            while containers:
                self._close(containers.popitem()[1])

    def _held(self, kind: str, key: tuple[str, ...], make: Callable[[], T]) -> T:
        containers = self._open[kind]
        if key in containers:
            containers.move_to_end(key)
        else:
            containers[key] = make()
            if len(containers) > OPEN[kind]:
                self._close(containers.popitem(last=False)[1])
        held: T = containers[key]
        return held

    def _close(self, container: Any) -> None:
        if not isinstance(container, TarIndex):
            container.close()


class TarIndex:
    """The plain members of a tar by name; damage: what ended reading its headers, None if they are whole."""

    def __init__(self, archive: Archive) -> None:
        self.by_name: dict[str, Member] = {}
        self.damage: ContainerError | None = None
        try:
            for member in archive.members():
                self.by_name.setdefault(member.name, member)
        except ContainerError as error:
            self.damage = error


class Layout(ABC):
    """Lists and reads one source specification. `number` is its position in the configuration."""

    format: Any

    def __init__(self, spec: SourceSpec, number: int) -> None:
        self.spec, self.number = spec, number

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Everything the specification names, from headers and footers. Raises ConfigError and UsageError."""

    @abstractmethod
    def read(self, locator: Locator, opened: Opened, max_bytes: int) -> Found:
        """One photograph. Raises ImageError under the reason of its reject; `MetadataCut` before pixels are read."""

    def read_source(self, source: SourceFile, opened: Opened, max_bytes: int) -> Found:
        """The photograph of a listed source; see `read`."""
        assert source.locator is not None, "what is not refused has a locator"
        return self.read(source.locator, opened, max_bytes)

    def _source(self, address: str, name: str, locator: Locator, state: str, **extra: Any) -> SourceFile:
        uri = f"{uri_of(address)}#{name}"
        return SourceFile(id=id_of(uri), uri=uri, spec=self.number, format=self.format, licence=self.spec.licence,
                          source_url=self.spec.source_url, locator=locator, state=state, **extra)  # fmt: skip


def check_bytes(size: int, max_bytes: int) -> None:
    """Raise ImageError `too_many_bytes` for more than `max_bytes`."""
    if size > max_bytes:
        raise ImageError("too_many_bytes", f"{size} bytes exceed {max_bytes}")
