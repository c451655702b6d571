"""What adds gradients over the processes of a team: `AllReduce`.

    begin -> ready, ready, ... -> finish(meet) -> settle         or, before it is finished, abort; then the next one
                                    |
                                    meet: all learn which nodes of the tree each process has, and what they reached

`ready` may be called as soon as backward has made some gradients of a node, so that they are sent beside the rest of
backward; it waits for no other process. Whether that pays is the caller's to say: on CPUs it does not, since the cores
that would copy are those that compute.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from ..teams.node_info import NodeInfo


class Found(NamedTuple):
    """A node, and where its gradients are: the place of the process that has it, and which of its nodes it is."""

    place: int
    number: int
    node: NodeInfo


@dataclass(frozen=True, slots=True)
class AllReducePlan:
    """How one sum is computed, the same in every process.

    Attributes:
        found: the nodes of all processes, in the order of the shards.
        shards: leaves of the tree.
        reached: for each parameter, whether a node has a gradient of it.
        count: the divisor of the sum; None if it is not divided.
    """

    found: Sequence[Found]
    shards: int
    reached: Sequence[bool]
    count: float | Tensor | None

    def flags(self) -> list[bytes]:
        """Of each node with samples, which parameters it has reached."""
        return [each.node.reached for each in self.found if each.node.reached]


class AllReduce(Protocol):
    """See the module. Of the parameters of one step, for one sum at a time."""

    def begin(self) -> None:
        """A sum begins. What the last one gave may be overwritten from now on."""
        ...

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        """A bucket of gradients of an own node is final. Buckets and nodes in any order, each gradient once.

        Does not wait for others. The gradients stay as they are until the sum is finished, or aborted.

        Args:
            number: of the node, among those that this process has.
            first: the place of the first of these parameters. grads: theirs and those of the parameters after it.

        Raises:
            TypeError: a gradient is sparse.
        """
        ...

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        """Return the sum of all nodes along the tree; None for parameters that no node has reached.

        Blocks until every process has the sum. It may lie in memory that all processes read: it is valid until the next
        sum begins, and what is written into it stays in this process.

        Args:
            meet: called once, when what this process handed in can be had; blocks until all have called it.

        Raises:
            WorkerLostError, or what the team raises to begin again, when a process is gone or does not come.
        """
        ...

    def settle(self) -> None:
        """The sum that was finished is not needed any more."""
        ...

    def abort(self) -> None:
        """The sum that was begun is not wanted any more. When it returns nothing of it is under way here."""
        ...
