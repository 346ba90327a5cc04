"""Photographs and videos in, one `Source` each out: bytes, header, identity, split and grid."""

import hashlib
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from editfoundry.core.errors import ImageError
from editfoundry.core.geometry import Box, Grid, grid_transform, to_grid
from editfoundry.core.hashing import seed_for, sha256
from editfoundry.core.images import decode, perceptual_hash, read_info
from editfoundry.data_engine.framepairs import FramePair, select_pairs
from editfoundry.data_engine.layouts import LAYOUTS
from editfoundry.data_engine.layouts.base import Found, Layout, Opened
from editfoundry.data_engine.layouts.metadata import MetadataCut
from editfoundry.data_engine.layouts.regions import with_annotation
from editfoundry.data_engine.readers.storage import Remote, is_remote, size, storage_errors
from editfoundry.data_engine.records import BoxList, Motion, Record, Reject, Source, Split, Zone
from editfoundry.data_engine.sources import IngestConfig, ManifestZone, SourceFile, SourceSpec, list_sources
from editfoundry.data_engine.stages.base import Item, Outcome, Stage
from editfoundry.data_engine.video import container, probe

__all__ = ["Ingest", "IngestConfig", "SourceFile", "SourceSpec", "list_sources"]

HASH_SIDE = 256
CROP = 0.85
PNG_LEVEL = 1
MIN_SIDE = 64
HEAD_BYTES = 16
STREAM_BYTES = 1 << 20


@dataclass(frozen=True)
class Prepared:
    """A source that was read on the reading thread: what its layout says of it, or the reject it is already."""

    source: SourceFile
    found: Found | None = None
    reject: Reject | None = None

    @property
    def id(self) -> str:
        return self.source.id


class Ingest(Stage):
    """Reads every listed source. Photographs keep their bytes (`original`); of a video, frame pairs are kept as PNG.

    The id of a source follows from its content, so a file found twice gives two rows with one id; `duplicates` sorts
    that out. Pixels are decoded once, as small as the format allows, for the perceptual hash and to find damage.
    Sources in containers are cut by their metadata before their pixels are read.
    """

    name: ClassVar[str] = "ingest"
    row: ClassVar[type[Record]] = Source
    config: IngestConfig

    @cached_property
    def layouts(self) -> dict[int, Layout]:
        """The layout of each specification that has been met."""
        return {}

    @cached_property
    def opened(self) -> Opened:
        """The containers this worker has open."""
        return Opened()

    def prepare(self, item: Item) -> Item:
        """Read a photograph's bytes. Videos are left where they are: they are read as a stream."""
        source: SourceFile = item.record
        if source.reason:
            raise ImageError(source.reason, f"{source.uri}: {source.detail}")
        if source.format == "files":
            data = self._file(source)
            return Item(Prepared(source), {} if data is None else {"original": data})
        if source.spec not in self.layouts:
            self.layouts[source.spec] = LAYOUTS[source.format](self.config.sources[source.spec], source.spec)
        try:
            found = self.layouts[source.spec].read_source(source, self.opened, self.config.max_bytes)
        except MetadataCut as cut:
            detail = f"{source.uri}: {cut}"
            reject = Reject(stage=self.name, id=source.id, reason=cut.reason, detail=detail, score=cut.score)
            return Item(Prepared(source, reject=reject))
        except ImageError as error:
            raise ImageError(error.reason, f"{source.uri}: {error}") from error
        given = {"text": found.text, "licence": found.licence, "source_url": found.url}
        known = source.model_copy(update={name: value for name, value in given.items() if value})
        return Item(Prepared(known, found), {"original": found.data})

    def _file(self, source: SourceFile) -> bytes | None:
        """The bytes of a file of its own; None for a video."""
        try:
            if is_remote(source.address):
                count = size(source.address)
            else:
                status = source.file.stat()
                if not stat.S_ISREG(status.st_mode):
                    raise ImageError("not_a_file", f"{source.uri}: a folder or device, not a regular file")
                count = status.st_size
            with _place(source).open("rb") as file, storage_errors(source.uri):
                head = file.read(HEAD_BYTES)
                if container(head) is not None:
                    return None
                if count > self.config.max_bytes:
                    raise ImageError("too_many_bytes", f"{source.uri}: {count} bytes exceed {self.config.max_bytes}")
                return head + file.read()
        except FileNotFoundError as error:
            raise ImageError("missing_file", f"{source.uri}: there is no such file") from error
        except OSError as error:
            raise ImageError("unreadable", f"{source.uri}: {error.strerror or error}") from error

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._one(item) for item in batch]

    def _one(self, item: Item) -> Outcome:
        prepared: Prepared = item.record
        source = prepared.source
        if prepared.reject is not None:
            return [prepared.reject]
        data = item.blobs.get("original")
        digest = ""
        try:
            if data is None:
                digest = _stream_sha256(source)
                return self._video(source, digest)
            digest = sha256(data)
            return self._photograph(source, data, digest, prepared.found)
        except OSError as error:
            reason, message = "unreadable", str(error.strerror or error)
        except ImageError as error:
            reason, message = error.reason, str(error)
        detail = f"{source.uri}: {message}"
        return [Reject(stage=self.name, id=source.id, reason=reason, detail=detail, source_sha256=digest)]

    def _photograph(self, source: SourceFile, data: bytes, digest: str, found: Found | None) -> Outcome:
        info = read_info(data, max_pixels=self.config.max_pixels)
        grid = self._grid(info.width, info.height)
        pixels = decode(data, target=HASH_SIDE, max_pixels=self.config.max_pixels)
        record = Source(
            id=digest[:16],
            uri=source.uri,
            media_type=info.media_type,
            width=info.width,
            height=info.height,
            phash=perceptual_hash(pixels),
            phash_crops=_crop_hashes(pixels),
            grid=(grid.width, grid.height),
            zones=_zones_on_grid(source.zones, info.width, info.height, grid),
            scores=found.scores if found else {},
            **self._common(source, digest),
        )
        if found is None or found.annotation is None:
            return [Item(record, {"original": data})]
        record, rejects = with_annotation(record, found.annotation)
        return [Item(record, {"original": data}), *rejects]

    def _video(self, source: SourceFile, digest: str) -> Outcome:
        if not self.config.video.enabled:
            raise ImageError("video_disabled", "ingest.video.enabled is off")
        info = probe(_place(source), self.config.max_pixels)
        pairs, failures = select_pairs(_place(source), self.config.video)
        outcome: Outcome = [self._frames(source, digest, info.media_type, pair) for pair in pairs]
        if not pairs:
            raise ImageError("no_frame_pair", f"no two frames show one subject moving alone ({len(failures)} tried)")
        outcome += [
            Reject(
                stage=self.name,
                id=_frame_id(digest, failure.frame),
                reason=failure.reason,
                detail=f"{source.uri}: frame {failure.frame}: {failure.detail}",
                unit="candidate",
                source_sha256=digest,
            )
            for failure in failures
        ]
        return outcome

    def _frames(self, source: SourceFile, digest: str, media_type: str, pair: FramePair) -> Item:
        height, width = pair.first.shape[:2]
        grid = self._grid(width, height)
        first, second = to_grid(pair.first, grid), to_grid(pair.second, grid)
        record = Source(
            id=_frame_id(digest, pair.frame_before),
            uri=f"{source.uri}#frames={pair.frame_before},{pair.frame_after}",
            kind="frames",
            media_type=media_type,
            width=width,
            height=height,
            phash=perceptual_hash(first),
            grid=(grid.width, grid.height),
            scores={"motion_shift": round(pair.shift, 4), "motion_elsewhere": round(pair.elsewhere, 6)},
            motion=Motion(
                before=_box_on_grid(pair.before, width, height, grid),
                after=_box_on_grid(pair.after, width, height, grid),
                seconds=round(pair.seconds, 4),
                frame_before=pair.frame_before,
                frame_after=pair.frame_after,
                window=_four(pair.window),
            ),
            **self._common(source, digest),
        )
        return Item(record, {"original": _png(first), "second": _png(second)})

    def _common(self, source: SourceFile, digest: str) -> dict[str, Any]:
        return {
            "sha256": digest,
            "licence": source.licence,
            "source_url": source.source_url,
            "text": source.text,
            "split": split_of(digest, self.run.seed, self.run.val_fraction),
        }

    def _grid(self, width: int, height: int) -> Grid:
        try:
            return Grid.for_size(width, height, self.run.grid_area)
        except ValueError as error:
            reason = "too_small" if min(width, height) < MIN_SIDE else "too_elongated"
            raise ImageError(reason, str(error)) from error


def _place(source: SourceFile) -> Path | Remote:
    return Remote(source.address) if is_remote(source.address) else source.file


def _stream_sha256(source: SourceFile) -> str:
    digest = hashlib.sha256()
    with _place(source).open("rb") as file, storage_errors(source.uri):
        while chunk := file.read(STREAM_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def split_of(sha256_hex: str, seed: int, val_fraction: float) -> Split:
    """Train or val, by content and seed only; all frame pairs of one video share its split."""
    return "val" if seed_for(seed, "split", sha256_hex) < val_fraction * 2**63 else "train"


def _crop_hashes(pixels: NDArray[np.uint8]) -> tuple[str, ...]:
    """Hashes of the crops of 85% of each side at the corners, the middles of the edges and the centre."""
    height, width = (round(side * CROP) for side in pixels.shape[:2])
    spare_y, spare_x = pixels.shape[0] - height, pixels.shape[1] - width
    corners = [(y, x) for y in (0, spare_y // 2, spare_y) for x in (0, spare_x // 2, spare_x)]
    return tuple(perceptual_hash(np.ascontiguousarray(pixels[y : y + height, x : x + width])) for y, x in corners)


def _frame_id(digest: str, frame: int) -> str:
    return f"{digest[:12]}{frame:04x}"


def _zones_on_grid(zones: Sequence[ManifestZone], width: int, height: int, grid: Grid) -> tuple[Zone, ...]:
    """Zones of the upright photograph in pixels of its grid; what the grid's crop cuts off is cut off."""
    placed = []
    for zone in zones:
        x0, y0, x1, y1 = zone.box
        box = _box_on_grid(Box(x0 * width, y0 * height, x1 * width, y1 * height), width, height, grid)
        placed.append(Zone(kind=zone.kind, box=box, width_m=zone.width_m, origin="manifest"))
    return tuple(placed)


def _box_on_grid(box: Box, width: int, height: int, grid: Grid) -> BoxList:
    scale, left, top = grid_transform(width, height, grid)
    moved = Box(box.x0 * scale - left, box.y0 * scale - top, box.x1 * scale - left, box.y1 * scale - top)
    inside = moved.clip(grid.width, grid.height)
    if inside is None:
        raise ImageError("bad_zone", f"the box {box.as_list()} lies wholly in the edge that the grid crops away")
    return _four(inside)


def _four(box: Box) -> BoxList:
    return round(box.x0, 2), round(box.y0, 2), round(box.x1, 2), round(box.y1, 2)


def _png(rgb: NDArray[np.uint8]) -> bytes:
    buffer = BytesIO()
    Image.fromarray(rgb).save(buffer, "PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()
