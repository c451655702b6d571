"""All-reduce: adds the gradients of all processes of a team.

Terms:
    node    the sum over a range of shards that one process has executed; see step/tree.py
    slice   a contiguous part of the gradients; see flat_layout.py
    owner   the process that adds a slice of all nodes
    plan    which process has which nodes, and which parameters have a gradient. All processes have the same plan.
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

Grads = Sequence[Tensor | None]  # by parameter


class RankNode(NamedTuple):
    """A node, the index of the process that has its gradients, and its index among the nodes of that process."""

    member_index: int
    node_index: int
    node: NodeInfo


@dataclass(frozen=True, slots=True)
class AllReducePlan:
    """The operands of one sum, the same in every process."""

    rank_nodes: Sequence[RankNode]  # of all processes, in the order of the shards
    shards: int  # number of leaves of the tree
    has_grad: Sequence[bool]  # for each parameter, True if a node has a gradient of it
    count: float | Tensor | None  # divisor of the sum. None: the sum is not divided

    def flags(self) -> list[bytes]:
        """Return, for each node with samples, which parameters have a gradient."""
        return [node.has_grad for _, _, node in self.rank_nodes if node.has_grad]


class AllReduce(Protocol):
    """Adds the gradients of one step's parameters. One sum at a time."""

    def reduce_scatter(self, nodes: Sequence[Grads | None], make_plan: Callable[[], AllReducePlan]) -> None:
        """Add all nodes. Blocks until this process has its slice of the sum. Raise TypeError for a sparse gradient.

        Args:
            nodes: gradients of this process's nodes. None: a node without samples.
            make_plan: called once, after the other processes can read the gradients of this one. Blocks until all
                processes have called it.
        """

    def all_gather(self) -> Grads:
        """Return the sum; None for parameters without a gradient in any node. Blocks until every process has it.

        The sum may lie in memory that all processes read. It is valid until the next `reduce_scatter`. Changes that
        this process makes to it are not seen by the others.
        """

    def release(self, *, is_aborted: bool = False) -> None:
        """Drop references to gradients. Called after each step. `is_aborted`: the step has raised before its sum."""


class Transport(Protocol):
    """Moves gradients between processes: see group_reduce.py and shm_transports.py."""

    is_changeable: bool  # no other process reads the memory of `operand`, so sums may be written to it

    def send(self, nodes: Sequence[Grads | None]) -> None:
        """Make this process's nodes available to the owners of the slices."""

    def receive(self, plan: AllReducePlan) -> list[Bucket]:
        """Receive this process's slice of all nodes. Return the buckets of the slice."""

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor: ...
    def sum(self, bucket: Bucket) -> Tensor:
        """Return the memory for the sum of a bucket of this process's slice."""

    def barrier(self) -> None:
        """Block until every process has added, or updated, its slice. All slices of the sum are then available."""

    def whole_sum(self) -> Grads:
        """Return the sum. Called after `barrier`."""

    def release(self) -> None: ...


class ExactAllReduce:
    """Adds the nodes along the tree: reduce-scatter, then all-gather.

        1  every process sends the slices of its nodes to their owners             make_plan
        2  every owner adds its slice of all nodes along the tree, and divides it  barrier
        3  every process reads the whole sum

    Each of k processes receives and adds 1/k of the gradients, for any number of shards. Each byte moves once in each
    direction, which is the traffic of a ring (D2L 13.5, exercise 3). The order of additions is that of the tree, so the
    bits depend neither on the owner of an element nor on the transport. With the transport of small models, every
    process owns all gradients.

    Between 2 and 3 an optimizer may update this process's slice of the parameters. Then 3 is left out.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._buckets: list[Bucket] = []
        self._has_grad: Sequence[bool] = ()

    def reduce_scatter(self, nodes: Sequence[Grads | None], make_plan: Callable[[], AllReducePlan]) -> None:
        transport = self._transport
        transport.send(nodes)
        plan = make_plan()
        buckets = transport.receive(plan)
        operands = [
            Node(rank_node.node.start, rank_node.node.stop, self._operands(rank_node, buckets))
            for rank_node in plan.rank_nodes
        ]
        memory = [transport.sum(bucket) for bucket in buckets]
        sums = total_into(memory, operands, plan.shards, changes=transport.is_changeable)
        if plan.count is not None:
            divide(sums, plan.count)
        self._buckets, self._has_grad = buckets, plan.has_grad

    def all_gather(self) -> Grads:
        self._transport.barrier()
        whole = zip(self._transport.whole_sum(), self._has_grad, strict=True)
        return [grad if is_present else None for grad, is_present in whole]

    def update_slices(
        self, update: Callable[[Sequence[bool], Sequence[Bucket], Callable[[Bucket], Tensor]], None]
    ) -> None:
        """Call `update(has_grad, buckets, grad_of_bucket)` for this process's slice. Blocks until all have done so."""
        update(self._has_grad, self._buckets, self._transport.sum)
        self._transport.barrier()

    def release(self, *, is_aborted: bool = False) -> None:
        self._transport.release()

    def _operands(self, rank_node: RankNode, buckets: Sequence[Bucket]) -> list[Tensor | None] | None:
        has_grad = rank_node.node.has_grad
        if not has_grad:
            return None
        operand = self._transport.operand
        return [operand(rank_node, bucket) if has_grad[bucket.param_index] else None for bucket in buckets]
