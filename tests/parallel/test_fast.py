"""`reduce="fast"`: a process adds its own shards first."""

from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from fanwise.base.errors import WorkerLostError
from fanwise.parallel.comm.fast import FastAllReduce
from fanwise.parallel.comm.sums import TeamSums, one_node
from fanwise.parallel.comm.team import Alone, OwnSums
from fanwise.parallel.comm.torch_group import TorchGroup
from fanwise.parallel.optim.step_optimizer import StepOptimizer
from fanwise.parallel.step.gradients import Partial
from fanwise.parallel.step.tree import Node


def partial(*values: float | None, samples: int = 2) -> Partial:
    """The sums of a shard with these gradients."""
    grads = [None if value is None else torch.tensor([value]) for value in values]
    return Partial(grads, torch.tensor(1.0), samples, samples, {})


def test_the_shards_of_a_process_become_one_node() -> None:
    nodes = [Node(2, 3, partial(1.0, None)), Node(3, 4, None), Node(4, 6, partial(2.0, 5.0, samples=3))]
    found = one_node(nodes, place=1)
    assert (found.start, found.stop) == (1, 2)
    assert found.value is not None
    assert [None if grad is None else grad.item() for grad in found.value.grads] == [3.0, 5.0]
    assert (found.value.count, found.value.samples, found.value.executed) == (5, 5, 2)
    assert one_node([Node(3, 4, None)], place=1) == Node(1, 2, None)
    assert one_node([], place=0) == Node(0, 1, None)


class OneProcess:
    """A group of one process."""

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        pass


def test_a_sum_is_made_over_the_processes_and_not_over_the_shards() -> None:
    # Of these a tree over 4 shards makes (1 + 2**-24) + (2**-24 + 2**-24) = 1 + 2**-23, from left to right it is 1.
    small = 2.0**-24
    nodes = [Node(index, index + 1, partial(value)) for index, value in enumerate([1.0, small, small, small])]
    params, cpu = [nn.Parameter(torch.zeros(1))], torch.device("cpu")
    step_optimizer = StepOptimizer(params, torch.optim.SGD(params), in_parts=False)
    made = TeamSums(
        Alone(), FastAllReduce(cast(TorchGroup, OneProcess()), params, cpu), step_optimizer, cpu, by_process=True
    )
    made.reduce("adds", nodes, 4, mean=False)
    (grad,) = made.gather_grads()
    assert grad is not None and grad.item() == 1.0
    again = [Node(index, index + 1, partial(value)) for index, value in enumerate([1.0, small, small, small])]
    exact = OwnSums()
    exact.reduce("adds", again, 4, mean=False)
    (grad,) = exact.gather_grads()
    assert grad is not None and grad.item() == 1.0 + 2.0**-23


def test_a_sum_that_fails_is_aborted() -> None:
    class Refuses:
        def all_reduce(self, tensors: Sequence[Tensor]) -> None:
            raise WorkerLostError("it is gone")

    params, cpu, aborted = [nn.Parameter(torch.zeros(1))], torch.device("cpu"), list[str]()
    step_optimizer = StepOptimizer(params, torch.optim.SGD(params), in_parts=False)
    failing = FastAllReduce(cast(TorchGroup, Refuses()), params, cpu)
    failing.abort = lambda: aborted.append("aborted")  # type: ignore[method-assign]
    made = TeamSums(Alone(), failing, step_optimizer, cpu, by_process=True)
    with pytest.raises(WorkerLostError):
        made.reduce("adds", [Node(0, 1, partial(1.0))], 1, mean=True)
    assert aborted == ["aborted"]
