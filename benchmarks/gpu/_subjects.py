"""What is measured: the project's own classes around models with random weights, each with the work of one call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _models
import numpy as np
import torch
from _configurations import FULL, TINY, Sizes

from editfoundry.core.geometry import Box, Mask, resize
from editfoundry.models.diffusion.flux import FluxFillPainter
from editfoundry.models.diffusion.sdxl import SdxlCannyAdjuster, SdxlPainter, SdxlRemover
from editfoundry.models.language.captioner import LocalCaptioner
from editfoundry.models.language.judge import LocalJudge
from editfoundry.models.language.local import Resident
from editfoundry.models.language.writer import LocalWriter
from editfoundry.models.perception.clip import ClipImageEmbedder, ClipScorer, shared_towers
from editfoundry.models.perception.grounding_dino import GroundingDinoDetector
from editfoundry.models.perception.sam2 import Sam2Segmenter
from editfoundry.models.protocols import Brief, Fill, Image, Pair, Photograph, TurnBrief, Unanswered

VOCABULARY = ("cup", "dog", "cat", "car", "table", "tree", "plate", "person")
"""Words that the small tokenizer knows as the released one does, as one token each."""
BOXES = 8
IMAGES = 8
"""Distinct pictures per call of a model that takes one at a time; more than any of them remembers."""
CAPTION, INSTRUCTION, VERDICT = 200, 70, 60
"""Tokens of a reply; tiny models give 16."""


@dataclass(frozen=True)
class Bench:
    """Where and how large. folder: for checkpoints that are cheap to write."""

    device: str
    tiny: bool
    folder: Path

    @property
    def sizes(self) -> Sizes:
        return TINY if self.tiny else FULL

    @property
    def side(self) -> int:
        """Of the pictures, in pixels."""
        return 64 if self.tiny else 1024

    def build(self, checkpoint: str, dtype: torch.dtype) -> _models.Parts:
        """A checkpoint's parts with random weights, ready for inference."""
        with _models.building(self.device, dtype):
            return _models.frozen(_models.RELEASED[checkpoint](self.sizes))

    def saved(self, checkpoint: str, save: Callable[[_models.Parts, Sizes, Path], None]) -> str:
        """A folder with a checkpoint, written once, in float32 as the perception models load them."""
        folder = self.folder / checkpoint
        if not folder.exists():
            save(self.build(checkpoint, torch.float32), self.sizes, folder)
        return str(folder)

    @property
    def precision(self) -> torch.dtype:
        """Of renderers and language models."""
        return torch.float32 if self.device == "cpu" else torch.bfloat16

    def options(self, kind: Any, **named: Any) -> Any:
        """A class's default options on this device; the tiny renderers take two steps at the pictures' size."""
        if self.tiny and "steps" in kind.Options.model_fields:
            named |= {"steps": 2, "work_size": self.side}
        return kind.Options(device=self.device, **named)

    def photographs(self, count: int) -> list[Image]:
        """Smooth random pictures, uint8 [side, side, 3], the same on every call."""
        rng = np.random.default_rng(0)
        coarse = rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        return [resize(one, self.side, self.side) for one in coarse]


@dataclass(frozen=True)
class Job:
    """A call that is timed. key: role/name, as assumptions call it; per: what an item is; run: does `items` of them."""

    key: str
    per: str
    items: int
    work: str
    run: Callable[[], object]


def _expect(held: bool, what: str) -> None:
    if not held:
        raise RuntimeError(f"the call did not do its work: {what}")


def _fills(bench: Bench, count: int, prompt: str) -> list[Fill]:
    mask = np.zeros((bench.side, bench.side), bool)
    mask[bench.side // 4 : bench.side // 2, bench.side // 4 : bench.side // 2] = True
    return [Fill(image, Mask(mask), seed, prompt) for seed, image in enumerate(bench.photographs(count))]


def _paint(model: Any, fills: Sequence[Fill]) -> None:
    painted = model.inpaint(fills)
    _expect(all((a != b.image).any() for a, b in zip(painted, fills, strict=True)), "a picture came back as it was")


def _painting(bench: Bench, key: str, model: Any, prompt: str) -> Job:
    options = model.options
    work = f"{options.steps} steps at {options.work_size} pixels, batches of {options.batch}"
    return Job(key, "call", options.batch, work, partial(_paint, model, _fills(bench, options.batch, prompt)))


def sdxl(bench: Bench) -> list[Job]:
    base = bench.build("sdxl-inpainting", bench.precision)
    plain, controlled = _models.sdxl_pipelines(base, bench.build("sdxl-controlnet-canny", bench.precision))
    remover, painter, adjuster = (kind(bench.options(kind)) for kind in (SdxlRemover, SdxlPainter, SdxlCannyAdjuster))
    remover.pipe = painter.pipe = plain
    adjuster.pipe, adjuster._condition = controlled, adjuster.options.conditioner()
    return [
        _painting(bench, "inpainter/sdxl-inpaint", remover, ""),
        _painting(bench, "painter/sdxl-inpaint", painter, "a red cup on the table"),
        _painting(bench, "adjuster/sdxl-canny", adjuster, "a red cup"),
    ]


def flux(bench: Bench) -> list[Job]:
    painter = FluxFillPainter(bench.options(FluxFillPainter))
    painter.pipe = _models.flux_pipeline(bench.build("flux1-fill-dev", bench.precision))
    return [_painting(bench, "painter/flux-fill", painter, "a red cup on the table")]


def detector(bench: Bench) -> GroundingDinoDetector:
    """Grounding DINO from a folder, not yet loaded."""
    folder = bench.saved("grounding-dino-base", _models.save_grounding_dino)
    return GroundingDinoDetector(bench.options(GroundingDinoDetector, checkpoint=folder))


def grounding_dino(bench: Bench) -> list[Job]:
    model = detector(bench)
    model.load()
    images = bench.photographs(IMAGES)

    def detect() -> None:
        for image in images:
            model.detect(image, VOCABULARY)

    return [Job("detector/grounding-dino", "image", IMAGES, f"{len(VOCABULARY)} nouns, one at a time", detect)]


def sam2(bench: Bench) -> list[Job]:
    folder = bench.saved("sam2.1-hiera-large", _models.save_sam2)
    model = Sam2Segmenter(bench.options(Sam2Segmenter, checkpoint=folder))
    model.load()
    images = bench.photographs(IMAGES)
    step = bench.side / (BOXES + 2)
    boxes = [Box(place * step, place * step, (place + 2) * step, (place + 2) * step) for place in range(BOXES)]

    def segment() -> None:
        for image in images:
            _expect(len(model.segment(image, boxes)) == BOXES, "a mask per box")

    return [Job("segmenter/sam2", "image", IMAGES, f"{BOXES} boxes, one picture at a time", segment)]


def clip(bench: Bench) -> list[Job]:
    folder = bench.saved("clip-vit-l14", _models.save_clip)
    scorer, embedder = (kind(bench.options(kind, checkpoint=folder)) for kind in (ClipScorer, ClipImageEmbedder))
    scorer.load()
    embedder.load()
    batch = scorer.options.batch
    images, texts = bench.photographs(batch), [f"a photograph of a cup, number {number}" for number in range(batch)]

    def score() -> None:
        _expect(len(scorer.score(images, texts)) == batch, "a score per picture")

    def embed() -> None:
        _expect(len(embedder.embed(images)) == batch, "a row per picture")

    return [
        Job("scorer/clip", "region", batch, f"batches of {batch}, texts remembered", score),
        Job("image_embedder/clip", "image", batch, f"batches of {batch}", embed),
    ]  # fmt: skip


def qwen(bench: Bench) -> list[Job]:
    from transformers import GenerationConfig

    model = bench.build("qwen2.5-vl-7b-instruct", bench.precision)["model"]
    processor = _models.qwen_processor()
    # No token ends a reply, so that every reply has the length it is measured at.
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=processor.tokenizer.pad_token_id)
    held = Resident(model, processor, ())

    def load(kind: Any, tokens: int) -> Any:
        role = kind(bench.options(kind, max_new_tokens=tokens))
        role.backend.chat._resident = held
        return role

    caption_tokens, words, verdict = (16, 16, 16) if bench.tiny else (CAPTION, INSTRUCTION, VERDICT)
    batch = LocalCaptioner.Options().batch
    images = bench.photographs(2 * batch)
    photographs = [Photograph(image, "", f"{number:064x}") for number, image in enumerate(images[:batch])]
    turn = TurnBrief("replace", "cup", "in the upper left", "small", "Replace the cup with a vase.", "a vase", True)
    caption = "A wooden table with a cup, a plate and a vase of flowers, in front of a window."
    briefs = [Brief("single", (turn,), caption, "A laid table", f"{number:064x}") for number in range(batch)]
    pairs = [Pair(images[number], images[batch + number], "Replace the cup with a vase.", "replace", f"{number:064x}")
             for number in range(batch)]  # fmt: skip

    def ask(role: str, method: Callable[[Any], list[Any]], inputs: Sequence[Any], per: str, work: str) -> Job:
        def run() -> None:
            full = [isinstance(reply, Unanswered) and reply.reason == "truncated" for reply in method(inputs)]
            _expect(all(full), "a reply ended before its length")

        return Job(f"{role}/qwen2.5-vl", per, batch, f"{work}, batches of {batch}", run)

    return [
        ask("captioner", load(LocalCaptioner, caption_tokens).caption, photographs, "image",
            f"{caption_tokens} tokens a caption"),
        ask("writer", load(LocalWriter, words).write, briefs, "edit", f"{words} tokens a reply"),
        ask("judge", load(LocalJudge, verdict).judge, pairs, "edit", f"two pictures, {verdict} tokens a reply"),
    ]  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """Models that are on the device together: their checkpoints, and what makes their jobs."""

    name: str
    checkpoints: tuple[str, ...]
    jobs: Callable[[Bench], list[Job]]


SUBJECTS = (
    Subject("grounding-dino", ("grounding-dino-base",), grounding_dino),
    Subject("sam2", ("sam2.1-hiera-large",), sam2),
    Subject("clip", ("clip-vit-l14",), clip),
    Subject("sdxl", ("sdxl-inpainting", "sdxl-controlnet-canny"), sdxl),
    Subject("flux-fill", ("flux1-fill-dev",), flux),
    Subject("qwen2.5-vl", ("qwen2.5-vl-7b-instruct",), qwen),
)


def forget_shared() -> None:
    """Let go of what the project's own caches keep."""
    shared_towers.cache_clear()
