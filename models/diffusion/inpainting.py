"""The common path of the inpainters: cover, crop with context, paint in batches of one shape, stitch back."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import PIL.Image
from pydantic import Field

from editfoundry.core.geometry import Mask
from editfoundry.models.diffusion.crops import REFERENCE_SIDE, Crop, crop_around, scaled
from editfoundry.models.diffusion.runtime import DiffusionModel, DiffusionOptions, generators, in_buckets
from editfoundry.models.protocols import Fill, Image


class InpaintOptions(DiffusionOptions):
    """How an area is painted. Distances are pixels at a short side of 1024 and scale with the picture.

    grow: how far `cover` dilates a tight mask. blur: of the mask the model sees, at its own size. blend: width of the
    rim over which the painted picture fades in; it lies in the grown part, so at most `grow`. context: the crop's side
    over the mask's. pad: the crop's sides at the model are multiples of it.
    """

    grow: float = Field(default=64, ge=0)
    blur: float = Field(default=2, ge=0)
    blend: float = Field(default=32, ge=0)
    context: float = Field(default=1.2, ge=1)
    pad: int = Field(default=32, ge=16, multiple_of=16)


class CroppingInpainter(DiffusionModel):
    """`Inpainter` over a diffusers pipeline. A subclass paints crops of one size."""

    max_fraction: ClassVar[float] = 0.95

    def cover(self, mask: Mask) -> Mask:
        """The mask grown by the recipe's distance for this picture's size."""
        return mask.dilate(self.options.grow * min(mask.shape) / REFERENCE_SIDE)

    def inpaint(self, fills: Sequence[Fill]) -> list[Image]:
        """Each picture with its masked pixels painted; all others are bit-identical. An empty mask changes nothing.

        Raises ValueError when sizes differ, UsageError when a fill lacks what the model needs.
        """
        for fill in fills:
            self._check(fill)
        options: Any = self.options
        crops = [
            crop_around(
                fill.image, fill.mask, work_size=options.work_size, context=options.context, multiple=options.pad
            )
            for fill in fills
        ]
        results = [fill.image.copy() for fill in fills]
        jobs = [(index, crop) for index, crop in enumerate(crops) if crop is not None]
        if jobs:
            self.load()
        blend = min(options.blend, options.grow)
        for group in in_buckets(jobs, lambda job: job[1].size, options.batch):
            chosen = [jobs[i] for i in group]
            painted = self._paint([crop for _, crop in chosen], [fills[index] for index, _ in chosen])
            for (index, crop), picture in zip(chosen, painted, strict=True):
                results[index] = crop.stitch(picture, scaled(blend, fills[index].image))
        return results

    def _check(self, fill: Fill) -> None:
        """Raise UsageError when the fill lacks what the model needs."""

    @abstractmethod
    def _paint(self, crops: Sequence[Crop], fills: Sequence[Fill]) -> list[Image]:
        """The crops painted, in order; all are of one size."""

    def _arguments(self, crops: Sequence[Crop], fills: Sequence[Fill]) -> dict[str, Any]:
        """What every inpainting pipeline is told."""
        width, height = crops[0].size
        return {
            "image": [PIL.Image.fromarray(crop.pixels) for crop in crops],
            "mask_image": [PIL.Image.fromarray(crop.soft_mask(self.options.blur)) for crop in crops],
            "width": width,
            "height": height,
            "strength": 1.0,
            "num_inference_steps": self.options.steps,
            "guidance_scale": self.options.guidance,
            "generator": generators([fill.seed for fill in fills]),
        }
