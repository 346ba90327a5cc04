"""LAION metadata: Parquet rows of addresses and scores, joined by address to what img2dataset downloaded of them.

Columns as released: `URL, TEXT, WIDTH, HEIGHT` (float64), `similarity, punsafe, pwatermark, AESTHETIC_SCORE` (some
subsets: `aesthetic`) and `hash` (int64). Nothing is downloaded here; `select` writes the rows worth downloading.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from editfoundry.core.errors import ConfigError, ImageError, UsageError
from editfoundry.data_engine.layouts.base import Block, Found, Layout, Listed, Opened, Refused
from editfoundry.data_engine.layouts.img2dataset import Img2dataset
from editfoundry.data_engine.layouts.metadata import Columns, MetadataCut
from editfoundry.data_engine.layouts.parquet import Rows, table_urls
from editfoundry.data_engine.layouts.webdataset import WebDataset, tar_files
from editfoundry.data_engine.readers.storage import ContainerError, expand, files_below, identity, is_folder
from editfoundry.data_engine.readers.tables import Table
from editfoundry.data_engine.source_spec import Locator, SourceFile, SourceSpec

ABSENT = -1
HASH_BYTES = 12


class JoinedRows(Rows):
    """The rows of a table of metadata; images: for each the position of its image among `pixels`, or ABSENT."""

    def __init__(self, layout: "Laion", url: str, state: str, images: "array[int]", pixels: Listed) -> None:
        super().__init__(layout, url, len(images), state)
        self._images, self._pixels = images, pixels

    def source(self, index: int) -> SourceFile:
        source = super().source(index)
        if self._images[index] == ABSENT:
            return source
        pixels = self._pixels[self._images[index]]
        return source.model_copy(update={"image": pixels.locator, "state": f"{source.state} {pixels.state}"})

    def identities(self) -> Iterator[str]:
        """The table's, that of everything pixels come from, and which row has which."""
        yield from super().identities()
        yield hashlib.sha256(self._images.tobytes()).hexdigest()
        yield from self._pixels.identities()


class Laion(Layout):
    """One source a row. `images` is an img2dataset output, or tars with an address in their json.

    Rows are cut by metadata first; one that passes and has no image is a `not_downloaded`.
    """

    format = "laion"

    def __init__(self, spec: SourceSpec, number: int) -> None:
        super().__init__(spec, number)
        self._known: dict[str, Columns] = {}
        self._pixels = self._pixel_layout()

    def blocks(self) -> Iterator[Block]:
        pixels, index, refused = self._index()
        yield from refused
        for url in table_urls(self.spec.path):
            try:
                with Table(url) as table:
                    column = self._columns(table).roles["url"]
                    found = (row[column] for row in table.rows([column]))
                    images = array(
                        "q", (index.get(_short(text), ABSENT) if isinstance(text, str) else ABSENT for text in found)
                    )
            except ContainerError as error:
                yield Refused(self, url, "", error.reason, str(error))
                continue
            yield JoinedRows(self, url, identity(url), images, pixels)

    def read(self, locator: Locator, opened: Opened, max_bytes: int) -> Found:
        raise TypeError("a row of metadata is read with the place of its image, by read_source")

    def read_source(self, source: SourceFile, opened: Opened, max_bytes: int) -> Found:
        assert source.locator is not None, "what is not refused has a locator"
        table = opened.table(source.locator.urls[0])
        columns = self._columns(table)
        row = table.row(source.locator.row, columns.metadata)
        scores = columns.check(row)
        if source.image is None or self._pixels is None:
            raise ImageError(
                "not_downloaded",
                "passes the cuts, but no image of its address was found; img2dataset "
                "downloads it, from the list that `editfoundry data select` writes",
            )
        image = self._pixels.read(source.image, opened, max_bytes)
        return Found(image.data, columns.text(row, "text") or image.text, columns.text(row, "licence") or image.licence,
                     columns.text(row, "url"), {**image.scores, **scores})  # fmt: skip

    def _columns(self, table: Table) -> Columns:
        if table.url not in self._known:
            columns = Columns(self.spec, table.columns, table.url)
            if "url" not in columns.roles:
                raise ConfigError(
                    f"ingest.sources: {table.url}: no column 'URL'; there are: {', '.join(table.columns)}"
                )
            self._known[table.url] = columns
        return self._known[table.url]

    def _pixel_layout(self) -> Layout | None:
        """How the images are stored: as img2dataset's if there is a Parquet file among them, else as WebDataset's."""
        if self.spec.images is None:
            return None
        found = expand(self.spec.images)
        tables = any(files_below(one, (".parquet",)) if is_folder(one) else one.endswith(".parquet") for one in found)
        inner = SourceSpec(path=self.spec.images, format="img2dataset" if tables else "webdataset",
                           check_hash=self.spec.check_hash and tables)  # fmt: skip
        if not tables and not any(tar_files(one) if is_folder(one) else True for one in found):
            raise ConfigError(f"ingest.sources: images {self.spec.images}: neither tars nor tables of img2dataset")
        return Img2dataset(inner, self.number) if tables else WebDataset(inner, self.number)

    def _index(self) -> tuple[Listed, dict[bytes, int], list[Block]]:
        """What is stored; by address (its hash) the position of its image, downloaded ones first; what is damaged."""
        found = list(self._pixels.blocks()) if self._pixels else []
        refused: list[Block] = [block for block in found if isinstance(block, Refused)]
        blocks = [block for block in found if not isinstance(block, Refused)]
        index: dict[bytes, int] = {}
        failed: dict[bytes, int] = {}
        start = 0
        for block in blocks:
            for row, address, downloaded in self._addresses(block):
                (index if downloaded else failed).setdefault(_short(address), start + row)
            start += len(block)
        return Listed(blocks), {**failed, **index}, refused

    def _addresses(self, block: Block) -> Iterator[tuple[int, str, bool]]:
        if isinstance(self._pixels, Img2dataset):
            yield from self._pixels.urls(block.address)
            return
        assert isinstance(self._pixels, WebDataset)
        opened = Opened()
        for row in range(len(block)):
            source = block.source(row)
            address = self._pixels.address(source.locator, opened) if source.locator and not source.reason else ""
            if address:
                yield row, address, True
        opened.close()


def select(paths: Sequence[str], spec: SourceSpec, out: Path) -> Counter[str]:
    """Write the rows that pass the cuts of `spec` to the Parquet file `out`, streamed, with all their columns.

    Returns how many were kept (`kept`) and how many each reason turned away. `out` appears when it is whole. Raises
    UsageError for tables with different columns, and ContainerError for one that cannot be read.
    """
    counts: Counter[str] = Counter(kept=0)
    part = out.with_name(f".{out.name}.part")
    writer: pq.ParquetWriter | None = None
    layout = Laion(spec, 0)
    try:
        for url in (url for path in paths for url in table_urls(path)):
            with Table(url) as table:
                columns = layout._columns(table)
                writer = writer or pq.ParquetWriter(part, table.schema, compression="zstd")
                if not table.schema.equals(writer.schema):
                    raise UsageError(f"{url}: its columns are not those of the first table; select them one by one")
                for batch in table.batches():
                    keep = [_verdict(columns, row) for row in batch.select(columns.metadata).to_pylist()]
                    counts.update(reason or "kept" for reason in keep)
                    writer.write_batch(batch.filter([not reason for reason in keep]))
        if writer is None:
            raise UsageError(f"{', '.join(paths)}: no Parquet file")
        writer.close()
        part.replace(out)
    finally:
        if writer is not None and writer.is_open:
            writer.close()
        part.unlink(missing_ok=True)
    return counts


def _verdict(columns: Columns, row: dict[str, object]) -> str:
    """The reason a row is turned away, "" for none."""
    try:
        columns.check(row)
    except MetadataCut as cut:
        return cut.reason
    return ""


def _short(address: str) -> bytes:
    return hashlib.blake2b(address.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
