"""The LAION aesthetic predictor (Schuhmann 2022, `sac+logos+ava1-l14-linearMSE`): a small head on CLIP ViT-L/14.

Five linear layers, 768 → 1024 → 128 → 64 → 16 → 1, with dropout between them and no activations, on the image embedding
of OpenAI's ViT-L/14 scaled to length 1. The file its author released is a pickle, which is never loaded here; the store
names a conversion. To convert the original yourself, on a machine where that risk is acceptable:

    state = torch.load("sac+logos+ava1-l14-linearMSE.pth", weights_only=True)
    safetensors.torch.save_file(state, "FOLDER/model.safetensors")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from editfoundry.models.checkpoint import TorchOptions, checkpoint_digest, checkpoint_path
from editfoundry.models.perception.base import CheckpointError, TorchModel, reading
from editfoundry.models.perception.clip import ClipTowers, towers
from editfoundry.models.protocols import Image

LAYERS = (0, 2, 4, 6, 7)
"""Places of the linear layers in the released sequence; dropout has the others."""


class LaionAestheticScorer(TorchModel):
    """`AestheticScorer`: about 1 to 10; photographs lie mostly between 4 and 7."""

    name = "laion-aesthetic"
    located = TorchModel.located | {"head"}

    class Options(TorchOptions):
        """checkpoint: the CLIP below the head. head: the head, an id of the model store or a folder.

        batch: most images encoded at once.
        """

        checkpoint: str = "clip-vit-l14"
        head: str = "laion-aesthetic-head"
        batch: int = Field(default=32, ge=1)

    options: Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options or self.Options())
        self._towers: ClipTowers
        self._head: Any = None

    def _weight_digests(self) -> list[str]:
        return [*super()._weight_digests(), checkpoint_digest(self.options.head)]

    def _load(self) -> None:
        self._towers = towers(self.options)
        self._head = read_head(checkpoint_path(self.options.head, "model.safetensors"), self._towers.width)

    def aesthetic(self, images: Sequence[Image]) -> list[float]:
        """Scores of uint8 RGB images [H, W, 3], in order."""
        import torch

        self.load()
        with torch.inference_mode():
            scores = self._head(torch.from_numpy(self._towers.images(images, self.options)))
        return [float(score) for score in scores[:, 0]]


def read_head(file: Path, width: int) -> Any:
    """The head in a safetensors file, for embeddings of `width` numbers. Raises CheckpointError for any other network.

    Layers may be named as released (`layers.0.weight`) or with any other prefix.
    """
    import torch
    from safetensors.torch import load_file

    with reading(file, "the LAION aesthetic head"):
        found = {tuple(name.rsplit(".", 2)[-2:]): weight.float() for name, weight in load_file(file).items()}
    wanted = [(str(place), part) for place in LAYERS for part in ("weight", "bias")]
    sizes = [found[place, "weight"].shape for place in map(str, LAYERS) if (place, "weight") in found]
    inputs, outputs = [size[-1] for size in sizes], [size[0] for size in sizes]
    if sorted(found) != sorted(wanted) or any(len(size) != 2 for size in sizes) or [*inputs[1:], 1] != outputs:
        raise CheckpointError(f"{file}: not the LAION aesthetic head: it needs five linear layers named 0, 2, 4, 6, 7")
    if inputs[0] != width:
        raise CheckpointError(
            f"{file}: a head for embeddings of {inputs[0]} numbers; the CLIP checkpoint makes {width}: use ViT-L/14"
        )
    layers = []
    for place in map(str, LAYERS):
        layer = torch.nn.Linear(*reversed(found[place, "weight"].shape))
        with reading(file, "the LAION aesthetic head"):
            layer.load_state_dict({part: found[place, part] for part in ("weight", "bias")})
        layers.append(layer)
    return torch.nn.Sequential(*layers).eval().requires_grad_(False)
