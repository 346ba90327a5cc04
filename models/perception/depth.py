"""Depth Anything V2 (Yang et al. 2024) through transformers: relative depth of one picture."""

from typing import Any

import numpy as np

from editfoundry.models.checkpoint import TorchOptions, checkpoint_path
from editfoundry.models.perception.base import CheckpointError, TorchModel, picture, pretrained, processor
from editfoundry.models.protocols import Float, Image


class DepthAnythingEstimator(TorchModel):
    """`DepthEstimator`: the network's inverse depth, stretched to [0, 1] over the picture."""

    name = "depth-anything-v2"

    class Options(TorchOptions):
        """checkpoint: Depth Anything V2 Small is Apache-2.0; Base and Large may not be used commercially."""

        checkpoint: str = "depth-anything-v2-small"

    options: Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
        self._model: Any = None
        self._processor: Any = None

    def _load(self) -> None:
        from transformers import AutoImageProcessor, AutoModelForDepthEstimation

        folder = checkpoint_path(self.options.checkpoint)
        model = pretrained(AutoModelForDepthEstimation, folder, self.options.where())
        if getattr(model.config, "depth_estimation_type", "relative") != "relative":
            raise CheckpointError(
                f"{folder}: a checkpoint of metric depth, where larger is farther; name a relative one"
            )
        self._processor = processor(AutoImageProcessor, folder)
        self._model = model

    def depth(self, image: Image) -> Float:
        """float32 [H, W] of a uint8 RGB image [H, W, 3]: 1 is nearest, 0 farthest; all 0 where nothing differs."""
        self.load()
        inputs = self._processor(images=picture(image), return_tensors="pt").to(self.options.where())
        with self._computing():
            answer = self._model(**inputs)
        answer.predicted_depth = answer.predicted_depth.float()
        size = image.shape[:2]
        (result,) = self._processor.post_process_depth_estimation(answer, target_sizes=[size])
        near = result["predicted_depth"].cpu().numpy().reshape(size)
        low, high = float(near.min()), float(near.max())
        return np.asarray((near - low) / max(high - low, 1e-12), dtype=np.float32)
