"""render, of an import: rows of other datasets in, samples with their pictures on the grid out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from editfoundry.core.errors import ImageError
from editfoundry.core.geometry import Grid, Mask, to_grid
from editfoundry.core.hashing import rng_for, sha256
from editfoundry.core.images import encode_jpeg, encode_mask_png, perceptual_hash
from editfoundry.data_engine.direction import read_instruction
from editfoundry.data_engine.imports.config import DatasetSpec, ImportsConfig
from editfoundry.data_engine.imports.layouts import Reader, reader
from editfoundry.data_engine.imports.pixels import (
    Picture,
    common_grid,
    given_mask,
    is_dataset_jpeg,
    mean_difference,
    observed_mask,
    open_picture,
    pasted,
    require_same_shape,
)
from editfoundry.data_engine.imports.rows import ListedRow, RawRow, RawTurn, RowRefused
from editfoundry.data_engine.imports.texts import clean_instruction
from editfoundry.data_engine.imports.types import type_of
from editfoundry.data_engine.imports.values import checked_score
from editfoundry.data_engine.records import Edge, Record, Reject, Sample, Source, Turn
from editfoundry.data_engine.scene import Image
from editfoundry.data_engine.source_spec import clean_text
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.data_engine.stages.ingest import split_of
from editfoundry.data_engine.taxonomy import TYPES

MAX_TARGET = 100


@dataclass
class Graph:
    """A row's conversation while it is put together. Node 0 is the first picture, node i what turn i made.

    originals: the nodes as the dataset has them, which later turns start from; pixels: as they will be stored.
    data: a node's own bytes where they may be stored as they are.
    """

    grid: Grid
    originals: list[Image] = field(default_factory=list)
    pixels: list[Image] = field(default_factory=list)
    data: list[bytes | None] = field(default_factory=list)

    def add(self, picture: Picture, original: Image, pixels: Image) -> None:
        """Append a node."""
        self.originals.append(original)
        self.pixels.append(pixels)
        kept = pixels is original and is_dataset_jpeg(picture, self.grid)
        self.data.append(picture.data if kept else None)

    def stored(self, quality: int) -> list[bytes]:
        """The bytes of every node, all by one encoder: their own only if every one of them may keep its own."""
        own = [data for data in self.data if data is not None]
        if len(own) == len(self.data):
            return own
        return [encode_jpeg(pixels, quality=quality) for pixels in self.pixels]


class Import(Stage):
    """One row in; a sample with rendered edges, its nodes, masks and references out, or the reject that says why not.

    The id of a sample follows from the row's own id, or from where the row lies if it has none.
    """

    name: ClassVar[str] = "render"
    row: ClassVar[type[Record]] = Sample
    config: ImportsConfig

    def setup(self, artifacts: Artifacts) -> None:
        super().setup(artifacts)
        self._readers: dict[int, Reader] = {}

    def prepare(self, item: Item) -> Item:
        """Read the row. Nothing is decoded yet."""
        listed: ListedRow = item.record
        try:
            if listed.problem is not None:
                raise RowRefused(*listed.problem)
            if listed.dataset not in self._readers:
                spec = self.config.datasets[listed.dataset]
                self._readers[listed.dataset] = reader(spec, self.config.max_bytes)
            return Item(_Read(listed, self._readers[listed.dataset].read(listed)))
        except ImageError as error:
            raise ImageError(error.reason, f"{listed.uri}: {error}") from error

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [[self._one(item.record)] for item in batch]

    def _one(self, read: "_Read") -> Item | Reject:
        digest = sha256(read.raw.turns[0].source)
        try:
            return self._sample(read.raw, self.config.datasets[read.listed.dataset], digest)
        except ImageError as error:
            score = error.score if isinstance(error, RowRefused) else None
            return Reject(stage=self.name, id=read.id, reason=error.reason, detail=f"{read.listed.uri}: {error}",
                          score=score, source_sha256=digest)  # fmt: skip

    def _sample(self, row: RawRow, spec: DatasetSpec, digest: str) -> Item:
        own = f"{spec.label} {row.id}" if row.id else f"{spec.label} {row.uri}"
        sample_id = sha256(own)[:16]
        scores = {f"dataset_{name}": checked_score(name, row.scores.get(name), score)
                  for name, score in spec.scores.items()}  # fmt: skip
        texts = [self._instruction(sample_id, turn, spec) for turn in row.turns]
        types = [type_of(turn, text, spec) for turn, text in zip(row.turns, texts, strict=True)]
        pictures = self._pictures(row)
        sizes = [picture.size for pair in pictures for picture in pair]
        graph = Graph(common_grid(sizes, self.run.grid_area))
        turns, drafts = [], []
        for index, (turn, text, kind) in enumerate(zip(row.turns, texts, types, strict=True), start=1):
            drafts.append(self._edge(graph, index, turn, kind, pictures[index - 1], spec))
            turns.append(_turn(index, kind, drafts[-1], text, turn.target))
        first = pictures[0][0]
        source = Source(
            id=sample_id, sha256=digest, uri=row.uri, media_type=first.media_type, width=first.size[0],
            height=first.size[1], licence=_own(row.licence, spec.licence),
            source_url=_own(row.source_url, spec.source_url),
            split=split_of(digest, self.run.seed, self.run.val_fraction), phash=perceptual_hash(graph.pixels[0]),
            grid=(graph.grid.width, graph.grid.height),
        )  # fmt: skip
        sample = Sample(id=sample_id, kind=_kind(row, turns), source=source, turns=tuple(turns), split=source.split)
        return self._store(sample, graph, drafts, scores, spec)

    def _instruction(self, sample_id: str, turn: RawTurn, spec: DatasetSpec) -> str:
        value = turn.instruction
        if isinstance(value, list):
            if not value:
                raise RowRefused("no_instruction", "the row has an empty list of instructions")
            drawn = int(rng_for(self.run.seed, sample_id, "instruction").integers(len(value)))
            value = value[{"first": 0, "last": -1, "draw": drawn}[spec.pick]]
        return clean_instruction(value, spec.max_words)

    def _pictures(self, row: RawRow) -> list[tuple[Picture, Picture]]:
        """(source, result) of every turn, each distinct picture decoded once; all must have one shape."""
        opened: dict[str, Picture] = {}

        def picture(data: bytes, what: str) -> Picture:
            digest = sha256(data)
            if digest not in opened:
                opened[digest] = open_picture(data, what, self.config.max_pixels)
            return opened[digest]

        pairs: list[tuple[Picture, Picture]] = []
        for index, turn in enumerate(row.turns, start=1):
            what = _which(row, index)
            pair = picture(turn.source, f"{what}source"), picture(turn.result, f"{what}result")
            require_same_shape(pair[0].size, pair[1].size, f"{what}sizes")
            if pairs:
                require_same_shape(pairs[0][0].size, pair[0].size, f"{what}sizes")
            pairs.append(pair)
        return pairs

    def _edge(self, graph: Graph, index: int, turn: RawTurn, kind: str, pair: tuple[Picture, Picture],
              spec: DatasetSpec) -> "_Draft":  # fmt: skip
        """Append the turn's result to the graph; returns what its edge will say."""
        before, after = (_on_grid(picture, graph.grid) for picture in pair)
        if index == 1:
            graph.add(pair[0], before, before)
        parent = self._parent(graph, before, index)
        base, what = graph.pixels[parent], f"turn {index}"
        if kind == "visual" and turn.reference is None:
            raise RowRefused("missing_reference", f"{what}: a visual edit has no reference image")
        mask, origin = None, ""
        if TYPES[kind].local:
            mask, origin = self._mask(turn, pair[0], base, after, graph.grid, what, spec)
            if spec.composite:
                pixels, mask = pasted(base, after, mask, self.config.feather)
                graph.add(pair[1], after, pixels)
                return _Draft(parent, mask, origin, turn.reference)
        graph.add(pair[1], after, after)
        return _Draft(parent, mask, origin, turn.reference)

    def _mask(self, turn: RawTurn, source: Picture, before: Image, after: Image, grid: Grid, what: str,
              spec: DatasetSpec) -> tuple[Mask, str]:  # fmt: skip
        """The mask of a local edit, and where it is from."""
        if turn.mask is not None:
            most = self.config.max_pixels
            given = given_mask(turn.mask, source.size, grid, what, resize=spec.resize_masks, max_pixels=most)
            return given, "dataset"
        mask = observed_mask(before, after, self.config.observed)
        if mask is None:
            raise RowRefused("no_visible_change", f"{what}: source and result look the same", 0.0)
        return mask, "observed"

    def _parent(self, graph: Graph, before: Image, index: int) -> int:
        """The node that a turn starts from: the earlier picture it shows, the latest of those that fit equally."""
        distances = [mean_difference(node, before) for node in graph.originals]
        nearest = min(distances)
        if nearest > self.config.same_picture:
            raise RowRefused(
                "broken_conversation",
                f"turn {index} starts from a picture that no earlier turn made (the nearest differs by {nearest:.1f} "
                "levels on average)",
                nearest,
            )
        return max(number for number, distance in enumerate(distances) if distance == nearest)

    def _store(self, sample: Sample, graph: Graph, drafts: Sequence["_Draft"], scores: dict[str, float | None],
               spec: DatasetSpec) -> Item:  # fmt: skip
        nodes = graph.stored(self.run.jpeg_quality)
        names: list[str] = []
        by_hash: dict[str, str] = {}
        blobs: dict[str, bytes] = {}
        for index, data in enumerate(nodes):
            names.append(by_hash.setdefault(sha256(data), f"node{index}.jpg"))
            blobs[names[-1]] = data
        hashes = {name: digest for digest, name in by_hash.items()}
        edges = []
        for index, draft in enumerate(drafts, start=1):
            gates: dict[str, Any] = {**scores, "reencoded": nodes[index] is not graph.data[index]}
            render: dict[str, Any] = {"renderer": spec.label, "certificate": spec.certificate}
            members: dict[str, Any] = {}
            if draft.mask is not None:
                members = {"mask": f"mask{index}.png", "mask_fraction": round(draft.mask.fraction, 6)}
                blobs[f"mask{index}.png"] = encode_mask_png(draft.mask)
                gates |= {"mask_from": draft.origin, "composited": spec.composite}
            if draft.reference is not None:
                members["reference"] = f"reference{index}.jpg"
                blobs[f"reference{index}.jpg"] = self._reference(draft.reference, f"turn {index}, reference")
            before, after = names[draft.parent], names[index]
            edges.append(Edge(turn=index, source_node=before, result_node=after, source_sha256=hashes[before],
                              result_sha256=hashes[after], gates=gates, render=render, **members))  # fmt: skip
        return Item(sample.model_copy(update={"edges": tuple(edges)}), blobs)

    def _reference(self, data: bytes, what: str) -> bytes:
        """A reference image as it is stored: on a grid of its own, or as it is if it could be ours."""
        picture = open_picture(data, what, self.config.max_pixels)
        grid = common_grid([picture.size], self.run.grid_area)
        if is_dataset_jpeg(picture, grid):
            return data
        return encode_jpeg(_on_grid(picture, grid), quality=self.run.jpeg_quality)


@dataclass(frozen=True)
class _Read:
    """A row with its pictures, under the name of its listing."""

    listed: ListedRow
    raw: RawRow

    @property
    def id(self) -> str:
        return self.listed.id

    @property
    def uri(self) -> str:
        return self.listed.uri


@dataclass(frozen=True)
class _Draft:
    """What an edge will say: the node it starts from, its mask and where that is from, its reference's bytes."""

    parent: int
    mask: Mask | None
    origin: str
    reference: bytes | None


def _own(value: Any, otherwise: str) -> str:
    """A row's own licence or address as one printable line, or the dataset's."""
    return (clean_text(value) if isinstance(value, str) else "") or otherwise


def _on_grid(picture: Picture, grid: Grid) -> Image:
    return np.asarray(to_grid(picture.pixels, grid))


def _which(row: RawRow, index: int) -> str:
    return f"turn {index}, " if len(row.turns) > 1 else ""


def _turn(index: int, kind: str, draft: _Draft, text: str, target: Any) -> Turn:
    """A turn, with the nouns that its instruction names if its verb agrees with the type; a dataset's own go first."""
    reading = read_instruction(text)
    gone, come = (reading.gone, reading.come) if reading.type == kind else ("", "")
    label = gone or (come if kind == "add" else "")
    if isinstance(target, str) and target.strip():
        label = clean_text(target)[:MAX_TARGET]
    box = draft.mask.box() if draft.mask is not None else None
    return Turn(
        index=index, type=kind, parent=draft.parent, instruction=text, target_label=label,
        result_phrase=(label if kind == "add" else come), operation={"box": box.as_list()} if box else {},
        origin="imported", worded_by="dataset",
    )  # fmt: skip


def _kind(row: RawRow, turns: Sequence[Turn]) -> Any:
    """The kind of a conversation: the dataset's word, else backtracking if a turn goes back, else understanding."""
    if len(turns) == 1:
        return "single"
    goes_back = any(turn.parent != turn.index - 1 for turn in turns)
    return row.kind or ("version_backtracking" if goes_back else "content_understanding")
