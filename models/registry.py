"""Role and name → implementation. A configuration names models; only what it names is imported."""

import importlib
from difflib import get_close_matches
from typing import Any, Literal

from editfoundry.core.errors import ConfigError

REGISTRY: dict[str, dict[str, str]] = {
    "detector": {"ssd": "editfoundry.models.embedded.ssd:SsdDetector"},
    "saliency": {"u2net": "editfoundry.models.embedded.saliency:SalientObjectDetector"},
    "segmenter": {"u2net": "editfoundry.models.embedded.u2net:U2NetSegmenter"},
    "tagger": {"efficientnet": "editfoundry.models.embedded.tagger:EfficientNetTagger"},
    "scorer": {"conse": "editfoundry.models.embedded.conse:ConseScorer"},
    "image_embedder": {"clip-int8": "editfoundry.models.embedded.clip_image:ClipImageEmbedder"},
    "text_embedder": {"minilm": "editfoundry.models.embedded.sentence:SentenceEmbedder"},
    "quality": {"brisque": "editfoundry.models.embedded.brisque:BrisqueScorer"},
    "safety": {"open-nsfw": "editfoundry.models.embedded.nsfw:NsfwScorer"},
    "reader": {"rapidocr": "editfoundry.models.embedded.ocr:RapidOcrReader"},
    "faces": {"dlib": "editfoundry.models.embedded.faces:DlibFaceEmbedder"},
    "paraphraser": {"smollm2": "editfoundry.models.embedded.smollm:SmolLmParaphraser"},
    "inpainter": {"patchmatch": "editfoundry.models.embedded.inpaint:PatchMatchInpainter"},
    "style": {"arbitrary": "editfoundry.models.embedded.style:ArbitraryStyleTransfer"},
}


def check(role: str, name: str) -> None:
    """Raise ConfigError, naming the valid ones, unless `role` has an implementation `name`."""
    implementations = REGISTRY.get(role)
    if implementations is None:
        near = get_close_matches(role, REGISTRY, n=1)
        hint = f"did you mean models.{near[0]}?" if near else f"roles: {', '.join(sorted(REGISTRY))}"
        raise ConfigError(f"models.{role}: unknown role; {hint}")
    if name not in implementations:
        near = get_close_matches(name, implementations, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(sorted(implementations))}"
        raise ConfigError(f"models.{role}: no implementation {name!r}; {hint}")


def stack_of(role: str, name: str) -> Literal["embedded", "full"]:
    """Which stack an implementation belongs to."""
    return "embedded" if REGISTRY[role][name].startswith("editfoundry.models.embedded.") else "full"


def create(role: str, name: str) -> Any:
    """Construct (not load) the implementation `name` of `role`. Raises ConfigError naming the valid ones."""
    check(role, name)
    module, _, attribute = REGISTRY[role][name].partition(":")
    return getattr(importlib.import_module(module), attribute)()
