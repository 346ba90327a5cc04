"""Anchor sets: edits whose verdict is known, frozen as files, so that a judge can be tested on the same pairs again.

`anchors.jsonl` has a line for every pair, and can be given to `judge score --pairs`. Pictures are PNG files, named by
the SHA-256 of their bytes, each there once. `anchors.json` says where they come from and holds the digest of it all.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from editfoundry.core.config import Config, validate
from editfoundry.core.errors import EditFoundryError, ImageError, UsageError
from editfoundry.core.hashing import canonical_json, sha256, sha256_file
from editfoundry.core.images import decode, encode_png
from editfoundry.core.progress import Advance
from editfoundry.eval.known_pairs import (
    AS_IT_IS,
    KINDS,
    KnownEdits,
    KnownPair,
    from_dataset,
    kinds,
    pair_id,
    pixel_digest,
)
from editfoundry.eval.pairs import (
    LONGEST_ID,
    LONGEST_INSTRUCTION,
    LONGEST_LINE,
    UnusablePicture,
    read_picture,
)
from editfoundry.models.editor.initialise import new_folder
from editfoundry.models.judge.types import Case
from editfoundry.models.protocols import Image

FORMAT = 1
ABOUT, PAIRS, FOLDER = "anchors.json", "anchors.jsonl", "pictures"
LARGEST_ABOUT = 1 << 26
_REMEDY = "copy the anchor set again, or make another with `judge anchors`"
Progress = Callable[[int], AbstractContextManager[Advance]]
Short = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_ID)]
PictureName = Annotated[str, StringConstraints(pattern=rf"^{FOLDER}/[0-9a-f]{{64}}\.png$")]


class Anchor(Config):
    """A line of `anchors.jsonl`; source, result: paths of pictures in the folder."""

    id: Short
    source: PictureName
    result: PictureName
    instruction: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_INSTRUCTION)]
    type: Short
    edge: Short
    kind: str
    degree: int = Field(ge=0)
    photograph: Short
    split: Literal["train", "val"]


def write_anchors(dataset: Path, out: Path, samples: int, seed: int, progress: Progress) -> dict[str, Any]:
    """Write the pairs of at most so many edges of a dataset as a new folder, and return what `anchors.json` says.

    The folder appears whole or not at all. Raises UsageError when `out` exists, and what `from_dataset` raises.
    """
    with new_folder(out) as staging:
        edits = from_dataset(dataset, samples, seed)
        (staging / FOLDER).mkdir()
        splits = Counter[str]()
        with (staging / PAIRS).open("w", encoding="utf-8") as file, progress(edits.pairs) as advance:
            for pairs in edits.edits():
                names: dict[str, str] = {}
                for pair in pairs:
                    file.write(canonical_json(_line(pair, staging, names)) + "\n")
                    splits[pair.split] += pair.kind == AS_IT_IS
                    advance(1)
        pictures = [file.stat().st_size for file in (staging / FOLDER).iterdir()]
        about = {
            "format": FORMAT,
            **edits.origin,
            "samples": splits.total(),
            "splits": dict(sorted(splits.items())),
            "pairs": edits.pairs,
            "pairs_sha256": sha256_file(staging / PAIRS),
            "pictures": {"count": len(pictures), "bytes": sum(pictures)},
            "rights": edits.rights,
        }
        about["digest"] = _digest(about)
        (staging / ABOUT).write_text(canonical_json(about) + "\n", encoding="utf-8")
    return about


def read_anchors(folder: Path) -> KnownEdits:
    """The pairs of an anchor set, after every file of it was compared with its digest.

    Raises UsageError for a folder that is none, EditFoundryError naming the file that is changed, missing or damaged.
    """
    about = _about(folder)
    file = folder / PAIRS
    if not file.is_file() or sha256_file(file) != about["pairs_sha256"]:
        raise EditFoundryError(f"{file}: is not the file that {ABOUT} was written for; {_REMEDY}")
    count, edges, pictures = 0, set[str](), set[str]()
    for edge, anchors in groupby(_anchors(file), key=lambda one: one.edge):
        mine = list(anchors)
        _require_whole(file, edge, mine, edges)
        for name in sorted({name for one in mine for name in (one.source, one.result)} - pictures):
            _picture(folder, name)
            pictures.add(name)
        edges.add(edge)
        count += len(mine)

    def edits() -> Iterator[Iterable[KnownPair]]:
        for _, anchors in groupby(_anchors(file), key=lambda one: one.edge):
            yield _pairs(folder, anchors)

    return KnownEdits({"anchors": {"digest": about["digest"]}}, count, edits)


def _line(pair: KnownPair, folder: Path, names: dict[str, str]) -> dict[str, Any]:
    """A pair's line; its pictures are written unless they are there. names: of pictures of the same edit, by pixels."""
    case = pair.case
    line = {
        "id": case.id,
        "source": _written(case.source, folder, names),
        "result": _written(case.result, folder, names),
        "instruction": case.instruction,
        "type": case.type,
        "edge": pair.edge,
        "kind": pair.kind,
        "degree": pair.degree,
        "photograph": pair.photograph,
        "split": pair.split,
    }
    return validate(Anchor, line, f"edge {pair.edge}").model_dump()


def _written(image: Image, folder: Path, names: dict[str, str]) -> str:
    """The path of a picture in the folder."""
    pixels = pixel_digest(image)
    if pixels not in names:
        data = encode_png(image)
        names[pixels] = f"{FOLDER}/{sha256(data)}.png"
        (folder / names[pixels]).write_bytes(data)
    return names[pixels]


def _digest(about: dict[str, Any]) -> str:
    """Of the pairs, through their file's the pictures, and all else that is said."""
    return sha256(canonical_json({name: value for name, value in about.items() if name != "digest"}))


def _about(folder: Path) -> dict[str, Any]:
    file = folder / ABOUT
    if not file.is_file():
        raise UsageError(f"{folder}: not an anchor set (no {ABOUT}); make one with `judge anchors DATASET -o DIR`")
    about: Any = None
    try:
        about = json.loads(file.read_bytes()) if file.stat().st_size <= LARGEST_ABOUT else None
        whole = about["format"] == FORMAT and isinstance(about["pairs_sha256"], str)
        whole = whole and about["digest"] == _digest(about)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise EditFoundryError(f"{file}: changed, damaged or of another version; {_REMEDY}")
    return dict(about)


def _anchors(file: Path) -> Iterator[Anchor]:
    number = 0
    with file.open("rb") as lines:
        while line := lines.readline(LONGEST_LINE):
            number += 1
            try:
                yield Anchor.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "the line"
                raise EditFoundryError(f"{file}: line {number}: {where}: {first['msg']}; {_REMEDY}") from error


def _require_whole(file: Path, edge: str, anchors: list[Anchor], before: set[str]) -> None:
    """Raise EditFoundryError unless these are all the pairs of one edit, and it is none of those before."""
    given = [(one.kind, one.degree) for one in anchors]
    alike = len({(one.type, one.photograph, one.split) for one in anchors}) == 1
    named = all(one.id == pair_id(edge, one.kind, one.degree) for one in anchors)
    if edge in before or not alike or not named or given not in (list(KINDS), kinds(None)):
        raise EditFoundryError(f"{file}: edge {edge!r:.80}: not each of its pairs once, one after the other; {_REMEDY}")


def _picture(folder: Path, name: str) -> bytes:
    """A picture's bytes. Raises EditFoundryError where they are not there, or not those that the name is of."""
    try:
        digest, data = read_picture(folder / name)
    except UnusablePicture as error:
        raise EditFoundryError(f"{folder / name}: {error.reason.replace('_', ' ')}; {_REMEDY}") from error
    if digest != Path(name).stem:
        raise EditFoundryError(f"{folder / name}: changed; {_REMEDY}")
    return data


def _pairs(folder: Path, anchors: Iterable[Anchor]) -> Iterator[KnownPair]:
    """The pairs of an edit; each picture is read and decoded once."""
    shown = cache(lambda name: decode(_picture(folder, name)))
    for one in anchors:
        try:
            source, result = shown(one.source), shown(one.result)
        except ImageError as error:
            raise EditFoundryError(f"{folder}: a picture of {one.id!r:.80}: {error}; {_REMEDY}") from error
        case = Case(one.id, source, result, one.instruction, one.type)
        yield KnownPair(case, one.edge, one.kind, one.degree, one.photograph, one.split)
