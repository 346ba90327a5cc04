"""Renderers of FLUX.1: fill, adjust under edges, insert a reference object, draw a reference object.

Numbers are those of the data engine's recipe table.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import PIL.Image
from pydantic import Field

from editfoundry.core.errors import UsageError
from editfoundry.core.geometry import resize
from editfoundry.models.checkpoint import checkpoint_path
from editfoundry.models.diffusion.controls import canny
from editfoundry.models.diffusion.crops import Crop, work_dimensions
from editfoundry.models.diffusion.inpainting import CroppingInpainter, InpaintOptions
from editfoundry.models.diffusion.runtime import (
    DiffusionModel,
    DiffusionOptions,
    from_folder,
    generators,
    in_buckets,
    load_component,
    pictures,
    placed,
    resident,
)
from editfoundry.models.protocols import Drawing, Fill, Image

FILL = "FluxFillPipeline"


class FluxFillPainter(CroppingInpainter):
    """`Inpainter` of FLUX.1 Fill: paints what a fill's prompt says, an object or a background.

    Weights: `checkpoint` (flux1-fill-dev).

    Diffusers rounds the blurred mask to black and white for this model; the blur smooths its outline.
    """

    name = "flux-fill"

    class Options(InpaintOptions):
        """As the inpainters'."""

        checkpoint: str = "flux1-fill-dev"
        batch: int = Field(default=1, ge=1)
        grow: float = Field(default=32, ge=0)
        guidance: float = Field(default=30.0, ge=0)
        steps: int = Field(default=12, ge=1)

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008  (frozen)
        super().__init__(options)

    def _build(self) -> Any:
        return resident(FILL, self.options)

    def _paint(self, crops: Sequence[Crop], fills: Sequence[Fill]) -> list[Image]:
        prompts = [fill.prompt for fill in fills]
        return pictures(self.pipe(**self._arguments(crops, fills), prompt=prompts))


class FluxReduxInserter(CroppingInpainter):
    """`Inpainter` that puts the object of a fill's reference picture there: Redux turns the picture into tokens beside

    the prompt's, Fill paints them. Weights: `checkpoint` (flux1-fill-dev), `redux` (flux1-redux-dev, with its SigLIP).
    """

    name = "flux-redux"
    checkpoints: ClassVar[tuple[str, ...]] = ("checkpoint", "redux")

    class Options(InpaintOptions):
        """As the inpainters'."""

        checkpoint: str = "flux1-fill-dev"
        redux: str = "flux1-redux-dev"
        batch: int = Field(default=1, ge=1)
        grow: float = Field(default=48, ge=0)
        guidance: float = Field(default=40.0, ge=0)
        steps: int = Field(default=15, ge=1)

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        super().__init__(options)
        self._redux: Any = None

    def _build(self) -> Any:
        fill = resident(FILL, self.options)
        words = {part: getattr(fill, part) for part in ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")}
        folder = checkpoint_path(self.options.redux)
        self._redux = load_component("FluxPriorReduxPipeline", folder, self.options, **words)
        if self.options.offload == "none":
            placed(self._redux, self.options.model_copy(update={"compile": False}))
        else:  # the text encoders keep the hooks that Fill gave them
            self._redux.image_encoder.to(self.options.where())
            self._redux.image_embedder.to(self.options.where())
        return fill

    def _check(self, fill: Fill) -> None:
        if fill.reference is None:
            raise UsageError(
                "flux-redux inserts the object of a reference picture, and this fill has none; "
                "use a painter for edits described in words"
            )

    def _paint(self, crops: Sequence[Crop], fills: Sequence[Fill]) -> list[Image]:
        import torch

        priors = [
            self._redux(image=[PIL.Image.fromarray(np.asarray(fill.reference))], prompt=[fill.prompt]) for fill in fills
        ]
        embeddings = {
            name: torch.cat([getattr(prior, name) for prior in priors])
            for name in ("prompt_embeds", "pooled_prompt_embeds")
        }
        return pictures(self.pipe(**self._arguments(crops, fills), **embeddings))


class FluxCannyAdjuster(CroppingInpainter):
    """`Inpainter` that repaints an object along its own edges with FLUX.1-dev and two ControlNets.

    Weights: `checkpoint` (flux1-dev), `controlnet` (flux1-controlnet-canny), `inpainting` (alimama's inpainting
    ControlNet, flux1-controlnet-inpainting).
    """

    name = "flux-canny"
    checkpoints: ClassVar[tuple[str, ...]] = ("checkpoint", "controlnet", "inpainting")

    class Options(InpaintOptions):
        """control_scale, inpainting_scale: weights of the two ControlNets. canny_*: thresholds, and the short side

        edges are found at.
        """

        checkpoint: str = "flux1-dev"
        controlnet: str = "flux1-controlnet-canny"
        inpainting: str = "flux1-controlnet-inpainting"
        batch: int = Field(default=1, ge=1)
        grow: float = Field(default=8, ge=0)
        guidance: float = Field(default=3.5, ge=0)
        steps: int = Field(default=15, ge=1)
        control_scale: float = Field(default=1.0, ge=0)
        inpainting_scale: float = Field(default=1.0, ge=0)
        canny_low: int = 50
        canny_high: int = 170
        canny_side: int = Field(default=1024, ge=16)

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        super().__init__(options)
        self._base: Any = None

    def _build(self) -> Any:
        from diffusers import FluxControlNetInpaintPipeline

        from editfoundry.models.diffusion.flux_control import InpaintingControlNet, JoinedControlNets

        options = self.options
        self._base = resident("FluxPipeline", options)
        parts = {part: value for part, value in self._base.components.items() if part not in IP_ADAPTER_PARTS}
        blocks = self._base.transformer.config
        nets = JoinedControlNets(
            load_component("FluxControlNetModel", checkpoint_path(options.controlnet), options),
            from_folder(InpaintingControlNet, checkpoint_path(options.inpainting), options),
            (blocks.num_layers, blocks.num_single_layers),
        )
        pipe = FluxControlNetInpaintPipeline(**parts, controlnet=nets)
        pipe.set_progress_bar_config(disable=True)
        return placed(pipe, options)

    def _paint(self, crops: Sequence[Crop], fills: Sequence[Fill]) -> list[Image]:
        import torch

        from editfoundry.models.diffusion.flux_control import packed_known

        options = self.options
        arguments = self._arguments(crops, fills)
        masks = [np.asarray(mask) for mask in arguments["mask_image"]]
        hidden = [np.where(mask[..., None] >= 128, 0, crop.pixels) for mask, crop in zip(masks, crops, strict=True)]
        edges = [canny(crop.pixels, options.canny_low, options.canny_high, options.canny_side) for crop in crops]
        small = [
            resize(mask, mask.shape[1] // self.pipe.vae_scale_factor, mask.shape[0] // self.pipe.vae_scale_factor)
            for mask in masks
        ]
        self.pipe.controlnet.known = packed_known(torch.from_numpy(np.stack(small)[:, None].astype(np.float32) / 255))
        output = self.pipe(
            **arguments,
            prompt=[fill.prompt for fill in fills],
            control_image=[_pil(edges), _pil(hidden)],
            control_mode=[None, None],
            controlnet_conditioning_scale=[options.control_scale, options.inpainting_scale],
            control_guidance_start=0.0,
            control_guidance_end=1.0,
        )
        return pictures(output)


IP_ADAPTER_PARTS = ("image_encoder", "feature_extractor")
"""Components of `FluxPipeline` that the ControlNet pipeline does not take."""


class FluxReferenceGenerator(DiffusionModel):
    """`ReferenceGenerator`: FLUX.1-dev draws one object on a plain background. Weights: `checkpoint` (flux1-dev)."""

    name = "flux"

    class Options(DiffusionOptions):
        """prompt: what is asked for; {subject} stands for the object."""

        checkpoint: str = "flux1-dev"
        batch: int = Field(default=1, ge=1)
        guidance: float = Field(default=2.5, ge=0)
        steps: int = Field(default=10, ge=1)
        prompt: str = Field(
            default="a studio photograph of {subject}, the whole object, centred, alone on a plain light grey "
            "background, soft even light",
            pattern=r"\{subject\}",
        )

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        super().__init__(options)

    def _build(self) -> Any:
        return resident("FluxPipeline", self.options)

    def draw(self, drawings: Sequence[Drawing]) -> list[Image]:
        """One picture per drawing, uint8 [height, width, 3] of exactly its size. Drawn at about `work_size`² pixels."""
        if drawings:
            self.load()
        options = self.options
        sizes = [work_dimensions(*drawing.size, options.work_size) for drawing in drawings]
        results: dict[int, Image] = {}
        for group in in_buckets(sizes, lambda size: size, options.batch):
            width, height = sizes[group[0]]
            output = self.pipe(
                prompt=[options.prompt.replace("{subject}", drawings[index].subject) for index in group],
                width=width,
                height=height,
                num_inference_steps=options.steps,
                guidance_scale=options.guidance,
                generator=generators([drawings[index].seed for index in group]),
            )
            for index, picture in zip(group, pictures(output), strict=True):
                results[index] = resize(picture, *drawings[index].size)
        return [results[index] for index in range(len(drawings))]


def _pil(images: Sequence[Image]) -> list[Any]:
    return [PIL.Image.fromarray(image.astype(np.uint8)) for image in images]
