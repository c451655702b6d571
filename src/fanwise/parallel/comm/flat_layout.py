"""The layout of the parameters of a step in flat memory, its division among owners, and into buckets.

    | param 0     | param 1   | param 2             |      each at a multiple of 64 bytes
    | owner 0           | owner 1           | owner 2 |    slices of the same length, a multiple of 64 bytes
    | bucket | bucket   | b | b   | bucket  | bucket  |    added at once: one parameter, one owner, at most 4 MiB

Slices begin at multiples of 64 bytes, which are 16 elements of float32, so that vectorized kernels treat their elements
as in the whole. The elements of a parameter are in the order of its own memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

_ALIGNED_BYTES = 64
# A sum is still in the cache when it is divided.
_BUCKET_BYTES = 1 << 22


class Bucket(NamedTuple):
    """Bytes `first` to `last` of flat memory, of one type, which are added at once.

    They begin with element `start` of the parameter `param`. In joined buckets, other parameters follow, with unused
    gaps between them.
    """

    param: int
    start: int
    first: int
    last: int
    dtype: torch.dtype

    def of(self, memory: Tensor, begin: int = 0) -> Tensor:
        """Return its elements in memory with this layout, which starts at byte `begin`."""
        return memory[self.first - begin : self.last - begin].view(self.dtype)

    def of_flat(self, flat: Tensor) -> Tensor:
        """Return its elements among those of its parameter. Not for joined buckets."""
        return flat[self.start : self.start + (self.last - self.first) // self.dtype.itemsize]


class Layout:
    """See the module. `size_bytes`: from the first element to the last.

    Args:
        indices: of the parameters that have memory in it; None: all.
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
        """Return the size of a slice. The last owners may have less, or nothing."""
        return _aligned(-(-self.size_bytes // owners))

    def owned(self, owner: int, owners: int) -> list[Bucket]:
        """Return the slice of one owner in buckets, in order."""
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
        """Return the values of a parameter in flat memory, in its shape."""
        param, flat = self.params[index], self.flat(memory, index)
        return flat.as_strided(param.shape, param.stride()) if is_dense(param) else flat.view(param.shape)

    def flat(self, memory: Tensor, index: int) -> Tensor:
        """Return the values of a parameter in flat memory, in their order there."""
        start = self._starts[index]
        return memory[start : start + self._bytes_of(index)].view(self.params[index].dtype)

    def shaped(self, memory: Tensor) -> list[Tensor | None]:
        """Return all parameters in their shapes, None for those without memory in the layout."""
        return [self.whole(memory, index) if index in self._starts else None for index in range(len(self.params))]


def joined(buckets: Iterable[Bucket], flags: Sequence[Sequence[int]], max_bytes: int = _BUCKET_BYTES) -> list[Bucket]:
    """Join adjacent buckets of one type with gradients of the same nodes. Buckets without gradients are left out.

    Args:
        flags: for each node with samples and each parameter, whether it has a gradient.
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


def flat_gradient(param: nn.Parameter, grad: Tensor) -> Tensor:
    """Return the elements of a gradient in the order of the parameter's memory.

    Raises:
        TypeError: it is sparse.
    """
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
    """Return its elements in the order of its memory, without a copy if they fill a range of it."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.detach().reshape(-1)


def is_dense(tensor: Tensor) -> bool:
    """Return True if its elements fill a range of memory, in any order of the axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
