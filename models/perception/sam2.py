"""SAM 2 (Ravi et al. 2024) through transformers: the mask of whatever a box holds."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from editfoundry.core.geometry import Box
from editfoundry.models.checkpoint import TorchOptions, checkpoint_path
from editfoundry.models.perception.base import TorchModel, batches, content, picture, pretrained, processor
from editfoundry.models.protocols import Float, Image, Segmentation

REMEMBERED_IMAGES = 2


class Sam2Segmenter(TorchModel):
    """`Segmenter`: each image is encoded once however many boxes it has, and not again while it is one of the last two.

    Prompts and masks stay in float32 whatever the precision of the encoder: boxes are coordinates.
    """

    name = "sam2"
    salient = False

    class Options(TorchOptions):
        """multimask: take the best of three masks by predicted IoU, not the one mask that boxes are usually given.

        batch: most boxes decoded at once.
        """

        checkpoint: str = "sam2.1-hiera-large"
        batch: int = Field(default=32, ge=1)
        multimask: bool = False

    options: Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
        self._model: Any = None
        self._processor: Any = None
        self._remembered: OrderedDict[str, list[Any]] = OrderedDict()

    def _load(self) -> None:
        from transformers import Sam2Model, Sam2Processor

        folder = checkpoint_path(self.options.checkpoint)
        self._processor = processor(Sam2Processor, folder)
        self._model = pretrained(Sam2Model, folder, self.options.where())

    def segment(self, image: Image, boxes: Sequence[Box]) -> list[Segmentation]:
        """For each box (pixels) a float32 matte [H, W] in [0, 1] that is zero outside the box.

        The matte is the sigmoid of the logits, interpolated to the image's size; the score is the predicted IoU in
        [0, 1]. Raises ValueError for a box that lies outside the image.
        """
        inside = clipped(image, boxes)
        if not inside:
            return []
        self.load()
        embeddings = self._embeddings(image)
        return [one for chunk in batches(inside, self.options.batch) for one in self._decode(image, embeddings, chunk)]

    def _embeddings(self, image: Image) -> list[Any]:
        key = content(image)
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return self._remembered[key]
        inputs = self._processor(images=picture(image), return_tensors="pt").to(self.options.where())
        with self._computing():
            embeddings = [one.float() for one in self._model.get_image_embeddings(inputs["pixel_values"])]
        self._remembered[key] = embeddings
        if len(self._remembered) > REMEMBERED_IMAGES:
            self._remembered.popitem(last=False)
        return embeddings

    def _decode(self, image: Image, embeddings: list[Any], boxes: Sequence[Box]) -> list[Segmentation]:
        import torch

        size = list(image.shape[:2])
        prompt = self._processor(
            input_boxes=[[box.as_list() for box in boxes]], original_sizes=[size], return_tensors="pt"
        )
        with torch.inference_mode():
            answer = self._model(
                input_boxes=prompt["input_boxes"].to(self.options.where()),
                image_embeddings=embeddings,
                multimask_output=self.options.multimask,
            )
            scores, best = answer.iou_scores[0].max(dim=1)  # of [boxes, masks]
            chosen = answer.pred_masks[0][torch.arange(len(boxes), device=best.device), best][:, None]
            (logits,) = self._processor.post_process_masks([chosen], [size], binarize=False)
            alphas = logits[:, 0].sigmoid().cpu().numpy()
        return [matte(alpha, score, box) for alpha, score, box in zip(alphas, scores.tolist(), boxes, strict=True)]


def clipped(image: Image, boxes: Sequence[Box]) -> list[Box]:
    """The boxes' parts inside the image. Raises ValueError for a box that has none."""
    height, width = image.shape[:2]
    inside = [box.clip(width, height) for box in boxes]
    for box, part in zip(boxes, inside, strict=True):
        if part is None:
            raise ValueError(f"box {box.as_list()} lies outside the {width}x{height} image")
    return [part for part in inside if part is not None]


def matte(alpha: Float, score: float, box: Box) -> Segmentation:
    """An alpha [H, W] without what lies outside the box, and a predicted IoU brought into [0, 1]."""
    x0, y0, x1, y1 = box.to_ints()
    kept = np.zeros(alpha.shape, np.float32)
    kept[y0:y1, x0:x1] = alpha[y0:y1, x0:x1]
    return Segmentation(kept, min(max(float(score), 0.0), 1.0))
