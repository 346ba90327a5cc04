from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from tiny.trained_model import tiny_inputs, tiny_model
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from editfoundry.training.finite import first_nonfinite


def poison(module: nn.Module, value: float = float("nan")) -> None:
    """Make a module answer with one value that is not finite."""

    def hook(_: nn.Module, __: object, output: Tensor) -> Tensor:
        output = output.clone()
        output.view(-1)[-1] = value
        return output

    module.register_forward_hook(hook)


def test_a_healthy_model_has_none() -> None:
    model, arguments = tiny_model(), tiny_inputs()
    assert first_nonfinite(model, lambda: model(*arguments)) is None


@pytest.mark.parametrize("name", ["connector.up", "transformer.transformer_blocks.1.attn.to_k", "transformer.proj_out"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_the_module_that_begins_it_is_named(name: str, value: float) -> None:
    model, arguments = tiny_model(), tiny_inputs()
    poison(model.get_submodule(name), value)
    assert first_nonfinite(model, lambda: model(*arguments)) == f"{name} (Linear)"


def test_what_a_module_computes_between_its_parts_is_its_own_fault() -> None:
    """Values that overflow only when they are added up in the block, after every layer in it answered."""
    model, arguments = tiny_model(), tiny_inputs()
    block = model.transformer.single_transformer_blocks[0]
    block.proj_out.register_forward_hook(lambda *_: torch.full_like(_[2], 3e38))
    block.norm.register_forward_hook(lambda _, __, output: (output[0], torch.full_like(output[1], 3e38)))
    name = "transformer.single_transformer_blocks.0 (FluxSingleTransformerBlock)"
    assert first_nonfinite(model, lambda: model(*arguments)) == name


def test_a_parameter_comes_before_what_it_spoils() -> None:
    model, arguments = tiny_model(), tiny_inputs()
    with torch.no_grad():
        model.transformer.transformer_blocks[0].attn.norm_q.weight[3] = float("inf")
    passes: list[int] = []

    def forward() -> None:
        passes.append(1)
        model(*arguments)

    assert first_nonfinite(model, forward) == "the parameter transformer.transformer_blocks.0.attn.norm_q.weight"
    assert passes == [1]  # other ranks, whose shards are finite, wait for this one in theirs


def test_inputs_that_are_not_finite_are_named() -> None:
    model, (noisy, sigma, condition, guidance) = tiny_model(), tiny_inputs()
    condition.text_states[1, 2, 3] = float("nan")
    found = first_nonfinite(model, lambda: model(noisy, sigma, condition=condition, guidance=guidance))
    assert found == "the input condition.text_states"
    _, _, condition, _ = tiny_inputs()
    noisy[0, 0] = float("inf")
    assert first_nonfinite(model, lambda: model(noisy, sigma, condition, guidance)) == "the input noisy"


def test_bfloat16_overflow_under_autocast() -> None:
    model, arguments = tiny_model(), tiny_inputs()
    with torch.no_grad():
        model.connector.up.weight.fill_(2e38)

    def forward() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(*arguments)

    assert first_nonfinite(model, forward) == "connector.up (Linear)"


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_wrapped_by_ddp() -> None:
    model, arguments = tiny_model(), tiny_inputs()
    poison(model.transformer.context_embedder)
    wrapped = nn.parallel.DistributedDataParallel(model)
    assert first_nonfinite(model, lambda: wrapped(*arguments)) == "transformer.context_embedder (Linear)"


@pytest.mark.usefixtures("one_process")
def test_sharded_by_fsdp2() -> None:
    model, arguments = tiny_model(), tiny_inputs()
    layer = model.transformer.transformer_blocks[0].attn.to_out[0]
    poison(layer)
    for block in (*model.transformer.transformer_blocks, model):
        fully_shard(block, mesh=init_device_mesh("cpu", (1,)))
    name = "transformer.transformer_blocks.0.attn.to_out.0"
    assert first_nonfinite(model, lambda: model(*arguments)) == f"{name} (Linear)"
    with torch.no_grad():
        layer.bias.to_local()[2] = float("nan")
    assert first_nonfinite(model, lambda: model(*arguments)) == f"the parameter {name}.bias"


@pytest.mark.slow
def test_compiled_blocks_are_looked_into() -> None:
    """Compiled before, called before, and yet every layer inside is seen."""
    model, arguments = tiny_model(), tiny_inputs()
    model.transformer.compile_repeated_blocks(backend="eager")
    model(*arguments)
    layer = model.transformer.single_transformer_blocks[1].attn.to_v
    with torch.no_grad():
        layer.weight.fill_(3e38)
    name = "transformer.single_transformer_blocks.1.attn.to_v (Linear)"
    assert first_nonfinite(model, lambda: model(*arguments)) == name


def test_nothing_stays_hooked() -> None:
    model, arguments = tiny_model(), tiny_inputs()
    with pytest.raises(RuntimeError, match="of the caller"):
        first_nonfinite(model, lambda: (_ for _ in ()).throw(RuntimeError("of the caller")))
    first_nonfinite(model, lambda: model(*arguments))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_float8_and_integers_are_read_too() -> None:
    module = nn.Linear(2, 2)
    module.weight = nn.Parameter(torch.tensor([[1.0, float("nan")]]).to(torch.float8_e4m3fn), requires_grad=False)
    module.register_buffer("count", torch.tensor(3))
    assert first_nonfinite(module, lambda: None) == "the parameter weight"
