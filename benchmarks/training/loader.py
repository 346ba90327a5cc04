"""The loader: edit pairs out of shards to tensors of 512 x 512 pixels' area, against webdataset with Pillow's decoder.

Both sides give source and result as float tensors and the mask, all on one grid. webdataset's side decodes with its own
Pillow handler and resizes with Pillow, or with our resize in its place. The pictures are real photographs at 2000 x
1333 pixels. Starting worker processes is not counted: time runs once 24 samples have come. "Whole micro-batches" adds
what only our side does then: weights, prompts, the pictures for the vision-language model and SigLIP at production
sizes, noise.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import webdataset
from _measure import Case, Contender, arguments, measure, report, timed
from PIL import Image, ImageOps
from torch import Tensor

from editfoundry.core.config import cache_root
from editfoundry.core.geometry import Grid, Mask, to_grid
from editfoundry.core.hashing import canonical_json, sha256_file
from editfoundry.core.images import decode, encode_mask_png
from editfoundry.data_engine.shards import TarWriter
from editfoundry.models.editor.latents import unit
from editfoundry.models.editor.miniature import TOKENIZER
from editfoundry.models.editor.prompt import EditorProcessor, levels, pixels
from editfoundry.training.config import DataConfig, DatasetSpec, Timesteps
from editfoundry.training.data.batch import MicroBatch, Pictures
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.examples import read_example
from editfoundry.training.data.index import ShardIndex, build_index
from editfoundry.training.data.loader import build_loader
from editfoundry.training.data.micro import MicroBatchBuilder
from editfoundry.training.data.order import Order, Positions
from editfoundry.training.data.tables import SCHEMA

SIZE = (2000, 1333)
QUALITY = 85
PREFETCH = 2
WARM_UP = 24


Pair = tuple[Tensor, Tensor]


class PairBuilder:
    """Stands for the builder and makes only what webdataset's side makes of one sample."""

    def __init__(self, index: ShardIndex, buckets: Buckets) -> None:
        self.index, self.buckets = index, buckets

    def build(self, rows: Sequence[int], bucket: int, position: int, slots: range) -> Pair:
        grid = self.buckets.grid(bucket)
        example = read_example(self.index, rows[0], history=False, grid=grid)
        assert example.mask is not None
        area = to_grid(example.mask.view(np.uint8) * np.uint8(255), grid) > 0
        return levels([to_grid(example.source, grid), to_grid(example.result, grid)]), torch.from_numpy(area)


class PillowPair:
    """webdataset's side, after its decoder: Pillow's resize, or `to_grid`."""

    def __init__(self, grid: Grid, ours: bool) -> None:
        self.grid, self.ours = grid, ours

    def __call__(self, sample: dict[str, Any]) -> Pair:
        source, result = (self.resized(sample[name], Image.Resampling.BICUBIC) for name in ("source.jpg", "result.jpg"))
        area = self.resized(sample["mask.png"].convert("L"), Image.Resampling.NEAREST) > 0
        return pixels([source, result]), torch.from_numpy(area)

    def resized(self, image: Image.Image, resample: Image.Resampling) -> np.ndarray[Any, Any]:
        if self.ours:
            return to_grid(np.asarray(image), self.grid)
        return np.array(ImageOps.fit(image, (self.grid.width, self.grid.height), resample))


def photographs_in(folder: Path) -> list[Path]:
    """The JPEGs of a folder; ends the benchmark without any."""
    found = sorted(folder.glob("*.jpg"))
    if not found:
        sys.exit(f"{folder}: no photographs; `editfoundry quickstart` fetches some, or name one with --photographs")
    return found


def write_dataset(folder: Path, photographs: Sequence[Path], samples: int, per_shard: int) -> Path:
    """Edits of photographs: a region becomes its negative; with mask, JSON, index and manifest."""
    folder.mkdir()
    rows: list[dict[str, Any]] = []
    files = {}
    for number, start in enumerate(range(0, samples, per_shard)):
        name = f"train-{number:06d}.tar"
        writer = TarWriter(folder / name)
        added = [add_sample(writer, name, n, photographs) for n in range(start, min(start + per_shard, samples))]
        writer.close()
        rows += added
        files[name] = {"bytes": writer.size, "rows": len(added), "sha256": writer.sha256}
    table = folder / "index.parquet"
    with pq.ParquetWriter(table, SCHEMA) as parquet:
        parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    files[table.name] = {"bytes": table.stat().st_size, "rows": len(rows), "sha256": sha256_file(table)}
    (folder / "manifest.json").write_text(canonical_json({"files": files, "format": 1, "rows": len(rows)}))
    return folder


def add_sample(writer: TarWriter, shard: str, number: int, photographs: Sequence[Path]) -> dict[str, Any]:
    width, height = SIZE
    picture = decode(photographs[number % len(photographs)].read_bytes())
    source = np.roll(np.asarray(Image.fromarray(picture).resize(SIZE, Image.Resampling.LANCZOS)), 37 * number, axis=1)
    area = np.zeros((height, width), np.bool_)
    area[height // 4 : height // 2, width // 4 : width // 2] = True
    key = f"sample{number:06d}"
    words = {
        "key": key,
        "type": "adjust",
        "instruction": "Turn the region into its negative.",
        "grid": [width, height],
        "conversation": {"premise": ""},
    }
    members = {
        "json": canonical_json(words).encode(),
        "mask.png": encode_mask_png(Mask(area)),
        "result.jpg": jpeg(np.where(area[..., None], 255 - source, source)),
        "source.jpg": jpeg(source),
    }
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    for member, data in members.items():
        short = member.partition(".")[0]
        row[f"offset_{short}"], row[f"length_{short}"] = writer.add(f"{key}.{member}", data)
    return row | {
        "key": key,
        "shard": shard,
        "type": "adjust",
        "instruction": words["instruction"],
        "width": width,
        "height": height,
    }


def jpeg(image: np.ndarray[Any, Any]) -> bytes:
    buffer = BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def production_processor() -> EditorProcessor:
    """448 x 448 pixels for the vision-language model, 512 x 512 for SigLIP; the vocabulary is the miniature's."""
    from transformers import Qwen2TokenizerFast, Qwen2VLImageProcessor, SiglipImageProcessor

    tokenizer = Qwen2TokenizerFast(
        tokenizer_file=str(TOKENIZER), eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None
    )
    image_processor = Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=448 * 448)
    visual = SiglipImageProcessor(size={"height": 512, "width": 512})
    return EditorProcessor(SimpleNamespace(tokenizer=tokenizer, image_processor=image_processor), visual)


def used(batch: Any) -> Any:
    """The batch as the encoders take it: our pictures come as levels, and become floats where they are used."""
    if isinstance(batch, MicroBatch):
        assert isinstance(batch.content, Pictures)
        return unit(batch.content.target)
    return unit(batch[0])


def steady(batches: Callable[[], Iterator[Any]], samples: int) -> Contender:
    """Seconds for `samples` samples at the rate after the first `WARM_UP`, or half of the samples if they are few."""
    first = min(WARM_UP, samples // 2)

    def contender() -> float:
        iterator = batches()
        for _ in range(first):
            next(iterator)
        started = time.perf_counter()
        count = sum(1 for _ in map(used, iterator))
        assert count == samples - first, f"{count + first} of {samples} samples"
        return (time.perf_counter() - started) * samples / count

    return contender


def ours(builder: Any, order: Order, samples: int, workers: int) -> Callable[[], Iterator[Any]]:
    return lambda: iter(build_loader(builder, order, Positions(order, 0, 1, 1, 1, stop=samples), workers, PREFETCH))


def theirs(folder: Path, pair: PillowPair, workers: int) -> Callable[[], Iterator[Any]]:
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode("pil").map(pair)
    return lambda: iter(webdataset.WebLoader(dataset, batch_size=None, num_workers=workers))


def raw_reads(index: ShardIndex) -> None:
    """Read both pictures of every sample."""
    for row in index.rows:
        with index.shards[int(row["shard"])].path.open("rb", buffering=0) as file:
            for name in ("source", "result"):
                os.pread(file.fileno(), int(row[f"{name}_length"]), int(row[f"{name}_offset"]))


def main(options: argparse.Namespace) -> None:
    photographs = photographs_in(options.photographs)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = write_dataset(Path(name) / "dataset", photographs, options.samples, -(-options.samples // 4))
        data = DataConfig(datasets=(DatasetSpec(path=str(folder)),), size=512)
        index = build_index(data.datasets, "train", Path(name) / "index")
        buckets = Buckets(data.size, data.aspect_ratios)
        order = Order(index, buckets, data, 1, 0, Path(name) / "index")
        grid = buckets.grid(int(buckets.of(*SIZE, 1)))
        pairs = PairBuilder(index, buckets)
        whole = MicroBatchBuilder(index, data, buckets, production_processor(), 16, 8, Timesteps(), 0, references=False)
        results = []
        for workers in options.workers:
            makers = {"pairs": pairs, "whole micro-batches": whole}
            for what, builder in makers.items():
                results += measure(
                    Case(
                        f"{what}, {workers} workers",
                        options.samples,
                        steady(ours(builder, order, options.samples, workers), options.samples),
                        {
                            "webdataset, Pillow": steady(
                                theirs(folder, PillowPair(grid, False), workers), options.samples
                            ),
                            "webdataset, our resize": steady(
                                theirs(folder, PillowPair(grid, True), workers), options.samples
                            ),
                            "floor: raw member reads": timed(lambda: raw_reads(index)),
                        },
                    ),
                    options.rounds,
                )
        facts = {
            "samples_per_s": {
                f"{r['case']}, {who}": round(r["items"] / r[f"{side}_seconds"]["median"], 1)
                for r in results
                for who, side in (("editfoundry", "ours"), (r["peer"], "peer"))
            },
        }
        about = {
            "samples": options.samples,
            "photographs": len(photographs),
            "picture": f"{SIZE[0]}x{SIZE[1]} JPEG quality {QUALITY}",
            "grid": f"{grid.width}x{grid.height}",
            "bytes": sum(shard.bytes for shard in index.shards),
        }
        report(
            options.json,
            "training/loader",
            rounds=options.rounds,
            data=about,
            results=results,
            facts=facts,
            packages=("webdataset", "torch", "pillow", "simplejpeg", "opencv-python-headless"),
        )


if __name__ == "__main__":
    parser = arguments("Load edit pairs with editfoundry and with webdataset.", rounds=5)
    parser.add_argument("--samples", type=int, default=120, help="edit pairs (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="worker processes (default: 0 2)")
    parser.add_argument(
        "--photographs",
        type=Path,
        default=cache_root() / "photographs" / "photographs",
        help="folder of JPEGs (default: those of the quickstart)",
    )
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    main(parser.parse_args())
