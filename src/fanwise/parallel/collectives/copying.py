"""`replicate` and `split_batch`: parameters and samples on several devices. No sums, so nothing is rounded."""

from collections.abc import Iterator, Sequence
from typing import Any

from ...tensor import engine_of
from ...tensor.engines import is_array_type
from ..shards import cut
from .checks import check_devices, found_devices
from .engines import Array, engine_file

_Tree = Any  # Lists, dicts, tuples ... of arrays.


def replicate(params: _Tree, devices: Sequence[object]) -> list[_Tree]:
    """A copy of the parameters for each device, the book's `get_params` for all devices at once.

    Every replica has memory of its own, on one device named several times too, and none shares any with `params`.
    What is kept: element type, values bit for bit, strides (the memory format) where elements lie dense, and what is
    one array at two places of `params` is one in each replica. What is not: gradients and history. A torch tensor
    that requires gradients gives a leaf that does, whose `.grad` is None; a Parameter gives a Parameter, a TensorFlow
    Variable a Variable that is as trainable. Blocks while it copies from or to a CPU.

    Cost: k - 1 copies of S bytes leave the device of `params` for k devices, one after another.

    Args:
        params: a list, an iterator (`model.parameters()`), a dict (`model.state_dict()`) or another tree of arrays
            of any engine. Numbers and None are kept.
        devices: at least one, by name ("cpu", "cuda:0"; see fanwise.tensor.devices) or as torch.device.

    Returns:
        One tree a device, like `params`; a list for an iterator.

    Raises:
        TypeError: something in `params` is no array; devices is no list.
        ValueError: no devices, or one that does not exist; the message says which do.

    >>> import torch
    >>> [w], [v] = replicate([torch.ones(2, requires_grad=True)], ["cpu"] * 2)
    >>> w, v.grad is None
    (tensor([1., 1.], requires_grad=True), True)
    """
    from ...tensor import trees  # loads optree

    names = check_devices(devices)
    leaves, spec = trees.flatten(list(params) if isinstance(params, Iterator) else params)
    for place, leaf in enumerate(leaves):
        if not _is_number(leaf) and not is_array_type(type(leaf)):
            raise TypeError(
                f"{trees.path_of(spec, place, 'params')} is no array but {type(leaf).__module__}."
                f"{type(leaf).__qualname__}; of a torch module give list(module.parameters())"
            )
    places = {engine: found_devices(engine, names) for engine in {engine_of(x) for x in leaves if not _is_number(x)}}
    return [spec.unflatten(_replicas(leaves, number, places)) for number in range(len(names))]


def split_batch(*arrays: Array, devices: Sequence[object] | None = None) -> tuple[list[Array], ...]:
    """Cut arrays along the first axis into one part a device, and put each part on its device.

        X_parts, y_parts = split_batch(X, y, ["cuda:0", "cuda:1"])

    There is always one part for each device. Of n rows the first n % k parts have one more than the others; with
    fewer rows than devices the last parts have no rows, so that a loop over devices still gives each a (zero)
    gradient and every `allreduce` its k arrays. (torch's scatter, which the book uses, cuts 5 rows for 4 devices
    into 2, 2, 1, and the last device is left out.)

    A part on the device of its array is a view of it where the engine has views (torch, numpy); gradients flow back
    into the array. To a GPU a pinned torch tensor is copied while Python goes on, as torch's scatter does: do not
    overwrite it before the GPU has caught up. Cost: n (k - 1) / k rows leave the device of the array.

    Args:
        arrays: at least one array of any engine, all with as many rows; last the devices, if not by keyword.
        devices: at least one, by name or as torch.device; the same one may come several times.

    Returns:
        For each array the list of its parts, one a device.

    Raises:
        TypeError: no array, something that is none, or devices is no list.
        ValueError: arrays of no axis or with other numbers of rows; no devices, or one that does not exist.

    >>> import torch
    >>> split_batch(torch.arange(5), ["cpu", "cpu"])
    ([tensor([0, 1, 2]), tensor([3, 4])],)
    """
    if devices is None and arrays:
        *arrays_alone, devices = arrays
        arrays = tuple(arrays_alone)
    if devices is None or not arrays:
        raise TypeError("split_batch takes one or more arrays and then the devices: split_batch(X, y, devices)")
    names = check_devices(devices)
    places = [found_devices(engine_of(x), names) for x in arrays]
    ranges = cut(_num_rows(arrays), len(names))
    return tuple(_parts(x, ranges, found) for x, found in zip(arrays, places, strict=True))


def _replicas(leaves: list[Any], number: int, places: dict[str, list[str]]) -> list[Any]:  # Any: arrays and numbers
    made: dict[int, Any] = {}  # by identity, so that tied parameters stay tied
    for leaf in leaves:
        if id(leaf) not in made:
            engine = None if _is_number(leaf) else engine_of(leaf)
            made[id(leaf)] = engine_file(engine).replica(leaf, places[engine][number]) if engine else leaf
    return [made[id(leaf)] for leaf in leaves]


def _parts(x: Array, ranges: tuple[range, ...], devices: list[str]) -> list[Array]:
    engine = engine_file(engine_of(x))
    return [engine.placed(part, device) for part, device in zip(engine.rows(x, ranges), devices, strict=True)]


def _num_rows(arrays: tuple[Array, ...]) -> int:
    counts = []
    for place, x in enumerate(arrays):
        if not x.shape:
            raise ValueError(f"array {place} has no axis to cut along")
        counts.append(int(x.shape[0]))
        if counts[place] != counts[0]:
            raise ValueError(f"array {place} has {counts[place]} rows, array 0 has {counts[0]}: they need as many")
    return counts[0]


def _is_number(x: object) -> bool:
    return isinstance(x, int | float | complex) and not is_array_type(type(x))
