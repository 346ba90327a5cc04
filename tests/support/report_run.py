"""A small finished run, made of the engine's own records, stores, emit stage and publication, for testing reports."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.hashing import rng_for, sha256
from editfoundry.core.images import encode_jpeg, encode_mask_png
from editfoundry.core.masks import Mask
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.dataset import publish
from editfoundry.data_engine.ledger import StageStore
from editfoundry.data_engine.records import Edge, Reject, Sample, Source, Turn
from editfoundry.data_engine.rundir import RunDir, StageState, State
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.emit import Emit
from editfoundry.data_engine.stages.ingest import IngestConfig, SourceSpec

Image = NDArray[np.uint8]
MARK = "0" * 16
EVIL = "Add a <script>alert(1)</script> & </script><!-- sign \"here\"."
SINGLES = ("add", "remove", "style", "visual")


def scene(number: int, width: int = 256, height: int = 192) -> Image:
    """A gradient of its own colour with some texture."""
    rng = rng_for("scene", number)
    low, high = rng.integers(20, 120, 3), rng.integers(120, 240, 3)
    ramp = np.linspace(0, 1, height)[:, None, None] * np.ones((1, width, 1))
    return (low + (high - low) * ramp + rng.integers(0, 8, (height, width, 1))).astype(np.uint8)


def build(path: Path, photographs: Sequence[Image], repeats: int = 1) -> Path:
    """A run over the photographs: of each, one edit a type, `repeats` times; of the first two, a conversation."""
    run = RunDir.create(path)
    run.save_config(RunConfig(name="Test <b>run</b>", ingest=IngestConfig(sources=(SourceSpec(path="nowhere"),))))
    names = ("ingest", "filter", "detect", "instruct", "render", "verify", "emit")
    run.save_state(State(listing="x", sources=len(photographs) + 1, shards=1,
                         stages=tuple(StageState(name=name, fingerprint=MARK) for name in names)))
    originals = [encode_jpeg(photograph) for photograph in photographs]
    sources = [_source(number, data, photograph.shape) for number, (data, photograph)
               in enumerate(zip(originals, photographs, strict=True))]
    _commit(run.store("ingest", MARK), [[Item(source, {"original": data})]
                                        for source, data in zip(sources, originals, strict=True)]
            + [[Reject(stage="ingest", id="broken_jpg", reason="truncated_image", detail="broken.jpg: ends early")]])
    kept = sources[:-1]
    _commit(run.store("filter", MARK), [[Item(source)] for source in kept] + [[
        Reject(stage="filter", id=sources[-1].id, reason="too_blurred", detail="brisque 78.2", score=78.2,
               source_sha256=sources[-1].sha256)]])
    _commit(run.store("detect", MARK), [[Item(source), *_unsure(source)] for source in kept])
    made = [list(_samples(source, photographs[number], number, repeats)) for number, source in enumerate(kept)]
    planned = [item for items in made for item in items]
    _commit(run.store("instruct", MARK), [[Item(item.record) for item in items] for items in made])
    _commit(run.store("render", MARK), [[item] for item in planned])
    _commit(run.store("verify", MARK), [[_verdict(item, number)] for number, item in enumerate(planned)])
    emit = Emit(_Config())
    _commit(run.store("emit", MARK), emit.process([item for number, item in enumerate(planned) if number % 9 != 8]))
    publish(run)
    return path


class _Config:
    """What emit reads of a configuration."""

    made_by, emit, models = "embedded", None, {}


def _source(number: int, data: bytes, shape: tuple[int, ...]) -> Source:
    digest = sha256(data)
    return Source(id=digest[:16], sha256=digest, uri=f"photographs/scene_{number}.jpg", width=shape[1], height=shape[0],
                  licence="CC-BY-4.0", source_url=f"https://example.org/{number}?a=1&b=<2>", grid=(shape[1], shape[0]),
                  split="val" if number == 0 else "train")


def _unsure(source: Source) -> Iterator[Reject]:
    yield Reject(stage="detect", id=f"{source.id}_r1", reason="unsure_label", unit="region", score=0.41,
                 detail="detector says <i>pizza</i> (0.41), tagger says leaf", source_sha256=source.sha256)


def _verdict(item: Item, number: int) -> Item | Reject:
    """Every ninth sample fails."""
    sample: Sample = item.record
    if number % 9 != 8:
        return Item(sample)
    return Reject(stage="verify", id=sample.id, reason="visible_seam", detail="the rim is 2.9 times its surroundings",
                  unit="sample", type=sample.turns[0].type, score=2.9, source_sha256=sample.source.sha256)


def _samples(source: Source, photograph: Image, number: int, repeats: int) -> Iterator[Item]:
    for repeat in range(repeats):
        for position, name in enumerate(SINGLES):
            evil = number == 1 and name == "add" and repeat == 0
            words = EVIL if evil else f"{name.capitalize()} the blob number {number} on the left."
            yield _sample(source, photograph, "single", [(name, 0, words)], (number, position, repeat))
    if number == 0:
        yield _sample(source, photograph, "version_backtracking", [
            ("add", 0, "Add a red blob."), ("replace", 1, "Replace it with a blue one."),
            ("adjust", 1, "Undo that; make the first one green.")], (number, 9, 0))
    if number == 1:
        yield _sample(source, photograph, "content_memory", [("add", 0, "Add a blob."), ("add", 1, "Add another.")],
                      (number, 10, 0), "Everything you add must be <em>purple</em>.")


def _sample(source: Source, photograph: Image, kind: Any, plan: list[tuple[str, int, str]], seed: tuple[int, ...],
            premise: str = "") -> Item:
    rng = rng_for(*seed)
    nodes, blobs, edges, turns = [photograph], {"node0.jpg": encode_jpeg(photograph)}, [], []
    for index, (name, parent, words) in enumerate(plan, start=1):
        pixels, mask = _edit(nodes[parent], name, rng)
        nodes.append(pixels)
        blobs[f"node{index}.jpg"] = encode_jpeg(pixels)
        if mask is not None:
            blobs[f"mask{index}.png"] = encode_mask_png(mask)
        if name == "visual":
            blobs[f"reference{index}.jpg"] = encode_jpeg(np.full((64, 64, 3), 200, np.uint8))
        turns.append(Turn(index=index, type=name, parent=parent, instruction=words,
                          origin="photograph" if name == "style" else "donor"))
        edges.append(Edge(
            turn=index, source_node=f"node{parent}.jpg", result_node=f"node{index}.jpg",
            source_sha256=sha256(blobs[f"node{parent}.jpg"]), result_sha256=sha256(blobs[f"node{index}.jpg"]),
            mask=f"mask{index}.png" if mask else "", mask_fraction=round(mask.fraction, 6) if mask else 1.0,
            reference=f"reference{index}.jpg" if name == "visual" else "",
            gates={"outside_max": 0 if mask else None, "change_share": round(float(rng.uniform(0.3, 1)), 4),
                   "seam": round(float(rng.uniform(0.5, 2.0)), 3) if mask else None}))
    name = "_".join([source.id, kind, *map(str, seed[1:])])
    return Item(Sample(id=name, kind=kind, source=source, premise=premise, turns=tuple(turns), edges=tuple(edges),
                       split=source.split), blobs, source.split)


def _edit(pixels: Image, name: str, rng: np.random.Generator) -> tuple[Image, Mask | None]:
    if name == "style":
        return np.ascontiguousarray(255 - pixels), None
    height, width = pixels.shape[:2]
    x, y = int(rng.integers(width // 5, width * 4 // 5)), int(rng.integers(height // 4, height * 3 // 4))
    rows, columns = np.mgrid[:height, :width]
    distance = np.hypot(columns - x, rows - y) / (min(height, width) * rng.uniform(0.1, 0.2))
    result = pixels.copy()
    result[distance < 1] = rng.integers(0, 255, 3)
    return result, Mask(distance < 1.15)


def _commit(store: StageStore, outcomes: Sequence[Sequence[Item | Reject]]) -> None:
    """Commit shard 0 with one outcome an input; a reject accounts for its input where no item does."""
    with store.writer(0) as writer:
        for position, outcome in enumerate(outcomes):
            for part in outcome:
                if isinstance(part, Item):
                    writer.add(position, part)
                else:
                    writer.reject(position, part, primary=not any(isinstance(other, Item) for other in outcome))
        writer.commit(len(outcomes))


