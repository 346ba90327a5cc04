"""Image embeddings from the pooled output of a transformers vision model."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from editfoundry.models.checkpoint import TorchOptions, checkpoint_path
from editfoundry.models.perception.base import TorchModel, batches, picture, pretrained, processor, unit_rows
from editfoundry.models.protocols import Float, Image


class VisionEmbedder(TorchModel):
    """Base of the `ImageEmbedder`s that differ by their network only. `architecture`: its class in transformers."""

    architecture: ClassVar[str]

    def __init__(self, options: TorchOptions) -> None:
        super().__init__(options)
        self._model: Any = None
        self._processor: Any = None

    def _load(self) -> None:
        import transformers

        folder = checkpoint_path(self.options.checkpoint)
        self._processor = processor(transformers.AutoImageProcessor, folder)
        self._model = pretrained(getattr(transformers, self.architecture), folder, self.options.where())

    def embed(self, images: Sequence[Image]) -> Float:
        """float32 [N, D], rows of length 1, of uint8 RGB images [H, W, 3]."""
        self.load()
        rows: list[Float] = [np.zeros((0, self._model.config.hidden_size), np.float32)]
        for chunk in batches(images, self.options.batch):
            inputs = self._processor(images=[picture(image) for image in chunk], return_tensors="pt")
            with self._computing():
                rows.append(unit_rows(self._model(**inputs.to(self.options.where())).pooler_output))
        return np.concatenate(rows)
