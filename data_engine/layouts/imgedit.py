"""ImgEdit's released intermediate data: JSON records of caption, tags and regions; photographs in their own folder.

A record: `path, cap[], resolution{height,width}, aes, tags{background[],object[],summary}`, `segmentation` with lists
`background` and `object` of `{class_name, bbox, mask, score, clip_score, aes_score}` and `box_format` "xyxy",
`bg_count{}` and `obj_count{}`. `mask` is the counts string of a COCO compressed RLE whose size is `resolution`; `score`
is the segmenter's.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from editfoundry.core.errors import ImageError
from editfoundry.data_engine.layouts.base import Annotation, Block, Found, Layout, Marked, Opened, Refused, check_bytes
from editfoundry.data_engine.layouts.metadata import SHORT_SIDE, check_cuts
from editfoundry.data_engine.readers.records import MAX_RECORD, parse, spans
from editfoundry.data_engine.readers.storage import (
    ContainerError,
    expand,
    files_below,
    identity,
    is_folder,
    join,
    open_input,
    storage_errors,
)
from editfoundry.data_engine.records import Caption
from editfoundry.data_engine.source_spec import Locator, SourceFile, Span, clean_text, encoded, uri_of

MAX_REGIONS = 1000
SUMMARY_WORDS = 15
ENDINGS = (".json", ".jsonl")
MAX_SIDE = 1 << 20


class _Strict(BaseModel):
    """Fields beyond the known ones are passed over; numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False, frozen=True)


class _Resolution(_Strict):
    height: int = Field(gt=0, le=MAX_SIDE)
    width: int = Field(gt=0, le=MAX_SIDE)


class _Tags(_Strict):
    background: list[str] = []
    object: list[str] = []
    summary: str = ""


class _Region(_Strict):
    class_name: str = Field(min_length=1)
    bbox: tuple[float, float, float, float]
    mask: str | None = None
    score: float | list[float] = 0.0
    clip_score: float | None = None
    aes_score: float | None = None

    @property
    def own_score(self) -> float:
        """The score; SAM gives a list of one for each box."""
        return self.score if isinstance(self.score, float) else max(self.score, default=0.0)


class _Segmentation(_Strict):
    background: list[_Region] = Field(default=[], max_length=MAX_REGIONS)
    object: list[_Region] = Field(default=[], max_length=MAX_REGIONS)
    box_format: Literal["xyxy"] = "xyxy"


class _Record(_Strict):
    path: str = Field(min_length=1, max_length=4096)
    resolution: _Resolution
    cap: list[str] | str = []
    aes: float | None = None
    tags: _Tags = _Tags()
    segmentation: _Segmentation = _Segmentation()
    bg_count: dict[str, int] = {}
    obj_count: dict[str, int] = {}


class Records(Block):
    """The records of one JSON file."""

    def __init__(self, layout: Layout, url: str, places: Sequence[Span]) -> None:
        self._layout, self._places, self._state = layout, places, identity(url)
        self.address, self.order, self.layout = url, uri_of(url).encode(), layout.format

    def __len__(self) -> int:
        return len(self._places)

    def source(self, index: int) -> SourceFile:
        locator = Locator(containers=(encoded(self.address),), spans={"record": self._places[index]})
        return self._layout._source(self.address, str(index), locator, self._state)


class ImgEditJson(Layout):
    """One source a record. A record that is not as described is a `bad_record`, a path that leaves the folder an

    `unsafe_path`.
    """

    format = "imgedit-json"

    def blocks(self) -> Iterator[Block]:
        for found in expand(self.spec.path):
            for url in files_below(found, ENDINGS) if is_folder(found) else [found]:
                places: list[Span] = []
                damage = None
                try:
                    places.extend(spans(url, "path"))
                except ContainerError as error:
                    damage = error
                yield Records(self, url, places)
                if damage is not None:
                    yield Refused(self, url, "end", damage.reason, str(damage))

    def read(self, locator: Locator, opened: Opened, max_bytes: int) -> Found:
        record = _record(locator.urls[0], locator.spans["record"])
        side = record.resolution
        values = {"width": side.width, "height": side.height, "aes": record.aes, "aesthetic": record.aes,
                  SHORT_SIDE: min(side.width, side.height)}  # fmt: skip
        scores = check_cuts(self.spec, {cut: [values.get(cut)] for cut in self.spec.metadata})
        path = PurePosixPath(record.path)
        if path.is_absolute() or ".." in path.parts or not record.path.isprintable():
            raise ImageError("unsafe_path", f"its path is {record.path[:200]!r}, not one inside the folder of images")
        assert self.spec.images is not None, "the specification requires it"
        data = opened.file(join(self.spec.images, str(path)), max_bytes)
        if record.aes is not None:
            scores["aesthetic"] = round(record.aes, 6)
        return Found(data, scores=scores, annotation=_annotation(record))


def _record(url: str, place: Span) -> _Record:
    check_bytes(place[1], MAX_RECORD)
    with open_input(url) as stream, storage_errors(url):
        stream.seek(place[0])
        data = stream.read(place[1])
    try:
        return _Record.model_validate(parse(data, "its record"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ContainerError("bad_record", f"{where}: {first['msg']}") from error


def _annotation(record: _Record) -> Annotation:
    kinds: tuple[tuple[str, list[_Region]], ...] = (
        ("object", record.segmentation.object),
        ("background", record.segmentation.background),
    )
    regions = tuple(
        Marked(clean_text(one.class_name), kind, one.bbox, one.mask, one.own_score, one.clip_score, one.aes_score)
        for kind, regions in kinds
        for one in regions
    )
    named = {**record.bg_count, **record.obj_count}
    counts = {clean_text(name): count for name, count in named.items() if count >= 0}
    return Annotation(_caption(record), regions, dict(sorted(counts.items())),
                      (record.resolution.width, record.resolution.height))  # fmt: skip


def _caption(record: _Record) -> Caption | None:
    texts = [record.cap] if isinstance(record.cap, str) else record.cap
    text = clean_text(texts[0]) if texts else ""
    if not text:
        return None
    tags = record.tags

    def nouns(names: Sequence[Any]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(noun for noun in map(clean_text, names) if noun and noun in text))

    return Caption(text=text, summary=" ".join(clean_text(tags.summary).split()[:SUMMARY_WORDS]),
                   objects=nouns(tags.object), backgrounds=nouns(tags.background))  # fmt: skip
