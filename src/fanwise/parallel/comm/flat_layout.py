"""The layout of a step's parameters in flat memory, which is divided into slices and buckets.

    | param 0     | param 1   | param 2             |      each begins at a multiple of 64 bytes
    | owner 0           | owner 1           | owner 2 |    slices of the same length, a multiple of 64 bytes
    | bucket | bucket   | b | b   | bucket  | bucket  |    added at once: one parameter, one owner, at most 4 MiB

64 bytes are 16 elements of float32. At such multiples, vectorized kernels compute the same bits for a slice as for the
whole parameter. The elements of a parameter are in the order of the parameter's own memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

_ALIGNED_BYTES = 64
_BUCKET_BYTES = 1 << 22  # so small that a sum is still in the cache when it is divided


class Bucket(NamedTuple):
    """Bytes `first` to `last - 1` of flat memory, which are added at once.

    Attributes:
        param: index of the parameter to which the first byte belongs. In joined buckets, others follow.
        start: index of the first element among those of the parameter.
    """

    param: int
    start: int
    first: int
    last: int
    dtype: torch.dtype

    def of(self, memory: Tensor, begin: int = 0) -> Tensor:
        """Return the bucket's elements. `memory`: has this layout, from byte `begin` on."""
        return memory[self.first - begin : self.last - begin].view(self.dtype)

    def of_flat(self, flat: Tensor) -> Tensor:
        """Return the bucket's elements. `flat`: all elements of the parameter. Not for joined buckets."""
        return flat[self.start : self.start + (self.last - self.first) // self.dtype.itemsize]


class Layout:
    """See the module.

    Args:
        indices: indices of the parameters that the layout contains. None: all.

    Attributes:
        size_bytes: size of the memory.
    """

    def __init__(self, params: Sequence[nn.Parameter], indices: Iterable[int] | None = None) -> None:
        self.params = list(params)
        self._starts: dict[int, int] = {}
        end = 0
        for index in range(len(self.params)) if indices is None else indices:
            self._starts[index] = end
            end += _aligned(self._bytes_of(index))
        self.size_bytes = end
        self._owned: dict[tuple[int, int], list[Bucket]] = {}

    def _bytes_of(self, index: int) -> int:
        return self.params[index].numel() * self.params[index].element_size()

    def slice_bytes(self, owners: int) -> int:
        """Return the size of a slice. The slices of the last owners may reach beyond the end of the memory."""
        return _aligned(-(-self.size_bytes // owners))

    def owned(self, owner: int, owners: int) -> list[Bucket]:
        """Return the buckets of an owner's slice, in order."""
        if (owner, owners) not in self._owned:
            size = self.slice_bytes(owners)
            self._owned[owner, owners] = list(self._buckets(owner * size, (owner + 1) * size))
        return self._owned[owner, owners]

    def _buckets(self, begin: int, end: int) -> Iterator[Bucket]:
        for index, at in self._starts.items():
            dtype = self.params[index].dtype
            first, last = max(begin, at), min(end, at + self._bytes_of(index))
            while first < last:
                stop = min(first + _BUCKET_BYTES, last)
                yield Bucket(index, (first - at) // dtype.itemsize, first, stop, dtype)
                first = stop

    def whole(self, memory: Tensor, index: int) -> Tensor:
        """Return the part of `memory` that holds this parameter, in the parameter's shape."""
        param, flat = self.params[index], self.flat(memory, index)
        return flat.as_strided(param.shape, param.stride()) if is_dense(param) else flat.view(param.shape)

    def flat(self, memory: Tensor, index: int) -> Tensor:
        """Return the part of `memory` that holds this parameter, with one axis."""
        start = self._starts[index]
        return memory[start : start + self._bytes_of(index)].view(self.params[index].dtype)

    def shaped(self, memory: Tensor) -> list[Tensor | None]:
        """Return the parts of `memory` for all parameters, in their shapes; None for those not in the layout."""
        return [self.whole(memory, index) if index in self._starts else None for index in range(len(self.params))]


def joined(buckets: Iterable[Bucket], flags: Sequence[Sequence[int]], max_bytes: int = _BUCKET_BYTES) -> list[Bucket]:
    """Join adjacent buckets of the same type to which the same nodes contribute. Omit buckets without gradients.

    Args:
        flags: for each node with samples, a sequence that tells which parameters have a gradient.
    """
    result: list[Bucket] = []
    previous: list[int] = []
    for bucket in buckets:
        operands = [number for number, has_grad in enumerate(flags) if has_grad[bucket.param]]
        is_near = operands and previous == operands and bucket.first - result[-1].last < _ALIGNED_BYTES
        if is_near and result[-1].dtype == bucket.dtype and bucket.last - result[-1].first <= max_bytes:
            result[-1] = result[-1]._replace(last=bucket.last)
        elif operands:
            result.append(bucket)
        previous = operands
    return result


def flat_gradients(
    params: Sequence[nn.Parameter], nodes: Sequence[Sequence[Tensor | None] | None]
) -> dict[tuple[int, int], Tensor]:
    """Return `flat_gradient` of all gradients of the nodes, by node index and index of the parameter."""
    return {
        (node_index, index): flat_gradient(params[index], grad)
        for node_index, grads in enumerate(nodes)
        for index, grad in enumerate(grads or ())
        if grad is not None
    }


def flat_gradient(param: nn.Parameter, grad: Tensor) -> Tensor:
    """Return the elements of a gradient in the order of the parameter's memory. Raises TypeError if it is sparse."""
    check_strided(grad)
    if grad.is_contiguous() and param.is_contiguous() and grad.dtype == param.dtype:
        return grad.view(-1)
    if is_dense(param) and (grad.stride() != param.stride() or grad.dtype != param.dtype):
        grad = torch.empty_like(param, requires_grad=False).copy_(grad)
    return in_order(grad) if is_dense(param) else grad.reshape(-1)


def check_strided(grad: Tensor) -> None:
    """Raise TypeError for a sparse gradient."""
    if grad.layout is not torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(grad.shape)} got a {grad.layout} gradient, which several processes cannot "
            f"add. Make the layer with sparse=False."
        )


def in_order(tensor: Tensor) -> Tensor:
    """Return the elements in the order of the tensor's memory, without a copy if they are dense."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.detach().reshape(-1)


def is_dense(tensor: Tensor) -> bool:
    """Return True if the elements fill a range of memory without gaps, in any order of the axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
