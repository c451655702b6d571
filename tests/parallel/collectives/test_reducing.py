"""`allreduce`, `reduce_scatter`, `broadcast`, `all_gather` beside plain sums of lists; order of additions, and errors.

k: number of arrays, one a device.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fanwise.parallel import all_gather, allreduce, broadcast, reduce_scatter
from fanwise.parallel.collectives.reducing import How
from fanwise.parallel.shards import Node, cut, total

HOWS: list[How] = ["root", "owner", "ring", "tree"]
every_how = pytest.mark.parametrize("how", HOWS)
Lists = list[list[float]]

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
MAKE: dict[str, Callable[[Sequence[float]], Any]] = {  # Any: arrays of two engines
    "torch": lambda values: torch.tensor(values, dtype=torch.float32),
    "torch-strided": lambda values: torch.tensor(values, dtype=torch.float32).repeat(2, 1).t().contiguous()[:, 0],
    "numpy": lambda values: np.array(values, np.float32),
    "numpy-backwards": lambda values: np.array(values, np.float32)[::-1].copy()[::-1],
}
every_kind = pytest.mark.parametrize("kind", MAKE)
some = settings(max_examples=25)  # for each kind, and each way: hundreds in all


@st.composite
def lists(draw: st.DrawFn) -> Lists:
    """k lists of n numbers; n may be less than k, and 0."""
    size = draw(st.integers(0, 12))
    return draw(st.lists(st.lists(FLOATS, min_size=size, max_size=size), min_size=1, max_size=9))


def bits(values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def left_to_right(values: Sequence[float]) -> float:
    """The sum in float32."""
    result = np.float32(values[0])
    for value in values[1:]:
        result += np.float32(value)
    return float(result)


def along_the_tree(values: Sequence[float]) -> float:
    nodes = [Node(place, place + 1, np.float32(value)) for place, value in enumerate(values)]
    return float(total(nodes, len(values), lambda x, y: x + y))


def by_model(columns: Lists, how: str) -> list[float]:
    """What the docstring says, an element at a time. A column holds one element of all arrays."""
    if how in ("tree", "owner"):
        return [along_the_tree(column) for column in columns]
    if how == "root":
        return [left_to_right(column) for column in columns]
    count = len(columns[0]) if columns else 1
    first = [part for part, places in enumerate(cut(len(columns), count)) for _ in places]
    return [left_to_right(column[part:] + column[:part]) for column, part in zip(columns, first, strict=True)]


def transposed(rows: Lists) -> Lists:
    return [list(column) for column in zip(*rows, strict=True)]


@every_how
@every_kind
@some
@given(rows=lists())
def test_every_device_has_the_sum_in_place_with_the_bits_of_the_documented_order(
    kind: str, how: How, rows: Lists
) -> None:
    arrays = [MAKE[kind](row) for row in rows]
    result = allreduce(arrays, how)
    expected = bits(by_model(transposed(rows), how))
    assert len(result) == len(arrays) and all(one is other for one, other in zip(result, arrays, strict=True))
    assert [bits(x.tolist()) for x in arrays] == [expected] * len(rows)


def test_the_orders_differ_where_rounding_shows_it() -> None:
    def summed(how: How) -> list[float]:
        values = [1e8, 1.0, -1e8, 1.0, 1.0]
        result: list[float] = allreduce([torch.full((5,), value) for value in values], how)[0].tolist()
        return result

    assert summed("root") == [2.0] * 5  # 1e8 + 1 is 1e8; then 0 + 1 + 1
    assert summed("tree") == summed("owner") == [1.0] * 5  # (1e8) + (-1e8) + 1
    # Slice 1 begins with 1 - 1e8, slice 2 with -1e8 + 1 + 1 + 1e8, slice 3 with 1 + 1 + 1e8, slice 4 with 1 + 1e8.
    assert summed("ring") == [2.0, 0.0, 1.0, 0.0, 1.0]


@every_kind
@some
@given(rows=lists())
def test_scattered_sums_gathered_are_the_allreduce_by_owner(kind: str, rows: Lists) -> None:
    arrays = [MAKE[kind](row) for row in rows]
    slices = reduce_scatter(arrays)
    assert [len(part) for part in slices] == [len(part) for part in cut(len(rows[0]), len(rows))]
    gathered = all_gather(slices)
    expected = bits(by_model(transposed(rows), "owner"))
    assert [bits(x.tolist()) for x in gathered] == [expected] * len(rows)
    assert [bits(x.tolist()) for x in arrays] == [bits(row) for row in rows], "the arguments have changed"
    if rows[0]:
        gathered[0][:] = 7.0
        assert all(7.0 not in x.tolist() for x in [*gathered[1:], *slices]) or 7.0 in by_model(
            transposed(rows), "owner"
        )


@every_kind
@some
@given(rows=lists(), data=st.data())
def test_all_get_what_the_root_has(kind: str, rows: Lists, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, len(rows) - 1))
    arrays = [MAKE[kind](row) for row in rows]
    result = broadcast(arrays, root)
    assert all(one is other for one, other in zip(result, arrays, strict=True))
    assert [bits(x.tolist()) for x in arrays] == [bits(rows[root])] * len(rows)


@every_how
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 2, 5), (2, 1)])
def test_shapes_of_any_number_of_axes_are_summed(how: How, shape: tuple[int, ...]) -> None:
    arrays = [torch.full(shape, float(2**place)) for place in range(3)]
    allreduce(arrays, how)
    assert all(torch.equal(x, torch.full(shape, 7.0)) for x in arrays)


@every_how
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
def test_types_are_kept_and_added_as_they_are(how: How, dtype: torch.dtype) -> None:
    arrays = [torch.arange(5).to(dtype) for _ in range(3)]
    allreduce(arrays, how)
    assert all(x.dtype == dtype and torch.equal(x, (3 * torch.arange(5)).to(dtype)) for x in arrays)


def channels_last(value: float) -> Tensor:
    x = torch.arange(2.0 * 3 * 4 * 4).reshape(2, 3, 4, 4) * value
    return x.contiguous(memory_format=torch.channels_last)


@every_how
def test_a_memory_format_is_kept_and_formats_may_differ(how: How) -> None:
    arrays = [channels_last(1.0), channels_last(2.0).contiguous(), channels_last(3.0)]
    strides = [x.stride() for x in arrays]
    allreduce(arrays, how)
    assert [x.stride() for x in arrays] == strides
    assert all(torch.equal(x, channels_last(6.0)) for x in arrays)


@every_how
def test_parameters_are_summed_outside_of_autograd(how: How) -> None:
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(3)]
    allreduce(weights, how)
    assert all(w.tolist() == [3.0] * 4 and w.is_leaf and w.requires_grad and w.grad is None for w in weights)
    assert not any(part.requires_grad for part in [*reduce_scatter(weights), *all_gather(weights)])


@every_how
def test_slices_of_one_buffer_are_summed_where_they_lie(how: How) -> None:
    buffer = np.arange(12.0).reshape(3, 4)
    expected = np.tile(buffer.sum(axis=0), (3, 1))
    allreduce(list(buffer), how)
    assert (buffer == expected).all()


# -- what is refused, and that nothing has changed then ----------------------------------------------------------------


def ones() -> Tensor:
    return torch.ones(3)


WRONG_LISTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {  # Any: whatever people pass
    "no list": (ones, TypeError, "allreduce takes a list of arrays, one a device, got torch.Tensor"),
    "empty": (list, ValueError, "got an empty one"),
    "a number": (lambda: [ones(), 3.0], TypeError, "expected an array of torch, jax, tensorflow, numpy, got"),
    "no gradient": (lambda: [ones(), None], TypeError, "tensor 1 is None: the .grad of a parameter that no loss used"),
    "shapes": (lambda: [ones(), ones()[:2]], ValueError, r"tensor 1 has the shape \(2,\), tensor 0 has the shape \(3,"),
    "dtypes": (lambda: [ones(), ones().double()], TypeError, "tensor 1 has the type float64, tensor 0 .* float32"),
    "engines": (lambda: [ones(), ones().numpy()], TypeError, "tensor 1 is an array of numpy, tensor 0 .* of torch"),
    "bool": (lambda: [ones() > 0, ones() > 1], TypeError, "a sum of bool counts nothing"),
    "sparse": (lambda: [ones(), ones().to_sparse()], TypeError, "tensor 1 is not dense .* give x.to_dense"),
    "expanded": (lambda: [torch.ones(1).expand(3), ones()], TypeError, "tensor 0 shows one element at many places"),
    "lazy": (lambda: [torch.nn.LazyLinear(2).weight], TypeError, "tensor 0 has no shape yet: run the module once"),
    "read-only": (lambda: [np.broadcast_to(np.ones(3), 3), np.ones(3)], TypeError, "tensor 0 is read-only: give x."),
    "scalar": (lambda: [np.float32(1), np.float32(1)], TypeError, "tensor 0 is a numpy scalar"),
    "masked": (lambda: [np.ma.array([1.0], mask=[True])], TypeError, "tensor 0 is masked"),
    "twice": (lambda: [ones(), x := ones(), x], ValueError, "tensors 1 and 2 share memory, .*replicate makes copies"),
    "overlapping": (lambda: [(x := torch.ones(9))[4:], x[2:7]], ValueError, "tensors 0 and 1 share memory"),
}  # fmt: skip


@every_how
@pytest.mark.parametrize("case", WRONG_LISTS)
def test_a_wrong_list_is_refused_and_left_as_it_was(how: How, case: str) -> None:
    make, error, text = WRONG_LISTS[case]
    tensors = make()
    before = [x.clone() for x in tensors if isinstance(x, Tensor) and not torch.nn.parameter.is_lazy(x)]
    with pytest.raises(error, match=text):
        allreduce(tensors, how)
    after = [x for x in tensors if isinstance(x, Tensor) and not torch.nn.parameter.is_lazy(x)]
    assert all(torch.equal(x.to_dense(), y.to_dense()) for x, y in zip(before, after, strict=True))


def test_columns_of_one_matrix_are_apart_although_they_interleave() -> None:
    matrix = torch.arange(6.0).reshape(3, 2)
    allreduce([matrix[:, 0], matrix[:, 1]], "owner")
    assert matrix.tolist() == [[1.0, 1.0], [5.0, 5.0], [9.0, 9.0]]


def test_an_unknown_way_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="one of root, owner, ring, tree, got 'rign'; did you mean 'ring'"):
        allreduce([ones()], "rign")  # type: ignore[arg-type]


@pytest.mark.parametrize("root", [-1, 2])
def test_a_root_is_a_place_in_the_list(root: int) -> None:
    with pytest.raises(ValueError, match=f"root must be a place in the list of 2, from 0, got {root}"):
        broadcast([ones(), ones()], root)


def test_parts_need_an_axis_and_equal_later_ones() -> None:
    for function in (reduce_scatter, all_gather):
        with pytest.raises(ValueError, match="tensor 0 has no axis"):
            function([torch.ones(()), torch.ones(())])
    with pytest.raises(ValueError, match=r"tensor 1 has the shape \(2, 3\), tensor 0 has the shape \(2, 2\)"):
        all_gather([torch.ones(2, 2), torch.ones(2, 3)])


def test_what_is_only_read_may_be_read_only_and_shared() -> None:
    fixed = np.broadcast_to(np.float32(2), 4)
    assert [x.tolist() for x in reduce_scatter([fixed, fixed])] == [[4.0, 4.0], [4.0, 4.0]]
    assert [x.tolist() for x in all_gather([fixed, fixed[:1]])] == [[2.0] * 5] * 2
