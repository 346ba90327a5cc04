"""What one rank holds of a parameter."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from editfoundry.core.errors import UsageError


class Piece(NamedTuple):
    """What this rank holds of a trained parameter: a run of its elements in row-major order.

    tensor: float32, any shape; a view of the weights themselves. shape: of the whole parameter. start: of the run.
    The ranks' runs follow each other; past the parameter's end they are padding.
    """

    tensor: Tensor
    shape: torch.Size
    start: int

    @property
    def size(self) -> int:
        """Elements that are the parameter's and no padding."""
        return max(0, min(int(self.tensor.numel()), int(self.shape.numel()) - self.start))

    def cut(self, full: Tensor) -> Tensor:
        """The same run of another tensor of the whole parameter's shape, in this piece's shape; padding is zero."""
        piece = torch.zeros(self.tensor.numel(), dtype=full.dtype)
        piece[: self.size] = full.reshape(-1)[self.start : self.start + self.size]
        return piece.view(self.tensor.shape)


def host_copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU that later changes of `tensor` do not touch."""
    return tensor.detach().to("cpu", copy=True)


def check_parameters(shapes: Mapping[str, torch.Size], given: Mapping[str, Tensor]) -> None:
    """Raises UsageError naming parameters that are missing, too many, or of another shape."""
    differences = {"missing": sorted(set(shapes) - set(given)), "unknown": sorted(set(given) - set(shapes))}
    said = [f"{len(names)} {what}, e.g. {names[0]}" for what, names in differences.items() if names]
    if said:
        raise UsageError(f"the parameters are not those of this model and stage: {'; '.join(said)}")
    for name, shape in shapes.items():
        if given[name].shape != shape:
            raise UsageError(f"{name} has shape {tuple(given[name].shape)}, the model's is {tuple(shape)}")
