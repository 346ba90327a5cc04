"""Engines whose ranks hold different parts of the trained parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch import distributed as dist

from editfoundry.training.config import Optimiser
from editfoundry.training.sharding.engine import Engine
from editfoundry.training.sharding.optimiser_state import named_state


class ShardedEngine(Engine):
    """Puts the ranks' pieces together, one parameter at a time."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, names: Sequence[str], options: Optimiser) -> None:
        super().__init__(accelerator, model, names, options)
        own = {name: (piece.start, piece.size) for name, piece in self.pieces.items()}
        self.layout: list[dict[str, tuple[int, int]]] = [{} for _ in range(self.ranks)]
        dist.all_gather_object(self.layout, own)

    def gather(self, local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        full = {}
        for name, piece in self.pieces.items():
            runs = [layout[name] for layout in self.layout]
            longest = max(count for _, count in runs)
            sent = torch.zeros(longest, device=piece.tensor.device)
            sent[: piece.size] = local[name].reshape(-1)[: piece.size]
            received = [torch.empty_like(sent) for _ in runs] if self.rank == 0 else None
            dist.gather(sent, received)
            if received:
                whole = torch.empty(piece.shape.numel())
                for (start, count), values in zip(runs, received, strict=True):
                    whole[start : start + count] = values[:count].cpu()
                full[name] = whole.view(piece.shape)
        return full

    def optimiser_state(self) -> dict[str, Any]:
        return named_state(self.optimiser, self._optimised())
