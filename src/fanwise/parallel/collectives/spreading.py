"""`broadcast` and `all_gather`: what one device has, or each has a part of, for all."""

from collections.abc import Sequence

from .checks import check_first_axis, check_shapes, check_writable, checked_list
from .engines import Array
from .hops import exchanges


def broadcast(tensors: Sequence[Array], root: int = 0) -> list[Array]:
    """Give every device the values that one of them has.

    torch tensors, numpy arrays and TensorFlow Variables are overwritten in place, all but the root's, and returned;
    for JAX arrays and TensorFlow tensors the list has the root's values on the device of each. No gradient flows.
    With k devices and arrays of S bytes the root sends (k - 1) S bytes in as many steps, and each other one receives
    S. Nothing is added, so values arrive bit for bit.

    Args:
        tensors: at least one array; all of one engine, shape and element type, and no two in the same memory.
        root: the place in the list of what the others get, from 0.

    Raises:
        TypeError: no list, not arrays of one engine and type, or arrays that cannot be written to.
        ValueError: an empty list, shapes that differ, arrays that share memory, a root that is not in the list.

    >>> import torch
    >>> broadcast([torch.zeros(2), torch.ones(2)], root=1)
    [tensor([1., 1.]), tensor([1., 1.])]
    """
    arrays, engine = checked_list(tensors, "broadcast")
    check_shapes(arrays)
    check_writable(arrays, engine)
    if not 0 <= root < len(arrays):
        raise ValueError(f"root must be a place in the list of {len(arrays)}, from 0, got {root!r}")
    return [x if place == root else engine.stored(x, arrays[root]) for place, x in enumerate(arrays)]


def all_gather(slices: Sequence[Array]) -> list[Array]:
    """Give every device all slices, side by side along the first axis, in the order of the list.

    New arrays, one a device and each in its own memory; the slices are not changed, and no gradient flows. With k
    devices and S bytes in all, slices of one size, each device sends and receives (k - 1) / k S bytes, in 1 step where
    it can talk to all others at once, else in k - 1.

    Args:
        slices: at least one array of at least one axis; all of one engine and element type, and of one shape but
            for the first axis, as `reduce_scatter` and `split_batch` leave them.

    Raises:
        TypeError: no list, or not arrays of one engine and type.
        ValueError: an empty list, an array without axis, shapes that differ in later axes.

    >>> import torch
    >>> all_gather([torch.zeros(2), torch.ones(1)])
    [tensor([0., 0., 1.]), tensor([0., 0., 1.])]
    """
    arrays, engine = checked_list(slices, "all_gather")
    check_first_axis(arrays, "all_gather")
    for place, x in enumerate(arrays):
        if tuple(x.shape[1:]) != tuple(arrays[0].shape[1:]):
            raise ValueError(
                f"tensor {place} has the shape {tuple(x.shape)}, tensor 0 has the shape {tuple(arrays[0].shape)}: "
                f"they cannot be joined along the first axis"
            )
    received = [list(arrays) for _ in arrays]
    for source, target in exchanges(len(arrays)):
        received[target][source] = engine.near(arrays[source], arrays[target])
    return [engine.joined(parts) for parts in received]
