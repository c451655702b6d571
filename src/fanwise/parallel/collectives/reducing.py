"""`allreduce` and `reduce_scatter`: the sum of one array a device, in four ways. Which array adds what, and when.

What each way costs, for k devices and arrays of S bytes over links of B bytes a second in each direction:

    how     device 0 sends and receives    any other one       steps           seconds on the links
    root    (k - 1) S of each              S of each           2 (k - 1)       2 (k - 1) S / B
    tree    ceil(log2 k) S of each         at most that        2 ceil(log2 k)  2 ceil(log2 k) S / B
    ring    2 (k - 1) / k S of each        the same            2 (k - 1)       2 (k - 1) / k S / B
    owner   2 (k - 1) / k S of each        the same            2               2 (k - 1) / k S / B

"root" is the book's (D2L 13.5); "owner" is its exercise 3 and the figure of 13.7: 160 MB on 4 GPUs with 16 GB/s take
60 ms by root, 40 by tree, 15 by owner and ring. No way can move less than ring and owner do (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms", 2009). Steps matter for small arrays: each costs a latency. Owner's two
hold where a device can talk to all others at once; one at a time they are 2 (k - 1), as here: a copy of torch between
two GPUs uses the current stream of both, so only copies that share no device overlap, and a device sends and
receives in turn. Devices that are the same (["cpu"] * 4) copy nothing.

The order of additions is fixed by the places in the list, never by the devices. With arrays a, b, c, d, e:

    root         (((a + b) + c) + d) + e
    tree, owner  ((a + b) + (c + d)) + e             the tree of `hops.tree_levels`, and of a run's shards
    ring         slice 0 as root; slice 1 of k (((b + c) + d) + e) + a, slice 2 (((c + d) + e) + a) + b ...
"""

from collections.abc import Callable, Sequence
from typing import Literal

from ...base.nearest import must_be_one_of
from ..shards import cut
from .checks import check_first_axis, check_sums, check_writable, checked_list
from .engines import Array, Engine
from .hops import exchanges, ring_hops, tree_levels

How = Literal["root", "owner", "ring", "tree"]


def allreduce(tensors: Sequence[Array], how: How = "root") -> list[Array]:
    """Sum arrays, one a device, and give every device the sum.

    torch tensors, numpy arrays and TensorFlow Variables are changed in place, all of them, and returned; of JAX
    arrays and TensorFlow tensors, which cannot be changed, the list has new ones on the same devices. No gradient
    flows through it. If it fails half-way (a device without memory) the arrays hold parts of sums.

    Returns as soon as accelerators have been given the work; whoever reads a value waits for it, as always. Scratch
    memory on the way: S on each device for "owner" and on the root for "root", S / k for "ring"; none between equal
    devices. A torch tensor that is not contiguous costs another S for "owner" and "ring".

    Args:
        tensors: at least one array; all of one engine, shape and element type, and no two in the same memory.
            Integers wrap around as they do in their engine.
        how: "root" adds all on device 0 and copies back, as the book does; "tree" halves the number of sums from
            step to step; "owner" lets device j sum slice j of all; "ring" hands slices on in a circle. The bytes
            each moves and the order of additions are at the top of this module. Bits depend on `how` and the number
            of arrays, not on devices; "owner" and "tree" have the same.

    Raises:
        TypeError: no list, or not arrays of one engine and type; sparse, quantized, read-only, bool or traced.
        ValueError: an empty list, shapes that differ, arrays that share memory, an unknown `how`.

    >>> import torch
    >>> data = [torch.ones(1, 2), torch.full((1, 2), 2.0)]
    >>> _ = allreduce(data)
    >>> data
    [tensor([[3., 3.]]), tensor([[3., 3.]])]
    """
    way = _WAYS.get(how)
    if way is None:
        raise ValueError(must_be_one_of("how", how, _WAYS))
    arrays, engine = checked_list(tensors, "allreduce")
    check_sums(arrays, engine)
    check_writable(arrays, engine)
    return way(arrays, engine)


def reduce_scatter(tensors: Sequence[Array]) -> list[Array]:
    """Sum arrays, one a device, and leave device j with part j of the sum along the first axis.

    The first half of `allreduce` by owner, and with `all_gather` the whole: the same bits. Each device sends and
    receives (k - 1) / k S bytes; additions are those of the tree. The arguments are not changed; the parts are new
    arrays without history.

    Args:
        tensors: as for `allreduce`, with at least one axis. Of n rows the first n % k parts have one more than the
            others; with fewer rows than devices the last parts have none.

    Raises:
        TypeError, ValueError: as `allreduce`; arrays of no axis.

    >>> import torch
    >>> reduce_scatter([torch.ones(3), torch.full((3,), 2.0)])
    [tensor([3., 3.]), tensor([3.])]
    """
    arrays, engine = checked_list(tensors, "reduce_scatter")
    check_sums(arrays, engine)
    check_first_axis(arrays, "reduce_scatter")
    rows = [engine.rows(x, cut(int(x.shape[0]), len(arrays))) for x in arrays]
    # What is added to must not be the caller's memory: in the tree these are the even places.
    gathered = _at_owners(rows, lambda x, like, place: (engine.near if place % 2 else engine.copied)(x, like))
    return [_tree_sum(parts, engine) for parts in gathered]


def _by_root(tensors: list[Array], engine: Engine) -> list[Array]:
    total = tensors[0]
    for x in tensors[1:]:
        total = engine.added(total, engine.near(x, total))
    return [engine.stored(x, total) for x in tensors]


def _by_tree(tensors: list[Array], engine: Engine) -> list[Array]:
    values = list(tensors)
    values[0] = engine.stored(tensors[0], _tree_sum(values, engine))
    for level in reversed(tree_levels(len(values))):
        for source, target in level:
            values[source] = engine.stored(tensors[source], values[target])
    return values


def _by_owner(tensors: list[Array], engine: Engine) -> list[Array]:
    slices = _cut(tensors, engine)
    gathered = _at_owners(slices, lambda x, like, place: engine.near(x, like))
    for owner, parts in enumerate(gathered):
        slices[owner][owner] = engine.stored(slices[owner][owner], _tree_sum(parts, engine))
    for source, target in exchanges(len(tensors)):
        slices[target][source] = engine.stored(slices[target][source], slices[source][source])
    return [engine.rebuilt(x, parts) for x, parts in zip(tensors, slices, strict=True)]


def _by_ring(tensors: list[Array], engine: Engine) -> list[Array]:
    slices = _cut(tensors, engine)
    for source, target, part in ring_hops(len(tensors), first=0):
        mine = slices[target][part]
        # The sum that comes along is the left one; additions of two commute, bit for bit.
        slices[target][part] = engine.added(mine, engine.near(slices[source][part], mine))
    for source, target, part in ring_hops(len(tensors), first=1):
        slices[target][part] = engine.stored(slices[target][part], slices[source][part])
    return [engine.rebuilt(x, parts) for x, parts in zip(tensors, slices, strict=True)]


_WAYS: dict[str, Callable[[list[Array], Engine], list[Array]]] = {
    "root": _by_root,
    "owner": _by_owner,
    "ring": _by_ring,
    "tree": _by_tree,
}


def _cut(tensors: list[Array], engine: Engine) -> list[list[Array]]:
    """For each device the flat slices of its array, as many as there are devices."""
    ranges = cut(_size(tensors[0]), len(tensors))
    return [engine.slices(x, ranges) for x in tensors]


def _at_owners(parts: list[list[Array]], bring: Callable[[Array, Array, int], Array]) -> list[list[Array]]:
    """Part j of all arrays on device j. `bring(x, like, place)` brings x, of the array at that place."""
    count = len(parts)
    gathered = [[parts[place][owner] for place in range(count)] for owner in range(count)]
    for source, owner in [*((own, own) for own in range(count)), *exchanges(count)]:
        gathered[owner][source] = bring(parts[source][owner], parts[owner][owner], source)
    return gathered


def _tree_sum(values: list[Array], engine: Engine) -> Array:
    """The sum along the tree, on the device of the first. Adds to the values at even places, if they allow it."""
    sums = list(values)
    for level in tree_levels(len(sums)):
        for source, target in level:
            sums[target] = engine.added(sums[target], engine.near(sums[source], sums[target]))
    return sums[0]


def _size(x: Array) -> int:
    size = 1
    for length in x.shape:
        size *= int(length)
    return size
