"""`reduce="fast"`: a process adds its own shards first."""

from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from fanwise.base.errors import WorkerLostError
from fanwise.parallel.all_reduce.sums import TeamSums
from fanwise.parallel.comm.fast import FastAllReduce
from fanwise.parallel.comm.team import Alone
from fanwise.parallel.comm.torch_group import TorchGroup
from fanwise.parallel.optim.step_optimizer import StepOptimizer
from fanwise.parallel.replica.gradients import Partial
from fanwise.parallel.shards import Node


def partial(*values: float | None, samples: int = 2) -> Partial:
    """The sums of a shard with these gradients."""
    grads = [None if value is None else torch.tensor([value]) for value in values]
    return Partial(grads, torch.tensor(1.0), samples, samples, {})


def test_a_sum_that_fails_is_aborted() -> None:
    class Refuses:
        def all_reduce(self, tensors: Sequence[Tensor]) -> None:
            raise WorkerLostError("it is gone")

    params, cpu, aborted = [nn.Parameter(torch.zeros(1))], torch.device("cpu"), list[str]()
    placement = StepOptimizer(params, torch.optim.SGD(params), in_parts=False)
    failing = FastAllReduce(cast(TorchGroup, Refuses()), params, cpu)
    failing.abort = lambda: aborted.append("aborted")  # type: ignore[method-assign]
    made = TeamSums(Alone(), failing, placement, cpu, by_process=True)
    with pytest.raises(WorkerLostError):
        made.reduce("adds", [Node(0, 1, partial(1.0))], 1, mean=True)
    assert aborted == ["aborted"]
