"""Editors that follow an instruction: FLUX.1 Kontext and Qwen-Image-Edit."""

from collections.abc import Sequence
from typing import Any, ClassVar

import PIL.Image
from pydantic import Field

from editfoundry.core.errors import UsageError
from editfoundry.core.geometry import resize
from editfoundry.models.diffusion.crops import work_dimensions
from editfoundry.models.diffusion.runtime import (
    DiffusionModel,
    DiffusionOptions,
    generators,
    in_buckets,
    pictures,
    pipeline_class,
    resident,
)
from editfoundry.models.protocols import Image, Instructed

QWEN_ONE, QWEN_SEVERAL = "QwenImageEditPipeline", "QwenImageEditPlusPipeline"
QWEN_MOST = 3
"""Pictures that Qwen-Image-Edit since 2509 was trained to take together."""


class _Editor(DiffusionModel):
    """The common path: work at about `work_size`² pixels, back to the picture's exact size."""

    multiple: ClassVar[int] = 16

    def edit(self, requests: Sequence[Instructed]) -> list[Image]:
        """Each picture (uint8 [H, W, 3]) edited as instructed, same size. Raises UsageError for references not taken.

        A picture on the model's multiple and of about its area is not resampled; others are, there and back.
        """
        if requests:
            self.load()
        for request in requests:
            self._check(request)
        sizes = [work_dimensions(*_size(request.image), self.options.work_size, self.multiple) for request in requests]
        keys = [(size, len(request.references)) for size, request in zip(sizes, requests, strict=True)]
        results: dict[int, Image] = {}
        for group in in_buckets(keys, lambda key: key, self._batch(requests)):
            chosen = [requests[index] for index in group]
            edited = self.pipe(**self._arguments(chosen, sizes[group[0]]))
            for request, index, picture in zip(chosen, group, pictures(edited), strict=True):
                results[index] = resize(picture, *_size(request.image))
        return [results[index] for index in range(len(requests))]

    def _batch(self, requests: Sequence[Instructed]) -> int:
        return int(self.options.batch)

    def _check(self, request: Instructed) -> None:
        if request.references:
            raise UsageError(
                f"{self.name} takes one picture, and this request has {len(request.references)} "
                "references; use qwen-image-edit with a checkpoint of 2509 or later"
            )

    def _arguments(self, requests: Sequence[Instructed], size: tuple[int, int]) -> dict[str, Any]:
        width, height = size
        return {
            "image": [PIL.Image.fromarray(resize(request.image, width, height)) for request in requests],
            "prompt": [request.instruction for request in requests],
            "width": width,
            "height": height,
            "num_inference_steps": self.options.steps,
            "generator": generators([request.seed for request in requests]),
        }


class FluxKontextEditor(_Editor):
    """`ImageEditor` of FLUX.1 Kontext. Weights: `checkpoint` (flux1-kontext-dev). Takes no references."""

    name = "flux-kontext"

    class Options(DiffusionOptions):
        """As the renderers'; steps and guidance as its model card has them."""

        checkpoint: str = "flux1-kontext-dev"
        batch: int = Field(default=1, ge=1)
        steps: int = Field(default=28, ge=1)
        guidance: float = Field(default=2.5, ge=0)

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008  (frozen)
        super().__init__(options)

    def _build(self) -> Any:
        return resident("FluxKontextPipeline", self.options)

    def _arguments(self, requests: Sequence[Instructed], size: tuple[int, int]) -> dict[str, Any]:
        return {
            **super()._arguments(requests, size),
            "guidance_scale": self.options.guidance,
            "max_area": size[0] * size[1],
            "_auto_resize": False,
        }


class QwenImageEditor(_Editor):
    """`ImageEditor` of Qwen-Image-Edit. Weights: `checkpoint` (qwen-image-edit).

    Of the first release it takes one picture, in batches; of 2509 and later also references, one request at a time. The
    pipeline shows the model its picture at about a megapixel, whatever `work_size` the result is made at.
    """

    name = "qwen-image-edit"

    class Options(DiffusionOptions):
        """guidance: true classifier-free guidance against `negative_prompt`, as its model card has it."""

        checkpoint: str = "qwen-image-edit"
        batch: int = Field(default=1, ge=1)
        steps: int = Field(default=50, ge=1)
        guidance: float = Field(default=4.0, ge=0)
        negative_prompt: str = " "

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008
        super().__init__(options)
        self._several = False

    def _build(self) -> Any:
        name = pipeline_class(self.options, (QWEN_ONE, QWEN_SEVERAL))
        self._several = name == QWEN_SEVERAL
        return resident(name, self.options)

    def _batch(self, requests: Sequence[Instructed]) -> int:
        return 1 if self._several else super()._batch(requests)

    def _check(self, request: Instructed) -> None:
        if not self._several:
            super()._check(request)
        elif len(request.references) >= QWEN_MOST:
            raise UsageError(
                f"{self.name} takes {QWEN_MOST} pictures in all, and this request has {1 + len(request.references)}"
            )

    def _arguments(self, requests: Sequence[Instructed], size: tuple[int, int]) -> dict[str, Any]:
        arguments = super()._arguments(requests, size)
        arguments["true_cfg_scale"] = self.options.guidance
        arguments["negative_prompt"] = [self.options.negative_prompt] * len(requests)
        if self._several:
            arguments["image"] += [PIL.Image.fromarray(picture) for picture in requests[0].references]
        return arguments


def _size(image: Image) -> tuple[int, int]:
    return image.shape[1], image.shape[0]
