"""Flat memory: every element belongs to one owner, at a place where kernels begin; what is added at once."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fanwise.parallel.comm.flat_layout import Layout, flat_gradient, join_buckets

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
SIZES = st.lists(st.tuples(st.integers(0, 90), st.sampled_from(DTYPES)), max_size=6)


def params_of(sizes: list[tuple[int, torch.dtype]]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in sizes]


@given(sizes=SIZES, owners=st.integers(1, 5), data=st.data())
def test_every_element_has_one_owner(sizes: list[tuple[int, torch.dtype]], owners: int, data: st.DataObject) -> None:
    params = params_of(sizes)
    places = data.draw(st.sets(st.sampled_from(range(len(params))))) if params else set()
    layout = Layout(params, sorted(places))
    each = layout.slice_bytes(owners)
    memory = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    assert each % 64 == 0 and each * owners >= layout.size_bytes
    for owner in range(owners):
        buckets = layout.buckets_of(owner, owners)
        for bucket in buckets:
            assert bucket.begin_byte % 64 == 0
            found = bucket.view(memory)
            found.add_(bucket.view_in_param(torch.arange(len(params[bucket.param_index])).to(bucket.dtype)) + 1)
            begin = owner * each
            assert torch.equal(bucket.view(memory[begin : begin + each], begin), found)
    for place, (param, whole) in enumerate(zip(params, layout.param_views(memory), strict=True)):
        assert (whole is None) == (place not in places)
        assert whole is None or torch.equal(whole, torch.arange(len(param)).to(param.dtype) + 1)


@given(sizes=SIZES, owners=st.integers(1, 4), most_bytes=st.integers(64, 512), data=st.data())
def test_joined_buckets_cover_what_nodes_have_and_nothing_else(
    sizes: list[tuple[int, torch.dtype]], owners: int, most_bytes: int, data: st.DataObject
) -> None:
    params = params_of(sizes)
    layout = Layout(params)
    flags = st.lists(st.booleans(), min_size=len(params), max_size=len(params))
    reached = data.draw(st.lists(flags, max_size=3))

    def operands(place: int) -> tuple[int, ...]:
        return tuple(node for node, has in enumerate(reached) if has[place])

    for owner in range(owners):
        found = join_buckets(layout.buckets_of(owner, owners), reached, most_bytes)
        assert all(before.end_byte <= after.begin_byte for before, after in itertools.pairwise(found))
        for bucket in layout.buckets_of(owner, owners):
            inside = [each for each in found if each.begin_byte < bucket.end_byte and bucket.begin_byte < each.end_byte]
            assert len(inside) == bool(operands(bucket.param_index))
            for each in inside:
                assert (each.dtype, operands(each.param_index)) == (bucket.dtype, operands(bucket.param_index))
                assert each.begin_byte <= bucket.begin_byte and bucket.end_byte <= each.end_byte
                assert each == bucket or each.end_byte - each.begin_byte <= most_bytes


def test_neighbours_with_the_same_nodes_are_joined() -> None:
    layout = Layout(params_of([(10, torch.float32), (20, torch.float32), (5, torch.float32), (5, torch.float64)]))
    found = join_buckets(layout.buckets_of(0, 1), [[1, 1, 0, 0], [1, 1, 1, 1]])
    assert [(each.param_index, each.begin_byte, each.end_byte) for each in found] == [
        (0, 0, 144),
        (2, 192, 212),
        (3, 256, 296),
    ]


def test_a_long_parameter_is_cut_and_each_part_begins_at_an_even_place() -> None:
    layout = Layout(params_of([(3 << 20, torch.float32), (4, torch.float32)]))
    found = join_buckets(layout.buckets_of(0, 1), [[True, True]])
    assert [(each.element_offset, each.begin_byte, each.end_byte) for each in found] == [
        (0, 0, 4 << 20),
        (1 << 20, 4 << 20, 8 << 20),
        (2 << 20, 8 << 20, 12 << 20),
        (0, 12 << 20, (12 << 20) + 16),
    ]


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (7,), (), (0, 3)])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_gradient_lies_as_its_parameter_whatever_the_order_of_its_axes(shape: tuple[int, ...], is_last: bool) -> None:
    like = torch.channels_last if is_last and len(shape) == 4 else torch.contiguous_format
    param = nn.Parameter(torch.zeros(shape).contiguous(memory_format=like))
    layout = Layout([param])
    memory = torch.zeros(max(layout.size_bytes, 64), dtype=torch.uint8)
    grad = torch.randn(shape)
    layout.flat_param_view(memory, 0).copy_(flat_gradient(param, grad))
    assert torch.equal(layout.param_view(memory, 0), grad) and layout.param_view(memory, 0).stride() == param.stride()
