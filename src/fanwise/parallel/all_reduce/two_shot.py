"""Gradients of all processes, each of which adds the slice that it owns: reduce-scatter, then all-gather.

    1  each hands out the slices of others of its nodes of the tree          meet: what each node holds
    2  each adds its own slice of all nodes, along the tree, and divides     meet again
    3  each gets the whole sum

So a process gets and adds 1/k of what there is, whatever the number of shards, and bytes move once each way: the
traffic of a ring (D2L 13.5, exercise 3). The tree is that of `shards`, and every element is added in its order, so the
bits do not depend on who owns it, nor on how slices travel, which is a `Transport`'s matter: through memory that
all share (comm/shm_exact.py) or over a process group (comm/exact.py).
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
    """Where one process has what is added, and how slices get there and away."""

    def hand_out(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        """These gradients of an own node, in slices, to those who own them. As `AllReduce.ready`."""
        ...

    def wait(self) -> None:
        """Block until what was handed out can be had."""
        ...

    def bring(self, met: AllReducePlan) -> list[Bucket]:
        """Have our slice of all nodes here. Returns what is added at once."""
        ...

    def operand(self, each: Found, bucket: Bucket) -> Tensor:
        """A bucket of one of those."""
        ...

    def sum(self, bucket: Bucket) -> Tensor:
        """Where a bucket of our slice is to be added."""
        ...

    def publish(self) -> None:
        """Our slice has been added."""
        ...

    def meet(self) -> None:
        """Block until all have published, and updated."""
        ...

    def collect(self) -> list[Tensor | None]:
        """The whole sum."""
        ...

    def settle(self) -> None:
        """The sum is not needed any more."""
        ...

    def abort(self) -> None:
        """What was handed out is not wanted any more; nothing is under way."""
        ...


class TwoShot:
    """The exact `AllReduce`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.ready, self.settle, self.abort = transport.hand_out, transport.settle, transport.abort

    def begin(self) -> None:
        """What was handed out before is overwritten."""

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        transport = self._transport
        transport.wait()
        met = meet()
        buckets = transport.bring(met)
        nodes = [Node(each.node.start, each.node.stop, self._operands(each, buckets)) for each in met.found]
        sums = total_into([transport.sum(bucket) for bucket in buckets], nodes, met.shards, changes=True)
        if met.count is not None:
            divide(sums, met.count)
        transport.publish()
        if met.update is not None:
            met.update(buckets, transport.sum)
        transport.meet()
        if met.update is not None:
            return []
        whole = zip(transport.collect(), met.reached, strict=True)
        return [grad if is_reached else None for grad, is_reached in whole]

    def _operands(self, each: Found, buckets: Sequence[Bucket]) -> list[Tensor | None] | None:
        """A node's gradients of our slice. None: it has no samples."""
        reached = each.node.reached
        if not reached:
            return None
        operand = self._transport.operand
        return [operand(each, bucket) if reached[bucket.param] else None for bucket in buckets]
