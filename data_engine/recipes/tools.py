"""What rendering may use: the catalogue's pixels, the photograph's masks, and the models, each asked by awaiting."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from editfoundry.core.geometry import Box, Grid, Mask
from editfoundry.data_engine.paint import Paint, colour_distance, repaint
from editfoundry.data_engine.recipes.base import MIN_VISIBLE, Edited, Refused
from editfoundry.data_engine.records import Placement, Region, Source
from editfoundry.data_engine.scene import Image, Scene
from editfoundry.data_engine.together import Ask
from editfoundry.models.embedded.compositing import Layer, make_layer
from editfoundry.models.protocols import Drawing, Fill, Inpainter, Instructed, Judgement, Pair, Restyle, Unanswered

METHODS = {
    "inpainter": "inpaint",
    "painter": "inpaint",
    "adjuster": "inpaint",
    "inserter": "inpaint",
    "reference": "draw",
    "style": "stylise",
    "editor": "edit",
    "judge": "judge",
}
"""By role, the method of its protocol that takes the requests."""


def serve(models: Mapping[str, Any], role: str, requests: Sequence[Any]) -> list[Any]:
    """The replies of a role's model to requests of its protocol, in one call."""
    replies: list[Any] = getattr(models[role], METHODS[role])(requests)
    return replies


class Tools(ABC):
    """Pixels are uint8 RGB on the source's grid unless said otherwise."""

    source: Source
    original: Image
    max_uneven_ground: float = 0.1
    """Share of a drawing's border that may differ from its ground, where the object alone is wanted of it."""

    @abstractmethod
    def cutout(self, sha256: str) -> Image:
        """The cut-out's tight RGBA pixels [h, w, 4]."""

    @abstractmethod
    def photograph(self, sha256: str, grid: Grid) -> Image:
        """A style reference or background photograph on the grid."""

    @abstractmethod
    def second_frame(self) -> Image:
        """The later frame of a frame pair."""

    @abstractmethod
    def model(self, role: str) -> Any:
        """The role's model, for what it says of itself; its work is asked for by the methods below."""

    @abstractmethod
    def seed(self) -> int:
        """A new seed in [0, 2**31) for every call, the same in every run."""

    def cover(self, role: str, mask: Mask) -> Mask:
        """What the role's model has to paint for an object with this tight mask.

        Raises Refused when that is more of the image than the model can be asked to invent.
        """
        model: Inpainter = self.model(role)
        covered = model.cover(mask)
        if covered.fraction > model.max_fraction:
            raise Refused("mask_too_large", f"{covered.fraction:.0%} of the image would have to be invented")
        return covered

    async def inpaint(self, image: Image, mask: Mask) -> Image:
        """The image with the masked pixels filled in as their surroundings suggest."""
        return np.asarray(await Ask("inpainter", Fill(image, mask, self.seed())))

    async def paint(self, image: Image, mask: Mask, prompt: str) -> Image:
        """The image with the masked pixels showing what the prompt says."""
        return np.asarray(await Ask("painter", Fill(image, mask, self.seed(), prompt)))

    async def adjust(self, image: Image, mask: Mask, prompt: str) -> Image:
        """The image with the masked object looking as the prompt says, its shape kept."""
        return np.asarray(await Ask("adjuster", Fill(image, mask, self.seed(), prompt)))

    async def insert(self, image: Image, mask: Mask, reference: Image, prompt: str) -> Image:
        """The image with the reference's object in the masked area."""
        return np.asarray(await Ask("inserter", Fill(image, mask, self.seed(), prompt, reference)))

    async def draw(self, subject: str, size: tuple[int, int]) -> Image:
        """A picture, (width, height) in pixels, of the subject alone on a plain background."""
        return np.asarray(await Ask("reference", Drawing(subject, self.seed(), size)))

    async def stylise(self, image: Image, reference: Image, strength: float, words: str) -> Image:
        """The image repainted in the reference's style, which the words name."""
        return np.asarray(await Ask("style", Restyle(image, reference, words, self.seed(), strength)))

    async def edit(self, image: Image, instruction: str, references: Sequence[Image] = ()) -> Image:
        """The image edited as instructed; any pixel may have changed."""
        return np.asarray(await Ask("editor", Instructed(image, instruction, self.seed(), tuple(references))))

    async def judge(self, before: Scene, edited: Edited, instruction: str, type: str) -> Judgement | Unanswered:
        """What the judge says of an edit."""
        pair = Pair(before.pixels, edited.scene.pixels, instruction, type, self.source.sha256, edited.reference)
        verdict: Judgement | Unanswered = await Ask("judge", pair)
        return verdict

    def region(self, name: str) -> Region:
        """The source's region of that id."""
        return next(r for r in self.source.regions if r.id == name)

    def region_mask(self, name: str) -> Mask:
        """Its mask on the grid."""
        rle = self.region(name).mask
        if rle is None:
            raise Refused("no_mask", f"region {name} was never segmented")
        return Mask.from_rle(rle)

    def object_mask(self, name: str) -> Mask:
        """The mask of a region and of all that is nested in it: what goes when the object goes."""
        mask = self.region_mask(name)
        for other in self.source.regions:
            if other.parent == name and other.mask is not None:
                mask = mask | self.region_mask(other.id)
        return mask

    def layer(self, scene: Scene, placement: Placement) -> Layer:
        """The donor of a placement as a layer matched to the scene around it."""
        return make_layer(
            self.cutout(placement.donor),
            scene.without(placement.object).pixels,
            Box.from_list(placement.box),
            placement.zone,
            placement.flip,
        )

    def place(self, scene: Scene, placement: Placement, paint: Paint | None = None) -> Scene:
        """The scene with the donor in it, painted if asked. Refused when it can hardly be told from its background."""
        layer = self.layer(scene, placement)
        if paint is not None:
            layer = replace(layer, rgb=repaint(layer.rgb, (layer.alpha > 0).astype(np.float32), paint))
        after = scene.with_layer(placement.object, layer)
        rows, columns = layer.window
        before = scene.without(placement.object).pixels
        seen = colour_distance(before[rows, columns], after.pixels[rows, columns], layer.alpha > 0.5)
        if seen < MIN_VISIBLE:
            raise Refused("blends_in", f"{placement.label} differs by {seen:.1f} from what is behind it")
        return after
