"""Data parallelism from scratch, as in chapter 13.5 of "Dive into Deep Learning": functions on lists of tensors.

    replicas = replicate(model.parameters(), devices)      one copy of the parameters per device
    X_parts, y_parts = split_batch(X, y, devices)          one part of the batch per device
    allreduce([params[0].grad for params in replicas])     store the sum in the tensors of all devices

One process uses all devices. Each list has one entry per device. `fanwise.run` does not use this module.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..base.nearest import must_be_one_of
from .step.tree import cut

AlgorithmName = Literal["root", "owner", "ring", "tree"]
Device = str | torch.device


def replicate(params: Iterable[Tensor], devices: Sequence[Device]) -> list[list[Tensor]]:
    """Return one copy of the parameters per device, as the book's `get_params` does for one device.

    Every copy has its own memory, even if a device is given several times. Copies keep element type, strides,
    `requires_grad`, and the class Parameter. A tensor that occurs twice in `params` is one tensor in each copy.
    Gradients and autograd history are not copied.

    >>> [w], [v] = replicate([torch.ones(2, requires_grad=True)], ["cpu"] * 2)
    >>> w, v.grad is None
    (tensor([1., 1.], requires_grad=True), True)
    """
    tensors = list(params)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"params has a {type(tensor).__name__}: give tensors, such as list(model.parameters())")
    return [_replica(tensors, device) for device in _check_devices(devices)]


def split_batch(*arguments: Any) -> tuple[list[Tensor], ...]:
    """Cut tensors along the first axis into one part per device, and move each part to its device.

        X_parts, y_parts = split_batch(X, y, ["cuda:0", "cuda:1"])

    The first n % k parts of n rows for k devices have one row more than the others. If there are fewer rows than
    devices, the last parts are empty. A part is a view if it stays on the tensor's device. All parts are
    differentiable. A pinned tensor is copied to a GPU asynchronously: do not overwrite it before the GPU has read it.

    Args:
        arguments: one or more tensors with the same number of rows, followed by the list of devices.

    >>> split_batch(torch.arange(5), ["cpu", "cpu"])
    ([tensor([0, 1, 2]), tensor([3, 4])],)
    """
    if len(arguments) < 2 or not all(isinstance(tensor, Tensor) for tensor in arguments[:-1]):
        raise TypeError("split_batch takes one or more tensors and then the devices: split_batch(X, y, devices)")
    *tensors, devices = arguments
    devices = _check_devices(devices)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if not all(shape and shape[0] == shapes[0][0] for shape in shapes):
        raise ValueError(f"the tensors have the shapes {shapes}: all need a first axis of the same length")
    ranges = cut(len(tensors[0]), len(devices))
    parts = [[tensor[part.start : part.stop] for part in ranges] for tensor in tensors]
    return tuple([x.to(d, non_blocking=d.type != "cpu") for x, d in zip(row, devices, strict=True)] for row in parts)


@torch.no_grad()
def allreduce(tensors: Sequence[Tensor], algorithm: AlgorithmName = "root") -> list[Tensor]:
    """Sum tensors, one per device, and store the sum in all of them, in place. Return them as a list.

    Bytes for k tensors of S bytes each, and order of additions for five tensors a to e:

        algorithm   bytes into the busiest device, per phase   order of additions
        root        (k - 1) S                                  (((a + b) + c) + d) + e
        tree        log2(k) S                                  ((a + b) + (c + d)) + e, as `fanwise.run` adds shards
        owner       (k - 1) / k S                              as tree: device j adds slice j of all tensors
        ring        (k - 1) / k S                              slice 0: (((a + b) + c) + d) + e, slice 1: (((b + ...

    There are two phases with these bytes each: adding, and distributing the sum. The last bits of the sum depend on
    `algorithm` and k, but not on the devices. Does not wait for accelerators to finish.

    Args:
        tensors: dense tensors of one shape and type. No two of them share memory.

    >>> allreduce([torch.ones(1, 2), torch.full((1, 2), 2.0)])
    [tensor([[3., 3.]]), tensor([[3., 3.]])]
    """
    if algorithm not in _ALGORITHMS:
        raise ValueError(must_be_one_of("algorithm", algorithm, _ALGORITHMS))
    _check_tensors(tensors)
    _ALGORITHMS[algorithm](tensors)
    return list(tensors)


def _replica(params: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    copies: dict[int, Tensor] = {}  # by identity, so that tied parameters stay tied
    for param in params:
        if id(param) not in copies:
            copy = param.detach().to(device, copy=True)
            is_param = isinstance(param, nn.Parameter)
            copies[id(param)] = nn.Parameter(copy, param.requires_grad) if is_param else copy
            copies[id(param)].requires_grad_(param.requires_grad)
    return [copies[id(param)] for param in params]


def _by_root(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors[1:]:
        tensors[0].add_(tensor.to(tensors[0].device))
    for tensor in tensors[1:]:
        tensor.copy_(tensors[0])


def _by_tree(tensors: Sequence[Tensor]) -> None:
    _add_along_tree(tensors)
    for child, parent in reversed(_tree_additions(len(tensors))):
        tensors[child].copy_(tensors[parent])


def _by_owner(tensors: Sequence[Tensor]) -> None:
    slices, count = _slices(tensors), len(tensors)
    # Every device receives one slice and sends one per shift, so that all links are busy.
    pairs = [(owner, (owner + shift) % count) for shift in range(count) for owner in range(count)]
    gathered: list[list[Tensor]] = [[tensors[0]] * count for _ in range(count)]
    for owner, source in pairs:
        gathered[owner][source] = slices[source][owner].to(tensors[owner].device)
    for values in gathered:
        _add_along_tree(values)
    for owner, target in pairs:
        slices[target][owner].copy_(gathered[owner][0])
    _write_back_slices(tensors, slices)


def _by_ring(tensors: Sequence[Tensor]) -> None:
    slices, count = _slices(tensors), len(tensors)
    for step in range(count - 1):
        for source in range(count):
            target, part = (source + 1) % count, (source - step) % count
            slices[target][part].add_(slices[source][part].to(tensors[target].device))
    for step in range(count - 1):
        for source in range(count):
            part = (source + 1 - step) % count
            slices[(source + 1) % count][part].copy_(slices[source][part])
    _write_back_slices(tensors, slices)


_Algorithm = Callable[[Sequence[Tensor]], None]
_ALGORITHMS: dict[str, _Algorithm] = {"root": _by_root, "owner": _by_owner, "ring": _by_ring, "tree": _by_tree}


def _tree_additions(count: int) -> list[tuple[int, int]]:
    """Return the additions along the tree as (child, parent), in order. The sum is at index 0."""
    steps = [1 << level for level in range(max(count - 1, 0).bit_length())]
    return [(parent + step, parent) for step in steps for parent in range(0, count - step, 2 * step)]


def _add_along_tree(values: Sequence[Tensor]) -> None:
    for child, parent in _tree_additions(len(values)):
        values[parent].add_(values[child].to(values[parent].device))


def _slices(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    sizes = [len(part) for part in cut(tensors[0].numel(), len(tensors))]
    return [list(tensor.reshape(-1).split_with_sizes(sizes)) for tensor in tensors]


def _write_back_slices(tensors: Sequence[Tensor], slices: Sequence[Sequence[Tensor]]) -> None:
    for tensor, parts in zip(tensors, slices, strict=True):
        if not tensor.is_contiguous():  # the slices belong to a copy
            tensor.copy_(torch.cat(list(parts)).view(tensor.shape))


def _check_devices(devices: Sequence[Device]) -> list[torch.device]:
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise TypeError(f'devices must be a list such as ["cpu"] * 2 or ["cuda:0", "cuda:1"], got {devices!r}')
    return [torch.device(device) for device in devices]


def _check_tensors(tensors: Sequence[Tensor]) -> None:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence) or not tensors:
        raise TypeError(f"allreduce takes a list of at least one tensor, one per device, got {tensors!r}")
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            hint = ": a parameter has no .grad if no loss used it; leave such parameters out" if tensor is None else ""
            raise TypeError(f"tensor {index} is {type(tensor).__name__}{hint}")
        if tensor.layout is not torch.strided or tensor.dtype is torch.bool:
            raise TypeError(f"tensor {index} is {tensor.layout}, {tensor.dtype}; allreduce needs dense numeric tensors")
        if (tensor.shape, tensor.dtype) != (tensors[0].shape, tensors[0].dtype):
            kinds = [f"{x.dtype} {tuple(x.shape)}" for x in (tensor, tensors[0])]
            raise ValueError(f"tensor {index} is {kinds[0]}, but tensor 0 is {kinds[1]}")
    addresses = [(tensor.device, tensor.data_ptr()) for tensor in tensors if tensor.numel()]
    if len(set(addresses)) < len(addresses):
        raise ValueError("two tensors share memory: x.to(x.device) is x. Use fanwise.parallel.replicate for copies.")
