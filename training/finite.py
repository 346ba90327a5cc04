"""Where values that are not finite begin."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def first_nonfinite(model: nn.Module, forward: Callable[[], Any]) -> str | None:
    """What is first not finite when `forward` calls `model`: a parameter, an input, or a module's output; or None.

    A module is blamed when its output has a NaN or an infinity though none of its inputs has: modules inside it come
    before it. Names are those of `model.named_modules()`. `forward` may call the model through wrappers (DDP,
    DeepSpeed, FSDP2) and under autocast; compiled parts run eagerly meanwhile, since compiled code calls no hooks. It
    always runs to its end, so that ranks that find nothing do not wait for those that do. For diagnosis only: it reads
    every activation.
    """
    held = (*model.named_parameters(), *model.named_buffers())
    found = [f"the parameter {name}" for name, tensor in held if not _finite(tensor)]
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        before = model.register_forward_pre_hook(_watch_inputs(found), with_kwargs=True, prepend=True)
        stack.callback(before.remove)
        for name, module in model.named_modules():
            hook = _watch_output(f"{name or 'the whole model'} ({type(module).__name__})", found)
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        forward()
    return found[0] if found else None


def _watch_inputs(found: list[str]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        found.extend(f"the input {name}" for name, tensor in _tensors(given) if not _finite(tensor))

    return hook


def _watch_output(name: str, found: list[str]) -> Callable[..., None]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if found or all(_finite(tensor) for _, tensor in _tensors(output)):
            return
        if all(_finite(tensor) for _, tensor in _tensors((args, kwargs))):
            found.append(name)

    return hook


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in a value, by path: fields of named tuples, keys of mappings, numbers in sequences."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        yield from _tensors(value._asdict(), path)
    elif isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{path}[{number}]")


def _finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite; of a sharded tensor, of this rank's part."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if not local.is_floating_point():
        return True
    if local.element_size() == 1:  # float8 has no kernel for it
        local = local.float()
    return bool(torch.isfinite(local).all())
