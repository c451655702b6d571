"""Exact all-reduce in two phases: reduce-scatter, then all-gather.

    1  every process sends the slices of its nodes of the tree to their owners     meet: which nodes each process has
    2  every process adds its slice of all nodes along the tree, and divides it    barrier
    3  every process reads the whole sum

So each process receives and adds 1/k of the gradients, for any number of shards, and each byte moves once in each
direction: the traffic of a ring (D2L 13.5, exercise 3). Every element is added in the order of the tree of `shards`, so
the bits depend neither on the owner of an element nor on how slices travel. That is left to a `Transport`: shared
memory (comm/shm_exact.py) or a process group (comm/exact.py).

Between the phases an optimizer may update this process's slice of the parameters instead of phase 3.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ..comm.flat_layout import Bucket
from ..comm.team import divide
from ..replica.gradients import total_into
from ..shards import Node
from .contract import AllReducePlan, Found


class Transport(Protocol):
    """Moves slices of gradients between processes."""

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
    """The exact `AllReduce`."""

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
