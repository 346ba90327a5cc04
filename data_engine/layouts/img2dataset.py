"""What img2dataset leaves: a Parquet file a shard with every row's outcome, and the images in a tar, folder or column.

`00000.parquet` has the columns `key, status, error_message, width, height, original_width, original_height`, the hash
that was asked for, and those saved along. The images lie in `00000.tar` (its webdataset output), in `00000/` (files) or
in a column of the table (parquet). `00000_stats.json` is written last and counts the rows that the shard was given.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from editfoundry.core.errors import ConfigError, ImageError
from editfoundry.core.images import read_info
from editfoundry.data_engine.layouts.base import Block, Found, Layout, Opened, Refused
from editfoundry.data_engine.layouts.metadata import Columns, number
from editfoundry.data_engine.layouts.parquet import Parquet, Rows, image_bytes
from editfoundry.data_engine.readers.records import parse
from editfoundry.data_engine.readers.storage import ContainerError, expand, identity, is_folder, join, names
from editfoundry.data_engine.readers.tables import Table
from editfoundry.data_engine.source_spec import Locator, SourceSpec, clean_text

EXTENSIONS = ("jpg", "png", "webp")
HASHES = ("sha256", "md5", "sha512")
SUCCESS = "success"
ORIGINAL = ("original_width", "original_height")
MAX_STATS = 1 << 20


@dataclass(frozen=True)
class Shard:
    """What is known of a table: its columns, which are read before pixels, and the column with images, if any."""

    columns: Columns
    metadata: list[str]
    image: str | None


class Img2dataset(Layout):
    """One source a row. A row that was not downloaded is a `download_failed`, with both of its error columns.

    Other rejects: `missing_image`, `size_mismatch` (the stored image is not of the size that the row says),
    `hash_mismatch` (with check_hash), `unsafe_member` (a key that is a path). A shard is refused whole when its table
    is not there or not whole, and counts one `incomplete_shard` more when it holds fewer rows than it was given.
    """

    format = "img2dataset"

    def __init__(self, spec: SourceSpec, number: int) -> None:
        super().__init__(spec, number)
        self._known: dict[str, Shard] = {}

    def blocks(self) -> Iterator[Block]:
        for found in expand(self.spec.path):
            if is_folder(found):
                yield from self._folder(found)
            elif found.endswith(".parquet"):
                yield from self._shard(found, self._beside(found))
            elif found.endswith(".tar"):
                yield from self._shard(f"{found.removesuffix('.tar')}.parquet", self._beside(found))
            elif not found.endswith("_stats.json"):
                raise ConfigError(f"ingest.sources: {found}: not a folder, tar or Parquet file of img2dataset")

    def urls(self, url: str) -> Iterator[tuple[int, str, bool]]:
        """(row, address, whether it was downloaded) of every row of a table that has an address."""
        with Table(url) as table:
            column = self._facts(table).columns.roles.get("url")
            if column is None:
                raise ConfigError(f"{url}: no column with addresses; there are: {', '.join(table.columns)}")
            for row, values in enumerate(table.rows([column, "status"])):
                if isinstance(values[column], str):
                    yield row, values[column], values["status"] == SUCCESS

    def read(self, locator: Locator, opened: Opened, max_bytes: int) -> Found:
        place = locator.urls[0]
        table = opened.table(place)
        facts = self._facts(table)
        row = table.row(locator.row, facts.metadata)
        if row["status"] != SUCCESS:
            error = clean_text(str(row.get("error_message")))
            raise ImageError("download_failed", f"{clean_text(str(row['status']))}: {error}")
        scores = facts.columns.check(row)
        scores |= {name: value for name in ORIGINAL if (value := number(row.get(name))) is not None}
        if facts.image is not None:
            data = image_bytes(table.row(locator.row, [facts.image])[facts.image], max_bytes)
            opened.bytes_read += len(data)
        else:
            data = self._stored(place, row["key"], opened, max_bytes)
        self._check(row, data)
        columns = facts.columns
        text, licence, url = (columns.text(row, role) for role in ("text", "licence", "url"))
        return Found(data, text, licence, url, scores)

    def _folder(self, folder: str) -> Iterator[Block]:
        there = names(folder)
        stems = {
            name.removesuffix(ending) for name in there for ending in (".parquet", ".tar") if name.endswith(ending)
        }
        for stem in sorted(stems):
            yield from self._shard(join(folder, f"{stem}.parquet"), there)

    def _beside(self, file: str) -> list[str]:
        folder, slash, _ = file.rpartition("/")
        return names(f"{folder}/" if slash else ".")

    def _shard(self, url: str, there: list[str]) -> Iterator[Block]:
        stem = url.removesuffix(".parquet")
        name = stem.rsplit("/", 1)[-1]
        try:
            with Table(url) as table:
                self._facts(table)
                count = table.count
        except ContainerError as error:
            remedy = "; the shard was not finished: run img2dataset again, or read its tar as format webdataset"
            yield Refused(self, url, "", error.reason, f"{error}{remedy}")
            return
        tar = f"{name}.tar"
        yield Rows(self, url, count, " ".join([identity(url), identity(f"{stem}.tar") if tar in there else ""]))
        lost = self._lost(f"{stem}_stats.json", count) if f"{name}_stats.json" in there else ""
        if lost:
            yield Refused(self, url, "lost", "incomplete_shard", lost)

    def _lost(self, url: str, count: int) -> str:
        """What the shard's statistics say is missing from it, "" for nothing."""
        try:
            stats = parse(Opened().file(url, MAX_STATS), url)
        except ImageError as error:
            return str(error)
        given = stats.get("count") if isinstance(stats, dict) else None
        if not isinstance(given, int) or given == count:
            return "" if isinstance(given, int) else f"{url}: holds no count"
        return f"img2dataset was given {given} addresses and wrote {count} rows of them"

    def _facts(self, table: Table) -> Shard:
        if table.url not in self._known:
            missing = next((name for name in ("key", "status") if name not in table.columns), None)
            if missing:
                raise ConfigError(
                    f"ingest.sources: {table.url}: no column {missing!r}, so it is none of img2dataset's; "
                    f"there are: {', '.join(table.columns)}"
                )
            columns = Columns(self.spec, table.columns, table.url)
            image = next((name for name in EXTENSIONS if name in Parquet.image_columns(table)), None)
            known = ("key", "status", "error_message", "width", "height", *ORIGINAL, *HASHES)
            wanted = [*columns.metadata, *(name for name in known if name in table.columns)]
            self._known[table.url] = Shard(columns, list(dict.fromkeys(wanted)), image)
        return self._known[table.url]

    def _stored(self, url: str, key: Any, opened: Opened, max_bytes: int) -> bytes:
        """The image of a key from the tar beside the table, or from the folder."""
        stem = url.removesuffix(".parquet")
        if not isinstance(key, str) or not key.replace("-", "").replace("_", "").isalnum():
            raise ImageError("unsafe_member", f"its key is {str(key)[:80]!r}, not a plain name")
        tar = f"{stem}.tar"
        try:
            index = opened.members([tar])
        except ContainerError as error:
            if error.reason != "missing_file":
                raise
            return self._file(stem, key, opened, max_bytes)
        member = next((index.by_name[name] for name in _file_names(key) if name in index.by_name), None)
        if member is None:
            if index.damage is not None:
                raise ContainerError(index.damage.reason, f"no image of the key {key}: {index.damage}")
            raise ImageError("missing_image", f"{tar}: no image of the key {key}")
        if member.problem:
            raise ImageError("unsafe_member", f"{tar}: {member.name}: {member.problem}")
        return opened.span([tar], (member.offset, member.size), max_bytes)

    def _file(self, stem: str, key: str, opened: Opened, max_bytes: int) -> bytes:
        for name in _file_names(key):
            try:
                return opened.file(join(stem, name), max_bytes)
            except ContainerError as error:
                if error.reason != "missing_file":
                    raise
        raise ImageError("missing_image", f"{stem}: neither a tar nor a folder with an image of the key {key}")

    def _check(self, row: Mapping[str, Any], data: bytes) -> None:
        """Compare the stored bytes with what their row says of them. The sides may be swapped: EXIF turns images."""
        said = [number(row.get(side)) for side in ("width", "height")]
        if None not in said:
            info = read_info(data)
            if sorted((info.width, info.height)) != sorted(int(side) for side in said if side is not None):
                raise ImageError(
                    "size_mismatch",
                    f"the stored image is {info.width}x{info.height}, its row says {said[0]:.0f}x{said[1]:.0f}",
                )
        for name in HASHES if self.spec.check_hash else ():
            digest = row.get(name)
            if isinstance(digest, str) and hashlib.new(name, data).hexdigest() != digest.lower():
                raise ImageError("hash_mismatch", f"the {name} of the stored bytes is not {digest[:80]!r}")


def _file_names(key: str) -> list[str]:
    return [f"{key}.{extension}" for extension in EXTENSIONS]
