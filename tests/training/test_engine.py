"""Every way of sharding trains as one process does. Two forked ranks on gloo; see `engine_worker`."""

import json
import math
from collections.abc import Callable
from typing import Any

import engine_worker
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from editfoundry.training.sharding.fsdp import blocks

KINDS = ("ddp", "fsdp2", "zero1", "zero2", "zero3")
TRAINED = 19280
"""Trained numbers of the small editor: both connectors and the image branch of two blocks."""
Read = Callable[..., tuple[dict[str, Tensor], dict[str, Any]]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Tensors and facts that a rank of a kind wrote. Trains everything once."""
    out = tmp_path_factory.mktemp("engines")
    engine_worker.forked_ranks(out, "first", ["none"], 1)
    engine_worker.forked_ranks(out, "first", KINDS, 2)
    engine_worker.forked_ranks(out, "again", KINDS, 2)

    def read(kind: str, action: str = "first", rank: int = 0, ranks: int = 2) -> tuple[dict[str, Tensor], Any]:
        stem = out / kind / f"{action}-{1 if kind == 'none' else ranks}-{rank}"
        return load_file(stem.with_suffix(".safetensors")), json.loads(stem.with_suffix(".json").read_text())

    read.out = out  # type: ignore[attr-defined]
    return read


def part(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The tensors of one kind, by parameter."""
    return {name.partition("/")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}/")}


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one_with_accumulation(read: Read, kind: str) -> None:
    one, two = read("none")[0], read(kind)[0]
    facts = read(kind)[1]
    assert (facts["kind"], facts["ranks"], facts["device"]) == (kind, 2, "cpu")
    for what, relative, absolute in (("gradient", 1e-4, 1e-5), ("weight", 1e-4, 2e-5), ("ema", 1e-4, 2e-5)):
        ours, theirs = part(one, what), part(two, what)
        assert ours.keys() == theirs.keys()
        assert len(ours) == 30
        for name, tensor in ours.items():
            torch.testing.assert_close(
                theirs[name], tensor, rtol=relative, atol=absolute, msg=lambda text, name=name: f"{name}: {text}"
            )
    assert facts["norms"][1:] == pytest.approx(read("none")[1]["norms"][1:], rel=1e-5)
    assert not math.isfinite(facts["norms"][0])  # of gradients that one rank spoiled, and no step was made of


@pytest.mark.parametrize("kind", KINDS)
def test_weights_move_and_the_average_lags_behind(read: Read, kind: str) -> None:
    found = read(kind)[0]
    begun = dict(engine_worker.model().named_parameters())
    for name, weight in part(found, "weight").items():
        moved, lagging = (weight - begun[name]).abs().mean(), (part(found, "ema")[name] - begun[name]).abs().mean()
        assert 5e-3 < moved < 3e-2, name
        assert 0.3 * moved < lagging < moved, name


@pytest.mark.parametrize("kind", ("fsdp2", "zero1", "zero2", "zero3"))
def test_each_rank_holds_half(read: Read, kind: str) -> None:
    held = [read(kind, rank=rank)[1] for rank in (0, 1)]
    assert sum(facts["parameters"] for facts in held) == TRAINED
    assert [facts["optimiser"] for facts in held] == [TRAINED, TRAINED]  # two moments of half the parameters
    if kind == "fsdp2":
        assert [facts["held"] for facts in held] == [TRAINED // 2, TRAINED // 2]


def test_ddp_holds_everything_on_every_rank(read: Read) -> None:
    assert [read("ddp", rank=rank)[1]["optimiser"] for rank in (0, 1)] == [2 * TRAINED] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_validation_sees_the_average_and_training_does_not(read: Read, kind: str) -> None:
    for rank in (0, 1):
        found, expected = read(kind, rank=rank)[0], read("none")[0]
        assert torch.equal(found["prediction"], found["after"])
        assert (found["prediction"] - found["averaged"]).abs().max() > 1e-3
        torch.testing.assert_close(found["averaged"], expected["averaged"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_process_goes_on_bit_for_bit(read: Read, kind: str) -> None:
    before, after = read(kind)[0], read(kind, "again")[0]
    assert torch.equal(before["prediction"], after["prediction"])
    assert read(kind)[1]["norms"][-1:] == read(kind, "again")[1]["norms"]
    for what in ("weight", "ema"):
        ours, theirs = part(before, what), part(after, what)
        assert ours.keys() == theirs.keys() != set()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_and_frozen_bfloat16_train_alike(read: Read, kind: str) -> None:
    # A rank's share is half the loss in each of two processes, so both have the same gradients but for rounding.
    for name, weight in part(read("none")[0], "mixed").items():
        torch.testing.assert_close(part(read(kind)[0], "mixed")[name], weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ("ddp", "fsdp2"))
def test_another_number_of_ranks_goes_on(read: Read, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_worker, "environment", lambda _: {"ACCELERATE_USE_CPU": "true"})
    engine_worker.forked_ranks(read.out, "again", [kind], 1)  # type: ignore[attr-defined]
    two, one = read(kind)[0], read(kind, "again", ranks=1)[0]
    for name, weight in part(two, "weight").items():
        torch.testing.assert_close(part(one, "weight")[name], weight, rtol=1e-4, atol=2e-5)


def test_deepspeed_refuses_another_number_of_ranks(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_worker, "environment", lambda _: {"ACCELERATE_USE_CPU": "true"})
    with pytest.raises(RuntimeError, match="optimiser state is for zero2 on 2 ranks, this run is named; resume with"):
        engine_worker.forked_ranks(read.out, "again", ["zero2"], 1)  # type: ignore[attr-defined]


def test_flux_blocks_are_what_is_sharded() -> None:
    names = [type(block).__name__ for block in blocks(engine_worker.model())]
    assert names == ["FluxTransformerBlock", "FluxSingleTransformerBlock"]
