"""The joint sequence: where each text and visual state lands, element by element."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from editfoundry.models.editor.sequence import attention_mask, join


def test_a_pictures_states_come_just_before_its_end() -> None:
    text = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.float32)[..., None]
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    ends = torch.tensor([[1, 3], [0, 2]])
    visual = torch.tensor([[[10, 11], [20, 21]], [[30, 31], [40, 41]]], dtype=torch.float32)[..., None]
    sequence, joined = join(text, mask, ends, visual)
    assert sequence[..., 0].tolist() == [[1, 10, 11, 2, 3, 20, 21, 4], [30, 31, 5, 6, 40, 41, 7, 8]]
    assert joined.tolist() == [[True] * 8, [True] * 7 + [False]]


def test_without_visual_states_the_text_is_all() -> None:
    text, mask = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[True, False]])
    sequence, joined = join(text, mask, torch.tensor([[0]]), None)
    assert sequence.tolist() == [[[1.0], [2.0]]]
    assert joined.tolist() == [[True, False]]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[list[int]], int, int]:
    """Valid lengths by row, vision ends by row in any order, states of a picture, padded length."""
    pictures, states, batch = draw(st.integers(0, 3)), draw(st.integers(0, 4)), draw(st.integers(1, 3))
    valid = [draw(st.integers(max(pictures, 1), 9)) for _ in range(batch)]
    ends = [draw(st.permutations(range(length)))[:pictures] for length in valid]
    return valid, ends, states, max(valid) + draw(st.integers(0, 2))


@settings(deadline=None, max_examples=150)
@given(layouts())
def test_join_equals_inserting_one_by_one(layout: tuple[list[int], list[list[int]], int, int]) -> None:
    valid, ends, states, length = layout
    batch, pictures = len(valid), len(ends[0])
    text = torch.arange(1.0, 1 + batch * length * 2).reshape(batch, length, 2)
    visual = -torch.arange(1.0, 1 + batch * pictures * states * 2).reshape(batch, pictures, states, 2)
    mask = torch.arange(length) < torch.tensor(valid)[:, None]
    sequence, joined = join(text, mask, torch.tensor(ends, dtype=torch.int64).reshape(batch, pictures), visual)
    for b in range(batch):
        rows: list[list[float]] = []
        seen: list[bool] = []
        for position in range(length):
            if position in ends[b]:
                rows += visual[b, ends[b].index(position)].tolist()
                seen += [True] * states
            rows.append(text[b, position].tolist())
            seen.append(position < valid[b])
        assert sequence[b].tolist() == rows
        assert joined[b].tolist() == seen


def test_gradients_find_their_way_back_to_every_state() -> None:
    text = torch.ones(1, 3, 1, requires_grad=True)
    visual = torch.ones(1, 1, 2, 1, requires_grad=True)
    sequence, _ = join(text, torch.tensor([[True, True, False]]), torch.tensor([[1]]), visual)
    (sequence[0, :, 0] * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).sum().backward()
    assert text.grad[0, :, 0].tolist() == [1, 4, 5]
    assert visual.grad[0, 0, :, 0].tolist() == [2, 3]


def test_image_tokens_are_seen_by_all_and_padding_by_none() -> None:
    allowed = attention_mask(torch.tensor([[True, True], [True, False]]), 2)
    assert allowed.shape == (2, 1, 1, 4)
    assert allowed.dtype == torch.bool
    assert allowed[:, 0, 0].tolist() == [[True] * 4, [True, False, True, True]]
