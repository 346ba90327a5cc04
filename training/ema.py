"""Exponential moving average of trained parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from editfoundry.core.errors import EditFoundryError


class Ema:
    """shadow = decay * shadow + (1 - decay) * tensor, in float32, of the tensors that this rank holds.

    tensors: by name, float32, plain local tensors (whole parameters, or this rank's shards of them); their storage is
    read at every `update` and written by `swap`. The average is elementwise, so averaging shards is sharding the
    average. It begins at the tensors' values. Raises ValueError for another dtype: at decay 0.999 a bfloat16 average
    moves by a thousandth of a step or, mostly, not at all.

    diffusers' EMAModel averages what has `requires_grad` and copies everything else, so it would copy local shards; and
    its decay starts at 0 and rises as (1 + step) / (10 + step), which then is part of the state.
    """

    def __init__(self, tensors: Mapping[str, Tensor], decay: float) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype != torch.float32:
                raise ValueError(f"{name} is {tensor.dtype}: only float32 parameters can be averaged")
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._shadows = {name: tensor.clone() for name, tensor in self._tensors.items()}
        self._average = get_ema_multi_avg_fn(decay)

    def update(self) -> None:
        """Move the average towards the tensors' present values; once per optimiser step."""
        if self._shadows:
            self._average(list(self._shadows.values()), list(self._tensors.values()), None)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Within it the tensors hold the average, and afterwards their own values again, bit for bit.

        Values change places tensor by tensor, so that no third copy of all weights is needed.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state(self) -> dict[str, Tensor]:
        """The average by name, float32. These are its own tensors: copy them before the next `update`."""
        return dict(self._shadows)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` gave. Raises EditFoundryError for other names or shapes, before it changes anything."""
        ours = {name: tuple(shadow.shape) for name, shadow in self._shadows.items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if ours != theirs:
            differing = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
            raise EditFoundryError(
                f"the saved average does not fit the trained parameters; {len(differing)} differ, the first is "
                f"{differing[0]}: saved {theirs.get(differing[0])}, trained {ours.get(differing[0])}"
            )
        for name, shadow in self._shadows.items():
            shadow.copy_(state[name])

    def _exchange(self) -> None:
        for name, tensor in self._tensors.items():
            held = tensor.clone()
            tensor.copy_(self._shadows[name])
            self._shadows[name].copy_(held)
