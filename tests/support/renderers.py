"""The renderers on their tiny checkpoints, and one request for each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import diffusion, perception

from editfoundry.core.geometry import Mask
from editfoundry.models.diffusion.editors import FluxKontextEditor, QwenImageEditor
from editfoundry.models.diffusion.flux import (
    FluxCannyAdjuster,
    FluxFillPainter,
    FluxReduxInserter,
    FluxReferenceGenerator,
)
from editfoundry.models.diffusion.sdxl import SdxlCannyAdjuster, SdxlPainter, SdxlRemover, SdxlStyleTransfer
from editfoundry.models.protocols import Drawing, Fill, Image, Instructed, Restyle

WEIGHTS: dict[Any, dict[str, str]] = {
    SdxlRemover: {"checkpoint": "sdxl_inpaint"},
    SdxlPainter: {"checkpoint": "sdxl_inpaint"},
    SdxlCannyAdjuster: {"checkpoint": "sdxl_inpaint", "controlnet": "sdxl_controlnet_canny"},
    SdxlStyleTransfer: {"checkpoint": "sdxl_base", "controlnet": "sdxl_controlnet_canny", "adapter": "ip_adapter"},
    FluxFillPainter: {"checkpoint": "flux_fill"},
    FluxReduxInserter: {"checkpoint": "flux_fill", "redux": "flux_redux"},
    FluxCannyAdjuster: {
        "checkpoint": "flux",
        "controlnet": "flux_controlnet_canny",
        "inpainting": "flux_controlnet_inpaint",
    },
    FluxReferenceGenerator: {"checkpoint": "flux"},
    FluxKontextEditor: {"checkpoint": "flux_kontext"},
    QwenImageEditor: {"checkpoint": "qwen_image_edit"},
}
INPAINTERS = [kind for kind in WEIGHTS if hasattr(kind, "inpaint")]


class TinyRenderers:
    """Makes renderers at 64 pixels in two steps (Qwen-Image-Edit, slow for its size, in one) on the CPU."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> str:
        """The folder of a tiny checkpoint, written when first asked for."""
        if not (self.root / name).exists():
            source = perception if hasattr(perception, name) else diffusion
            getattr(source, name)(self.root / name)
        return str(self.root / name)

    def __call__(self, kind: Any, **options: Any) -> Any:
        """A renderer; options given come on top, None leaves a class's own default."""
        weights = {option: self.folder(name) for option, name in WEIGHTS[kind].items() if option not in options}
        quick = {"work_size": 64, "device": "cpu", "steps": 1 if kind is QwenImageEditor else 2, **weights, **options}
        return kind(kind.Options(**{key: value for key, value in quick.items() if value is not None}))


def photograph(height: int = 96, width: int = 128, seed: int = 0) -> Image:
    """Random tiles of eight pixels, uint8 [height, width, 3]."""
    tiles = np.random.default_rng(seed).integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    return np.ascontiguousarray(tiles.repeat(8, axis=0).repeat(8, axis=1)[:height, :width])


def fill(seed: int = 1, **changes: Any) -> Fill:
    """A box of a 128 x 96 picture to paint, with a prompt and a reference."""
    array = np.zeros((96, 128), bool)
    array[20:70, 30:90] = True
    plain = Fill(photograph(), Mask(array), seed, prompt="a red apple", reference=photograph(40, 56, seed=9))
    return replace(plain, **changes)


def run(model: Any, seeds: tuple[int, ...] = (1,), images: tuple[Image, ...] = ()) -> list[Image]:
    """One request per seed through whatever the model offers; 128 x 96 pixels each."""
    pictures = images or (photograph(),) * len(seeds)
    pairs = list(zip(seeds, pictures, strict=True))
    if hasattr(model, "inpaint"):
        return list(model.inpaint([fill(seed, image=image) for seed, image in pairs]))
    if hasattr(model, "stylise"):
        style = photograph(40, 56, seed=9)
        return list(model.stylise([Restyle(image, style, "in ink", seed) for seed, image in pairs]))
    if hasattr(model, "draw"):
        return list(model.draw([Drawing("a red apple", seed, (128, 96)) for seed in seeds]))
    return list(model.edit([Instructed(image, "add a red apple", seed) for seed, image in pairs]))


def difference(a: Image, b: Image) -> int:
    """Largest difference in grey levels."""
    return int(np.abs(a.astype(int) - b).max())


def watch(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a model's pipeline is called with from now on; the pipeline still runs."""
    model.load()
    seen: list[dict[str, Any]] = []
    kind = type(model.pipe)
    original = kind.__call__

    def recorded(pipe: Any, **named: Any) -> Any:
        seen.append(named)
        return original(pipe, **named)

    monkeypatch.setattr(kind, "__call__", recorded)
    return seen


def small_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen-Image-Edit's pipelines show their model 128 x 128 pixels instead of a megapixel, for the time that takes."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus

    of_area = pipeline_qwenimage_edit.calculate_dimensions
    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda _, ratio: of_area(128 * 128, ratio))
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", 128 * 128)
