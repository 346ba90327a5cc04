"""render: planned edits into pixels. Every node is encoded once, by one encoder, from pixels never encoded before."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

from editfoundry.core.config import Config
from editfoundry.core.geometry import Grid, to_grid
from editfoundry.core.hashing import seed_for, sha256
from editfoundry.core.images import decode, decode_rgba, encode_jpeg, encode_mask_png
from editfoundry.data_engine.recipes.base import Edited, Refused, recipe
from editfoundry.data_engine.recipes.tools import Tools, serve
from editfoundry.data_engine.records import Donor, Edge, Reject, Sample
from editfoundry.data_engine.scene import Image, Scene
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.data_engine.taxonomy import TYPES
from editfoundry.data_engine.together import run_together

CACHED_IMAGES = 64


class RenderConfig(Config):
    """Nothing to choose yet: how each edit is made is its recipe's, which models make it is in `models`."""


class Render(Stage):
    """One planned sample in; the same sample with its edges, and its nodes, masks and references as members, out."""

    name = "render"
    row = Sample
    blobs = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("inpainter", "style")
    artifacts: ClassVar[tuple[str, ...]] = ("catalogue",)
    batch_size = 8

    def setup(self, artifacts: Artifacts) -> None:
        super().setup(artifacts)
        self.library = Library(artifacts)

    def prepare(self, item: Item) -> Item:
        grid = Grid(*item.record.source.grid)
        names = ("original", "second") if item.record.source.kind == "frames" else ("original",)
        item.pixels = [to_grid(decode(item.blobs[n], target=min(grid.width, grid.height)), grid) for n in names]
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        results = run_together([self._render(item) for item in batch], partial(serve, self.models))
        return [[self._outcome(item.record, result)] for item, result in zip(batch, results, strict=True)]

    async def _render(self, item: Item) -> Item:
        sample: Sample = item.record
        start = StageTools(self, item)
        scene = Scene(item.pixels[0])
        for placement in sample.initial:
            scene = start.place(scene, placement)
        for turn in sample.turns:
            scene = await recipe(turn.type).start(scene, turn, start)
        nodes, edits = [scene], []
        for turn in sample.turns:
            tools = StageTools(self, item, turn.index)
            edits.append(await recipe(turn.type).render(nodes[turn.parent], turn, tools))
            nodes.append(edits[-1].scene)
        return self._store(sample, nodes, edits)

    def _outcome(self, sample: Sample, result: Item | Exception) -> Item | Reject:
        if isinstance(result, Refused):
            return sample.reject(self.name, result.reason, result.detail)
        if isinstance(result, Exception):
            raise result
        return result

    def _store(self, sample: Sample, nodes: Sequence[Scene], edits: Sequence[Edited]) -> Item:
        blobs: dict[str, bytes] = {}
        names: list[str] = []
        by_hash: dict[str, str] = {}
        for index, node in enumerate(nodes):
            data = encode_jpeg(node.pixels, quality=self.run.jpeg_quality)
            name = by_hash.setdefault(sha256(data), f"node{index}.jpg")
            blobs[name] = data
            names.append(name)
        hashes = {name: digest for digest, name in by_hash.items()}
        edges = []
        for turn, edit in zip(sample.turns, edits, strict=True):
            before, after = names[turn.parent], names[turn.index]
            edge = Edge(
                turn=turn.index,
                source_node=before,
                result_node=after,
                source_sha256=hashes[before],
                result_sha256=hashes[after],
            )
            if edit.mask is not None:
                _check_outside(sample, nodes[turn.parent], edit)
                name = f"mask{turn.index}.png"
                blobs[name] = encode_mask_png(edit.mask)
                edge = edge.model_copy(update={"mask": name, "mask_fraction": round(edit.mask.fraction, 6)})
            elif TYPES[turn.type].local:
                raise RuntimeError(f"{sample.id}: recipe {turn.type} is local but gave no mask")
            if edit.reference is not None:
                name = f"reference{turn.index}.jpg"
                blobs[name] = encode_jpeg(edit.reference, quality=self.run.jpeg_quality)
                edge = edge.model_copy(update={"reference": name})
            edges.append(edge)
        return Item(sample.model_copy(update={"edges": tuple(edges)}), blobs)


def _check_outside(sample: Sample, before: Scene, edit: Edited) -> None:
    assert edit.mask is not None
    outside = (before.pixels != edit.scene.pixels).any(axis=2) & ~edit.mask.array
    if outside.any():
        raise RuntimeError(
            f"{sample.id}: {int(outside.sum())} pixels outside the mask changed; the recipe's mask is wrong"
        )


class Library:
    """The catalogue's pixels, decoded once per worker and kept in a bounded cache."""

    def __init__(self, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        self.donors = {row["sha256"]: Donor.model_validate(row) for row in artifacts.rows("catalogue")}
        self.cutout = lru_cache(CACHED_IMAGES)(self._cutout)
        self.photograph = lru_cache(CACHED_IMAGES // 4)(self._photograph)

    def _cutout(self, digest: str) -> Image:
        return decode_rgba(self.artifacts.blob("catalogue", 0, digest, "original"))

    def _photograph(self, digest: str, grid: Grid) -> Image:
        donor = self.donors[digest]
        data = (
            self.artifacts.blob("catalogue", 0, digest, "original")
            if donor.shard is None
            else self.artifacts.blob("ingest", donor.shard, donor.source_id, "original")
        )
        return to_grid(decode(data, target=min(grid.width, grid.height)), grid)


class StageTools(Tools):
    """Tools over the stage's models, for one attempt at one turn of a sample (turn 0: before the first)."""

    def __init__(self, stage: Render, item: Item, turn: int = 0, attempt: int = 0) -> None:
        self.source, self.original = item.record.source, item.pixels[0]
        self._stage, self._item = stage, item
        self._place, self._calls = (item.record.id, "render", turn, attempt), 0

    def cutout(self, sha256: str) -> Image:
        return self._stage.library.cutout(sha256)

    def photograph(self, sha256: str, grid: Grid) -> Image:
        return self._stage.library.photograph(sha256, grid)

    def second_frame(self) -> Image:
        return self._item.pixels[1]

    def model(self, role: str) -> Any:
        return self._stage.models[role]

    def seed(self) -> int:
        self._calls += 1
        return seed_for(self._stage.run.seed, *self._place, self._calls - 1) % 2**31
