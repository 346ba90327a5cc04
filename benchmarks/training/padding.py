"""How much of a training batch is padding: squares, constant-area buckets and packing, on the sizes of a real table.

Pure accounting, nothing is timed. The table is any Parquet file with WIDTH and HEIGHT (as LAION's) or width and height
(as a dataset's index.parquet), and perhaps TEXT or instruction. A token is 16 x 16 pixels; a sample aims at size² ones.

padding: share of the computed tokens that are no sample's. cropped: mean share of a picture's pixels that is cut off.
stretched: mean factor by which one side is stretched against the other, less 1. tokens: mean of a sample's own.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from _measure import arguments, report

from editfoundry.core.hashing import rng_for
from editfoundry.training.config import DataConfig, DatasetSpec
from editfoundry.training.data.buckets import Buckets

TOKEN, MAX_SIDE, PACKED_AT_MOST = 16, 65535, 100_000
CHARACTERS_PER_TOKEN, MAX_TEXT_TOKENS, VLM_IMAGE_TOKENS = 4, 256, 256
RATIOS = DataConfig(datasets=(DatasetSpec(path="x"),)).aspect_ratios
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Policies = dict[str, dict[str, float]]


def read(path: Path, limit: int | None) -> tuple[Numbers, Numbers, Numbers | None, int]:
    """Widths, heights, characters of the instructions if the table has any, and how many rows have no usable size."""
    file = pq.ParquetFile(path, pre_buffer=False)
    names = {name.lower(): name for name in file.schema_arrow.names}
    if not {"width", "height"} <= names.keys():
        raise SystemExit(f"{path}: no columns WIDTH and HEIGHT, nor width and height; name a table that has them")
    text = names.get("instruction") or names.get("text")
    columns = [names["width"], names["height"], *([text] if text else [])]
    parts: list[list[Numbers]] = []
    rows = 0
    for batch in file.iter_batches(1 << 16, columns=columns):
        width, height = (
            pc.fill_null(batch.column(name), 0).to_numpy(zero_copy_only=False).astype(np.float64)
            for name in columns[:2]
        )
        usable = (np.minimum(width, height) >= TOKEN) & (np.maximum(width, height) <= MAX_SIDE)
        words = pc.fill_null(pc.utf8_length(batch.column(text)), 0).to_numpy() if text else width
        parts.append([values[usable].astype(np.int64) for values in (width, height, words)])
        rows += len(width)
        if limit and sum(len(part[0]) for part in parts) >= limit:
            break
    width, height, words = (np.concatenate(values)[:limit] for values in zip(*parts, strict=True))
    return width, height, words if text else None, rows - sum(len(part[0]) for part in parts)


def own_grids(width: Numbers, height: Numbers, size: int) -> tuple[Numbers, Numbers]:
    """Tokens across and down when a picture keeps its ratio at about size² pixels."""
    aspect = np.sqrt(width / height)
    across, down = (np.maximum(1, np.rint(side / TOKEN)).astype(np.int64) for side in (size * aspect, size / aspect))
    return across, down


def batches(members: Numbers, size: int) -> Numbers:
    """Members in their order as [batches, size]; what is left over is not counted, unless there is nothing else."""
    if len(members) < size:
        return members[None]
    return members[: len(members) // size * size].reshape(-1, size)


def shuffled(count: int, what: str) -> Numbers:
    """0..count-1 in random order."""
    return rng_for("padding", what).permutation(count)


def packed(tokens: Numbers, batch: int) -> float:
    """Share of padding when shuffled sequences fill packs, each put into the first of the last 64 packs with room.

    Of the budgets between `batch` and `batch + 1` mean sequences, and at least the longest, the best one's share.
    """
    lengths = tokens[shuffled(len(tokens), "packs")[:PACKED_AT_MOST]]
    budgets = np.linspace(batch, batch + 1, 11) * lengths.mean()
    return min(_packed(lengths, max(int(budget), int(lengths.max()))) for budget in budgets)


def _packed(lengths: Numbers, budget: int) -> float:
    free: list[int] = []
    packs = 0
    for length in lengths.tolist():
        place = next((number for number, room in enumerate(free) if room >= length), None)
        if place is None:
            free = [*free[-63:], budget - length]
            packs += 1
        else:
            free[place] -= length
    return 1 - int(lengths.sum()) / (packs * budget)


def padded(used: Numbers, each: Numbers) -> float:
    """Share of padding of batches, used tokens [batches, size], where every sample takes `each` [batches]."""
    return 1 - float(used.sum()) / float(each.sum() * used.shape[1])


def cropping(aspect: Floats, target: Floats | float) -> float:
    """Mean share of a picture's pixels outside the target's aspect ratio."""
    return float(np.mean(1 - np.minimum(aspect / target, target / aspect)))


def image_policies(width: Numbers, height: Numbers, size: int, batch: int) -> Policies:
    """What each way of batching costs."""
    aspect = width / height
    square = (size // TOKEN) ** 2
    across, down = own_grids(width, height, size)
    tokens = across * down
    buckets = Buckets(size, RATIOS)
    bucket = buckets.of(width, height, 1)
    grids = [buckets.grid(number) for number in range(len(buckets))]
    bucket_tokens = np.array([grid.area // TOKEN**2 for grid in grids])[bucket]
    bucket_aspect = np.array([grid.width / grid.height for grid in grids])[bucket]
    inside = np.rint(square * np.minimum(aspect, 1 / aspect)).astype(np.int64)

    groups = batches(shuffled(len(tokens), "batches"), batch)
    rectangle = across[groups].max(axis=1) * down[groups].max(axis=1)
    longest = tokens[groups].max(axis=1)

    policies = {
        "square, stretched": {
            "padding": 0.0,
            "stretched": float(np.mean(np.maximum(aspect, 1 / aspect) - 1)),
            "tokens": square,
        },
        "square, cropped": {"padding": 0.0, "cropped": cropping(aspect, 1), "tokens": square},
        "square, letterboxed": {"padding": 1 - float(inside.mean()) / square, "tokens": float(inside.mean())},
        "own grids, padded to the batch's rectangle": {
            "padding": padded(tokens[groups], rectangle),
            "tokens": float(tokens.mean()),
        },
        "own grids, padded to the batch's longest": {
            "padding": padded(tokens[groups], longest),
            "tokens": float(tokens.mean()),
        },
        "own grids, packed": {"padding": packed(tokens, batch), "tokens": float(tokens.mean())},
        "buckets (ours)": {
            "padding": 0.0,
            "cropped": cropping(aspect, bucket_aspect),
            "tokens": float(bucket_tokens.mean()),
        },
    }
    return {name: {key: round(value, 4) for key, value in values.items()} for name, values in policies.items()}


def text_policies(width: Numbers, height: Numbers, characters: Numbers, size: int, batch: int) -> Policies:
    """Padding of instructions to the longest of a batch: alone, and as a share of all the batch's tokens."""
    words = np.clip(-(-characters // CHARACTERS_PER_TOKEN), 1, MAX_TEXT_TOKENS)
    bucket = Buckets(size, RATIOS).of(width, height, 1)
    order = shuffled(len(words), "batches")
    of_bucket = [order[bucket[order] == number] for number in np.unique(bucket)]
    made = {
        "any samples": [batches(order, batch)],
        "one bucket": [batches(members, batch) for members in of_bucket],
        "one bucket, by length": [
            batches(members[np.argsort(words[members], kind="stable")], batch) for members in of_bucket
        ],
    }
    image = VLM_IMAGE_TOKENS + (size // TOKEN) ** 2
    found = {}
    for name, parts in made.items():
        used = sum(int(words[part].sum()) for part in parts)
        total = sum(int(words[part].max(axis=1).sum()) * part.shape[1] for part in parts)
        everything = total + sum(part.size for part in parts) * image
        found[name] = {"of text": round(1 - used / total, 4), "of all tokens": round((total - used) / everything, 4)}
    return found


def main() -> None:
    parser = arguments(__doc__ or "", rounds=1)
    parser.add_argument("table", type=Path, help="Parquet file with the sizes")
    parser.add_argument("--size", type=int, default=512, help="square root of a sample's pixels (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="samples of one forward pass (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=None, help="read so many rows at most (default: all)")
    options = parser.parse_args()
    width, height, characters, unusable = read(options.table, options.limit)
    if not len(width):
        raise SystemExit(f"{options.table}: no row has sides of {TOKEN} to {MAX_SIDE} pixels")
    facts: dict[str, object] = {
        f"image: {name}": value for name, value in image_policies(width, height, options.size, options.batch).items()
    }
    if characters is not None:
        facts |= {
            f"text, batches of {name}: padding": value
            for name, value in text_policies(width, height, characters, options.size, options.batch).items()
        }
    shares = (1, 50, 99)
    aspects = np.percentile(width / height, shares).round(3).tolist()
    data = {
        "table": options.table.name,
        "rows": len(width),
        "rows_without_size": unusable,
        "size": options.size,
        "batch": options.batch,
        "aspect": {f"{share}%": aspect for share, aspect in zip(shares, aspects, strict=True)},
        "text_tokens": f"characters / {CHARACTERS_PER_TOKEN}, {MAX_TEXT_TOKENS} at most",
    }
    report(
        options.json,
        "training/padding",
        rounds=options.rounds,
        data=data,
        results=[],
        facts=facts,
        packages=("numpy", "pyarrow"),
    )


if __name__ == "__main__":
    main()
