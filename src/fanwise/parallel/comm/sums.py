"""The sums of one step over several processes: gradients by an `AllReduce`, everything else in one gather.

    exact   shards 0 1 2 | 3 4 5   nodes (0+1) (2) | (3) (4+5)   four operands, in the order of the tree over 6 shards
    fast    shards 0 1 2 | 3 4 5   0+1+2           | 3+4+5       two operands, in the order of the processes

With reduce="fast" fewer bytes are sent and added if the shards of a process are not one node of the tree. The order of
additions, and so the last bits of the result, then depends on the number of processes.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..optim.step_optimizer import StepOptimizer
from ..step.gradients import Partial, add
from ..step.tree import Node, total
from .all_reduce import AllReduce, AllReducePlan, RankNode, TwoShot
from .node_info import decode_nodes, encode_nodes, to_device
from .team import Team, check_total


class TeamSums:
    """See the module.

    Args:
        device: of the gradients.
        by_process: each process first adds its own shards, as with reduce="fast".
    """

    def __init__(
        self,
        team: Team,
        all_reduce: AllReduce,
        step_optimizer: StepOptimizer,
        device: torch.device,
        *,
        by_process: bool,
    ) -> None:
        self._team = team
        self._all_reduce = all_reduce
        self._step_optimizer = step_optimizer
        self._device = device
        self._by_process = by_process
        self._mean = False
        self._grads: list[Tensor | None] | None = None  # if the all-reduce gave the whole sum at once
        self._has_grad: Sequence[bool] = ()

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        num_leaves = shards
        if self._by_process:
            nodes, num_leaves = [one_node(nodes, self._team.place)], self._team.size
        result: list[Partial] = []

        def make_plan() -> AllReducePlan:
            plan, partial = self._exchange_infos(operation, nodes, num_leaves, mean=mean)
            self._has_grad = plan.has_grad
            result.append(partial)
            return plan

        self._mean, self._grads = mean, None
        all_reduce = self._all_reduce
        with self._aborting():
            all_reduce.begin()
            for node_index, node in enumerate(nodes):
                if node.value is not None:
                    all_reduce.submit(node_index, 0, node.value.grads)
            if isinstance(all_reduce, TwoShot):
                all_reduce.reduce_scatter(make_plan)
            else:
                self._grads = all_reduce.finish(make_plan)
        return to_device(result[0], self._device)

    def gather_grads(self) -> list[Tensor | None]:
        grads = self._grads
        if grads is None:
            assert isinstance(self._all_reduce, TwoShot), "any other gave the whole sum"
            with self._aborting():
                grads = self._all_reduce.all_gather()
        return grads if self._mean else [None if grad is None else grad.clone() for grad in grads]

    def release(self) -> None:
        self._all_reduce.release()

    def update_slices(self) -> None:
        assert isinstance(self._all_reduce, TwoShot), "any other has no slices"
        with self._aborting():
            self._all_reduce.update_slices(self._step_optimizer.update)
            self._step_optimizer.commit(self._has_grad)

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._all_reduce.abort()
            raise

    def _exchange_infos(
        self, operation: str, nodes: Sequence[Node[Partial]], num_leaves: int, *, mean: bool
    ) -> tuple[AllReducePlan, Partial]:
        """Exchange everything but the gradients. Return how they are added, and the sum of the rest."""
        step_optimizer = self._step_optimizer
        messages = self._team.gather(operation, (step_optimizer.can_update_slices, encode_nodes(nodes)))
        rank_nodes = [
            RankNode(place, node_index, node)
            for place, (_, infos) in enumerate(messages)
            for node_index, node in enumerate(decode_nodes(infos))
        ]
        result = total([node.node() for _, _, node in rank_nodes], num_leaves, add)
        check_total(result)
        has_grad = list(map(any, zip(*(node.has_grad for _, _, node in rank_nodes if node.has_grad), strict=True)))
        if result.sparse or not all(can_update_slices for can_update_slices, _ in messages):
            step_optimizer.unshard()
        return AllReducePlan(rank_nodes, num_leaves, has_grad, result.count if mean else None), result


def one_node(nodes: Sequence[Node[Partial]], place: int) -> Node[Partial]:
    """Return the sum of this process's nodes as a leaf of a tree over the processes. It uses up the nodes."""
    values = [node.value for node in nodes if node.value is not None]
    return Node(place, place + 1, functools.reduce(add, values) if values else None)
