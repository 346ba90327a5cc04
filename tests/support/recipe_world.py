"""A small world for recipes: photograph, donors and models, all computed, so that every value is known.

The models stand at the far side of `models.protocols`: they paint flat colours that depend on the request's seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from editfoundry.core.geometry import Grid, Mask
from editfoundry.data_engine.recipes.base import Draft, Edited, Plan, recipe
from editfoundry.data_engine.recipes.tools import Tools, serve
from editfoundry.data_engine.records import Caption, Donor, Region, Source, Turn, Zone
from editfoundry.data_engine.scene import Scene
from editfoundry.data_engine.together import run_together
from editfoundry.models.protocols import Drawing, Fill, Instructed, Judgement, Pair, Restyle, Unanswered

WIDTH, HEIGHT = 640, 448
COLOURS = {
    "red ball": (200, 30, 40),
    "green crate": (40, 150, 60),
    "blue box": (40, 60, 190),
    "gray stone": (120, 120, 118),
}


@cache
def photograph(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    base = np.dstack([120 + 0.1 * x, 130 + 0.12 * y, 150 - 0.1 * y]) + rng.normal(0, 4, (HEIGHT, WIDTH, 1))
    picture = base.clip(0, 255).astype(np.uint8)
    picture.setflags(write=False)
    return picture


def cutout(colour: tuple[int, int, int]) -> np.ndarray:
    y, x = np.mgrid[0:160, 0:160]
    distance = np.hypot(x - 79.5, y - 79.5)
    shade = np.clip(1.1 - 0.4 * y / 160, 0, 1)[..., None]
    rgba = np.zeros((160, 160, 4), np.uint8)
    rgba[..., :3] = (shade * np.array(colour)).astype(np.uint8)
    rgba[..., 3] = (np.clip(79.5 - distance, 0, 1) * 255).astype(np.uint8)
    return rgba


CUTOUTS = {f"{i:064x}": cutout(c) for i, c in enumerate(COLOURS.values())}
DONORS = [
    Donor(
        sha256=f"{i:064x}",
        kind="cutout",
        label=label,
        zones=("surface",),
        height_m=0.2,
        width=160,
        height=160,
        colour=label.split()[0],
    )
    for i, label in enumerate(COLOURS)
]
STYLE = Donor(sha256="e" * 64, kind="style", label="a stormy oil painting")
BEHIND = Donor(sha256="f" * 64, kind="background", label="a gray wall")


def disc(x0: float, y0: float, width: float, height: float) -> Mask:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return Mask(((x - x0) / width) ** 2 + ((y - y0) / height) ** 2 < 1)


def region_mask() -> Mask:
    return disc(200, 120, 70, 60)


def region(name: str, label: str, mask: Mask) -> Region:
    box = mask.box()
    return Region(
        id=name,
        label=label,
        kind="object",
        box=tuple(box.as_list()),
        detector="ssd",
        detector_score=0.9,
        mask=mask.to_rle(),
        area=mask.fraction,
        box_area=0.06,
        qualified=True,
    )


def large_cup() -> Region:
    """A cup that takes a fifth of the photograph."""
    return region("r0", "cup", disc(260, 200, 150, 120))


def source(**changes: object) -> Source:
    return Source(
        id="a" * 16,
        sha256="b" * 64,
        uri="photo.jpg",
        grid=(WIDTH, HEIGHT),
        regions=(region("r0", "cup", region_mask()),),
        counts={"cup": 1},
        caption=Caption(text="A cup before a wall.", summary="a cup before a wall"),
        zones=(Zone(kind="surface", box=(10, 250, 630, 440), width_m=1.2, origin="manifest"),),
    ).model_copy(update=changes)


class Fake:
    """What every model offers the engine."""

    name = "fake"

    def digest(self) -> str:
        return type(self).__name__

    def load(self) -> None:
        """Nothing to load."""


@dataclass
class FlatPainter(Fake):
    """An inpainter that fills every mask with one colour, drawn from the seed and the prompt; records its calls."""

    growth: int = 8
    max_fraction: float = 1.0
    calls: list[list[Fill]] = field(default_factory=list)

    def cover(self, mask: Mask) -> Mask:
        return mask.dilate(self.growth)

    def inpaint(self, fills: Sequence[Fill]) -> list[np.ndarray]:
        self.calls.append(list(fills))
        return [self._fill(fill) for fill in fills]

    def _fill(self, fill: Fill) -> np.ndarray:
        filled = fill.image.copy()
        filled[fill.mask.array] = flat(fill.prompt, fill.seed)
        return filled


@dataclass
class MeanFiller(FlatPainter):
    """Fills with the mean of the surroundings, as an inpainter that removes does."""

    growth: int = 9
    max_fraction: float = 0.22

    def cover(self, mask: Mask) -> Mask:
        return mask.fill_holes().dilate(self.growth)

    def _fill(self, fill: Fill) -> np.ndarray:
        filled = fill.image.copy()
        filled[fill.mask.array] = fill.image[fill.mask.dilate(8).array & ~fill.mask.array].mean(axis=0)
        return filled


@dataclass
class DiscDrawer(Fake):
    """A reference generator: a disc of one colour, which the seed decides, on a light grey ground."""

    ground: tuple[int, int, int] = (236, 236, 236)
    calls: list[list[Drawing]] = field(default_factory=list)

    def draw(self, drawings: Sequence[Drawing]) -> list[np.ndarray]:
        self.calls.append(list(drawings))
        return [self._draw(drawing) for drawing in drawings]

    def _draw(self, drawing: Drawing) -> np.ndarray:
        width, height = drawing.size
        y, x = np.mgrid[0:height, 0:width]
        picture = np.full((height, width, 3), self.ground, np.uint8)
        picture[np.hypot(x - width / 2, y - height / 2) < 0.35 * min(width, height)] = flat(
            drawing.subject, drawing.seed
        )
        return picture


@dataclass
class Inverter(Fake):
    """Repaints by inversion, as style transfer and as an editor."""

    calls: list[list[Any]] = field(default_factory=list)

    def stylise(self, restyles: Sequence[Restyle]) -> list[np.ndarray]:
        self.calls.append(list(restyles))
        return [255 - restyle.image for restyle in restyles]

    def edit(self, requests: Sequence[Instructed]) -> list[np.ndarray]:
        self.calls.append(list(requests))
        return [255 - request.image for request in requests]


@dataclass
class ScriptedJudge(Fake):
    """Gives the listed verdicts in turn: a number is the score for following and naturalness, None no answer."""

    verdicts: list[float | None] = field(default_factory=lambda: [3.0] * 1000)
    calls: list[list[Pair]] = field(default_factory=list)

    def judge(self, pairs: Sequence[Pair]) -> list[Judgement | Unanswered]:
        start = sum(len(call) for call in self.calls)
        self.calls.append(list(pairs))
        return [
            Unanswered("failed", "timeout") if score is None else Judgement(score, score, True, "scripted")
            for score in self.verdicts[start : start + len(pairs)]
        ]


def flat(words: str, seed: int) -> np.ndarray:
    """A strong colour that depends on the words and the seed."""
    return np.random.default_rng([seed, *words.encode()]).choice([20, 235], 3).astype(np.uint8) ^ np.uint8(seed % 16)


def fakes(**changes: Any) -> dict[str, Any]:
    """One model a role; `changes` replace or add some."""
    models = {
        "inpainter": MeanFiller(),
        "painter": FlatPainter(),
        "adjuster": FlatPainter(2),
        "inserter": FlatPainter(12),
        "reference": DiscDrawer(),
        "style": Inverter(),
        "editor": Inverter(),
    }
    return models | changes


class MemoryTools(Tools):
    """The library in memory, over the fake models."""

    def __init__(self, of: Source, models: dict[str, Any] | None = None) -> None:
        self.source, self.original = of, photograph(0)
        self.models, self._seeds = models or fakes(), 0

    def cutout(self, sha256: str) -> np.ndarray:
        return CUTOUTS[sha256]

    def photograph(self, sha256: str, grid: Grid) -> np.ndarray:
        return photograph(int(sha256[0], 16))[: grid.height, : grid.width] // 2

    def second_frame(self) -> np.ndarray:
        return photograph(9)

    def model(self, role: str) -> Any:
        return self.models[role]

    def seed(self) -> int:
        self._seeds += 1
        return self._seeds


def plan(of: Source, origin: str = "donor", seed: int = 0) -> Plan:
    return Plan(of, DONORS, [STYLE], [BEHIND], np.random.default_rng(seed), origin)


def turn_of(name: str, draft: Draft, index: int = 1, parent: int = 0) -> Turn:
    return Turn(
        index=index,
        type=name,
        parent=parent,
        instruction="",
        target=draft.target,
        target_label=draft.target_label,
        result_phrase=draft.result_phrase,
        operation=draft.operation,
        origin=draft.origin,
    )


async def nodes_of(turns: Sequence[Turn], draft: Draft, tools: MemoryTools) -> tuple[list[Scene], list[Edited]]:
    """Every node and edit of a conversation, as the render stage makes them."""
    scene = Scene(tools.original)
    for placement in draft.initial:
        scene = tools.place(scene, placement)
    for turn in turns:
        scene = await recipe(turn.type).start(scene, turn, tools)
    nodes, edits = [scene], []
    for turn in turns:
        edits.append(await recipe(turn.type).render(nodes[turn.parent], turn, tools))
        nodes.append(edits[-1].scene)
    return nodes, edits


def conversation(turns: Sequence[Turn], draft: Draft, tools: MemoryTools) -> tuple[list[Scene], list[Edited]]:
    """`nodes_of`, driven to its end. Raises what it raised."""
    [result] = run_together([nodes_of(turns, draft, tools)], partial(serve, tools.models))
    if isinstance(result, Exception):
        raise result
    return result


def rendered(name: str, draft: Draft, of: Source, models: dict[str, Any] | None = None) -> tuple[Scene, Edited]:
    """The scene before a single edit, and the edit."""
    [before, _], [edited] = conversation([turn_of(name, draft)], draft, MemoryTools(of, models))
    return before, edited
