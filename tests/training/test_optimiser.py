import copy
import sys
from collections.abc import Iterator, Mapping

import pytest
import torch
import torch.distributed as dist
from diffusers.optimization import get_scheduler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from editfoundry.core.errors import UsageError
from editfoundry.training.config import Optimiser
from editfoundry.training.optimiser import build_optimiser, learning_rate


def weights(seed: int = 0) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {name: Parameter(torch.randn(96, 64, generator=generator)) for name in ("one", "two")}


def descend(named: Mapping[str, Parameter], optimiser: Optimizer, steps: int, first: int = 0) -> list[float]:
    """Steps down the mean square of the weights under seeded noise; the losses."""
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        noise = {name: 0.1 * torch.randn(1, generator=generator) for name in named}
        loss = sum((weight + float(noise[name])).square().mean() for name, weight in named.items())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(
    ("schedule", "theirs"), [("constant", "constant_with_warmup"), ("cosine", "cosine"), ("linear", "linear")]
)
@pytest.mark.parametrize("warmup", [0, 5])
def test_learning_rates_are_those_of_diffusers(schedule: str, theirs: str, warmup: int) -> None:
    options = Optimiser(lr=2e-3, schedule=schedule, warmup=warmup)
    sgd = SGD([Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = get_scheduler(theirs, sgd, num_warmup_steps=warmup, num_training_steps=20)
    for step in range(20):
        assert learning_rate(options, step, 20) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        sgd.step()
        scheduler.step()


def test_learning_rate_by_hand() -> None:
    options = Optimiser(lr=1e-6, warmup=5000)
    assert [learning_rate(options, step, 100_000) for step in (0, 2500, 5000, 99_999)] == [0, 5e-7, 1e-6, 1e-6]
    cosine = Optimiser(lr=1.0, schedule="cosine", warmup=10)
    assert learning_rate(cosine, 60, 110) == pytest.approx(0.5)
    assert learning_rate(Optimiser(lr=1.0, schedule="linear", warmup=10), 5, 5) == 0.5


def test_adamw_is_the_textbook_update() -> None:
    named = {"w": Parameter(torch.tensor([1.0, -2.0]))}
    options = Optimiser(lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    optimiser = build_optimiser(named, options)
    assert isinstance(optimiser, AdamW) and optimiser.defaults["fused"]
    named["w"].grad = torch.tensor([3.0, -4.0])
    optimiser.step()
    # decay by lr * 0.5, then a first step of lr * sign(gradient)
    torch.testing.assert_close(named["w"].detach(), torch.tensor([0.95 - 0.1, -1.9 + 0.1]))


@pytest.mark.parametrize("name", ["adamw", "adamw8bit", "prodigy"])
def test_every_optimiser_learns_and_goes_on_from_its_state_bit_for_bit(name: str) -> None:
    options = Optimiser(name=name, lr=1.0 if name == "prodigy" else 0.05)
    named = weights()
    optimiser = build_optimiser(named, options)
    losses = descend(named, optimiser, 60)
    assert losses[-1] < 0.3 * losses[0]

    again = {key: Parameter(value.detach().clone()) for key, value in named.items()}
    resumed = build_optimiser(again, options)
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert descend(again, resumed, 5, first=60) == descend(named, optimiser, 5, first=60)
    assert all(torch.equal(again[key], named[key]) for key in named)


def test_8bit_adam_holds_its_moments_in_8_bits_and_stays_near_adamw() -> None:
    exact, small = weights(), weights()
    ours = build_optimiser(small, Optimiser(name="adamw8bit", lr=1e-3))
    descend(exact, build_optimiser(exact, Optimiser(lr=1e-3)), 20)
    descend(small, ours, 20)
    state = ours.state[small["one"]]
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8
    moved = (exact["one"] - weights()["one"]).abs().mean()
    assert (small["one"] - exact["one"]).abs().mean() < 0.05 * moved


def test_prodigy_stands_a_first_step_at_rate_zero() -> None:
    named = weights()
    optimiser = build_optimiser(named, Optimiser(name="prodigy", lr=1.0, warmup=2))
    before = named["one"].detach().clone()
    optimiser.param_groups[0]["lr"] = 0.0
    descend(named, optimiser, 1)
    assert torch.equal(named["one"], before)


@pytest.mark.parametrize(("name", "package"), [("adamw8bit", "bitsandbytes.optim"), ("prodigy", "prodigyopt")])
def test_a_missing_package_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"`{name}` needs {package.split('.')[0]}; pip install"):
        build_optimiser(weights(), Optimiser(name=name))


def test_a_device_without_8bit_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(_: Optimizer) -> None:
        raise RuntimeError("\nNative code method attempted to call: lib.cadam_8bit()\nand more")

    monkeypatch.setattr("bitsandbytes.optim.AdamW8bit.step", step)
    with pytest.raises(UsageError, match=r"cannot step on cpu \(Native code .*8bit\(\)\); use `adamw`$") as raised:
        build_optimiser(weights(), Optimiser(name="adamw8bit"))
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_prodigy_keeps_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    build_optimiser(weights(), Optimiser(name="prodigy", lr=1.0, weight_decay=0.1))
    assert capsys.readouterr().out == ""


def test_what_prodigy_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match=r"lr is 0\.001: .* set lr: 1"):
        build_optimiser(weights(), Optimiser(name="prodigy", lr=1e-3))
    with pytest.raises(UsageError, match="no rank holds under ZeRO and FSDP2"):
        build_optimiser(weights(), Optimiser(name="prodigy", lr=1.0), sharded=True)


@pytest.fixture
def slices() -> Iterator[dict[str, Parameter]]:
    """A parameter as FSDP2 shards it, over one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.Linear(64, 96, bias=False)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        yield dict(model.named_parameters())
    finally:
        dist.destroy_process_group()


def test_sharded_tensors_are_for_adamw(slices: dict[str, Parameter]) -> None:
    losses = descend(slices, build_optimiser(slices, Optimiser(lr=0.05)), 10)
    assert losses[-1] < 0.5 * losses[0]
    with pytest.raises(UsageError, match="`adamw8bit` cannot step FSDP2's sharded tensors; use `adamw`"):
        build_optimiser(slices, Optimiser(name="adamw8bit"))
    with pytest.raises(UsageError, match="no rank holds under ZeRO and FSDP2"):
        build_optimiser(slices, Optimiser(name="prodigy", lr=1.0))
