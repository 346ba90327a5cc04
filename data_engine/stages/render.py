"""render: planned edits into pixels. Every node is encoded once, by one encoder, from pixels never encoded before."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from editfoundry.core.config import Config, require_known
from editfoundry.core.geometry import Grid, to_grid
from editfoundry.core.hashing import seed_for, sha256
from editfoundry.core.images import decode, decode_rgba, encode_jpeg, encode_mask_png
from editfoundry.data_engine.attempts import Renderer, best_of
from editfoundry.data_engine.recipes.base import Edited, Refused, recipe
from editfoundry.data_engine.recipes.by_editor import by_editor
from editfoundry.data_engine.recipes.tools import METHODS, Tools, serve
from editfoundry.data_engine.records import Donor, Edge, Reject, Sample, Turn
from editfoundry.data_engine.scene import Image, Scene
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.data_engine.taxonomy import TYPES
from editfoundry.data_engine.together import run_together

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig

CACHED_IMAGES = 64


class RenderConfig(Config):
    """How edits are made where there is a choice; which models make them is in `models`.

    editors: types whose single edits the instruction editor (`models.editor`) renders instead of their recipes.
    Conversations keep their recipes, since their turns speak of what was said before, which an editor does not see.
    best_of: by type, how many attempts a generative model or editor makes, of which the judge (`models.judge`) picks
    the best; types not named have one, which nobody judges here. A drawn `extract` has one: it is made with its source.
    max_uneven_ground: share of a drawing's border that may differ from its ground, for the object to be cut out of it.
    """

    editors: tuple[str, ...] = ()
    best_of: dict[str, Annotated[int, Field(ge=1, le=16)]] = Field(default_factory=dict)
    max_uneven_ground: float = Field(default=0.1, ge=0, le=1)

    @field_validator("editors", "best_of")
    @classmethod
    def _known_types(cls, value: Any) -> Any:
        require_known(value, TYPES, "edit types")
        if len(set(value)) < len(value):
            raise ValueError("a type is listed twice")
        return value

    @model_validator(mode="after")
    def _several_candidates(self) -> Self:
        able = {name for name, row in TYPES.items() if row.generated} - {"extract"} | set(self.editors)
        idle = sorted(name for name, count in self.best_of.items() if count > 1 and name not in able)
        if idle:
            raise ValueError(
                f"best_of: {', '.join(idle)} always come out the same; only these types, and those in `editors`, "
                f"have several candidates: {', '.join(sorted(able))}"
            )
        return self


class Render(Stage):
    """One planned sample in; the same sample with its edges, and its nodes, masks and references as members, out."""

    name = "render"
    row = Sample
    blobs = "ingest"
    roles: ClassVar[tuple[str, ...]] = tuple(METHODS)
    artifacts: ClassVar[tuple[str, ...]] = ("catalogue",)
    batch_size = 8

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        """The models of the edits that are planned at all, of editors, and of the judge of several attempts."""
        instruct, render = config.instruct, config.render
        generated = {name for name, rate in instruct.generated_rates.items() if rate > 0}
        rates = (*instruct.photograph_rates.items(), *instruct.donor_rates.items())
        others = {name for name, rate in rates if rate > 0}
        if instruct.generated_conversations and any(instruct.conversation_rates.values()):
            generated |= {"add", "adjust", "remove", "replace"}
        asked = {role for name in generated | others for role in TYPES[name].photograph}
        asked |= {role for name in generated for role in TYPES[name].generated}
        if render.editors:
            asked.add("editor")
        if any(count > 1 for count in render.best_of.values()):
            asked.add("judge")
        return tuple(role for role in cls.roles if role in asked)

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
            edits.append(await self._edit(nodes[turn.parent], turn, item))
            nodes.append(edits[-1].scene)
        return self._store(sample, nodes, edits)

    async def _edit(self, scene: Scene, turn: Turn, item: Item) -> Edited:
        by_its_editor = turn.type in self.config.editors and item.record.kind == "single"
        render: Renderer = by_editor if by_its_editor else recipe(turn.type).render
        generated = turn.origin == "generated" and turn.type != "extract"
        wanted = self.config.best_of.get(turn.type, 1) if by_its_editor or generated else 1
        attempts: list[Tools] = [StageTools(self, item, turn.index, attempt) for attempt in range(wanted)]
        return await (best_of(render, scene, turn, attempts) if wanted > 1 else render(scene, turn, attempts[0]))

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
                render=edit.how,
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
        turns = tuple(
            turn.model_copy(update={"origin": "generated"}) if edge.render.get("renderer") == "editor" else turn
            for turn, edge in zip(sample.turns, edges, strict=True)
        )
        return Item(sample.model_copy(update={"turns": turns, "edges": tuple(edges)}), blobs)


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
        self.max_uneven_ground = stage.config.max_uneven_ground
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
