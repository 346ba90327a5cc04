"""Small samples of the layouts that photographs come in, each written from its description."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from source_stages import config, run

from editfoundry.data_engine.records import Reject, Source
from editfoundry.data_engine.sources import list_sources
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.ingest import Ingest


def picture(seed: int, width: int = 160, height: int = 128, kind: str = "PNG") -> bytes:
    """An encoded picture of smooth noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 10, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes] | Sequence[tuple[Any, bytes]]) -> Path:
    """A tar of the members in order; a name may be a TarInfo."""
    pairs = members.items() if isinstance(members, Mapping) else members
    with tarfile.open(path, "w") as tar:
        for name, data in pairs:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def img2dataset_rows(images: Sequence[bytes | None], **columns: Sequence[Any]) -> dict[str, list[Any]]:
    """The columns of a shard's table; None: a row that failed. Downloads fail at even rows, resizing at odd ones."""
    count = len(images)
    sizes = [Image.open(io.BytesIO(image)).size if image else (None, None) for image in images]
    failed = ["failed_to_resize" if row % 2 else "failed_to_download" for row in range(count)]
    rows = {
        "url": [f"https://example.org/{row}.jpg" for row in range(count)],
        "caption": [f"caption {row}" for row in range(count)],
        "key": [f"{row:09d}" for row in range(count)],
        "status": ["success" if image else failed[row] for row, image in enumerate(images)],
        "error_message": [None if image else "<urlopen error timed out>" for image in images],
        "width": [width for width, _ in sizes],
        "height": [height for _, height in sizes],
        "original_width": [None if width is None else 2 * width for width, _ in sizes],
        "original_height": [None if height is None else 2 * height for _, height in sizes],
        "sha256": [None if image is None else "0" * 64 for image in images],
    }
    return rows | {name: list(values) for name, values in columns.items()}


def write_img2dataset(folder: Path, images: Sequence[bytes | None], layout: str = "webdataset", shard: str = "00000",
                      **columns: Sequence[Any]) -> dict[str, list[Any]]:  # fmt: skip
    """One shard of img2dataset's output in its `webdataset`, `files` or `parquet` format."""
    folder.mkdir(exist_ok=True)
    rows = img2dataset_rows(images, **columns)
    stored = {key: image for key, image in zip(rows["key"], images, strict=True) if image}
    if layout == "webdataset":
        members = {}
        for key, image in stored.items():
            members |= {f"{key}.jpg": image, f"{key}.txt": b"caption", f"{key}.json": json.dumps({"key": key}).encode()}
        write_tar(folder / f"{shard}.tar", members)
    elif layout == "files":
        (folder / shard).mkdir()
        for key, image in stored.items():
            (folder / shard / f"{key}.jpg").write_bytes(image)
    else:
        rows["jpg"] = list(images)
    pq.write_table(pa.table(rows), folder / f"{shard}.parquet", row_group_size=2)
    stats = {"count": len(images), "successes": len(stored), "failed_to_download": 0, "failed_to_resize": 0}
    (folder / f"{shard}_stats.json").write_text(json.dumps(stats))
    return rows


def ingested(spec: Mapping[str, Any], **settings: Any) -> tuple[list[Source], list[Reject]]:
    """The accepted and the rejected of one source specification; the test fails unless they are all that was listed."""
    items, rejects, listed = ingested_items(spec, **settings)
    whole = [reject for reject in rejects if reject.unit == "source"]
    assert len(items) + len(whole) == listed
    return [item.record for item in items], rejects


def ingested_items(spec: Mapping[str, Any], **settings: Any) -> tuple[list[Item], list[Reject], int]:
    """Accepted items, rejects, and the number of sources listed."""
    grid_area = settings.pop("grid_area", 200_000)
    run_config = config(".", grid_area=grid_area, ingest={"sources": [dict(spec)], **settings})
    sources = list_sources(run_config.ingest)
    items, rejects = run(Ingest(run_config), [Item(source) for source in sources])
    return items, rejects, len(sources)


def reasons(rejects: Sequence[Reject]) -> list[str]:
    """The reasons in order."""
    return [reject.reason for reject in rejects]
