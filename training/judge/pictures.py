"""Pictures of judged edits: sizes from headers when a run is planned, pixels when a row is built."""

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import EditFoundryError, ImageError
from editfoundry.core.hashing import seed_for, sha256
from editfoundry.core.images import decode, decode_mask_png, read_info
from editfoundry.core.text import one_line
from editfoundry.models.judge.corruption import CANARIES, canary, corrupt
from editfoundry.models.judge.rubric import Slot
from editfoundry.models.protocols import Image
from editfoundry.training.judge.records import Choice, PictureRef, Record

HEAD_BYTES = 1 << 16
"""How much of a file is read first: most headers are shorter."""
MAX_BYTES = 1 << 28


class BadPicture(EditFoundryError):
    """A picture that cannot be used; names the file, and the record where that is known."""


@lru_cache(maxsize=4096)
def look(path: Path) -> PictureRef:
    """The picture in a file, by its header; copies under other names share its digest. Raises BadPicture."""
    try:
        size = path.stat().st_size if path.is_file() else 0
        if not size or size > MAX_BYTES:
            raise BadPicture(f"{_name(path)}: no file of 1 to {MAX_BYTES} bytes; is `images` the right folder?")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            try:
                info = read_info(head)
            except ImageError:
                info = read_info(head + file.read())
    except (ImageError, OSError) as error:
        raise BadPicture(f"{_name(path)}: {one_line(str(error), 200)}") from error
    digest = sha256(f"{size}\0".encode() + head)
    return PictureRef(path, (info.height, info.width), digest=digest)


class Pictures:
    """Reads what records show; each stored picture is decoded once in the life of this object."""

    def __init__(self) -> None:
        self._decoded: dict[PictureRef, Image] = {}

    def of(self, shown: Record | Choice) -> dict[Slot, Image]:
        """The pictures of an edit, with its corruption, or of a comparison. Raises BadPicture naming the record."""
        try:
            if isinstance(shown, Choice):
                return {
                    "source": self._decode(shown.source),
                    "first": self._decode(shown.first),
                    "second": self._decode(shown.second),
                }
            source, result = self._decode(shown.source), self._decode(shown.result)
            return dict(zip(("source", "result"), corrupted(shown, source, result), strict=True))
        except (BadPicture, ImageError) as error:
            raise BadPicture(f"{one_line(shown.id, 80)}: {error}") from error

    def _decode(self, picture: PictureRef) -> Image:
        if picture not in self._decoded:
            try:
                self._decoded[picture] = decode(read(picture))
            except ImageError as error:
                raise BadPicture(f"{_name(picture.path)}: {one_line(str(error), 200)}") from error
        return self._decoded[picture]


def corrupted(record: Record, source: Image, result: Image) -> tuple[Image, Image]:
    """What a record shows of its pictures: as they are, made worse by its degree, or as a canary's.

    The same for a record in every run. Raises BadPicture for a mask of another size than the result.
    """
    if not record.corruption:
        return source, result
    if record.corruption in CANARIES:
        return canary(record.corruption, source, result, "", "")[:2]
    name, _, degree = record.corruption.rpartition("-")
    seed = seed_for("corruption", record.id.partition(":")[2], record.corruption)
    return source, corrupt(name, int(degree), source, result, _mask(record, result), seed)


def read(picture: PictureRef) -> bytes:
    """A picture's bytes. Raises BadPicture."""
    try:
        descriptor = os.open(picture.path, os.O_RDONLY)
        try:
            length = picture.length or min(os.fstat(descriptor).st_size, MAX_BYTES)
            data = os.pread(descriptor, length, picture.offset)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise BadPicture(f"{_name(picture.path)}: cannot be read ({one_line(str(error), 120)})") from error
    if len(data) != length:
        raise BadPicture(f"{_name(picture.path)}: ends inside a picture at byte {picture.offset}")
    return data


def _mask(record: Record, result: Image) -> NDArray[np.bool_] | None:
    if record.mask is None:
        return None
    mask = decode_mask_png(read(record.mask)).array
    if mask.shape != result.shape[:2]:
        raise BadPicture(f"{_name(record.mask.path)}: the mask is {mask.shape}, the result {result.shape[:2]} pixels")
    return mask


def _name(path: Path) -> str:
    return one_line(str(path), 160)
