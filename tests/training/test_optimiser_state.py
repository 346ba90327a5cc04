"""Optimiser states cut anew for another number of ranks, and what cannot be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.training.sharding.optimiser_state import load_named, named_state
from editfoundry.training.sharding.pieces import Piece, check_parameters

SHAPE = torch.Size((7, 3))


def stepped(local: Tensor) -> tuple[torch.optim.AdamW, nn.Parameter]:
    """An optimiser of one rank's rows, after two steps with the rows as gradients."""
    parameter = nn.Parameter(local.clone())
    optimiser = torch.optim.AdamW([parameter], lr=0.1)
    for _ in range(2):
        parameter.grad = local.clone()
        optimiser.step()
    return optimiser, parameter


def rows(ranks: int) -> list[tuple[int, int]]:
    """First and last row of each rank, as FSDP2 cuts them."""
    size = -(-SHAPE[0] // ranks)
    return [(min(rank * size, SHAPE[0]), min((rank + 1) * size, SHAPE[0])) for rank in range(ranks)]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9))
def test_any_number_of_ranks_reads_any_other(written: int, read: int) -> None:
    whole = torch.arange(21.0).reshape(SHAPE) + 1
    parts = []
    for low, high in rows(written):
        optimiser, parameter = stepped(whole[low:high])
        parts.append(named_state(optimiser, {"w": (parameter, Piece(parameter.data, SHAPE, 3 * low))}))
    for low, high in rows(read):
        parameter = nn.Parameter(whole[low:high].clone())
        optimiser = torch.optim.AdamW([parameter], lr=0.7)
        load_named(optimiser, {"w": (parameter, Piece(parameter.data, SHAPE, 3 * low))}, parts)
        state = optimiser.state[parameter]
        assert float(state["step"]) == 2
        assert optimiser.param_groups[0]["lr"] == 0.1
        torch.testing.assert_close(state["exp_avg"], (1 - 0.9**2) * whole[low:high])


def test_a_copy_is_not_changed_by_later_steps() -> None:
    optimiser, parameter = stepped(torch.ones(SHAPE))
    kept = named_state(optimiser, {"w": (parameter, Piece(parameter.data, SHAPE, 0))})
    before = kept["state"]["w"]["split"]["exp_avg"].clone()
    optimiser.step()
    assert torch.equal(kept["state"]["w"]["split"]["exp_avg"], before)


def test_tables_cannot_be_divided() -> None:
    optimiser, parameter = stepped(torch.ones(SHAPE))
    optimiser.state[parameter]["table"] = torch.zeros(256)
    kept = named_state(optimiser, {"w": (parameter, Piece(parameter.data, SHAPE, 0))})
    half = nn.Parameter(torch.ones(4, 3))
    with pytest.raises(EditFoundryError, match="cannot be divided among another number of ranks"):
        load_named(torch.optim.AdamW([half]), {"w": (half, Piece(half.data, SHAPE, 0))}, [kept])


def test_states_of_other_parameters_or_with_gaps_are_refused() -> None:
    optimiser, parameter = stepped(torch.ones(SHAPE))
    run = Piece(parameter.data, SHAPE, 0)
    kept = named_state(optimiser, {"w": (parameter, run)})
    with pytest.raises(EditFoundryError, match="of other parameters"):
        load_named(optimiser, {"v": (parameter, run)}, [kept])
    kept["state"]["w"]["split"]["exp_avg"] = torch.zeros(5)
    with pytest.raises(EditFoundryError, match="`exp_avg` has 5 of 21 values"):
        load_named(optimiser, {"w": (parameter, run)}, [kept])


def test_a_piece_is_cut_with_padding() -> None:
    piece = Piece(torch.empty(8), SHAPE, 16)
    assert piece.size == 5
    assert piece.cut(torch.arange(21.0).reshape(SHAPE)).tolist() == [16, 17, 18, 19, 20, 0, 0, 0]
    assert Piece(torch.empty(8), SHAPE, 24).size == 0


def test_parameters_that_do_not_fit_are_named() -> None:
    with pytest.raises(UsageError, match=r"1 missing, e.g. a; 1 unknown, e.g. b"):
        check_parameters({"a": SHAPE}, {"b": torch.zeros(SHAPE)})
    with pytest.raises(UsageError, match=r"a has shape \(3, 7\), the model's is \(7, 3\)"):
        check_parameters({"a": SHAPE}, {"a": torch.zeros(3, 7)})
