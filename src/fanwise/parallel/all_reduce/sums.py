"""The sums of one step over several processes: gradients by an `AllReduce`, all else in what the team gathers.

    exact   shards 0 1 2 | 3 4 5   nodes (0+1) (2) | (3) (4+5)   four operands, in the order of the tree over 6 shards
    fast    shards 0 1 2 | 3 4 5   0+1+2           | 3+4+5       two operands, in the order of the processes

With reduce="fast" less is sent and added when the shards of a process are not one node of the tree. Which additions are
made depends on the number of processes then, and so do the last bits of the result.
"""

import functools
from collections.abc import Sequence

import torch

from ..comm.node_info import decode_nodes, encode_nodes, to_device
from ..comm.team import Team, check_total
from ..optim.step_optimizer import StepOptimizer
from ..replica.gradients import Partial, add
from ..shards import Node, total
from .contract import AllReduce, AllReducePlan, Found


class TeamSums:
    """See the module.

    Args:
        device: of the gradients. by_process: one operand a process, as reduce="fast".
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
        self.settle = all_reduce.settle

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        if self._by_process:
            nodes, shards = [one_node(nodes, self._team.place)], self._team.size
        learnt: list[tuple[AllReducePlan, Partial]] = []

        def meet() -> AllReducePlan:
            learnt.append(self._meet(what, nodes, shards, mean=mean))
            return learnt[0][0]

        all_reduce = self._all_reduce
        all_reduce.begin()
        try:
            for number, node in enumerate(nodes):
                if node.value is not None:
                    all_reduce.ready(number, 0, node.value.grads)
            grads = all_reduce.finish(meet)
        except BaseException:
            all_reduce.abort()
            raise
        ((met, done),) = learnt
        if met.update is not None:
            self._placement.commit(met.reached)
            return done
        done.grads = grads if mean else [None if grad is None else grad.clone() for grad in grads]
        return to_device(done, self._device)

    def _meet(
        self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool
    ) -> tuple[AllReducePlan, Partial]:
        """What all have, and the sum of it but for the gradients."""
        placement = self._placement
        said = self._team.gather(what, (placement.status(), encode_nodes(nodes)))
        found = [
            Found(place, number, node)
            for place, (_, theirs) in enumerate(said)
            for number, node in enumerate(decode_nodes(theirs))
        ]
        done = total([each.node.node() for each in found], shards, add)
        check_total(done)
        reached = list(map(any, zip(*(each.node.reached for each in found if each.node.reached), strict=True)))
        placement.on_statuses([its for its, _ in said], is_sparse=bool(done.sparse))
        update = functools.partial(placement.update, reached) if mean and placement.is_sharded else None
        return AllReducePlan(found, shards, reached, done.count if mean else None, update), done


def one_node(nodes: Sequence[Node[Partial]], place: int) -> Node[Partial]:
    """The sum of what this process brings, as a leaf of a tree over the processes. The nodes are used up."""
    values = [node.value for node in nodes if node.value is not None]
    return Node(place, place + 1, functools.reduce(add, values) if values else None)
