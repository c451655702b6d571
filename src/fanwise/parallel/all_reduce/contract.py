"""The interface of an all-reduce of gradients over the processes of a team.

    begin -> ready, ready, ... -> finish(meet) -> settle         or abort before it has finished; then the next one
                                    |
                                    meet: all processes exchange which nodes of the tree they have

`ready` may be called as soon as backward has computed some gradients of a node, so that they are sent during the rest
of backward. It does not wait for other processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from ..comm.node_info import NodeInfo


class Found(NamedTuple):
    """A node with the place of the process that has its gradients, and its number among the nodes of that process."""

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
        """Return, for each node with samples, which parameters have a gradient."""
        return [each.node.reached for each in self.found if each.node.reached]


class AllReduce(Protocol):
    """Adds gradients of the parameters of one step; see the module. One sum at a time."""

    def begin(self) -> None:
        """Begin a sum. It may overwrite the result of the last one."""
        ...

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        """Hand over final gradients of a node, in any order, each gradient once.

        It does not wait for other processes. The gradients must not change until the sum is finished or aborted.

        Args:
            number: of the node among those of this process.
            first: the index of the first of these parameters.
            grads: of that parameter and the following ones.

        Raises:
            TypeError: a gradient is sparse.
        """
        ...

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        """Return the sum of all nodes along the tree; None for parameters that no node has reached.

        Blocks until every process has the sum. It may lie in memory that all processes read: it is valid until the next
        sum begins, and what is written into it stays in this process.

        Args:
            meet: returns the plan. Called once, when other processes can read the gradients of this one. Blocks until
                all have called it.

        Raises:
            WorkerLostError: a process was lost or did not arrive in time; or the error by which the team repeats a
            step.
        """
        ...

    def settle(self) -> None:
        """Release the finished sum."""
        ...

    def abort(self) -> None:
        """Cancel the sum that was begun. Nothing of it is under way in this process when it returns."""
        ...
