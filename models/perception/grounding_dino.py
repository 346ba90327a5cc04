"""Grounding DINO (Liu et al. 2023) through transformers: finds whatever nouns it is asked for.

The original package (`groundingdino-py` 0.4.0) cannot build its model with transformers 5, hence this port.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import Field

from editfoundry.core.geometry import Box
from editfoundry.models.checkpoint import TorchOptions, checkpoint_path
from editfoundry.models.perception.base import TorchModel, picture, pretrained, processor
from editfoundry.models.protocols import Detection, Image

CACHED_VOCABULARIES = 1024
SEPARATORS = re.compile(r"[.?\[\]\s]+")
"""What no label may hold: the model splits its text at full stops and question marks; brackets spell specials."""


@dataclass(frozen=True)
class Prompt:
    """Labels that fit one text: its tokens, and the positions of each label's own."""

    labels: tuple[str, ...]
    tokens: Any
    places: tuple[tuple[int, ...], ...]


class GroundingDinoDetector(TorchModel):
    """`Detector` of an open vocabulary.

    A query's score for a label is the mean probability over the label's tokens, as in the released COCO evaluation
    (`PostProcessCocoGrounding`), and each query is given its best label: always one of the caller's, never a phrase
    put together from several.
    """

    name = "grounding-dino"
    open_vocabulary = True

    class Options(TorchOptions):
        """box_threshold: least score reported. top: most detections per image.

        overlap: IoU above which the weaker of two boxes of one label is dropped.
        """

        checkpoint: str = "grounding-dino-base"
        box_threshold: float = Field(default=0.25, ge=0, le=1)
        overlap: float = Field(default=0.5, ge=0, le=1)
        top: int = Field(default=100, ge=1)

    options: Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
        self._model: Any = None
        self._processor: Any = None
        self._prompts: Any = None

    def _load(self) -> None:
        from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

        folder = checkpoint_path(self.options.checkpoint)
        self._processor = processor(AutoProcessor, folder)
        self._model = pretrained(AutoModelForZeroShotObjectDetection, folder, self.options.where())
        self._prompts = lru_cache(maxsize=CACHED_VOCABULARIES)(self._tokenise)

    def detect(self, image: Image, vocabulary: Sequence[str] | None = None) -> list[Detection]:
        """Objects of a uint8 RGB image [H, W, 3], best first, boxes in pixels clipped to the image.

        Labels come back spelt as they were given; of two that differ only in case the first. A label without a letter
        or digit that the tokenizer knows, or longer than the text encoder takes, is never found. A vocabulary that does
        not fit one text is asked for in several. Raises ValueError without one: there is no list of everything.
        """
        if vocabulary is None:
            raise ValueError(f"{self.name} finds what it is asked for: name a vocabulary")
        self.load()
        height, width = image.shape[:2]
        pixels = self._processor.image_processor(picture(image), return_tensors="pt").to(self.options.where())
        found: list[Detection] = []
        for prompt in self._prompts(tuple(vocabulary)):
            for label, score, (x0, y0, x1, y1) in self._one(pixels, prompt):
                if x1 > x0 and y1 > y0:
                    box = Box(x0 * width, y0 * height, x1 * width, y1 * height).clip(width, height)
                    found += [Detection(label, score, box)] if box else []
        return sorted(found, key=lambda one: -one.score)[: self.options.top]

    def _one(self, pixels: Any, prompt: Prompt) -> list[tuple[str, float, list[float]]]:
        """Label, score and box (xyxy, relative) of what one text finds, after suppression."""
        import torch
        from torchvision.ops import batched_nms, box_convert

        with self._computing():
            answer = self._model(**pixels, **prompt.tokens)
        likely = answer.logits[0].float().sigmoid()  # [queries, tokens]
        of_labels = torch.stack([likely[:, list(places)].mean(dim=1) for places in prompt.places], dim=1)
        scores, labels = of_labels.max(dim=1)
        boxes = box_convert(answer.pred_boxes[0].float(), "cxcywh", "xyxy").clamp(0, 1)
        kept = (scores > self.options.box_threshold).nonzero()[:, 0]
        scores, labels, boxes = scores[kept], labels[kept], boxes[kept]
        best = batched_nms(boxes, scores, labels, self.options.overlap)
        rows = zip(labels[best].tolist(), scores[best].tolist(), boxes[best].tolist(), strict=True)
        return [(prompt.labels[label], score, box) for label, score, box in rows]

    def _tokenise(self, vocabulary: tuple[str, ...]) -> tuple[Prompt, ...]:
        spelt: dict[str, str] = {}
        for label in vocabulary:
            plain = SEPARATORS.sub(" ", label.lower()).strip()
            if any(character.isalnum() for character in plain):
                spelt.setdefault(plain, label)
        room = int(self._model.config.max_text_len) - 2  # for [CLS] and [SEP]
        texts: list[list[str]] = []
        left = 0
        for plain in spelt:
            pieces = self._processor.tokenizer.tokenize(plain)
            needed = len(pieces) + 1  # and the full stop after it
            if needed > room or set(pieces) <= {self._processor.tokenizer.unk_token}:
                continue
            if needed > left:
                texts.append([])
                left = room
            texts[-1].append(plain)
            left -= needed
        return tuple(self._prompt(text, [spelt[plain] for plain in text]) for text in texts)

    def _prompt(self, plain: list[str], labels: list[str]) -> Prompt:
        tokens = self._processor(text=[plain], return_tensors="pt")
        stop = self._processor.tokenizer.convert_tokens_to_ids(".")
        places: list[list[int]] = [[]]
        for position, token in enumerate(tokens["input_ids"][0].tolist()[1:-1], start=1):
            if token == stop:
                places.append([])
            else:
                places[-1].append(position)
        return Prompt(tuple(labels), tokens.to(self.options.where()), tuple(tuple(own) for own in places[:-1]))
