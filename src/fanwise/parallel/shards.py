"""How a batch is cut, who executes which part, and in which order parts are added. A quiet file: numbers only.

    batch of 10, 4 shards:   cut(10, 4)      ->  0..2  3..5  6..7  8..9       samples of each shard
    4 shards on 3 devices:   assign(4, 3)    ->  0..1  2     3                shards of each device
    the tree over 4 shards:  (0 + 1) + (2 + 3)

The tree depends on the number of shards alone. Float addition is not associative, so the order of additions is
part of the result: a device adds only what are neighbours in the tree, and hands on the nodes that are left, one or
a few for a range of shards. Whoever joins the nodes of all devices makes the remaining additions of the same tree.
So the result has the same bits for every assignment of consecutive shards to devices. (A sum from left to right
would not.)
"""

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node(Generic[T]):
    """The sum over the shards from `start` to before `stop`, a node of the tree. None: none of them had samples."""

    start: int
    stop: int
    value: T | None


@functools.lru_cache(maxsize=256)  # a run asks for the same few, several times a step
def cut(count: int, parts: int) -> tuple[range, ...]:
    """`count` things in `parts` consecutive ranges; the first ones are longer by one where it does not divide.

    With fewer things than parts the last ranges are empty.

    Raises:
        ValueError: `count` is negative, or there are no parts.

    >>> cut(10, 4)
    (range(0, 3), range(3, 6), range(6, 8), range(8, 10))
    """
    if count < 0 or parts < 1:
        raise ValueError(f"count must be at least 0 and parts at least 1, got {count} and {parts}")
    each, longer = divmod(count, parts)
    starts = [part * each + min(part, longer) for part in range(parts + 1)]
    return tuple(range(start, stop) for start, stop in itertools.pairwise(starts))


def assign(shards: int, devices: int) -> tuple[range, ...]:
    """The shards of each device: consecutive, each shard once. Devices beyond the number of shards have none."""
    return cut(shards, devices)


@dataclass(slots=True)
class TreeSum(Generic[T]):
    """Adds values along the tree over `shards` leaves as they come, in the order of the shards.

    Args:
        shards: leaves of the whole tree, also when only some of them are put in here.
        add: returns the sum of two values; it may change its first argument and return that.
    """

    shards: int
    add: Callable[[T, T], T]
    nodes: list[Node[T]] = field(default_factory=list)

    def put(self, node: Node[T]) -> None:
        """A node that begins where the last one ended, or later if the first; neighbours are added at once.

        Only the nodes that still wait for their neighbour are held: no more than two for each level of the tree.
        """
        assert not self.nodes or self.nodes[-1].stop == node.start, "nodes come in the order of the shards"
        self.nodes.append(node)
        while len(self.nodes) > 1 and self._are_siblings(self.nodes[-2], self.nodes[-1]):
            right, left = self.nodes.pop(), self.nodes.pop()
            self.nodes.append(Node(left.start, right.stop, self._sum(left.value, right.value)))

    def _are_siblings(self, left: Node[T], right: Node[T]) -> bool:
        size = left.stop - left.start
        # Left children are whole: a power of two, at a multiple of twice itself. Right ones may be cut off at the end.
        is_left = size & (size - 1) == 0 and left.start % (2 * size) == 0
        return is_left and right.stop == min(left.start + 2 * size, self.shards)

    def _sum(self, left: T | None, right: T | None) -> T | None:
        # Without samples there is nothing to add; adding zeros would turn -0.0 into 0.0.
        return left if right is None else right if left is None else self.add(left, right)


def total(nodes: Iterable[Node[T]], shards: int, add: Callable[[T, T], T]) -> T:
    """The sum over all shards, from the nodes of all devices in the order of the shards.

    At least one shard has a value.
    """
    tree = TreeSum(shards, add)
    for node in nodes:
        tree.put(node)
    assert len(tree.nodes) == 1 and tree.nodes[0].stop == shards, f"a shard is missing: {tree.nodes}"
    value = tree.nodes[0].value
    assert value is not None, "no shard had samples"
    return value
