"""Parquet with the images inside, as Hugging Face `datasets` writes it: structs of bytes and path, or plain bytes."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from editfoundry.core.errors import ConfigError, ImageError
from editfoundry.data_engine.layouts.base import Block, Found, Layout, Opened, Refused, check_bytes
from editfoundry.data_engine.layouts.metadata import Columns
from editfoundry.data_engine.readers.storage import ContainerError, expand, files_below, identity, is_folder
from editfoundry.data_engine.readers.tables import Table
from editfoundry.data_engine.source_spec import Locator, SourceFile, SourceSpec, encoded, uri_of

_BYTES = (pa.types.is_binary, pa.types.is_large_binary)


class Rows(Block):
    """The rows of one table."""

    def __init__(self, layout: Layout, url: str, count: int, state: str) -> None:
        self._layout, self._count, self._state = layout, count, state
        self.address, self.order, self.layout = url, uri_of(url).encode(), layout.format

    def __len__(self) -> int:
        return self._count

    def source(self, index: int) -> SourceFile:
        locator = Locator(containers=(encoded(self.address),), row=index)
        return self._layout._source(self.address, str(index), locator, self._state)

    def identities(self) -> Iterator[str]:
        """A row is its table and its number, so the table's state and length say it of all."""
        yield f"{self.layout} {uri_of(self.address)} {self._count} {self._state}"


class Parquet(Layout):
    """One source a row, streamed by row group. The image column is the one named, or the only one that holds images."""

    format = "parquet"

    def __init__(self, spec: SourceSpec, number: int) -> None:
        super().__init__(spec, number)
        self._known: dict[str, Columns] = {}

    def blocks(self) -> Iterator[Block]:
        for url in table_urls(self.spec.path):
            try:
                with Table(url) as table:
                    self._columns(table)
                    count = table.count
            except ContainerError as error:
                yield Refused(self, url, "", error.reason, str(error))
                continue
            yield Rows(self, url, count, identity(url))

    def read(self, locator: Locator, opened: Opened, max_bytes: int) -> Found:
        table = opened.table(locator.urls[0])
        columns = self._columns(table)
        image = columns.roles["image"]
        row = table.row(locator.row, columns.metadata) if columns.metadata else {}
        try:
            scores = columns.check(row)
            data = image_bytes(table.row(locator.row, [image])[image], max_bytes)
        except ImageError as error:
            if "id" in columns.roles and error.args:
                error.args = (f"id {columns.text(row, 'id')}: {error}",)
            raise
        opened.bytes_read += len(data)
        return Found(data, columns.text(row, "text"), columns.text(row, "licence"), columns.text(row, "url"), scores)

    def _columns(self, table: Table) -> Columns:
        if table.url in self._known:
            return self._known[table.url]
        columns = Columns(self.spec, table.columns, table.url)
        images = self.image_columns(table)
        named = self.spec.columns.get("image")
        if named is None and len(images) == 1:
            columns.roles["image"] = images[0]
        elif columns.roles.get("image") not in images:
            what = f"holds no images; columns that do: {', '.join(images) or 'none'}"
            raise ConfigError(
                f"ingest.sources: {table.url}: columns.image: {named or '(not named)'} {what}; there are: "
                f"{', '.join(table.columns)}"
            )
        self._known[table.url] = columns
        return columns

    @staticmethod
    def image_columns(table: Table) -> list[str]:
        """Columns of bytes, or of structs with bytes."""
        return [field.name for field in table.schema if _holds_bytes(field.type)]


def table_urls(path: str) -> list[str]:
    """The Parquet files that a path names: itself, or all below it if it is a folder."""
    return [url for found in expand(path)
            for url in (files_below(found, (".parquet",)) if is_folder(found) else [found])]  # fmt: skip


def image_bytes(value: Any, max_bytes: int) -> bytes:
    """The bytes of an image cell. Raises ImageError `no_image`, `image_not_embedded` or `too_many_bytes`."""
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            raise ImageError(
                "image_not_embedded",
                f"only the path {str(value['path'])[:200]!r} is given, no bytes; save "
                "the table with its images embedded",
            )
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise ImageError("no_image", "the row holds no image")
    check_bytes(len(value), max_bytes)
    return value


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_bytes(kind.field("bytes").type)
    return any(check(kind) for check in _BYTES)
