"""Every rank holds all weights; gradients are reduced with the last micro-batch of a step."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from editfoundry.training.sharding.engine import Engine, Kind


class DdpEngine(Engine):
    """DistributedDataParallel, wrapped by accelerate."""

    kind: Kind = "ddp"

    def _wrap(self, names: Sequence[str]) -> nn.Module:
        wrapped: nn.Module = self.accelerator.prepare_model(self.model)
        return wrapped

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.wrapped.no_sync()
