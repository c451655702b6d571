"""Flat memory: every element belongs to one owner, at a place where kernels begin; what is added at once."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fanwise.parallel.torch_distributed.layout import Layout

SIZES = st.lists(
    st.tuples(st.integers(0, 90), st.sampled_from([torch.float32, torch.float64, torch.bfloat16])), max_size=6
)


def params_of(sizes: list[tuple[int, torch.dtype]]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in sizes]


@given(sizes=SIZES, owners=st.integers(1, 5))
def test_every_element_has_one_owner(sizes: list[tuple[int, torch.dtype]], owners: int) -> None:
    params = params_of(sizes)
    layout = Layout(params, owners)
    memory = torch.zeros(owners * layout.part_bytes, dtype=torch.uint8)
    assert layout.part_bytes % 64 == 0
    for owner in range(owners):
        for piece in layout.pieces(owner):
            first, last = owner * layout.part_bytes + piece.first, owner * layout.part_bytes + piece.last
            assert first % 64 == 0
            memory[first:last].view(params[piece.param].dtype).add_(torch.arange(piece.start, piece.stop) + 1)
    for place, param in enumerate(params):
        assert torch.equal(layout.whole(memory, place), torch.arange(len(param)).to(param.dtype) + 1)


@given(sizes=SIZES, owners=st.integers(1, 4), data=st.data())
def test_stretches_cover_what_nodes_have_and_nothing_else(
    sizes: list[tuple[int, torch.dtype]], owners: int, data: st.DataObject
) -> None:
    params = params_of(sizes)
    layout = Layout(params, owners)
    flags = st.lists(st.booleans(), min_size=len(params), max_size=len(params))
    reached = data.draw(st.lists(flags, max_size=3))
    for owner in range(owners):
        stretches = layout.stretches(owner, reached)
        assert all(before.last <= after.first for before, after in itertools.pairwise(stretches))
        for piece in layout.pieces(owner):
            expected = tuple(node for node, has in enumerate(reached) if has[piece.param])
            inside = [each for each in stretches if each.first < piece.last and piece.first < each.last]
            assert {each.operands for each in inside} == ({expected} if expected else set())
            assert {each.dtype for each in inside} <= {params[piece.param].dtype}
            if expected:
                assert inside[0].first <= piece.first and piece.last <= inside[-1].last


def test_neighbours_with_the_same_nodes_are_one_stretch() -> None:
    layout = Layout(params_of([(10, torch.float32), (20, torch.float32), (5, torch.float32), (5, torch.float64)]), 1)
    found = layout.stretches(0, [[1, 1, 0, 0], [1, 1, 1, 1]])
    places = [(each.operands, each.first, each.last) for each in found]
    assert places == [((0, 1), 0, 144), ((1,), 192, 212), ((1,), 256, 296)]


def test_a_long_stretch_is_cut_and_each_part_begins_at_an_even_place() -> None:
    layout = Layout(params_of([(3 << 20, torch.float32)]), 1)
    assert [(each.first, each.last) for each in layout.stretches(0, [[True]])] == [
        (0, 4 << 20),
        (4 << 20, 8 << 20),
        (8 << 20, 12 << 20),
    ]
