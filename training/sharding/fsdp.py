"""FSDP2: trained parameters, gradients and optimiser states sharded by rows, with torch's `fully_shard`.

accelerate only says that FSDP is wanted: its own wrapping leaves a model on the CPU whole without a word, and shards
frozen parameters together with trained ones, which their different dtypes do not allow.
"""

import warnings
from collections.abc import Sequence

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from editfoundry.training.sharding.engine import Kind
from editfoundry.training.sharding.pieces import Piece
from editfoundry.training.sharding.sharded import ShardedEngine


class FsdpEngine(ShardedEngine):
    """One group of parameters per transformer block, one for the rest. Frozen parameters stay whole on every rank.

    Gradients are reduced after every micro-batch, so that they too are only ever held in shards.
    """

    kind: Kind = "fsdp2"

    def _wrap(self, names: Sequence[str]) -> nn.Module:
        mesh = init_device_mesh(self.accelerator.device.type, (self.ranks,))
        trained = set(names)
        frozen = {parameter for name, parameter in self.model.named_parameters() if name not in trained}
        for module in (*blocks(self.model), self.model):
            if not frozen.issuperset(module.parameters()):
                fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=frozen)
        # FLUX's single blocks return views; nothing works in place on them.
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view tensor")
        return self.model

    def _piece(self, parameter: nn.Parameter) -> Piece:
        assert isinstance(parameter, DTensor), "every trained parameter is sharded"
        rows = len(parameter)
        first = min(self.rank * -(-rows // self.ranks), rows)
        return Piece(parameter.to_local().detach(), parameter.shape, first * (parameter.numel() // rows))

    def clip(self, max_norm: float) -> float:
        norm = nn.utils.clip_grad_norm_(self.named.values(), max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def publish(self) -> None:
        # A forward pass without a backward one may have left whole weights behind, which would be used again.
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def blocks(model: nn.Module) -> list[nn.Module]:
    """The modules that the model's parts say must not be split: FLUX's transformer blocks."""
    classes = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in classes]
