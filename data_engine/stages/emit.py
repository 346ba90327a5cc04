"""Checked samples in, dataset rows out: one per edge, each with its images and its JSON."""

from collections.abc import Sequence
from typing import Any, ClassVar

from editfoundry.core.config import Config
from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.data_engine.records import Edge, Record, Reject, Sample, Split, Turn
from editfoundry.data_engine.stages.base import Item, Outcome, Stage

SINGLE = "single"
ORIGINAL_NODE = 0


class EmitConfig(Config):
    """Nothing to set: what is emitted is decided above."""


class EdgeRow(Record):
    """One edge as the index describes it. The hashes are of the stored images; `photograph_sha256` is the source's.

    mask_area: share of the grid. outside_max, outside_mean: largest and mean difference outside the mask, in levels of
    255, None where the whole image may change. parent_key: the edge whose result this one starts from, if any.
    """

    id: str
    type: str
    instruction: str
    source_sha256: str
    result_sha256: str
    photograph_sha256: str
    parent_key: str | None
    conversation_id: str
    conversation_kind: str
    turn: int
    width: int
    height: int
    mask_area: float
    outside_max: float | None
    outside_mean: float | None
    gates: dict[str, float | str | bool | None]
    origin: str
    donors: tuple[str, ...]
    stack: str
    licence: str
    source_url: str
    split: Split


class BrokenGraph(Exception):
    """A conversation graph whose nodes and edges do not fit together; the message says where."""


class Emit(Stage):
    """Turns each edge of a sample into a WebDataset sample, after checking the graph against the stored bytes."""

    name: ClassVar[str] = "emit"
    row: ClassVar[type[Record]] = EdgeRow
    blobs: ClassVar[str] = "render"

    def settings(self) -> dict[str, Any]:
        """The section, and what the dataset says made it."""
        return {**super().settings(), "stack": self.run.made_by}

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._emit(item) for item in batch]

    def _emit(self, item: Item) -> Outcome:
        sample: Sample = item.record
        try:
            check_graph(sample, item.blobs)
        except BrokenGraph as error:
            return [Reject(stage=self.name, id=sample.id, reason="broken_graph", detail=str(error), unit="sample",
                           type=sample.kind, source_sha256=sample.source.sha256, donors=sample.donors)]
        turns = {turn.index: turn for turn in sample.turns}
        return [self._edge(sample, turns[edge.turn], edge, item.blobs) for edge in sample.edges]

    def _edge(self, sample: Sample, turn: Turn, edge: Edge, blobs: dict[str, bytes]) -> Item:
        row = edge_row(sample, turn, edge, self.run.made_by)
        members = {"source.jpg": blobs[edge.source_node], "result.jpg": blobs[edge.result_node],
                   "json": canonical_json(describe(sample, turn, edge, row)).encode()}
        if edge.mask:
            members["mask.png"] = blobs[edge.mask]
        if edge.reference:
            members["reference.jpg"] = blobs[edge.reference]
        return Item(record=row, blobs=members, group=sample.split)


def check_graph(sample: Sample, blobs: dict[str, bytes]) -> None:
    """Every turn has one edge; it starts from its declared parent's result; every hash is that of the stored bytes.

    Raises BrokenGraph. A parent is an earlier turn, or 0 for the starting image, which all such turns share.
    """
    turns = [turn.index for turn in sample.turns]
    if not turns or sorted(turns) != list(range(1, len(turns) + 1)) or sorted(e.turn for e in sample.edges) != turns:
        raise BrokenGraph(f"turns {turns} do not match edges {[edge.turn for edge in sample.edges]}")
    parents = {turn.index: turn.parent for turn in sample.turns}
    nodes: dict[int, tuple[str, str]] = {}
    for edge in sorted(sample.edges, key=lambda edge: edge.turn):
        parent = parents[edge.turn]
        if not 0 <= parent < edge.turn:
            raise BrokenGraph(f"turn {edge.turn} starts from node {parent}, which does not exist yet")
        if parent == ORIGINAL_NODE:
            nodes.setdefault(parent, (edge.source_node, edge.source_sha256))
        if nodes[parent] != (edge.source_node, edge.source_sha256):
            raise BrokenGraph(f"turn {edge.turn} does not start from the result of its parent, node {parent}")
        nodes[edge.turn] = (edge.result_node, edge.result_sha256)
        for name in filter(None, (edge.source_node, edge.result_node, edge.mask, edge.reference)):
            if name not in blobs:
                raise BrokenGraph(f"turn {edge.turn}: {name} was not stored")
    for node, (name, digest) in nodes.items():
        if sha256(blobs[name]) != digest:
            raise BrokenGraph(f"node {node}: the stored bytes of {name} are not those the edge names")


def edge_key(sample: Sample, turn: int) -> str:
    """The dataset key of one edge: the sample's id, and the turn in conversations."""
    return sample.id if sample.kind == SINGLE else f"{sample.id}_t{turn}"


def edge_row(sample: Sample, turn: Turn, edge: Edge, stack: str) -> EdgeRow:
    """The index row of one edge."""
    width, height = sample.source.grid
    return EdgeRow(
        id=edge_key(sample, turn.index), type=turn.type, instruction=turn.instruction,
        source_sha256=edge.source_sha256, result_sha256=edge.result_sha256, photograph_sha256=sample.source.sha256,
        parent_key=edge_key(sample, turn.parent) if turn.parent else None, conversation_id=sample.id,
        conversation_kind=sample.kind, turn=turn.index, width=width, height=height, mask_area=edge.mask_fraction,
        outside_max=_number(edge.gates.get("outside_max")), outside_mean=_number(edge.gates.get("outside_mean")),
        gates=edge.gates, origin=turn.origin, donors=sample.donors, stack=stack, licence=sample.source.licence,
        source_url=sample.source.source_url, split=sample.split,
    )


def describe(sample: Sample, turn: Turn, edge: Edge, row: EdgeRow) -> dict[str, Any]:
    """What `<key>.json` says of an edge. Region masks stay in the stage artifacts; boxes are xyxy pixels on the grid"""
    source = sample.source
    region = next((region for region in source.regions if region.id == turn.target), None)
    placed = next((placement for placement in sample.initial if placement.object == turn.target), None)
    box = region.box if region else placed.box if placed else None
    return {
        "key": row.id, "type": turn.type, "instruction": turn.instruction,
        "conversation": {"id": sample.id, "kind": sample.kind, "turn": turn.index, "parent_key": row.parent_key,
                         "premise": sample.premise},
        "parent": {"node": turn.parent, "sha256": edge.source_sha256}, "result_sha256": edge.result_sha256,
        "target": {"name": turn.target, "label": turn.target_label, "box": box},
        "result_phrase": turn.result_phrase, "operation": turn.operation,
        "objects": [placement.model_dump(mode="json") for placement in sample.initial],
        "mask_area": edge.mask_fraction, "gates": edge.gates, "origin": turn.origin, "donors": sample.donors,
        "worded_by": turn.worded_by, "render": edge.render,
        "source": {"sha256": source.sha256, "url": source.source_url, "licence": source.licence},
        "stack": row.stack, "split": sample.split, "grid": source.grid,
    }


def _number(value: float | str | bool | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None
