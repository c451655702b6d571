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

from ..step.gradients import total_into
from ..step.tree import Node
from .flat_layout import Bucket
from .node_info import NodeInfo
from .team import divide


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


class Transport(Protocol):
    """Moves slices of gradients between processes: by shared memory (shm_exact.py) or a process group (exact.py)."""

    def hand_out(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        """Send the slices of these gradients of an own node to their owners. Arguments as of `AllReduce.ready`."""
        ...

    def wait(self) -> None:
        """Block until the receivers can use what was sent."""
        ...

    def bring(self, met: AllReducePlan) -> list[Bucket]:
        """Receive this process's slice of all nodes. Return the buckets that are added at once."""
        ...

    def operand(self, each: Found, bucket: Bucket) -> Tensor:
        """Return a bucket of a node."""
        ...

    def sum(self, bucket: Bucket) -> Tensor:
        """Return the memory for the sum of a bucket of this process's slice."""
        ...

    def publish(self) -> None:
        """Make the sum of this process's slice available to the others."""
        ...

    def meet(self) -> None:
        """Block until every process has published its slice, or updated it."""
        ...

    def collect(self) -> list[Tensor | None]:
        """Return the whole sum."""
        ...

    def settle(self) -> None:
        """Release the sum."""
        ...

    def abort(self) -> None:
        """Cancel what was sent. Nothing is under way when it returns."""
        ...


class TwoShot:
    """The exact `AllReduce`, in two phases: reduce-scatter, then all-gather.

        1  every process sends the slices of its nodes of the tree to their owners    meet: which nodes each process has
        2  every process adds its slice of all nodes along the tree, and divides it   barrier
        3  every process reads the whole sum

    So each process receives and adds 1/k of the gradients, for any number of shards, and each byte moves once in each
    direction: the traffic of a ring (D2L 13.5, exercise 3). Every element is added in the order of the tree of
    `shards`, so the bits depend neither on the owner of an element nor on how slices travel.

    Between the phases an optimizer may update this process's slice of the parameters instead of phase 3.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._buckets: list[Bucket] = []
        self._reached: Sequence[bool] = ()
        self.ready, self.settle, self.abort = transport.hand_out, transport.settle, transport.abort

    def begin(self) -> None:
        """A new sum overwrites the last one."""

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        self.reduce_scatter(meet)
        return self.all_gather()

    def reduce_scatter(self, meet: Callable[[], AllReducePlan]) -> None:
        """Compute this process's slice of the sum. Arguments and errors as of `finish`."""
        transport = self._transport
        transport.wait()
        plan = meet()
        buckets = transport.bring(plan)
        nodes = [Node(each.node.start, each.node.stop, self._operands(each, buckets)) for each in plan.found]
        sums = total_into([transport.sum(bucket) for bucket in buckets], nodes, plan.shards, changes=True)
        if plan.count is not None:
            divide(sums, plan.count)
        transport.publish()
        self._buckets, self._reached = buckets, plan.reached

    def all_gather(self) -> list[Tensor | None]:
        """Return the whole sum. Blocks until every process has its slice."""
        self._transport.meet()
        whole = zip(self._transport.collect(), self._reached, strict=True)
        return [grad if is_reached else None for grad, is_reached in whole]

    def update_slices(
        self, update: Callable[[Sequence[bool], Sequence[Bucket], Callable[[Bucket], Tensor]], None]
    ) -> None:
        """Call `update(reached, buckets, gradient_of_bucket)` for this process's slice. Blocks until all have."""
        update(self._reached, self._buckets, self._transport.sum)
        self._transport.meet()

    def _operands(self, each: Found, buckets: Sequence[Bucket]) -> list[Tensor | None] | None:
        """Return the slice of a node; None if the node has no samples."""
        reached = each.node.reached
        if not reached:
            return None
        operand = self._transport.operand
        return [operand(each, bucket) if reached[bucket.param] else None for bucket in buckets]
