"""SAM 2 (Ravi et al. 2024) through its authors' own package, for weights or changes that transformers has not.

The extra `sam2` installs a third party's upload of it; the authors' is github.com/facebookresearch/sam2. Released
weights are pickles, which are never loaded here; convert a file once, on a machine where that risk is acceptable:

    state = torch.load("sam2.1_hiera_large.pt", weights_only=True)["model"]
    safetensors.torch.save_file(state, "FOLDER/model.safetensors")
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field
from scipy.special import expit

from editfoundry.core.geometry import Box
from editfoundry.models.checkpoint import TorchOptions, checkpoint_path
from editfoundry.models.perception.base import TorchModel, batches, content, reading, required, rgb
from editfoundry.models.perception.sam2 import clipped, matte
from editfoundry.models.protocols import Image, Segmentation

REMEDY = "pip install 'editfoundry[sam2]', or name the segmenter sam2: it runs the same weights through transformers"


class OriginalSam2Segmenter(TorchModel):
    """`Segmenter` like `sam2.Sam2Segmenter`. It keeps one image's embedding, and decodes under autocast too."""

    name = "sam2-original"
    salient = False

    class Options(TorchOptions):
        """checkpoint: a folder with the converted `model.safetensors`. batch: most boxes decoded at once.

        architecture: a configuration inside the package. multimask: as of the segmenter `sam2`.
        """

        checkpoint: str = "./sam2.1_hiera_large"
        architecture: str = "configs/sam2.1/sam2.1_hiera_l.yaml"
        batch: int = Field(default=32, ge=1)
        multimask: bool = False

    options: Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
        self._predictor: Any = None
        self._image = ""

    def _load(self) -> None:
        build = required("sam2.build_sam", "sam2", REMEDY)
        predictor = required("sam2.sam2_image_predictor", "sam2", REMEDY)
        from safetensors.torch import load_file

        weights = checkpoint_path(self.options.checkpoint, "model.safetensors")
        model = build.build_sam2(self.options.architecture, ckpt_path=None, device=self.options.where())
        with reading(weights, self.options.architecture):
            model.load_state_dict(load_file(weights), strict=True)
        self._predictor = predictor.SAM2ImagePredictor(model)

    def segment(self, image: Image, boxes: Sequence[Box]) -> list[Segmentation]:
        """As `sam2.Sam2Segmenter.segment`."""
        inside = clipped(image, boxes)
        if not inside:
            return []
        self.load()
        key = content(image)
        if key != self._image:
            with self._computing():
                self._predictor.set_image(rgb(image))
            self._image = key
        return [one for chunk in batches(inside, self.options.batch) for one in self._decode(chunk)]

    def _decode(self, boxes: Sequence[Box]) -> list[Segmentation]:
        corners = np.array([box.as_list() for box in boxes], np.float32)
        with self._computing():
            logits, scores, _ = self._predictor.predict(
                box=corners, multimask_output=self.options.multimask, return_logits=True
            )
        scores = scores.reshape(len(boxes), -1)
        logits = logits.reshape(len(boxes), scores.shape[1], *logits.shape[-2:])  # one box comes without its axis
        best = scores.argmax(axis=1)
        return [
            matte(expit(logits[row, column]), scores[row, column], box)
            for row, (column, box) in enumerate(zip(best, boxes, strict=True))
        ]
