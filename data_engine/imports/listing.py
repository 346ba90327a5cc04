"""The rows of an import, listed lazily: what is held is a few words a file, however many rows a table has."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import overload

import numpy as np

from editfoundry.core.errors import ConfigError
from editfoundry.core.hashing import sha256
from editfoundry.data_engine.imports.config import DatasetSpec, ImportsConfig
from editfoundry.data_engine.imports.rows import ListedRow
from editfoundry.data_engine.imports.values import field_at, row_id, top_column
from editfoundry.data_engine.readers import storage, tables, tars
from editfoundry.data_engine.readers.storage import ContainerError

IMGEDIT_COLUMNS = ({"input_images", "output_images", "prompt"}, {"data"})
Members = tuple[tuple[str, tars.Member], ...]


@dataclass
class _File:
    """A file of a dataset: its rows, or the reason why they cannot be read, which stands for one row.

    samples: of a WebDataset tar, the key and the members of each. repeated: rows whose id another row had before.
    """

    dataset: int
    url: str
    stamp: str
    rows: int
    source_url: str
    problem: tuple[str, str] | None = None
    samples: Sequence[tuple[str, Members]] | None = None
    repeated: frozenset[int] = frozenset()

    def row(self, number: int) -> ListedRow:
        """Row `number` of the file."""
        uri, members, problem = f"{self.url}#row={number}", Members(), self.problem
        if self.samples is not None:
            key, members = self.samples[number]
            uri = f"{self.url}#{key}"
        if problem is not None:
            uri = self.url
        elif number in self.repeated:
            problem = ("duplicate_id", "a row before it has the same id")
        return ListedRow(
            id=sha256(f"{uri} {number} {problem[0] if self.problem and problem else ''}")[:16],
            uri=uri,
            dataset=self.dataset,
            url=self.url,
            number=number,
            source_url=self.source_url,
            stamp=self.stamp,
            problem=problem,
            members=members,
        )


class Rows(Sequence[ListedRow]):
    """Every row of every dataset, in the order of the configuration, then of the files' names, then as stored.

    A file that cannot be opened counts as one row, which becomes the reject that says why. Of rows with the same id in
    one dataset the first is a row like any other and the others are duplicates.
    """

    def __init__(self, files: Sequence[_File]) -> None:
        self._files = files
        self._starts = np.concatenate(([0], np.cumsum([file.rows for file in files], dtype=np.int64)))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> ListedRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[ListedRow]: ...
    def __getitem__(self, index: int | slice) -> ListedRow | list[ListedRow]:
        if isinstance(index, slice):
            return [self._row(number) for number in range(*index.indices(len(self)))]
        return self._row(range(len(self))[index])

    def __iter__(self) -> Iterator[ListedRow]:
        return (file.row(number) for file in self._files for number in range(file.rows))

    def _row(self, index: int) -> ListedRow:
        place = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._files[place].row(index - int(self._starts[place]))


def list_rows(config: ImportsConfig) -> Rows:
    """Every row of the configured datasets, from footers and tar headers; of the tables only columns of ids are read.

    Raises UsageError for a path without a match, ConfigError for a table without a column that the configuration names,
    ContainerError for a split tar with a part missing.
    """
    listed: list[_File] = []
    for number, spec in enumerate(config.datasets):
        urls = storage.expand(spec.path)
        if spec.layout == "webdataset":
            files = [file for url in urls for file in _webdataset(number, spec, url)]
        else:
            pictures = "".join(storage.identity(part) for parts in picture_archives(spec) for part in parts)
            files = [_table(number, spec, url, pictures) for url in urls]
        _mark_repeated(files, spec)
        listed += files
    return Rows([file for file in listed if file.rows])


def picture_archives(spec: DatasetSpec) -> list[list[str]]:
    """The tars of an imgedit dataset, each as its parts. Raises UsageError or ContainerError `truncated_tar`."""
    return tars.split_parts([url for pattern in spec.images for url in storage.expand(pattern)])


def wanted_columns(spec: DatasetSpec) -> list[str]:
    """What the configuration names in a row: columns, or fields of structs."""
    names = [*spec.columns.model_dump().values(), *(score.column or name for name, score in spec.scores.items())]
    return list(dict.fromkeys(name for name in names if name))


def _table(number: int, spec: DatasetSpec, url: str, pictures: str) -> _File:
    stamp = storage.identity(url)
    if pictures:
        stamp = f"{stamp} {sha256(pictures)[:16]}"
    try:
        with tables.Table(url) as table:
            _check_columns(spec, table)
            return _File(number, url, stamp, table.count, spec.source_url)
    except ContainerError as error:
        return _File(number, url, stamp, 1, spec.source_url, (error.reason, str(error)))


def _check_columns(spec: DatasetSpec, table: tables.Table) -> None:
    there = set(table.columns)
    if spec.layout == "imgedit":
        if not any(needed <= there for needed in IMGEDIT_COLUMNS):
            wanted = "neither input_images, output_images and prompt, nor data"
            raise ConfigError(f"{table.url}: has {wanted}; it has: {', '.join(table.columns)}")
        return
    missing = [name for name in wanted_columns(spec) if top_column(name, there) is None]
    if missing:
        raise ConfigError(f"{table.url}: no column {', '.join(missing)}; there are: {', '.join(table.columns)}")


def _webdataset(number: int, spec: DatasetSpec, url: str) -> Iterator[_File]:
    """The samples of a tar: runs of members with one key, the path up to the first dot of its last part.

    What a damaged tar holds before the damage is taken, the rest is a row of its own that says what is wrong.
    """
    samples: list[tuple[str, list[tuple[str, tars.Member]]]] = []
    stamp = storage.identity(url)
    problem = None
    try:
        for member in tars.members([url]):
            folder, slash, name = member.name.rpartition("/")
            base, _, extension = name.partition(".")
            key = f"{folder}{slash}{base}"
            if not samples or samples[-1][0] != key:
                samples.append((key, []))
            samples[-1][1].append((extension.lower(), member))
    except ContainerError as error:
        problem = (error.reason, str(error))
    whole = [(key, tuple(members)) for key, members in samples]
    yield _File(number, url, stamp, len(whole), spec.source_url, samples=whole)
    if problem is not None:
        yield _File(number, url, stamp, 1, spec.source_url, problem)


def _mark_repeated(files: Sequence[_File], spec: DatasetSpec) -> None:
    """Find rows of one dataset with the same id, by 64-bit hashes: 20 bytes a row."""
    hashes, numbers, places = array("Q"), array("q"), array("l")
    for place, file in enumerate(files):
        for number, text in _ids(file, spec):
            digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            hashes.append(int.from_bytes(digest, "big"))
            numbers.append(number)
            places.append(place)
    _, first = np.unique(np.frombuffer(hashes, np.uint64) if hashes else np.empty(0, np.uint64), return_index=True)
    again = np.ones(len(hashes), np.bool_)
    again[first] = False
    repeated: dict[int, set[int]] = {}
    for index in np.flatnonzero(again).tolist():
        repeated.setdefault(places[index], set()).add(numbers[index])
    for place, rows in repeated.items():
        files[place].repeated = frozenset(rows)


def _ids(file: _File, spec: DatasetSpec) -> Iterator[tuple[int, str]]:
    """(number, id) of the file's rows that have an id of their own."""
    if file.samples is not None:
        yield from ((number, key) for number, (key, _) in enumerate(file.samples))
    elif spec.columns.id and file.problem is None:
        with tables.Table(file.url) as table:
            column = top_column(spec.columns.id, set(table.columns))
            assert column is not None
            rows = enumerate(table.rows([column]))
            while (found := _next_row(rows)) is not None:
                number, row = found
                if text := row_id(field_at(row, spec.columns.id)):
                    yield number, text


def _next_row(rows: Iterator[tuple[int, dict[str, object]]]) -> tuple[int, dict[str, object]] | None:
    """The next row; None at the end, and at damage, which makes rejects of the rows when they are read themselves."""
    try:
        return next(rows, None)
    except ContainerError:
        return None
