"""The editor as a diffusers pipeline: pictures and an instruction in, the edited picture out.

pipeline = load_editor("models/editor")
edited = pipeline(decode(Path("photo.jpg").read_bytes()), "make it winter", seed=1).images[0]
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import ClassVar, Literal, cast

import torch
from diffusers import AutoencoderKL, DiffusionPipeline, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from diffusers.utils import BaseOutput
from torch import Tensor
from transformers import Qwen2_5_VLModel, Qwen2_5_VLProcessor, SiglipImageProcessor, SiglipVisionModel

from editfoundry.core.errors import UsageError
from editfoundry.core.geometry import Grid
from editfoundry.core.grids import GRID_MULTIPLE, MAX_UPSCALE
from editfoundry.models.checkpoint import TorchOptions
from editfoundry.models.editor import latents
from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.encoders import Encoders
from editfoundry.models.editor.loading import ALWAYS_FLOAT32, VISUAL, Precision, load_parts, read_index
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.prompt import EditorProcessor, pictures, pixels, request_on_grid
from editfoundry.models.editor.sampling import generate
from editfoundry.models.editor.types import Condition, EditRequest
from editfoundry.models.protocols import Image


@dataclass
class EditOutput(BaseOutput):  # type: ignore[misc]
    """images: uint8 sRGB [H, W, 3], one."""

    images: list[Image]


class EditorPipeline(DiffusionPipeline):  # type: ignore[misc]
    """Qwen2.5-VL and SigLIP read the pictures and the instruction, FLUX makes the edited picture.

    The three `visual_` components are all there or all None. vlm_pixels: of each picture for the vision-language
    model. max_text_tokens: of an instruction with its history. reference_latents: whether FLUX also sees the pictures'
    latents, as FLUX.1-Kontext does. details: whether SigLIP is used; off where the last stage trained without it.
    miniature: weights are random but for what a demonstration trained.
    """

    _optional_components: ClassVar[list[str]] = list(VISUAL)

    def __init__(
        self,
        vlm: Qwen2_5_VLModel,
        processor: Qwen2_5_VLProcessor,
        connector: Connector,
        transformer: FluxTransformer2DModel,
        vae: AutoencoderKL,
        scheduler: FlowMatchEulerDiscreteScheduler,
        visual_encoder: SiglipVisionModel | None = None,
        visual_processor: SiglipImageProcessor | None = None,
        visual_connector: Connector | None = None,
        vlm_pixels: int = 448 * 448,
        max_text_tokens: int = 256,
        reference_latents: Literal["none", "kontext"] = "none",
        details: bool = True,
        miniature: bool = False,
    ) -> None:
        super().__init__()
        if len({part is None for part in (visual_encoder, visual_processor, visual_connector)}) == 2:
            raise ValueError(f"{', '.join(VISUAL)}: an editor has all three of them, or none")
        self.register_modules(
            vlm=vlm,
            processor=processor,
            connector=connector,
            transformer=transformer,
            vae=vae,
            scheduler=scheduler,
            visual_encoder=visual_encoder,
            visual_processor=visual_processor,
            visual_connector=visual_connector,
        )
        self.register_to_config(
            vlm_pixels=vlm_pixels,
            max_text_tokens=max_text_tokens,
            reference_latents=reference_latents,
            details=details,
            miniature=miniature,
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike[str],
        *,
        dtype: torch.dtype | Mapping[str, torch.dtype] = torch.float32,
    ) -> "EditorPipeline":
        """The editor of a local folder, on the CPU; what `save_pretrained` wrote.

        dtype: of all components or by name, with `default` for the rest (float32 without it). The VAE is float32
        always, and so are the connectors unless named. Raises as `load_editor`.
        """
        folder = Path(pretrained_model_name_or_path).expanduser()
        named = dict(dtype) if isinstance(dtype, Mapping) else {"default": dtype}
        kinds = {
            "default": torch.float32,
            **dict.fromkeys(ALWAYS_FLOAT32, torch.float32),
            **named,
            "vae": torch.float32,
        }
        settings, present = read_index(folder)
        dtypes = {name: cast(Precision, str(kind).removeprefix("torch.")) for name, kind in kinds.items()}
        return cls(**load_parts(folder, present, dtypes), **settings.model_dump())

    def editor_processor(self) -> EditorProcessor:
        """Makes the encoders' inputs of requests, as this editor was trained on them."""
        visual = self.visual_processor if self.config.details else None
        return EditorProcessor(self.processor, visual, self.config.vlm_pixels, self.config.max_text_tokens)

    def encoders(self) -> Encoders:
        """The frozen encoders, as this editor was trained on them."""
        return Encoders(self.vlm, self.visual_encoder if self.config.details else None, self.vae)

    def model(self) -> EditorModel:
        """What is trained: connectors and transformer, shared with this pipeline."""
        return EditorModel(self.connector, self.visual_connector, self.transformer)

    @property
    def sees_latents(self) -> bool:
        """Whether the transformer sees the pictures' latents."""
        return bool(self.config.reference_latents == "kontext")

    def condition(self, requests: Sequence[EditRequest]) -> Condition:
        """What the encoders make of requests whose pictures lie on one grid. Raises InstructionTooLong."""
        references = torch.stack([pixels(request.images) for request in requests]) if self.sees_latents else None
        made: Condition = self.encoders().condition(self.editor_processor()(requests), references)
        return made

    def grid(self, width: int, height: int, size: int | None = None) -> Grid:
        """The grid of an edit of a picture: `size` pixels squared, and never more than the picture has.

        A picture that is on a grid of at most that area stays on it, so turns of a conversation do not drift. Without
        `size`, the most image tokens that the scheduler knows of (4096 for FLUX: 1024 x 1024 pixels). Raises UsageError
        for a picture that is too small or too elongated.
        """
        token = 2 * latents.factor(self.vae)
        multiple = max(GRID_MULTIPLE, token)
        area = size * size if size else int(self.scheduler.config.max_image_seq_len) * token * token
        if width % multiple == height % multiple == 0 and width * height <= MAX_UPSCALE * area:
            return Grid(width, height)
        try:
            return Grid.for_size(width, height, area, multiple)
        except ValueError as error:
            raise UsageError(f"at size {round(area**0.5)}: {error}") from error

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def __call__(
        self,
        image: Image,
        instruction: str,
        *,
        references: Sequence[Image] = (),
        history: Sequence[str] = (),
        seed: int = 0,
        steps: int = 28,
        guidance: float = 3.5,
        cfg: float = 1.0,
        negative: str = "",
        size: int | None = None,
        on_pass: Callable[[], None] = lambda: None,
    ) -> EditOutput:
        """Edit a picture, uint8 sRGB [H, W, 3]; the same arguments give the same bytes on the same machine.

        references: further pictures the instruction speaks of; like `image` they are cropped to cover the grid.
        history: the instructions of the turns before, oldest first. seed: of the noise, which is drawn on the CPU.
        guidance: of the guidance-distilled FLUX. cfg: true classifier-free guidance against the same pictures with the
        instruction `negative` and no history, at the cost of a second pass a step; 1 is none. size: see `grid`.
        on_pass: called after every pass of the transformer. Returns one picture on the grid.
        Raises UsageError for a picture without a grid or a setting out of range, InstructionTooLong.
        """
        if steps < 1 or not (math.isfinite(guidance) and guidance >= 0 and math.isfinite(cfg) and cfg >= 0):
            raise UsageError(f"steps {steps}, guidance {guidance}, cfg {cfg}: expected steps >= 1 and numbers >= 0")
        grid = self.grid(image.shape[1], image.shape[0], size)
        request = request_on_grid(instruction, (image, *references), grid, history)
        condition = self.condition([request])
        against = None if cfg == 1 else self.condition([replace(request, instruction=negative, history=())])
        model, factor = self.model(), latents.factor(self.vae)

        def forward(noisy: Tensor, sigma: Tensor, given: Condition, strength: float) -> Tensor:
            velocity: Tensor = model(noisy, sigma, given, strength)
            on_pass()
            return velocity

        generator = torch.Generator("cpu").manual_seed(seed)
        shape = 1, int(self.vae.config.latent_channels), grid.height // factor, grid.width // factor
        noise = torch.randn(shape, generator=generator).to(self.device)
        made = generate(
            forward, self.scheduler, noise, condition, steps=steps, guidance=guidance, negative=against, cfg=cfg
        )
        return EditOutput(images=pictures(latents.decode(self.vae, made)))


def load_editor(folder: str | PathLike[str], *, device: str = "auto", dtype: Precision = "auto") -> EditorPipeline:
    """An editor that `train init-editor` or `train export` made, ready on the device.

    device: `auto` is the first GPU, else the CPU. dtype: `auto` is bfloat16 on a GPU and float32 on a CPU; see
    `EditorPipeline.from_pretrained` for what stays float32. Raises ModelMissing for a folder that is none of an editor,
    names other classes, lacks weights or holds pickled ones, before anything of it is imported; ConfigError for a wrong
    setting in it.
    """
    options = TorchOptions(checkpoint=str(folder), device=device, dtype=dtype)
    pipeline = EditorPipeline.from_pretrained(folder, dtype=options.precision())
    return cast(EditorPipeline, pipeline.to(options.where()))
