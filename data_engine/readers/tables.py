"""Reading Parquet tables, local or remote, one row group in memory at most."""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from editfoundry.data_engine.readers.storage import ContainerError, open_input, storage_errors

MAX_GROUP_BYTES = 4 * 1024**3
BATCH = 256


def columns(url: str) -> list[str]:
    """The names of a table's columns, from its footer. Raises ContainerError, like all here."""
    with Table(url) as table:
        return table.columns


def count(url: str) -> int:
    """The number of a table's rows, from its footer."""
    with Table(url) as table:
        return table.count


def rows(url: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Every row as a dictionary of plain values, streamed by row group; only some of its columns if they are named."""
    with Table(url) as table:
        yield from table.rows(columns)


def row(url: str, index: int, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """One row, counted from 0. For many rows of one table, open a `Table`: it keeps the row group it read last."""
    with Table(url) as table:
        return table.row(index, columns)


class Table:
    """An opened Parquet file. Raises ContainerError `missing_file`, `unreadable` or `damaged_table`.

    `schema` is Arrow's, `columns` its names, `count` the number of rows. A row group whose footer says that it holds
    more than 4 GiB is refused.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._stream = open_input(url)
        try:
            with _arrow_errors(url):
                self._file = pq.ParquetFile(self._stream, pre_buffer=False)
                self.schema: pa.Schema = self._file.schema_arrow
                groups = [self._file.metadata.row_group(number) for number in range(self._file.num_row_groups)]
        except BaseException:
            self._stream.close()
            raise
        if any(group.num_rows < 0 for group in groups):
            raise ContainerError("damaged_table", f"{url}: a row group with a negative number of rows")
        self._sizes = [group.total_byte_size for group in groups]
        self._starts = [0, *itertools.accumulate(group.num_rows for group in groups)]
        self.columns: list[str] = list(self.schema.names)
        self.count: int = self._starts[-1]
        self._held: dict[tuple[str, ...] | None, tuple[int, Any]] = {}

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let go of the row group that was read last."""
        self._held = {}
        self._file.close()
        self._stream.close()

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Every row in stored order, streamed."""
        for batch in self.batches(columns):
            with _arrow_errors(self.url):
                values = batch.to_pylist()
            yield from values

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Every row in stored order, as Arrow record batches of at most 256."""
        self._check(columns)
        for number in range(len(self._sizes)):
            self._check_size(number)
            with _arrow_errors(self.url):
                batches = self._file.iter_batches(BATCH, [number], columns, use_threads=False)
            while True:
                with _arrow_errors(self.url):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch

    def row(self, index: int, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """One row. The row group it lies in is kept, for each set of columns, until another is asked for."""
        self._check(columns)
        if not 0 <= index < self.count:
            raise ContainerError("damaged_table", f"{self.url}: has {self.count} rows, there is no row {index}")
        number = bisect.bisect_right(self._starts, index) - 1
        key = None if columns is None else tuple(columns)
        held, table = self._held.get(key, (-1, None))
        if held != number:
            self._check_size(number)
            self._held.pop(key, None)
            with _arrow_errors(self.url):
                table = self._file.read_row_group(number, columns, use_threads=False)
            self._held[key] = (number, table)
        with _arrow_errors(self.url):
            found: dict[str, Any] = table.slice(index - self._starts[number], 1).to_pylist()[0]
        return found

    def _check(self, columns: Sequence[str] | None) -> None:
        missing = next((name for name in columns or () if name not in self.columns), None)
        if missing is not None:
            raise ContainerError(
                "damaged_table", f"{self.url}: no column {missing!r}; there are: {', '.join(self.columns)}"
            )

    def _check_size(self, number: int) -> None:
        if self._sizes[number] > MAX_GROUP_BYTES:
            raise ContainerError(
                "damaged_table",
                f"{self.url}: row group {number} is said to hold "
                f"{self._sizes[number]} bytes, more than {MAX_GROUP_BYTES}; write smaller row groups",
            )


@contextmanager
def _arrow_errors(url: str) -> Iterator[None]:
    """Turn what Arrow raises on damaged files into a ContainerError that names the table."""
    try:
        with storage_errors(url):
            yield
    except ContainerError as error:
        cause = error.__cause__
        of_arrow = isinstance(cause, (pa.ArrowException, UnicodeDecodeError, IndexError))
        # Arrow reports damaged pages as an OSError without a number; the ones with a number are the disk's.
        if of_arrow or (isinstance(cause, OSError) and cause.errno is None):
            what = " ".join(str(cause).split())[:300]
            raise ContainerError("damaged_table", f"{url}: not readable as Parquet: {what}") from cause
        raise
