"""Cut a batch into shards, assign shards to devices, and add results along a fixed binary tree.

    batch of 10, 4 shards:   cut(10, 4)      ->  0..2  3..5  6..7  8..9       samples of each shard
    4 shards on 3 devices:   assign(4, 3)    ->  0..1  2     3                shards of each device
    the tree over 4 shards:  (0 + 1) + (2 + 3)

Floating-point addition is not associative, so the order of additions affects the result. The tree depends only on the
number of shards. A device adds the siblings among its shards and passes on the few remaining nodes.
The other additions of the same tree follow when the nodes of all devices are gathered. So the result has the same bits
for every assignment of consecutive shards to devices.
"""

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node(Generic[T]):
    """A node of the tree: the sum over the shards in `range(start, stop)`. `value` is None if they have no samples."""

    start: int
    stop: int
    value: T | None


@functools.lru_cache(maxsize=256)  # a step makes the same few calls several times
def cut(count: int, parts: int) -> tuple[range, ...]:
    """Divide `range(count)` into `parts` consecutive ranges. The first `count % parts` of them are longer by one.

    If `count` is less than `parts`, the last ranges are empty.

    >>> cut(10, 4)
    (range(0, 3), range(3, 6), range(6, 8), range(8, 10))
    """
    if count < 0 or parts < 1:
        raise ValueError(f"count must be at least 0 and parts at least 1, got {count} and {parts}")
    size, num_longer = divmod(count, parts)
    starts = [part * size + min(part, num_longer) for part in range(parts + 1)]
    return tuple(range(start, stop) for start, stop in itertools.pairwise(starts))


def assign(shards: int, devices: int) -> tuple[range, ...]:
    """Return the consecutive shards of each device. Devices beyond the number of shards have none."""
    return cut(shards, devices)


@dataclass(slots=True)
class TreeSum(Generic[T]):
    """Adds values along the tree over `shards` leaves, in the order of the shards. `add` may change its first argument.

    The tree has `shards` leaves even if only some of them are put in here.
    """

    shards: int
    add: Callable[[T, T], T]
    nodes: list[Node[T]] = field(default_factory=list)

    def put(self, node: Node[T]) -> None:
        """Put in a node that starts where the last one ended. Add siblings at once.

        `nodes` has only those that wait for their sibling: at most two for each level of the tree.
        """
        assert not self.nodes or self.nodes[-1].stop == node.start, "nodes come in the order of the shards"
        self.nodes.append(node)
        while len(self.nodes) > 1 and self._are_siblings(self.nodes[-2], self.nodes[-1]):
            right, left = self.nodes.pop(), self.nodes.pop()
            self.nodes.append(Node(left.start, right.stop, self._sum(left.value, right.value)))

    def _are_siblings(self, left: Node[T], right: Node[T]) -> bool:
        size = left.stop - left.start
        # A left child covers 2**k shards and starts at a multiple of 2**(k + 1). A right child may end with the shards.
        is_left = size & (size - 1) == 0 and left.start % (2 * size) == 0
        return is_left and right.stop == min(left.start + 2 * size, self.shards)

    def _sum(self, left: T | None, right: T | None) -> T | None:
        # Adding zeros for a shard without samples would turn -0.0 into 0.0.
        return left if right is None else right if left is None else self.add(left, right)


def tree_reduce(nodes: Iterable[Node[T]], shards: int, add: Callable[[T, T], T]) -> T:
    """Return the sum over all shards, given the nodes of all devices in the order of the shards.

    At least one shard must have samples.
    """
    tree = TreeSum(shards, add)
    for node in nodes:
        tree.put(node)
    assert len(tree.nodes) == 1 and tree.nodes[0].stop == shards, f"a shard is missing: {tree.nodes}"
    value = tree.nodes[0].value
    assert value is not None, "no shard had samples"
    return value
