"""The feature cache: what the frozen encoders make of every sample, computed once and read in every epoch.

A folder with `cache.json`, which says what the features depend on, and a safetensors file per part of 64 rows of the
index. Ranks share the parts; a part is there whole or not at all, so building resumes. Features keep the dtype that the
encoders gave them. A sample encoded alone is stored bit for bit; in batches the last bits depend on the batch, as they
do without a cache.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import canonical_json, fingerprint
from editfoundry.data_engine.ledger import replace_file
from editfoundry.models.editor.encoders import Encoders
from editfoundry.models.editor.prompt import EditorProcessor
from editfoundry.models.editor.types import Condition
from editfoundry.training.config import DataConfig
from editfoundry.training.data.batch import Features
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.index import ShardIndex
from editfoundry.training.data.pictures import Contents, PictureReader, Sample, without_text
from editfoundry.training.mask_weight import pooled

FORMAT = 1
PART_ROWS = 64
WITH_TEXT, WITHOUT_TEXT = "text", "empty"
ABOUT = "editfoundry"
"""The one entry of a part's metadata: safetensors writes several in an order that differs from file to file."""
AGAIN = "delete it and repeat `editfoundry train cache`"


class StaleCache(UsageError):
    """A feature cache that was made of something else; the message names what differs."""


class DamagedCache(EditFoundryError):
    """A feature cache that is unfinished, or a file of it that cannot be read."""


class Entry(NamedTuple):
    """A sample in the cache. tensors: by name. key, problem: as in `Contents`."""

    tensors: dict[str, Tensor]
    key: str
    problem: str


def cache_keys(
    index: ShardIndex,
    data: DataConfig,
    buckets: Buckets,
    processor: EditorProcessor,
    encoders: Encoders,
    references: bool,
    precision: str,
) -> dict[str, Any]:
    """What features depend on, as plain values. references: the pictures' latents are among the features.

    precision: of the encoders' forward passes. Where text is dropped, the features without it are needed as well.
    """
    return {
        "index": index.digest,
        "encoders": encoders.digest,
        "prompt": processor.fingerprint(),
        "max_text_tokens": processor.max_text_tokens,
        "visual_states": encoders.visual_encoder is not None,
        "reference_latents": references,
        "precision": precision,
        "grids": [[grid.width, grid.height] for grid in buckets.grids],
        "history": data.history,
        "without_text": data.dropout.text + data.dropout.all > 0,
        "mask_threshold": data.mask_weight.threshold,
    }


def open_cache(
    data: DataConfig,
    index: ShardIndex,
    buckets: Buckets,
    processor: EditorProcessor,
    encoders: Encoders,
    references: bool,
    precision: str,
) -> "FeatureCache | None":
    """The cache that `data.feature_cache` names, None without one; arguments as of `cache_keys`."""
    if data.feature_cache is None:
        return None
    keys = cache_keys(index, data, buckets, processor, encoders, references, precision)
    return FeatureCache(Path(data.feature_cache), keys, len(index))


class FeatureCache:
    """A finished cache of `rows` rows, read instead of pictures. Pickles as its folder.

    Raises DamagedCache when it is missing, unfinished or damaged, and StaleCache when it is not of `keys`.
    """

    def __init__(self, folder: Path, keys: Mapping[str, Any], rows: int) -> None:
        self.folder, self.keys, self.rows = folder, dict(keys), rows
        check_keys(folder, keys)
        there = {path.name for path in folder.glob("part-*.safetensors")}
        missing = [name for part in range(-(-rows // PART_ROWS)) if (name := part_path(folder, part).name) not in there]
        if missing:
            raise DamagedCache(
                f"{folder}: {len(missing)} parts are missing, such as {missing[0]}; repeat `editfoundry train cache` "
                "to finish it"
            )

    def __reduce__(self) -> tuple[type["FeatureCache"], tuple[Any, ...]]:
        return FeatureCache, (self.folder, self.keys, self.rows)

    def read(self, rows: Sequence[int], bucket: int, text_kept: Sequence[bool]) -> Contents:
        """The features of samples of one bucket; text states are zero where padded. Raises DamagedCache."""
        variants = [WITH_TEXT if kept else WITHOUT_TEXT for kept in text_kept]
        mark = fingerprint(self.keys)
        entries = [
            read_entry(part_path(self.folder, row // PART_ROWS), mark, row, variant)
            for row, variant in zip(rows, variants, strict=True)
        ]
        return Contents(
            joined([entry.tensors for entry in entries]),
            [entry.key for entry in entries],
            [entry.tensors["area"].numpy() for entry in entries],
            [entry.problem for entry in entries],
        )


def read_entry(path: Path, mark: str, row: int, variant: str) -> Entry:
    """One sample of a part, with or without text, checked against its checksums. mark: fingerprint of the cache's keys.

    The tensors are text [L, D], vision_end [R], moments [2C, h, w], area [h / 2, w / 2], and where the cache has them
    visual [R, S, D] and reference [R, C, h, w]. Raises DamagedCache.
    """
    try:
        with safe_open(path, framework="pt") as file:
            part = json.loads(file.metadata()[ABOUT])
            if part["keys"] != mark:
                raise DamagedCache(f"{path}: is of another cache; {AGAIN}")
            about = part["rows"][str(row)]
            stored = {name: name for name in about["sums"] if not name.startswith((WITH_TEXT, WITHOUT_TEXT))}
            stored |= {"text": variant, "vision_end": f"{variant}_end"}
            tensors = {name: file.get_tensor(f"{row}.{held}") for name, held in stored.items()}
        changed = [name for name, held in stored.items() if checksum(tensors[name]) != about["sums"][held]]
        entry = Entry(tensors, about["key"], about["problem"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCache(f"{path}: damaged ({' '.join(str(error).split())[:150]}); {AGAIN}") from error
    if changed:
        raise DamagedCache(f"{path}: damaged ({', '.join(changed)} of row {row} changed); {AGAIN}")
    return entry


def joined(samples: Sequence[Mapping[str, Tensor]]) -> Features:
    """The features of a batch from those of its samples, text states padded with zeros on the right."""
    text = [sample["text"] for sample in samples]
    lengths = torch.tensor([len(states) for states in text])

    def stacked(name: str) -> Tensor | None:
        return torch.stack([sample[name] for sample in samples]) if name in samples[0] else None

    condition = Condition(
        text_states=pad_sequence(text, batch_first=True),
        text_mask=torch.arange(int(lengths.max())) < lengths[:, None],
        vision_end=torch.stack([sample["vision_end"] for sample in samples]),
        visual_states=stacked("visual"),
        reference_latents=stacked("reference"),
    )
    return Features(condition, torch.stack([sample["moments"] for sample in samples]))


def build_cache(
    reader: PictureReader,
    encoders: Encoders,
    keys: Mapping[str, Any],
    folder: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    batch: int = 1,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Write this rank's parts that are not there yet; `advance` is called with the number of rows done.

    keys: of `cache_keys`. batch: most samples encoded together. Raises StaleCache for a folder with a cache of other
    keys, UsageError for one with other files, and what reading samples raises.
    """
    claim(folder, keys)
    for part in range(rank, -(-len(reader.index) // PART_ROWS), ranks):
        rows = range(part * PART_ROWS, min((part + 1) * PART_ROWS, len(reader.index)))
        path = part_path(folder, part)
        if not path.exists():
            replace_file(path, packed(dict(encoded(reader, encoders, rows, keys["without_text"], batch)), keys))
        advance(len(rows))


def encoded(
    reader: PictureReader, encoders: Encoders, rows: Sequence[int], without: bool, batch: int
) -> Iterator[tuple[int, Entry]]:
    """Rows of the index with their entries, bucket by bucket. without: also without text."""
    by_bucket: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        by_bucket[reader.bucket(row)].append(row)
    for bucket, members in sorted(by_bucket.items()):
        for start in range(0, len(members), batch):
            together = members[start : start + batch]
            samples = [reader.sample(row, bucket) for row in together]
            yield from zip(together, _entries(reader, encoders, samples, without), strict=True)


def _entries(reader: PictureReader, encoders: Encoders, samples: Sequence[Sample], without: bool) -> list[Entry]:
    requests = [sample.request for sample in samples]
    content = reader.pictures(samples, requests)
    condition = encoders.condition(content.inputs, content.references)
    tensors = parted(condition, {"moments": encoders.moments(content.target)}, WITH_TEXT)
    if without:
        inputs = reader.processor([without_text(request) for request in requests])
        bare = Encoders(encoders.vlm, None, encoders.vae).condition(inputs)
        tensors = [one | other for one, other in zip(tensors, parted(bare, {}, WITHOUT_TEXT), strict=True)]
    for one, sample in zip(tensors, samples, strict=True):
        height, width = one["moments"].shape[-2:]
        one["area"] = torch.from_numpy(pooled(sample.area, (height // 2, width // 2)))
    return [Entry(one, sample.key, sample.problem) for one, sample in zip(tensors, samples, strict=True)]


def parted(condition: Condition, more: Mapping[str, Tensor], variant: str) -> list[dict[str, Tensor]]:
    """The features of each sample of a batch, without padding, on the CPU."""
    batched = {
        f"{variant}_end": condition.vision_end,
        "visual": condition.visual_states,
        "reference": condition.reference_latents,
        **more,
    }
    samples = []
    for number, mask in enumerate(condition.text_mask):
        sample = {name: states[number] for name, states in batched.items() if states is not None}
        sample[variant] = condition.text_states[number, : int(mask.sum())]
        samples.append({name: tensor.detach().cpu().contiguous() for name, tensor in sample.items()})
    return samples


def packed(entries: Mapping[int, Entry], keys: Mapping[str, Any]) -> bytes:
    """A part's file."""
    tensors, rows = {}, {}
    for row, entry in entries.items():
        tensors.update({f"{row}.{name}": tensor for name, tensor in entry.tensors.items()})
        sums = {name: checksum(tensor) for name, tensor in entry.tensors.items()}
        rows[row] = {"key": entry.key, "problem": entry.problem, "sums": sums}
    data: bytes = save(tensors, {ABOUT: canonical_json({"keys": fingerprint(dict(keys)), "rows": rows})})
    return data


def checksum(tensor: Tensor) -> int:
    """CRC-32 of a tensor's bytes."""
    return zlib.crc32(tensor.contiguous().flatten().view(torch.uint8).numpy().data)


def part_path(folder: Path, part: int) -> Path:
    """The file of rows part * 64 and on."""
    return folder / f"part-{part:08d}.safetensors"


def claim(folder: Path, keys: Mapping[str, Any]) -> None:
    """Make the folder of a cache with these keys, or take up the one that is there."""
    about = folder / "cache.json"
    if about.exists():
        check_keys(folder, keys)
        return
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UsageError(f"{folder}: holds other files and no feature cache; choose an empty or new folder")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(about, (canonical_json({"format": FORMAT, "keys": keys}) + "\n").encode())


def check_keys(folder: Path, keys: Mapping[str, Any]) -> None:
    """Raises DamagedCache unless the folder is a cache, and StaleCache if it is not of these keys."""
    path = folder / "cache.json"
    try:
        about = json.loads(path.read_bytes())
        held, known = about["keys"], about["format"] == FORMAT
        differing = [name for name in sorted({*held, *keys}) if held.get(name) != keys.get(name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCache(
            f"{path}: no feature cache ({' '.join(str(error).split())[:100]}); build one with `editfoundry train cache`"
        ) from error
    if differing or not known:
        what = "; ".join(f"{name}: was {short(held.get(name))}, is {short(keys.get(name))}" for name in differing)
        raise StaleCache(
            f"{folder}: the feature cache was made of something else ({what or 'another format'}); build "
            "it again in another folder, or set data.feature_cache to null"
        )


def short(value: Any) -> str:
    """A value in one short line."""
    text = canonical_json(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
