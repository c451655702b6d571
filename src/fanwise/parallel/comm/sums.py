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
from .all_reduce import AllReduce, AllReducePlan, Found, TwoShot
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
        placement: StepOptimizer,
        device: torch.device,
        *,
        by_process: bool,
    ) -> None:
        self._team = team
        self._all_reduce = all_reduce
        self._placement = placement
        self._device = device
        self._by_process = by_process
        self._mean = False
        self._grads: list[Tensor | None] | None = None  # if the all-reduce gave the whole sum at once
        self._reached: Sequence[bool] = ()
        self.settle = all_reduce.settle

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        if self._by_process:
            nodes, shards = [one_node(nodes, self._team.place)], self._team.size
        result: list[Partial] = []

        def meet() -> AllReducePlan:
            plan, total = self._meet(operation, nodes, shards, mean=mean)
            self._reached = plan.reached
            result.append(total)
            return plan

        self._mean, self._grads = mean, None
        all_reduce = self._all_reduce
        with self._aborting():
            all_reduce.begin()
            for number, node in enumerate(nodes):
                if node.value is not None:
                    all_reduce.ready(number, 0, node.value.grads)
            if isinstance(all_reduce, TwoShot):
                all_reduce.reduce_scatter(meet)
            else:
                self._grads = all_reduce.finish(meet)
        return to_device(result[0], self._device)

    def gather(self) -> list[Tensor | None]:
        grads = self._grads
        if grads is None:
            assert isinstance(self._all_reduce, TwoShot), "any other gave the whole sum"
            with self._aborting():
                grads = self._all_reduce.all_gather()
        return grads if self._mean else [None if grad is None else grad.clone() for grad in grads]

    def update_slices(self) -> None:
        assert isinstance(self._all_reduce, TwoShot), "any other has no slices"
        with self._aborting():
            self._all_reduce.update_slices(self._placement.update)
            self._placement.commit(self._reached)

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._all_reduce.abort()
            raise

    def _meet(
        self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool
    ) -> tuple[AllReducePlan, Partial]:
        """Exchange everything but the gradients. Return how they are added, and the sum of the rest."""
        placement = self._placement
        messages = self._team.gather(operation, (placement.status(), encode_nodes(nodes)))
        found = [
            Found(place, number, node)
            for place, (_, infos) in enumerate(messages)
            for number, node in enumerate(decode_nodes(infos))
        ]
        result = total([each.node.node() for each in found], shards, add)
        check_total(result)
        reached = list(map(any, zip(*(each.node.reached for each in found if each.node.reached), strict=True)))
        placement.on_statuses([status for status, _ in messages], is_sparse=bool(result.sparse))
        return AllReducePlan(found, shards, reached, result.count if mean else None), result


def one_node(nodes: Sequence[Node[Partial]], place: int) -> Node[Partial]:
    """Return the sum of this process's nodes as a leaf of a tree over the processes. It uses up the nodes."""
    values = [node.value for node in nodes if node.value is not None]
    return Node(place, place + 1, functools.reduce(add, values) if values else None)
