"""SigLIP (Zhai et al. 2023) through transformers: image embeddings from its vision tower."""

from pydantic import Field

from editfoundry.models.checkpoint import TorchOptions
from editfoundry.models.perception.vision import VisionEmbedder


class SiglipImageEmbedder(VisionEmbedder):
    """`ImageEmbedder` with the attention-pooled output that SigLIP compares with texts.

    The image is squashed to a square: nothing is cropped away.
    """

    name = "siglip-image"
    architecture = "SiglipVisionModel"

    class Options(TorchOptions):
        """batch: most images encoded at once."""

        checkpoint: str = "siglip-so400m"
        batch: int = Field(default=16, ge=1)

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
