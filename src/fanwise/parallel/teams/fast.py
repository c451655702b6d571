"""`reduce="fast"` for processes that share a memory: one operand a process, whatever shards it executed.

    exact   shards 0 1 2 | 3 4 5   nodes (0+1) (2) | (3) (4+5)   four operands, in the order of the tree over 6 shards
    fast    shards 0 1 2 | 3 4 5   0+1+2           | 3+4+5       two operands, in the order of the processes

So less is written and added when the shards of a process are not one node of the tree. Which additions are made depends
on the number of processes, and so do the last bits of the result.
"""

import functools
from collections.abc import Sequence

from ..replica.gradients import Partial, add
from ..shards import Node
from .team import Sums, Team


class FastSums:
    """Sums by process, made with the sums of a team."""

    def __init__(self, team: Team, sums: Sums) -> None:
        self._team = team
        self._sums = sums

    @property
    def updates(self) -> bool:
        return self._sums.updates

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        own = one_node(nodes, self._team.place)
        return self._sums.total(what, [own], self._team.size, mean=mean)

    def settle(self) -> None:
        self._sums.settle()

    def update_whole(self) -> None:
        self._sums.update_whole()


def one_node(nodes: Sequence[Node[Partial]], place: int) -> Node[Partial]:
    """The sum of what this process brings, as a leaf of a tree over the processes. The nodes are used up."""
    values = [node.value for node in nodes if node.value is not None]
    return Node(place, place + 1, functools.reduce(add, values) if values else None)
