"""DINOv2 (Oquab et al. 2023) through transformers: image embeddings that follow structure and identity, not words."""

from pydantic import Field

from editfoundry.models.checkpoint import TorchOptions
from editfoundry.models.perception.vision import VisionEmbedder


class DinoImageEmbedder(VisionEmbedder):
    """`ImageEmbedder` with the class token after the last normalisation; the middle square of an image is seen."""

    name = "dinov2"
    architecture = "Dinov2Model"

    class Options(TorchOptions):
        """batch: most images encoded at once."""

        checkpoint: str = "dinov2-base"
        batch: int = Field(default=32, ge=1)

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
