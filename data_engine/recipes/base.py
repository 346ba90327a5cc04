"""What a recipe is: it plans edits of its type for a source, and turns a planned edit into pixels."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from editfoundry.core.english import a
from editfoundry.core.geometry import Box, Grid, Mask, position_words, resize
from editfoundry.data_engine.placement import place_donor
from editfoundry.data_engine.records import BoxList, Donor, Origin, Placement, Region, Source, Turn
from editfoundry.data_engine.scene import Image, Scene, changed
from editfoundry.data_engine.taxonomy import TYPES
from editfoundry.data_engine.wording import POSITIONS

if TYPE_CHECKING:
    from editfoundry.data_engine.recipes.tools import Tools

MIN_VISIBLE = 14.0
"""Mean CIE76 difference between a placed object and its background below which a reader would miss it."""


@dataclass(frozen=True)
class Draft:
    """A planned edit before wording: what stands in the scene at the start, the turn's operation, its words.

    box: of the object it is about, for position and size words. open_result: a writer may choose another result phrase
    (of a generated edit, whose renderer is prompted with it); it then replaces `fields["result"]` as well.
    """

    operation: dict[str, Any]
    fields: dict[str, str]
    initial: tuple[Placement, ...] = ()
    target: str = ""
    target_label: str = ""
    result_phrase: str = ""
    names: tuple[str, ...] = ()
    origin: Origin = "donor"
    donors: tuple[str, ...] = ()
    box: BoxList | None = None
    open_result: bool = False


class Refused(Exception):
    """A recipe cannot make this edit here; becomes a candidate or sample reject with this reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass
class Plan:
    """What a recipe plans from: the source, the donors of its split, and the one generator of this plan."""

    source: Source
    cutouts: Sequence[Donor]
    styles: Sequence[Donor]
    backgrounds: Sequence[Donor]
    rng: np.random.Generator
    origin: Origin = "donor"

    @property
    def grid(self) -> Grid:
        return Grid(*self.source.grid)

    def objects(self) -> list[Region]:
        """Qualified object regions of the photograph."""
        return [r for r in self.source.regions if r.kind == "object" and r.qualified]

    def lone_objects(self) -> list[Region]:
        """Those whose label names only one thing in the photograph."""
        return [r for r in self.objects() if self.source.counts.get(r.label, 1) == 1]

    def place(
        self,
        name: str = "o1",
        avoid: Sequence[Placement] = (),
        accept: Callable[[Donor], bool] | None = None,
        tries: int = 40,
    ) -> tuple[Donor, Placement]:
        """A donor that fits somewhere, drawn by the plan's generator. Raises Refused with the last obstacle."""
        if not self.source.zones:
            raise Refused("no_zone", "no place in this photograph is known to carry an object")
        pool = [d for d in self.cutouts if accept is None or accept(d)]
        taken = [Box.from_list(p.box) for p in avoid]
        obstacle = "no_donor"
        for index in self.rng.permutation(len(pool))[:tries]:
            placed = place_donor(pool[index], self.source, self.rng, avoid=taken, name=name)
            if isinstance(placed, Placement):
                return pool[index], placed
            obstacle = placed
        raise Refused(obstacle, f"{min(tries, len(pool))} donors tried")

    def where(self, box: Sequence[float]) -> str:
        """The box's position as words: `in the upper left`."""
        return POSITIONS[position_words(Box.from_list(box), self.grid)]


@dataclass(frozen=True)
class Edited:
    """A rendered turn: the scene after it, the mask of what it may have changed (local edits), a reference image.

    how: what `Edge.render` says of it.
    """

    scene: Scene
    mask: Mask | None = None
    reference: Image | None = None
    how: dict[str, int | float | str | bool | None] = field(default_factory=dict)


class Recipe(ABC):
    """One edit type. Stateless: everything it needs comes with the plan or the turn."""

    type: ClassVar[str]

    @abstractmethod
    def plan(self, plan: Plan) -> Iterator[Draft]:
        """Edits of this type that this source could carry, best first. Raises Refused when there is none."""

    async def start(self, scene: Scene, turn: Turn, tools: "Tools") -> Scene:
        """Node 0 of a sample that holds this turn: the photograph with its initial objects, unless reversed.

        Asked of every turn in order, each with what the turns before made of the photograph.
        """
        del turn, tools
        return scene

    async def references(self, turn: Turn, tools: "Tools") -> tuple[Image, ...]:
        """Pictures that the instruction speaks of."""
        del turn, tools
        return ()

    @abstractmethod
    async def render(self, scene: Scene, turn: Turn, tools: "Tools") -> Edited:
        """The scene after the edit. Raises Refused when the pixels show that it cannot be done well."""


@cache
def recipe(name: str) -> Recipe:
    """The recipe of a taxonomy row."""
    module, _, attribute = TYPES[name].recipe.partition(":")
    instance: Recipe = getattr(importlib.import_module(module), attribute)()
    return instance


def change_mask(before: Scene, after: Scene, planned: Mask, margin: int = 2) -> Mask:
    """The stored mask of a local edit: everything planned or changed, dilated by `margin` pixels."""
    return (planned | changed(before, after)).dilate(margin)


def only(donor: Donor) -> Callable[[Donor], bool]:
    """Accepts this donor alone."""
    return lambda other: other.sha256 == donor.sha256


def unlike(donor: Donor) -> Callable[[Donor], bool]:
    """Accepts donors of another label."""
    return lambda other: other.label != donor.label


def object_fields(label: str, position: str, result: str = "") -> dict[str, str]:
    """The template fields of an edit on one object."""
    return {"a_object": a(label), "the_object": f"the {label}", "object": label, "position": position, "result": result}


def on_donor(
    plan: Plan,
    donor: Donor,
    placement: Placement,
    operation: dict[str, Any],
    *,
    result: str = "",
    phrase: str = "",
    initial: bool = True,
    others: Sequence[Donor] = (),
    named: Sequence[Donor] = (),
) -> Draft:
    """A draft about a placed donor, which stands in the source when `initial`. `named` are those the text must name."""
    return Draft(
        operation,
        object_fields(donor.label, plan.where(placement.box), result),
        initial=(placement,) if initial else (),
        target=placement.object,
        target_label=donor.label,
        result_phrase=phrase,
        names=(donor.label, *(other.label for other in named)),
        donors=tuple(d.sha256 for d in (donor, *others)),
        box=placement.box,
    )


def on_region(
    plan: Plan,
    region: Region,
    operation: dict[str, Any],
    *,
    result: str = "",
    phrase: str = "",
    others: Sequence[Donor] = (),
    origin: Origin = "photograph",
    open_result: bool = False,
) -> Draft:
    """A draft about an object that is really in the photograph."""
    return Draft(
        operation,
        object_fields(region.label, plan.where(region.box), result),
        target=region.id,
        target_label=region.label,
        result_phrase=phrase,
        names=(region.label,),
        origin=origin,
        donors=tuple(d.sha256 for d in others),
        box=region.box,
        open_result=open_result,
    )


def plain_reference(rgba: Image, side: int = 256) -> Image:
    """A cut-out centred on a plain light grey square [side, side, 3]: the reference image of a visual edit."""

    height, width = rgba.shape[:2]
    scale = min(1.5, 0.86 * side / max(height, width))
    small = resize(rgba, max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = np.full((side, side, 3), 236.0, np.float32)
    top, left = (side - small.shape[0]) // 2, (side - small.shape[1]) // 2
    alpha = small[..., 3:].astype(np.float32) / 255
    window = canvas[top : top + small.shape[0], left : left + small.shape[1]]
    window[:] = alpha * small[..., :3] + (1 - alpha) * window
    return canvas.round().astype(np.uint8)
