import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from editfoundry.core.errors import EditFoundryError
from editfoundry.training.ema import Ema


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(5, 3, generator=generator), "b": torch.randn(7, generator=generator)}


def test_the_average_is_the_recursion() -> None:
    tensors = weights()
    expected = {name: tensor.double().clone() for name, tensor in tensors.items()}
    ema = Ema(tensors, 0.9)
    for step in range(10):
        for name, tensor in tensors.items():
            tensor += 0.1 * (step + 1)
            expected[name] = 0.9 * expected[name] + 0.1 * tensor.double()
        ema.update()
    for name, shadow in ema.state().items():
        assert shadow.dtype == torch.float32
        torch.testing.assert_close(shadow.double(), expected[name], rtol=1e-6, atol=1e-6)


def test_a_bfloat16_average_would_lose_the_updates() -> None:
    """Weights at 1 that grow by 1e-4 a step: after 2000 steps at decay 0.999 the average is 0.1135 above 1."""
    tensor = torch.ones(4)
    ema, half = Ema({"w": tensor}, 0.999), [torch.ones(4, dtype=torch.bfloat16)]
    for _ in range(2000):
        tensor += 1e-4
        ema.update()
        get_ema_multi_avg_fn(0.999)(half, [tensor.bfloat16()], None)
    lag = sum(0.999**step for step in range(2000)) * 0.999  # the average is behind by this many steps
    assert ema.state()["w"].tolist() == pytest.approx([1 + 1e-4 * (2000 - lag)] * 4, abs=2e-5)
    assert half[0].tolist() == [1.0] * 4
    with pytest.raises(ValueError, match=r"w is torch\.bfloat16: only float32"):
        Ema({"w": tensor.bfloat16()}, 0.999)


def test_swap_shows_the_average_and_restores_bit_for_bit() -> None:
    tensors = weights()
    ema = Ema(tensors, 0.5)
    for tensor in tensors.values():
        tensor.mul_(1 / 3)
    ema.update()
    live = {name: tensor.clone() for name, tensor in tensors.items()}
    average = {name: shadow.clone() for name, shadow in ema.state().items()}
    assert not torch.equal(live["a"], average["a"])
    with pytest.raises(RuntimeError, match="while validating"), ema.swap():
        assert all(torch.equal(tensors[name], average[name]) for name in tensors)
        raise RuntimeError("while validating")
    assert all(torch.equal(tensors[name], live[name]) for name in tensors)
    assert all(torch.equal(shadow, average[name]) for name, shadow in ema.state().items())


def test_a_restored_average_goes_on_exactly() -> None:
    tensors = weights()
    ema = Ema(tensors, 0.99)
    tensors["a"].add_(1)
    ema.update()
    saved = {name: shadow.clone() for name, shadow in ema.state().items()}
    other = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed = Ema(other, 0.99)
    resumed.load(saved)
    for values in (tensors, other):
        values["b"].mul_(2)
    ema.update()
    resumed.update()
    assert all(torch.equal(shadow, resumed.state()[name]) for name, shadow in ema.state().items())


def test_shards_average_to_the_shards_of_the_average() -> None:
    whole = weights()["a"].flatten()
    views = {"first": whole[:7], "second": whole[7:], "of another rank": torch.empty(0)}
    ema, sharded = Ema({"a": whole}, 0.9), Ema(views, 0.9)
    whole.add_(0.3)
    ema.update()
    sharded.update()
    assert torch.equal(torch.cat(list(sharded.state().values())), ema.state()["a"])


def test_no_gradient_is_needed_or_kept() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    ema = Ema({"w": parameter}, 0.5)
    with torch.no_grad():
        parameter += 2
    ema.update()
    assert ema.state()["w"].tolist() == [2.0, 2.0] and not ema.state()["w"].requires_grad
    with ema.swap():
        assert parameter.tolist() == [2.0, 2.0] and parameter.requires_grad
    assert parameter.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": torch.zeros(5, 3)}, r"1 differ, the first is b: saved None, trained \(7,\)"),
        ({"a": torch.zeros(3, 5), "b": torch.zeros(7)}, r"the first is a: saved \(3, 5\), trained \(5, 3\)"),
        (weights() | {"c": torch.zeros(1)}, r"the first is c: saved \(1,\), trained None"),
    ],
)
def test_another_models_average_is_refused_and_changes_nothing(state: dict[str, Tensor], said: str) -> None:
    ema = Ema(weights(), 0.9)
    with pytest.raises(EditFoundryError, match=said):
        ema.load(state)
    assert all(torch.equal(shadow, weights()[name]) for name, shadow in ema.state().items())
