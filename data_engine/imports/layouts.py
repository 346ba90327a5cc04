"""Reading one row of each layout: its pictures as bytes, and its values as they are."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from editfoundry.data_engine.imports.archives import Pictures
from editfoundry.data_engine.imports.config import Columns, DatasetSpec
from editfoundry.data_engine.imports.listing import picture_archives, wanted_columns
from editfoundry.data_engine.imports.rows import ListedRow, RawRow, RawTurn, RowRefused
from editfoundry.data_engine.imports.values import field_at, image_bytes, parse_json, row_id, top_column
from editfoundry.data_engine.readers.tables import Table
from editfoundry.data_engine.readers.tars import Archive, Member
from editfoundry.data_engine.taxonomy import CONVERSATIONS

MAX_TURNS = 16
_NUMBERED = re.compile(r".*?(_\d+)?")


class Reader(ABC):
    """Reads rows of one dataset; keeps the file open that it read last. Raises ImageError with the row's reason."""

    def __init__(self, spec: DatasetSpec, max_bytes: int) -> None:
        self.spec, self.max_bytes = spec, max_bytes

    @abstractmethod
    def read(self, row: ListedRow) -> RawRow:
        """The row with its pictures."""


def reader(spec: DatasetSpec, max_bytes: int) -> Reader:
    """The reader of a dataset's layout. Raises UsageError or ContainerError when its tars are not there."""
    kinds = {"imgedit": ImgEditReader, "webdataset": WebDatasetReader}
    return kinds.get(spec.layout, ParquetReader)(spec, max_bytes)


class _Tables(Reader):
    """Reads rows of Parquet files, one file open at a time."""

    def __init__(self, spec: DatasetSpec, max_bytes: int) -> None:
        super().__init__(spec, max_bytes)
        self._table: Table | None = None

    def values(self, row: ListedRow) -> dict[str, Any]:
        """The columns of a row that are wanted."""
        if self._table is None or self._table.url != row.url:
            if self._table is not None:
                self._table.close()
                self._table = None
            self._table = Table(row.url)
        return self._table.row(row.number, self.columns(self._table))

    @abstractmethod
    def columns(self, table: Table) -> list[str]:
        """The columns to read."""


class ParquetReader(_Tables):
    """Any Parquet with a picture in a column, ScaleEdit and OmniEdit among them."""

    def columns(self, table: Table) -> list[str]:
        there = set(table.columns)
        found = [top_column(name, there) for name in wanted_columns(self.spec)]
        return list(dict.fromkeys(name for name in found if name is not None))

    def read(self, row: ListedRow) -> RawRow:
        values = self.values(row)
        names = self.spec.columns

        def picture(name: str) -> bytes:
            return image_bytes(field_at(values, name), name, self.max_bytes)

        def optional(name: str) -> bytes | None:
            return picture(name) if name and field_at(values, name) is not None else None

        turn = RawTurn(
            source=picture(names.source),
            result=picture(names.result),
            instruction=field_at(values, names.instruction),
            mask=optional(names.mask),
            reference=optional(names.reference),
            type=_text(field_at(values, names.type)) if names.type else "",
            target=field_at(values, names.target) if names.target else None,
        )
        scores = {name: field_at(values, score.column or name) for name, score in self.spec.scores.items()}
        own = row_id(field_at(values, names.id)) if names.id else ""
        rights = {name: field_at(values, column) for name, column in _rights(names).items()}
        return RawRow(row, (turn,), own, scores=scores, **rights)


class ImgEditReader(_Tables):
    """ImgEdit's release: Parquet rows of paths, single or as conversations under `data`; the pictures in split tars.

    The type of an edit, and the kind of a conversation, stand in the pictures' paths, if anywhere.
    """

    def __init__(self, spec: DatasetSpec, max_bytes: int) -> None:
        super().__init__(spec, max_bytes)
        self.pictures = Pictures(picture_archives(spec), max_bytes)

    def columns(self, table: Table) -> list[str]:
        wanted = ["data"] if "data" in table.columns else ["input_images", "output_images", "prompt"]
        return [*wanted, *(score.column or name for name, score in self.spec.scores.items())]

    def read(self, row: ListedRow) -> RawRow:
        values = self.values(row)
        turns = values.get("data", [values])
        if not isinstance(turns, list) or not 1 <= len(turns) <= MAX_TURNS:
            raise RowRefused("bad_record", f"a conversation of 1 to {MAX_TURNS} turns is expected")
        read = tuple(self._turn(turn) for turn in turns)
        scores = {name: values.get(score.column or name) for name, score in self.spec.scores.items()}
        return RawRow(row, read, kind=self._kind(turns) if len(read) > 1 else "", scores=scores)

    def _turn(self, turn: Any) -> RawTurn:
        if not isinstance(turn, Mapping):
            raise RowRefused("bad_record", "a turn is not a record of input_images, output_images and prompt")
        inputs, outputs = _paths(turn.get("input_images")), _paths(turn.get("output_images"))
        if not 1 <= len(inputs) <= 2 or len(outputs) != 1:
            raise RowRefused(
                "bad_record", f"{len(inputs)} input and {len(outputs)} output images; 1 or 2 and 1 are read"
            )
        return RawTurn(
            source=self.pictures.read(inputs[0]),
            result=self.pictures.read(outputs[0]),
            instruction=turn.get("prompt"),
            mask=self._mask(inputs[0]),
            reference=self.pictures.read(inputs[1]) if len(inputs) == 2 else None,
            type=_named(inputs[0], self.spec.types),
        )

    def _mask(self, path: str) -> bytes | None:
        """The mask that lies beside a picture, where there is one."""
        folder, slash, name = path.rpartition("/")
        base = name.rpartition(".")[0]
        found = _NUMBERED.fullmatch(base)
        number = found.group(1) or "" if found else ""
        stem = f"{folder}{slash}{base.removesuffix('.source')}"
        for pattern in self.spec.masks:
            place = pattern.format(folder=folder, stem=stem, number=number).removeprefix("/")
            if self.pictures.beside(path, place):
                return self.pictures.read(place)
        return None

    def _kind(self, turns: list[Any]) -> str:
        path = _paths(turns[0].get("input_images"))[0]
        return next((kind for kind in CONVERSATIONS if kind in path), "")


class WebDatasetReader(Reader):
    """Samples of WebDataset tars by the extensions of their members."""

    def __init__(self, spec: DatasetSpec, max_bytes: int) -> None:
        super().__init__(spec, max_bytes)
        self._archive: Archive | None = None

    def read(self, row: ListedRow) -> RawRow:
        if self._archive is None or self._archive.name != row.url:
            if self._archive is not None:
                self._archive.close()
            self._archive = Archive([row.url])
        archive = self._archive
        members = dict(reversed(row.members))
        objects: dict[str, dict[str, Any]] = {}

        def value(name: str) -> Any:
            extension, colon, path = name.partition(":")
            member = members.get(extension)
            if member is None:
                return None
            if not colon:
                return self._bytes(archive, member)
            if extension not in objects:
                objects[extension] = parse_json(self._bytes(archive, member), extension)
            return field_at(objects[extension], path)

        def picture(name: str) -> bytes:
            return image_bytes(value(name), name, self.max_bytes)

        def optional(name: str) -> bytes | None:
            return picture(name) if name and name.partition(":")[0] in members else None

        names = self.spec.columns
        turn = RawTurn(
            source=picture(names.source),
            result=picture(names.result),
            instruction=value(names.instruction),
            mask=optional(names.mask),
            reference=optional(names.reference),
            type=_text(value(names.type)) if names.type else "",
            target=value(names.target) if names.target else None,
        )
        scores = {name: _number(value(score.column or name)) for name, score in self.spec.scores.items()}
        own = row_id(value(names.id)) if names.id else row.uri.rpartition("#")[2]
        rights = {name: _text(value(column)) for name, column in _rights(names).items()}
        return RawRow(row, (turn,), own, scores=scores, **rights)

    def _bytes(self, archive: Archive, member: Member) -> bytes:
        if member.size > self.max_bytes:
            raise RowRefused("too_many_bytes", f"{member.name}: {member.size} bytes exceed {self.max_bytes}")
        return archive.read(member)


def _rights(names: Columns) -> dict[str, str]:
    """Where a row's own licence and address stand, as far as the configuration says."""
    columns = {"licence": names.licence, "source_url": names.source_url}
    return {name: column for name, column in columns.items() if column}


def _paths(value: Any) -> list[str]:
    """Paths of pictures: a list of texts, or one text. Raises RowRefused `bad_record`."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise RowRefused("bad_record", "input_images and output_images are lists of paths")
    return paths


def _named(path: str, types: Mapping[str, str]) -> str:
    """The last word of the path's folders that the table knows: `results_remove_laion_part5/…` says remove."""
    words = re.split(r"[^a-z]+", path.rpartition("/")[0].lower())
    return next((word for word in reversed(words) if word in types), "")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _number(value: Any) -> Any:
    """A score of a text member as a number, where it is one."""
    if not isinstance(value, bytes):
        return value
    try:
        return float(value)
    except ValueError:
        return value.decode("utf-8", "replace")[:60]
