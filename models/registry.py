"""Role and name → implementation. A configuration names models; only what it names is imported.

detector: grounding-dino                                   # its defaults
detector: {name: grounding-dino, checkpoint: /my/copy}     # with options, typed by the implementation's `Options`
"""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from editfoundry.core.config import validate
from editfoundry.core.errors import ConfigError

_EMBEDDED, _PERCEPTION = "editfoundry.models.embedded", "editfoundry.models.perception"
_LANGUAGE, _DIFFUSION = "editfoundry.models.language", "editfoundry.models.diffusion"

REGISTRY: dict[str, dict[str, str]] = {
    "captioner": {
        "tags": f"{_EMBEDDED}.captioner:TagCaptioner",
        "qwen2.5-vl": f"{_LANGUAGE}.captioner:LocalCaptioner",
        "openai": f"{_LANGUAGE}.captioner:ApiCaptioner",
    },
    "detector": {
        "ssd": f"{_EMBEDDED}.ssd:SsdDetector",
        "grounding-dino": f"{_PERCEPTION}.grounding_dino:GroundingDinoDetector",
        "yolo-world": f"{_PERCEPTION}.yolo_world:YoloWorldDetector",
    },
    "saliency": {"u2net": f"{_EMBEDDED}.saliency:SalientObjectDetector"},
    "segmenter": {
        "u2net": f"{_EMBEDDED}.u2net:U2NetSegmenter",
        "sam2": f"{_PERCEPTION}.sam2:Sam2Segmenter",
        "sam2-original": f"{_PERCEPTION}.sam2_original:OriginalSam2Segmenter",
    },
    "tagger": {"efficientnet": f"{_EMBEDDED}.tagger:EfficientNetTagger"},
    "scorer": {"conse": f"{_EMBEDDED}.conse:ConseScorer", "clip": f"{_PERCEPTION}.clip:ClipScorer"},
    "image_embedder": {
        "clip-int8": f"{_EMBEDDED}.clip_image:ClipImageEmbedder",
        "clip": f"{_PERCEPTION}.clip:ClipImageEmbedder",
        "siglip": f"{_PERCEPTION}.siglip:SiglipImageEmbedder",
        "dinov2": f"{_PERCEPTION}.dinov2:DinoImageEmbedder",
    },
    "text_embedder": {"minilm": f"{_EMBEDDED}.sentence:SentenceEmbedder"},
    "aesthetic": {"laion": f"{_PERCEPTION}.aesthetic:LaionAestheticScorer"},
    "quality": {"brisque": f"{_EMBEDDED}.brisque:BrisqueScorer"},
    "safety": {"open-nsfw": f"{_EMBEDDED}.nsfw:NsfwScorer"},
    "reader": {"rapidocr": f"{_EMBEDDED}.ocr:RapidOcrReader"},
    "faces": {"dlib": f"{_EMBEDDED}.faces:DlibFaceEmbedder"},
    "paraphraser": {"smollm2": f"{_EMBEDDED}.smollm:SmolLmParaphraser"},
    "writer": {
        "qwen2.5-vl": f"{_LANGUAGE}.writer:LocalWriter",
        "openai": f"{_LANGUAGE}.writer:ApiWriter",
    },
    "inpainter": {
        "patchmatch": f"{_EMBEDDED}.inpaint:PatchMatchInpainter",
        "sdxl-inpaint": f"{_DIFFUSION}.sdxl:SdxlRemover",
    },
    "painter": {"flux-fill": f"{_DIFFUSION}.flux:FluxFillPainter", "sdxl-inpaint": f"{_DIFFUSION}.sdxl:SdxlPainter"},
    "adjuster": {
        "sdxl-canny": f"{_DIFFUSION}.sdxl:SdxlCannyAdjuster",
        "flux-canny": f"{_DIFFUSION}.flux:FluxCannyAdjuster",
    },
    "inserter": {"flux-redux": f"{_DIFFUSION}.flux:FluxReduxInserter"},
    "reference": {"flux": f"{_DIFFUSION}.flux:FluxReferenceGenerator"},
    "style": {
        "arbitrary": f"{_EMBEDDED}.style:ArbitraryStyleTransfer",
        "sdxl-ip-adapter": f"{_DIFFUSION}.sdxl:SdxlStyleTransfer",
    },
    "editor": {
        "flux-kontext": f"{_DIFFUSION}.editors:FluxKontextEditor",
        "qwen-image-edit": f"{_DIFFUSION}.editors:QwenImageEditor",
    },
    "depth": {"depth-anything": f"{_PERCEPTION}.depth:DepthAnythingEstimator"},
    "judge": {"qwen2.5-vl": f"{_LANGUAGE}.judge:LocalJudge", "openai": f"{_LANGUAGE}.judge:ApiJudge"},
}

DEFAULTS: dict[str, dict[str, str]] = {
    "embedded": {
        "captioner": "tags",
        "detector": "ssd",
        "saliency": "u2net",
        "segmenter": "u2net",
        "tagger": "efficientnet",
        "scorer": "conse",
        "image_embedder": "clip-int8",
        "text_embedder": "minilm",
        "quality": "brisque",
        "safety": "open-nsfw",
        "reader": "rapidocr",
        "faces": "dlib",
        "paraphraser": "smollm2",
        "inpainter": "patchmatch",
        "style": "arbitrary",
    },
    "full": {
        "captioner": "qwen2.5-vl",
        "detector": "grounding-dino",
        "segmenter": "sam2",
        "scorer": "clip",
        "image_embedder": "siglip",
        "aesthetic": "laion",
        "quality": "brisque",
        "safety": "open-nsfw",
        "reader": "rapidocr",
        "faces": "dlib",
        "writer": "qwen2.5-vl",
        "inpainter": "sdxl-inpaint",
        "painter": "flux-fill",
        "adjuster": "sdxl-canny",
        "inserter": "flux-redux",
        "reference": "flux",
        "style": "sdxl-ip-adapter",
        "judge": "qwen2.5-vl",
    },
}
"""Implementation by role that a stack takes where a configuration names none; a role that is absent is not used."""


class ModelSpec(BaseModel):
    """What a configuration says of one role: the implementation's name, alone or with its options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_serializer
    def _shortest(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.options} if self.options else self.name

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})

    @classmethod
    def of(cls, value: str | Mapping[str, Any] | Self) -> "ModelSpec":
        """From a name, a mapping, or a spec."""
        return value if isinstance(value, ModelSpec) else cls.model_validate(value)


def check(role: str, spec: str | ModelSpec) -> None:
    """Raise ConfigError, naming the valid ones, unless `role` has the implementation and it takes the options."""
    spec = ModelSpec.of(spec)
    implementations = REGISTRY.get(role)
    if implementations is None:
        near = get_close_matches(role, REGISTRY, n=1)
        hint = f"did you mean models.{near[0]}?" if near else f"roles: {', '.join(sorted(REGISTRY))}"
        raise ConfigError(f"models.{role}: unknown role; {hint}")
    if spec.name not in implementations:
        near = get_close_matches(spec.name, implementations, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(sorted(implementations))}"
        raise ConfigError(f"models.{role}: no implementation {spec.name!r}; {hint}")
    if spec.options:
        _options(role, spec, implementation(role, spec.name))


def implementation(role: str, name: str) -> Any:
    """The class that implements a role under a name. Imports its module."""
    module, _, attribute = REGISTRY[role][name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def stack_of(role: str, name: str) -> Literal["embedded", "full"]:
    """Which stack an implementation belongs to."""
    return "embedded" if REGISTRY[role][name].startswith(f"{_EMBEDDED}.") else "full"


def stack_name(models: Mapping[str, ModelSpec]) -> Literal["embedded", "full", "mixed"]:
    """What a set of models may call itself. Roles that only one stack offers do not count."""
    stacks = {
        stack_of(role, spec.name)
        for role, spec in models.items()
        if len({stack_of(role, name) for name in REGISTRY[role]}) > 1
    }
    if len(stacks) > 1:
        return "mixed"
    return next(iter(stacks), "embedded")


def create(role: str, spec: str | ModelSpec) -> Any:
    """Construct (not load) an implementation of `role`. Raises ConfigError naming what is wrong."""
    spec = ModelSpec.of(spec)
    check(role, spec)
    found = implementation(role, spec.name)
    return found(_options(role, spec, found)) if hasattr(found, "Options") else found()


def _options(role: str, spec: ModelSpec, found: Any) -> Any:
    if not hasattr(found, "Options"):
        raise ConfigError(f"models.{role}: {spec.name} takes no options (given: {', '.join(sorted(spec.options))})")
    return validate(found.Options, spec.options, where=f"models.{role} ({spec.name})")
