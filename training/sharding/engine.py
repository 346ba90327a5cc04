"""What the trainer asks of a way to spread training over processes, and what one process does without any."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from editfoundry.training.config import Optimiser
from editfoundry.training.optimiser import build_optimiser
from editfoundry.training.sharding.optimiser_state import Part, load_named, named_state
from editfoundry.training.sharding.pieces import Piece, check_parameters, host_copy

Kind = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]


class Average(Protocol):
    """An average of the local parameters: `editfoundry.training.ema.Ema`."""

    def swap(self) -> AbstractContextManager[Any]:
        """While open, the local parameters hold the average."""

    def state(self) -> dict[str, Tensor]:
        """By name, shaped like the local parameters."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` gave."""


class Engine:
    """Trains in one process (`none`); the base of the others.

    A step is: `zero_grad`, then for each micro-batch `with accumulate(last): backward(loss of forward)`, then `clip`,
    then `step`. Leaving `step` out skips it. Losses are divided by the global token count before `backward`, so that
    gradients are plain sums over micro-batches and ranks. Trained parameters are float32.
    """

    kind: Kind = "none"

    def __init__(self, accelerator: Accelerator, model: nn.Module, names: Sequence[str], options: Optimiser) -> None:
        self.accelerator, self.model = accelerator, model
        self.rank, self.ranks = accelerator.process_index, accelerator.num_processes
        self.wrapped = self._wrap(names)
        named = dict(model.named_parameters())
        self.named = {name: named[name] for name in names}
        self._optimise(options)
        self.pieces = {name: self._piece(parameter) for name, parameter in self.named.items()}

    def _wrap(self, names: Sequence[str]) -> nn.Module:
        """The model as it is called; may replace its parameters' storage or the parameters."""
        return self.model

    def _optimise(self, options: Optimiser) -> None:
        """Build the optimiser, whose groups `step` sets."""
        sharded = self.kind not in ("none", "ddp")
        self.optimiser = build_optimiser(self.named, options, sharded=sharded)

    def _piece(self, parameter: nn.Parameter) -> Piece:
        return Piece(parameter.data, parameter.shape, 0)

    def forward(self, *arguments: Any) -> Any:
        """The model's forward pass, with whatever gathers its weights."""
        return self.wrapped(*arguments)

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch; `last` of its step."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this rank's share of the loss. Every engine takes the mean over ranks; we want sums."""
        (loss * self.ranks).backward()

    def clip(self, max_norm: float) -> float:
        """Scale the gradients to an L2 norm of at most `max_norm` and give their norm before: not finite if they are
        not, and then the step has to be left out. After the last micro-batch, on all ranks.
        """
        return float(nn.utils.clip_grad_norm_(self.named.values(), max_norm))

    def step(self, lr: float) -> None:
        """Update the weights at this learning rate."""
        self._set_rate(lr)
        self.optimiser.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.optimiser.zero_grad(set_to_none=True)

    def local_parameters(self) -> dict[str, Tensor]:
        """This rank's part of every trained parameter, float32; views, so writing to them changes the weights once
        `publish` is called.
        """
        return {name: piece.tensor for name, piece in self.pieces.items()}

    def publish(self) -> None:
        """Let the next forward pass see what was written to `local_parameters`. On all ranks."""

    @contextmanager
    def averaged(self, average: Average | None) -> Iterator[None]:
        """While open, forward passes use the averaged weights (the trained ones if there is no average)."""
        if average is None:
            yield
            return
        with average.swap():
            self.publish()
            yield
        self.publish()

    def trained_state(self) -> dict[str, Tensor]:
        """Copies of all trained parameters, whole, float32 on the CPU; on rank 0, nothing elsewhere. On all ranks."""
        return self.gather(self.local_parameters())

    def gather(self, local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same for any tensors shaped like `local_parameters`, e.g. an average's."""
        if self.rank:
            return {}
        return {name: host_copy(local[name]).float().view(piece.shape) for name, piece in self.pieces.items()}

    def local_state(self, full: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's part of whole tensors: the inverse of `gather`. Reads one tensor at a time.

        Raises UsageError naming parameters that are missing, too many, or of another shape.
        """
        check_parameters({name: piece.shape for name, piece in self.pieces.items()}, full)
        return {name: piece.cut(full[name]) for name, piece in self.pieces.items()}

    def load_trained(self, full: Mapping[str, Tensor]) -> None:
        """Set all trained parameters from whole tensors, the same on every rank. Raises as `local_state`."""
        with torch.no_grad():
            for name, tensor in self.local_state(full).items():
                self.pieces[name].tensor.copy_(tensor)
        self.publish()

    @property
    def optimiser_format(self) -> str:
        """Engines whose formats are equal read each other's optimiser states."""
        return "named"

    def optimiser_state(self) -> dict[str, Any]:
        """A copy on the CPU of what this rank has to keep of the optimiser: tensors, numbers and strings only."""
        return named_state(self.optimiser, self._optimised()) if self.rank == 0 else {}

    def load_optimiser(self, parts: Sequence[Part]) -> None:
        """Take up the states that all ranks kept. Raises EditFoundryError when they do not fit this run."""
        load_named(self.optimiser, self._optimised(), parts)

    def _optimised(self) -> dict[str, tuple[nn.Parameter, Piece]]:
        """Each trained parameter as the optimiser knows it, with this rank's piece of it."""
        return {name: (self.named[name], piece) for name, piece in self.pieces.items()}

    def _set_rate(self, lr: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = lr
