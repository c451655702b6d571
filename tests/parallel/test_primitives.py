"""`replicate`, `split_batch` and `allreduce` compared with plain sums of lists, and the order of their additions."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fanwise.parallel import allreduce, replicate, split_batch
from fanwise.parallel.primitives import AlgorithmName
from fanwise.parallel.step.tree import Node, cut, tree_reduce

ALGORITHMS: list[AlgorithmName] = ["root", "owner", "ring", "tree"]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
Lists = list[list[float]]
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)


@st.composite
def lists(draw: st.DrawFn) -> Lists:
    """k lists of n numbers; n may be less than k, and 0."""
    size = draw(st.integers(0, 12))
    return draw(st.lists(st.lists(FLOATS, min_size=size, max_size=size), min_size=1, max_size=9))


def bits(values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def left_to_right(values: Sequence[float]) -> float:
    result = np.float32(values[0])
    for value in values[1:]:
        result += np.float32(value)
    return float(result)


def along_the_tree(values: Sequence[float]) -> float:
    nodes = [Node(place, place + 1, np.float32(value)) for place, value in enumerate(values)]
    return float(tree_reduce(nodes, len(values), lambda x, y: x + y))


def by_model(columns: Lists, algorithm: str) -> list[float]:
    """The documented sum, an element at a time. A column holds one element of all tensors."""
    if algorithm in ("tree", "owner"):
        return [along_the_tree(column) for column in columns]
    if algorithm == "root":
        return [left_to_right(column) for column in columns]
    count = len(columns[0]) if columns else 1
    first = [part for part, places in enumerate(cut(len(columns), count)) for _ in places]
    return [left_to_right(column[part:] + column[:part]) for column, part in zip(columns, first, strict=True)]


@every_algorithm
@pytest.mark.parametrize("is_strided", [False, True])
@given(rows=lists())
def test_every_device_has_the_sum_in_place_with_the_bits_of_the_documented_order(
    is_strided: bool, algorithm: AlgorithmName, rows: Lists
) -> None:
    tensors = [torch.tensor(row, dtype=torch.float32) for row in rows]
    if is_strided:
        tensors = [tensor.repeat(2, 1).t().contiguous()[:, 0] for tensor in tensors]
    result = allreduce(tensors, algorithm)
    expected = bits(by_model([list(column) for column in zip(*rows, strict=True)], algorithm))
    assert all(one is other for one, other in zip(result, tensors, strict=True))
    assert [bits(x.tolist()) for x in tensors] == [expected] * len(rows)


@every_algorithm
@pytest.mark.parametrize("shape", [(), (0,), (3, 2, 5)])
def test_shapes_of_any_number_of_axes_are_summed(algorithm: AlgorithmName, shape: tuple[int, ...]) -> None:
    tensors = allreduce([torch.full(shape, float(2**place)) for place in range(3)], algorithm)
    assert all(torch.equal(x, torch.full(shape, 7.0)) for x in tensors)


@every_algorithm
def test_parameters_and_memory_formats_are_kept(algorithm: AlgorithmName) -> None:
    weights = [nn.Parameter(torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)) for _ in range(3)]
    strides = weights[0].stride()
    allreduce(weights, algorithm)
    assert all(w.is_leaf and w.requires_grad and w.stride() == strides and bool((w == 3).all()) for w in weights)


def ones() -> Tensor:
    return torch.ones(3)


WRONG_LISTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no list": (ones, TypeError, "takes a list of at least one tensor"),
    "empty": (list, TypeError, "takes a list of at least one tensor"),
    "a number": (lambda: [ones(), 3.0], TypeError, "tensor 1 is float"),
    "no gradient": (
        lambda: [ones(), None],
        TypeError,
        r"tensor 1 is NoneType: a parameter has no .grad if no loss used it",
    ),
    "shapes": (
        lambda: [ones(), ones()[:2]],
        ValueError,
        r"tensor 1 is torch.float32 \(2,\), but tensor 0 is .* \(3,\)",
    ),
    "dtypes": (
        lambda: [ones(), ones().double()],
        ValueError,
        "tensor 1 is torch.float64 .*, but tensor 0 is torch.f",
    ),
    "bool": (
        lambda: [ones() > 0, ones() > 1],
        TypeError,
        "torch.bool; allreduce needs dense numeric tensors",
    ),
    "sparse": (lambda: [ones(), ones().to_sparse()], TypeError, "tensor 1 is torch.sparse_coo"),
    "twice": (lambda: [ones(), x := ones(), x], ValueError, "share memory.*replicate"),
}


@pytest.mark.parametrize("case", WRONG_LISTS)
def test_a_wrong_list_is_refused_and_left_as_it_was(case: str) -> None:
    make, error, text = WRONG_LISTS[case]
    tensors = make()
    before = [x.clone() for x in tensors if isinstance(x, Tensor)]
    with pytest.raises(error, match=text):
        allreduce(tensors)
    after = [x for x in tensors if isinstance(x, Tensor)]
    assert all(torch.equal(x.to_dense(), y.to_dense()) for x, y in zip(before, after, strict=True))


def test_an_unknown_way_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="one of root, owner, ring, tree, got 'rign'; did you mean 'ring'"):
        allreduce([ones()], "rign")  # type: ignore[arg-type]


def test_replicas_are_leaves_with_memory_of_their_own() -> None:
    layer = nn.Linear(2, 3)
    layer.bias.requires_grad_(False)
    params = [*layer.parameters(), torch.arange(3), layer.weight * 2]
    replicas = replicate(iter(params), [torch.device("cpu"), "cpu"])
    for replica in replicas:
        assert all(
            torch.equal(copy, x) and copy.stride() == x.stride() for copy, x in zip(replica, params, strict=True)
        )
        assert [copy.requires_grad for copy in replica] == [True, False, False, True]
        assert [isinstance(copy, nn.Parameter) for copy in replica] == [True, True, False, False]
        assert all(copy.is_leaf and copy.grad is None for copy in replica)
    assert len({x.data_ptr() for x in [*params, *replicas[0], *replicas[1]]}) == 12


def test_tied_parameters_stay_tied_in_each_replica() -> None:
    tied = nn.Parameter(torch.ones(2))
    one, two = replicate([tied, tied], ["cpu"] * 2)
    assert one[0] is one[1] and one[0] is not two[0]


@pytest.mark.parametrize("devices", ["cpu", 2, []], ids=repr)
def test_devices_are_a_list_of_at_least_one(devices: Any) -> None:
    for call in (lambda: replicate([ones()], devices), lambda: split_batch(ones(), devices)):
        with pytest.raises(TypeError, match="devices must be a list"):
            call()


@given(rows=st.integers(0, 20), count=st.integers(1, 9))
def test_parts_are_views_of_consecutive_rows_as_even_as_can_be(rows: int, count: int) -> None:
    X = torch.arange(3.0 * rows).reshape(rows, 3)
    X_parts, y_parts = split_batch(X, torch.arange(rows), ["cpu"] * count)
    sizes = [len(part) for part in X_parts]
    assert sizes == [len(part) for part in y_parts] == sorted(sizes, reverse=True)
    assert len(sizes) == count and max(sizes) - min(sizes) <= 1
    X += 1
    assert torch.equal(torch.cat(X_parts), X), "the parts are copies"


def test_wrong_arguments_of_split_batch_are_refused() -> None:
    for shapes in ([(3,), (2,)], [()]):
        with pytest.raises(ValueError, match="all need a first axis of the same length"):
            split_batch(*map(torch.ones, shapes), ["cpu"])
    for arguments in ((), (["cpu"],), (ones(), ones())):
        with pytest.raises(TypeError, match=r"split_batch\(X, y, devices\)|devices must be a list"):
            split_batch(*arguments)
    with pytest.raises(TypeError, match="params has a Linear: give tensors"):
        replicate([nn.Linear(1, 1)], ["cpu"])  # type: ignore[list-item]
