"""`TeamSums`: the sums of one step over several processes. An `AllReduce` adds gradients, one gather all other values.

    exact   shards 0 1 2 | 3 4 5   nodes (0+1) (2) | (3) (4+5)   four operands, in the order of the tree over 6 shards
    fast    shards 0 1 2 | 3 4 5   0+1+2           | 3+4+5       two operands, in the order of the processes

A process sends one node with reduce="fast", even if its shards are several nodes of the tree. The order of additions,
and so the last bits of the result, then depends on the number of processes.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..optim.sharded import StepOptimizer
from ..step.gradients import Partial, add
from ..step.tree import Node, tree_reduce
from .all_reduce import AllReduce, AllReducePlan, ExactAllReduce, RankNode
from .group_reduce import FastAllReduce
from .node_info import infos_of, to_device
from .team import Team, check_total


class TeamSums:
    """See the module. The methods are those of `Sums`."""

    def __init__(
        self, team: Team, all_reduce: AllReduce, step_optimizer: StepOptimizer, device: torch.device, *, is_fast: bool
    ) -> None:
        self._team = team
        self._all_reduce = all_reduce
        self._step_optimizer = step_optimizer
        self._device = device
        self._is_fast = is_fast
        self._fast_reduce = all_reduce if isinstance(all_reduce, FastAllReduce) else None
        self.overlap: Callable[[], AbstractContextManager[None]] | None = nullcontext if is_fast else None
        if self._fast_reduce is not None:
            self.overlap = self._fast_reduce.overlap
        self._mean = False
        self._has_grad: Sequence[bool] = ()

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        num_leaves = shards
        if self._is_fast:
            nodes, num_leaves = [_one_node(nodes, self._team.index)], self._team.size
        result: list[Partial] = []

        def make_plan() -> AllReducePlan:
            plan, partial = self._exchange_infos(operation, nodes, num_leaves, mean=mean)
            self._has_grad = plan.has_grad
            result.append(partial)
            return plan

        self._mean = mean
        grads = [None if node.value is None else node.value.grads for node in nodes]
        self._all_reduce.reduce_scatter(grads, make_plan)
        return to_device(result[0], self._device)

    def gather_grads(self) -> list[Tensor | None]:
        grads = self._all_reduce.all_gather()
        return list(grads) if self._mean else [None if grad is None else grad.clone() for grad in grads]

    def release(self, *, is_aborted: bool = False) -> None:
        self._all_reduce.release(is_aborted=is_aborted)

    def update_slices(self) -> None:
        sharded = self._step_optimizer.sharded
        assert isinstance(self._all_reduce, ExactAllReduce) and sharded is not None, "the update is divided"
        self._all_reduce.update_slices(sharded.update)
        sharded.commit(self._has_grad)

    def _exchange_infos(
        self, operation: str, nodes: Sequence[Node[Partial]], num_leaves: int, *, mean: bool
    ) -> tuple[AllReducePlan, Partial]:
        """Exchange all values but the gradients. Return the plan for the gradients, and the sum of the other values."""
        step_optimizer = self._step_optimizer
        if self._fast_reduce is not None and self._fast_reduce.num_aborted:
            # If only some processes have aborted a step, their buckets were added to those of another attempt.
            operation += f" after {self._fast_reduce.num_aborted} failed attempts"
        messages = self._team.gather(operation, (step_optimizer.can_update_slices, infos_of(nodes)))
        rank_nodes = [
            RankNode(index, node_index, node)
            for index, (_, infos) in enumerate(messages)
            for node_index, node in enumerate(infos)
        ]
        result = tree_reduce([node.node() for _, _, node in rank_nodes], num_leaves, add)
        check_total(result)
        has_grad = list(map(any, zip(*(node.has_grad for _, _, node in rank_nodes if node.has_grad), strict=True)))
        if result.sparse or not all(can_update_slices for can_update_slices, _ in messages):
            step_optimizer.unshard()
        return AllReducePlan(rank_nodes, num_leaves, has_grad, result.count if mean else None), result


def _one_node(nodes: Sequence[Node[Partial]], index: int) -> Node[Partial]:
    """Return the sum of this process's nodes as leaf `index` of a tree over the processes. Changes the nodes."""
    values = [node.value for node in nodes if node.value is not None]
    return Node(index, index + 1, functools.reduce(add, values) if values else None)
