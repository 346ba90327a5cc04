"""Renderers of Stable Diffusion XL: removal, prompted painting, adjusting under edges, style transfer.

Sampler DPM++ 2M Karras throughout. Numbers are those of the data engine's recipe table; where it gives none for an
SDXL recipe, those of the removal.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import PIL.Image
from pydantic import Field

from editfoundry.core.errors import UsageError
from editfoundry.core.geometry import Mask, resize
from editfoundry.models.checkpoint import checkpoint_path
from editfoundry.models.diffusion.controls import ControlOptions
from editfoundry.models.diffusion.crops import Crop, work_dimensions
from editfoundry.models.diffusion.inpainting import CroppingInpainter, InpaintOptions
from editfoundry.models.diffusion.runtime import (
    DiffusionModel,
    DiffusionOptions,
    from_folder,
    generators,
    load_component,
    opened,
    pictures,
    placed,
    resident,
)
from editfoundry.models.diffusion.soft_mask import SoftMask
from editfoundry.models.protocols import Fill, Image, Restyle

INPAINT = "StableDiffusionXLInpaintPipeline"
EMPTY = "an empty place, plain background that continues the surroundings, nothing there"
NOT_EMPTY = "object, person, animal, furniture, text, watermark, logo, shadow of an object, artefact, blurry patch"
POOR = "blurry, distorted, artefact, watermark, text"


class SdxlOptions(InpaintOptions):
    """Options of the SDXL inpainters. checkpoint: an SDXL inpainting checkpoint (9 channels), or any SDXL checkpoint,

    turbo-class ones included (4 channels). soft_mask: differential diffusion over the blurred mask.
    """

    checkpoint: str = "sdxl-inpainting"
    negative_prompt: str = POOR
    soft_mask: bool = True


class _SdxlInpainter(CroppingInpainter):
    """Shared by the classes below, which differ in prompts and controls."""

    def _build(self) -> Any:
        return _karras(resident(INPAINT, self.options))

    def _paint(self, crops: Sequence[Crop], fills: Sequence[Fill]) -> list[Image]:
        arguments = self._arguments(crops, fills)
        arguments["prompt"] = [self._prompt(fill) for fill in fills]
        arguments["negative_prompt"] = [self.options.negative_prompt] * len(fills)
        if self.options.soft_mask:
            masks = [np.asarray(mask) for mask in arguments["mask_image"]]
            soft = SoftMask(self.pipe, arguments["image"], masks, [fill.seed for fill in fills])
            arguments["callback_on_step_end"] = soft
        return pictures(self.pipe(**arguments))

    def _prompt(self, fill: Fill) -> str:
        return fill.prompt


class SdxlRemover(_SdxlInpainter):
    """`Inpainter` that takes objects away: SDXL inpainting asked for emptiness.

    Weights: `checkpoint` (sdxl-inpainting, or sdxl-turbo).
    """

    name = "sdxl-remover"
    max_fraction = 0.7

    class Options(SdxlOptions):
        """prompt: what emptiness is called; a fill's own prompt (of its background) goes before it."""

        prompt: str = EMPTY
        negative_prompt: str = NOT_EMPTY

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008  (frozen)
        super().__init__(options)

    def cover(self, mask: Mask) -> Mask:
        """The mask without holes, grown by the recipe's distance, so that no part of the object stays."""
        return super().cover(mask.fill_holes())

    def _prompt(self, fill: Fill) -> str:
        return f"{fill.prompt}, {self.options.prompt}" if fill.prompt else str(self.options.prompt)


class SdxlPainter(_SdxlInpainter):
    """`Inpainter` that paints what a fill's prompt says, with the pipeline of the remover.

    Weights: `checkpoint` (sdxl-inpainting, or sdxl-turbo).
    """

    name = "sdxl-painter"

    class Options(SdxlOptions):
        """As the inpainters'."""

        grow: float = Field(default=32, ge=0)

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        super().__init__(options)


class SdxlCannyAdjuster(_SdxlInpainter):
    """`Inpainter` that repaints an object along its own edges, or its depth.

    Weights: `checkpoint` (sdxl-inpainting), `controlnet` (sdxl-controlnet-canny); with `condition: depth`, `controlnet`
    (sdxl-controlnet-depth) and `depth` (depth-anything-v2-small).
    """

    name = "sdxl-canny"
    checkpoints: ClassVar[tuple[str, ...]] = ("checkpoint", "controlnet")

    class Options(SdxlOptions, ControlOptions):
        """As the inpainters' and the ControlNet's."""

        checkpoint: str = "sdxl-inpainting"
        grow: float = Field(default=8, ge=0)

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        super().__init__(options)
        self._base: Any = None
        self._condition: Any = None

    def _build(self) -> Any:
        from diffusers import StableDiffusionXLControlNetInpaintPipeline

        self._base = resident(INPAINT, self.options)
        self._condition = self.options.conditioner()
        controlnet = load_component("ControlNetModel", checkpoint_path(self.options.controlnet), self.options)
        pipe = StableDiffusionXLControlNetInpaintPipeline(**_parts(self._base), controlnet=controlnet)
        pipe.set_progress_bar_config(disable=True)
        return _karras(placed(pipe, self.options))

    def _weights(self) -> tuple[str, ...]:
        return (*self.checkpoints, *self.options.weights())

    def _arguments(self, crops: Sequence[Crop], fills: Sequence[Fill]) -> dict[str, Any]:
        options = self.options
        return {
            **super()._arguments(crops, fills),
            "control_image": [PIL.Image.fromarray(self._condition(crop.pixels)) for crop in crops],
            "controlnet_conditioning_scale": options.control_scale,
            "control_guidance_start": 0.0,
            "control_guidance_end": options.control_end,
        }


class SdxlStyleTransfer(DiffusionModel):
    """`StyleTransfer`: the picture drawn again along its edges, or its depth, in words' and a reference's style.

    Weights: `checkpoint` (sdxl-base), `controlnet` (sdxl-controlnet-canny), `adapter` (ip-adapter: a folder with
    `sdxl_models` in it); with `condition: depth` as the adjuster's.
    """

    name = "sdxl-ip-adapter"
    checkpoints: ClassVar[tuple[str, ...]] = ("checkpoint", "controlnet", "adapter")

    class Options(DiffusionOptions, ControlOptions):
        """As the ControlNet's. adapter_scale, adapter_end: weight of the reference picture, and the share of the steps

        it has a say in; a request's strength multiplies the scale. adapter_weight: file of `sdxl_models`.
        """

        checkpoint: str = "sdxl-base"
        adapter: str = "ip-adapter"
        adapter_weight: str = Field(default="ip-adapter_sdxl.safetensors", pattern=r"^[^/\\]+\.safetensors$")
        guidance: float = Field(default=5.0, ge=0)
        negative_prompt: str = POOR
        adapter_scale: float = Field(default=0.2, ge=0)
        adapter_end: float = Field(default=0.7, ge=0, le=1)
        control_scale: float = Field(default=0.8, ge=0)

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        super().__init__(options)
        self._condition: Any = None

    def _build(self) -> Any:
        from diffusers import StableDiffusionXLControlNetPipeline
        from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

        options = self.options
        self._condition = options.conditioner()
        folder = checkpoint_path(options.adapter)
        checkpoint_path(options.adapter, f"sdxl_models/{options.adapter_weight}")
        parts = _parts(opened("StableDiffusionXLPipeline", options))
        encoder = from_folder(CLIPVisionModelWithProjection, folder / "sdxl_models" / "image_encoder", options)
        side = encoder.config.image_size
        parts["image_encoder"] = encoder
        parts["feature_extractor"] = CLIPImageProcessor(size=side, crop_size=side)
        controlnet = load_component("ControlNetModel", checkpoint_path(options.controlnet), options)
        pipe = StableDiffusionXLControlNetPipeline(**parts, controlnet=controlnet)
        pipe.set_progress_bar_config(disable=True)
        pipe.load_ip_adapter(
            str(folder),
            subfolder="sdxl_models",
            weight_name=options.adapter_weight,
            image_encoder_folder=None,
            local_files_only=True,
        )
        return _karras(placed(pipe, options))

    def _weights(self) -> tuple[str, ...]:
        return (*self.checkpoints, *self.options.weights())

    def stylise(self, restyles: Sequence[Restyle]) -> list[Image]:
        """Each picture (uint8 [H, W, 3]) in its style, same size. One at a time: the adapter takes no batches.

        Raises UsageError for a strength outside (0, 1].
        """
        for restyle in restyles:
            if not 0 < restyle.strength <= 1:
                raise UsageError(f"style strength lies in (0, 1], got {restyle.strength}")
        self.load()
        return [self._one(restyle) for restyle in restyles]

    def _one(self, restyle: Restyle) -> Image:
        options = self.options
        height, width = restyle.image.shape[:2]
        across, down = work_dimensions(width, height, options.work_size)
        content = resize(restyle.image, across, down)
        scale = options.adapter_scale * restyle.strength
        window = AdapterWindow(scale, options.adapter_end, options.steps)
        self.pipe.set_ip_adapter_scale(window.at(0))
        output = self.pipe(
            prompt=restyle.words,
            negative_prompt=options.negative_prompt,
            image=PIL.Image.fromarray(self._condition(content)),
            ip_adapter_image=PIL.Image.fromarray(restyle.reference),
            width=across,
            height=down,
            num_inference_steps=options.steps,
            guidance_scale=options.guidance,
            controlnet_conditioning_scale=options.control_scale,
            control_guidance_start=0.0,
            control_guidance_end=options.control_end,
            generator=generators([restyle.seed])[0],
            callback_on_step_end=window,
        )
        return resize(pictures(output)[0], width, height)


class AdapterWindow:
    """Step callback that gives the IP-Adapter its say only over the first `end` of the steps, as a ControlNet's."""

    def __init__(self, scale: float, end: float, steps: int) -> None:
        self.scale, self.end, self.steps = scale, end, steps

    def at(self, step: int) -> float:
        """The adapter's scale during a step, counted from 0."""
        return self.scale if (step + 1) / self.steps <= self.end else 0.0

    def __call__(self, pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """Set the scale of the step to come."""
        pipe.set_ip_adapter_scale(self.at(step + 1))
        return tensors


def _karras(pipe: Any) -> Any:
    """The pipeline with DPM++ 2M on Karras sigmas."""
    from diffusers import DPMSolverMultistepScheduler

    pipe.scheduler = DPMSolverMultistepScheduler.from_config(
        pipe.scheduler.config, algorithm_type="dpmsolver++", solver_order=2, use_karras_sigmas=True
    )
    return pipe


def _parts(base: Any) -> dict[str, Any]:
    """A pipeline's components and settings, for another one around them."""
    return {**base.components, "force_zeros_for_empty_prompt": base.config.force_zeros_for_empty_prompt}
