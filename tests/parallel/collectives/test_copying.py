"""`replicate` and `split_batch`: independent leaves, and parts that are views where they can be."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fanwise.parallel import allreduce, replicate, split_batch
from fanwise.tensor import devices, same_memory


def test_replicas_are_leaves_with_memory_of_their_own() -> None:
    w = torch.ones(2, 3, requires_grad=True)
    (w * 2).sum().backward()  # type: ignore[no-untyped-call]
    params = [w, torch.arange(3), w * 2]
    one, two = replicate(params, ["cpu"] * 2)
    for replica in (one, two):
        assert all(torch.equal(copy, x) and copy.dtype == x.dtype for copy, x in zip(replica, params, strict=True))
        assert [copy.requires_grad for copy in replica] == [True, False, True]
        assert all(copy.is_leaf and copy.grad is None for copy in replica)
        assert not any(same_memory(copy, x) for copy, x in zip(replica, params, strict=True))
    assert not any(same_memory(copy, other) for copy, other in zip(one, two, strict=True))


def test_parameters_stay_parameters_and_frozen_ones_frozen() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    ((weight, bias),) = replicate(layer.parameters(), [torch.device("cpu")])
    assert isinstance(weight, nn.Parameter) and weight.requires_grad
    assert isinstance(bias, nn.Parameter) and not bias.requires_grad
    (state,) = replicate(layer.state_dict(), ["cpu"])
    assert list(state) == ["weight", "bias"] and not state["weight"].requires_grad


def test_strides_are_kept() -> None:
    x = torch.arange(96.0).reshape(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    y = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for copy in replicate([x, y, x.permute(3, 0, 1, 2)], ["cpu"] * 2):
        assert [copy[0].stride(), copy[2].stride()] == [x.stride(), x.permute(3, 0, 1, 2).stride()]
        assert copy[1].strides == y.strides


def test_tied_parameters_stay_tied_in_each_replica() -> None:
    tied = nn.Parameter(torch.ones(2))
    one, two = replicate({"in": tied, "out": tied, "more": [tied, 3, None]}, ["cpu"] * 2)
    assert one["in"] is one["out"] is one["more"][0] and one["more"][1:] == [3, None]
    assert one["in"] is not two["in"]


def test_what_is_no_array_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"params\['net'\] is no array but torch.nn.*Linear; .* list\(module.parameters"
    ):
        replicate({"net": nn.Linear(1, 1)}, ["cpu"])


def test_devices_that_are_not_there_are_refused_with_those_that_are() -> None:
    x = torch.ones(3)
    for call in (lambda: replicate([x], ["cpu", "xpu:99"]), lambda: split_batch(x, ["cpu", "xpu:99"])):
        with pytest.raises(
            ValueError, match=f"^torch has no device 'xpu:99' here, it has {', '.join(devices('torch'))}$"
        ):
            call()
    with pytest.raises(ValueError, match=r"^numpy has no device 'cuda:0' here, it has cpu$"):
        split_batch(np.ones(3), ["cuda:0"])


@pytest.mark.parametrize(("devices", "error"), [("cpu", TypeError), (2, TypeError), ([], ValueError)], ids=repr)
def test_devices_are_a_list_of_at_least_one(devices: Any, error: type[Exception]) -> None:  # Any: wrong on purpose
    for call in (lambda: replicate([torch.ones(1)], devices), lambda: split_batch(torch.ones(1), devices)):
        with pytest.raises(error, match="devices is "):
            call()


# -- split_batch -------------------------------------------------------------------------------------------------------


@given(rows=st.integers(0, 20), count=st.integers(1, 9))
def test_parts_are_views_of_consecutive_rows_as_even_as_can_be(rows: int, count: int) -> None:
    X, y = torch.arange(3.0 * rows).reshape(rows, 3), np.arange(rows)
    X_parts, y_parts = split_batch(X, y, ["cpu"] * count)
    assert len(X_parts) == len(y_parts) == count
    assert torch.equal(torch.cat(X_parts), X) and (np.concatenate(y_parts) == y).all()
    sizes = [len(part) for part in X_parts]
    assert sizes == [len(part) for part in y_parts] == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1
    X += 1
    y += 1
    assert torch.equal(torch.cat(X_parts), X) and (np.concatenate(y_parts) == y).all(), "the parts are copies"


def test_any_number_of_arrays_is_split() -> None:
    x = torch.arange(4)
    assert [part.tolist() for part in split_batch(x, ["cpu"] * 2)[0]] == [[0, 1], [2, 3]]
    assert len(split_batch(x, x, x, devices=["cpu"])) == 3


def test_gradients_flow_back_through_the_parts() -> None:
    x = torch.ones(3, requires_grad=True)
    one, two = split_batch(x, ["cpu"] * 2)[0]
    (one.sum() + 5 * two.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 1.0, 5.0]


def test_arrays_have_rows_and_as_many() -> None:
    with pytest.raises(ValueError, match="array 1 has 2 rows, array 0 has 3"):
        split_batch(torch.ones(3), torch.ones(2), ["cpu"])
    with pytest.raises(ValueError, match="array 0 has no axis"):
        split_batch(torch.ones(()), ["cpu"])
    for arguments in ((), (["cpu"],)):
        with pytest.raises(TypeError, match=r"split_batch\(X, y, devices\)"):
            split_batch(*arguments)
    with pytest.raises(TypeError, match=r"split_batch\(X, y, devices\)"):
        split_batch(devices=["cpu"])


# -- both, as the book uses them ---------------------------------------------------------------------------------------


def gradients(params: list[Tensor], X: Tensor, y: Tensor, count: int) -> list[Tensor]:
    """Of the summed loss, by data parallelism over `count` CPU devices."""
    devices = ["cpu"] * count
    replicas = replicate(params, devices)
    for (w, b), X_part, y_part in zip(replicas, *split_batch(X, y, devices), strict=True):
        cross_entropy(X_part @ w + b, y_part, reduction="sum").backward()  # type: ignore[no-untyped-call]
    for number in range(len(params)):
        allreduce([replica[number].grad for replica in replicas], "owner")
    return [param.grad for param in replicas[-1]]


@pytest.mark.parametrize("count", [2, 3, 7, 12])
def test_k_devices_have_the_gradient_of_one_also_with_fewer_rows_than_devices(count: int) -> None:
    chance = torch.Generator().manual_seed(1)
    X, y = torch.randn(7, 4, generator=chance), torch.randint(3, (7,), generator=chance)
    params = [torch.randn(4, 3, generator=chance).requires_grad_(), torch.zeros(3, requires_grad=True)]
    for one, many in zip(gradients(params, X, y, 1), gradients(params, X, y, count), strict=True):
        torch.testing.assert_close(many, one)
