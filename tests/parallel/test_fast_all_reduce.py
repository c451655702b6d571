"""`FastAllReduce` starts its buckets in one order, whatever the order in which gradients are computed."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from fanwise.parallel.comm import group_reduce
from fanwise.parallel.comm.all_reduce import AllReducePlan
from fanwise.parallel.comm.group_reduce import FastAllReduce
from fanwise.parallel.comm.torch_group import TorchGroup

COUNT = 4


class Group:
    """A process group of one process. Records the first element of each started bucket, and "finish"."""

    num_fast = 0

    def __init__(self) -> None:
        self.calls: list[float | str] = []

    def start_all_reduce(self, tensor: Tensor) -> None:
        self.calls.append(tensor[0].item())

    def finish_all_reduce(self) -> None:
        self.calls.append("finish")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setattr(group_reduce, "_BUCKET_BYTES", 64)  # one parameter per bucket
    return Group()


def make(group: Group) -> tuple[list[nn.Parameter], FastAllReduce]:
    """Return parameters and an all-reduce that knows from a first step that all have gradients."""
    params = [nn.Parameter(torch.ones(16)) for _ in range(COUNT)]
    all_reduce = FastAllReduce(cast(TorchGroup, group), params, torch.device("cpu"))
    reduce(all_reduce, [torch.zeros(16) for _ in params])
    group.calls.clear()
    return params, all_reduce


def reduce(
    all_reduce: FastAllReduce, grads: Sequence[Tensor | None], has_grad: Sequence[bool] = (True,) * COUNT
) -> None:
    all_reduce.reduce_scatter([grads], lambda: AllReducePlan([], 1, has_grad, None))


def backward(params: Sequence[nn.Parameter], order: Sequence[int]) -> list[Tensor | None]:
    """Compute a gradient of `index + 1` for the parameters in this order."""
    for index in order:
        (params[index] * (index + 1)).sum().backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
    return [param.grad for param in params]


@pytest.mark.parametrize(
    ("order", "started"), [([3, 2, 1, 0], [4, 3, 2, 1]), ([0, 2, 3, 1], [4, 3, 2, 1]), ([3, 0, 1], [4]), ([], [])]
)
def test_buckets_start_in_one_order_as_soon_as_earlier_ones_have_started(
    order: list[int], started: list[float], group: Group
) -> None:
    params, all_reduce = make(group)
    with all_reduce.overlap():
        grads = backward(params, order)
        assert group.calls == started
    reduce(all_reduce, grads, [index in order for index in range(COUNT)])
    expected = [index + 1.0 if index in order else 0.0 for index in reversed(range(COUNT))]
    assert group.calls == [*expected, "finish"], "parameters without a gradient are zeros"
    result = all_reduce.all_gather()
    assert [None if grad is None else grad[0].item() for grad in result] == [
        index + 1.0 if index in order else None for index in range(COUNT)
    ]


def twice(params: Sequence[nn.Parameter]) -> None:
    backward(params, [2])


def in_place(params: Sequence[nn.Parameter]) -> None:
    grad: Any = params[2].grad
    grad.mul_(2)


@pytest.mark.parametrize("change", [twice, in_place])
def test_a_gradient_that_changes_after_its_bucket_was_filled_is_an_error(
    change: Callable[[Sequence[nn.Parameter]], None], group: Group
) -> None:
    params, all_reduce = make(group)
    with all_reduce.overlap():
        backward(params, [3, 2, 1, 0])
        change(params)
    with pytest.raises(ValueError, match=r"shape \(16,\) has changed after the backward pass"):
        reduce(all_reduce, [param.grad for param in params])


def test_an_aborted_step_starts_all_buckets_and_the_next_one_waits_for_them(group: Group) -> None:
    params, all_reduce = make(group)
    with all_reduce.overlap():
        backward(params, [3])
    all_reduce.release(is_aborted=True)
    assert len(group.calls) == COUNT
    with all_reduce.overlap():
        assert group.calls[COUNT:] == ["finish"]


def test_buckets_of_one_of_several_steps_start_after_the_plan(group: Group) -> None:
    params, all_reduce = make(group)
    make(group)  # another step of the run
    with all_reduce.overlap():
        grads = backward(params, range(COUNT))
    assert group.calls == []

    def plan() -> AllReducePlan:
        group.calls.append("plan")
        return AllReducePlan([], 1, (True,) * COUNT, None)

    all_reduce.reduce_scatter([grads], plan)
    assert group.calls == ["plan", 4.0, 3.0, 2.0, 1.0, "finish"]
    all_reduce.release(is_aborted=True)
    assert group.calls[-1] == "finish"
