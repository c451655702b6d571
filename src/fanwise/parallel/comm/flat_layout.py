"""The layout of a step's parameters in flat memory, which is divided into slices and buckets.

    | param 0     | param 1   | param 2             |      each begins at a multiple of 64 bytes
    | owner 0           | owner 1           | owner 2 |    slices of the same length, a multiple of 64 bytes
    | bucket | bucket   | b | b   | bucket  | bucket  |    reduced in one operation: at most 4 MiB of one parameter and
                                                           one owner; `join_buckets` merges small neighbors

64 bytes are 16 elements of float32. At such multiples, vectorized kernels compute the same bits for a slice as for the
whole parameter. A dense parameter keeps its memory order, for example channels_last. Any other parameter is stored in
row-major order.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

_ALIGNED_BYTES = 64
_BUCKET_BYTES = 1 << 22  # small enough that the sum is still in the CPU cache when it is divided by the count


class Bucket(NamedTuple):
    """Bytes [begin_byte, end_byte) of the flat memory, reduced in one operation.

    The first byte is that of element `element_offset` of parameter `param_index`. A bucket from `join_buckets` may
    extend into the following parameters.
    """

    param_index: int
    element_offset: int
    begin_byte: int
    end_byte: int
    dtype: torch.dtype

    def view(self, memory: Tensor, memory_offset: int = 0) -> Tensor:
        """Return a view of the bucket's elements in `memory`, which holds the layout from byte `memory_offset` on."""
        return memory[self.begin_byte - memory_offset : self.end_byte - memory_offset].view(self.dtype)

    def view_in_param(self, flat_param: Tensor) -> Tensor:
        """Return a view of the bucket's elements in its flat parameter. The bucket must not span parameters."""
        count = (self.end_byte - self.begin_byte) // self.dtype.itemsize
        return flat_param[self.element_offset : self.element_offset + count]


class Layout:
    """See the module. `indices`: indices of the parameters that the layout contains. None: all."""

    def __init__(self, params: Sequence[nn.Parameter], indices: Iterable[int] | None = None) -> None:
        self.params = list(params)
        self._begin_bytes: dict[int, int] = {}  # by index of the parameter
        end = 0
        for index in range(len(self.params)) if indices is None else indices:
            self._begin_bytes[index] = end
            end += _aligned(self._bytes_of(index))
        self.size_bytes = end
        self._buckets_by_owner: dict[tuple[int, int], list[Bucket]] = {}

    def _bytes_of(self, index: int) -> int:
        return self.params[index].numel() * self.params[index].element_size()

    def slice_bytes(self, num_owners: int) -> int:
        """Return the size of a slice. The slices of the last owners may extend beyond the end of the memory."""
        return _aligned(-(-self.size_bytes // num_owners))

    def buckets_of(self, owner: int, num_owners: int) -> list[Bucket]:
        if (owner, num_owners) not in self._buckets_by_owner:
            size = self.slice_bytes(num_owners)
            self._buckets_by_owner[owner, num_owners] = list(self._buckets(owner * size, (owner + 1) * size))
        return self._buckets_by_owner[owner, num_owners]

    def _buckets(self, slice_begin: int, slice_end: int) -> Iterator[Bucket]:
        for index, param_begin in self._begin_bytes.items():
            dtype = self.params[index].dtype
            begin, stop = max(slice_begin, param_begin), min(slice_end, param_begin + self._bytes_of(index))
            while begin < stop:
                end = min(begin + _BUCKET_BYTES, stop)
                yield Bucket(index, (begin - param_begin) // dtype.itemsize, begin, end, dtype)
                begin = end

    def param_view(self, memory: Tensor, index: int) -> Tensor:
        """Return the part of `memory` that holds this parameter, in the parameter's shape."""
        param, flat = self.params[index], self.flat_param_view(memory, index)
        return flat.as_strided(param.shape, param.stride()) if is_dense(param) else flat.view(param.shape)

    def flat_param_view(self, memory: Tensor, index: int) -> Tensor:
        """Return the part of `memory` that holds this parameter, with one axis."""
        begin = self._begin_bytes[index]
        return memory[begin : begin + self._bytes_of(index)].view(self.params[index].dtype)

    def param_views(self, memory: Tensor) -> list[Tensor | None]:
        """Return the parts of `memory` for all parameters, in their shapes; None for those not in the layout."""
        return [self.param_view(memory, i) if i in self._begin_bytes else None for i in range(len(self.params))]


def join_buckets(
    buckets: Iterable[Bucket], has_grad: Sequence[Sequence[int]], max_bytes: int = _BUCKET_BYTES
) -> list[Bucket]:
    """Merge adjacent buckets of one dtype whose gradients come from the same tree nodes. Omit those without gradients.

    `has_grad`: for each node that has samples, whether it has a gradient of each parameter.
    """
    result: list[Bucket] = []
    previous: list[int] = []
    for bucket in buckets:
        operands = [node_index for node_index, flags in enumerate(has_grad) if flags[bucket.param_index]]
        is_adjacent = operands and previous == operands and bucket.begin_byte - result[-1].end_byte < _ALIGNED_BYTES
        if is_adjacent and result[-1].dtype == bucket.dtype and bucket.end_byte - result[-1].begin_byte <= max_bytes:
            result[-1] = result[-1]._replace(end_byte=bucket.end_byte)
        elif operands:
            result.append(bucket)
        previous = operands
    return result


def flat_gradients(
    params: Sequence[nn.Parameter], nodes: Sequence[Sequence[Tensor | None] | None]
) -> dict[tuple[int, int], Tensor]:
    """Flatten every gradient of every node. Keys are (node_index, param_index)."""
    return {
        (node_index, index): flat_gradient(params[index], grad)
        for node_index, grads in enumerate(nodes)
        for index, grad in enumerate(grads or ())
        if grad is not None
    }


def flat_gradient(param: nn.Parameter, grad: Tensor) -> Tensor:
    """Return the elements of a gradient in the order of the layout. Raises TypeError if the gradient is sparse."""
    check_strided(grad)
    if grad.is_contiguous() and param.is_contiguous() and grad.dtype == param.dtype:
        return grad.view(-1)
    if is_dense(param) and (grad.stride() != param.stride() or grad.dtype != param.dtype):
        grad = torch.empty_like(param, requires_grad=False).copy_(grad)
    return flatten_in_memory_order(grad) if is_dense(param) else grad.reshape(-1)


def check_strided(grad: Tensor) -> None:
    if grad.layout is not torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(grad.shape)} got a {grad.layout} gradient, which cannot be summed across "
            f"processes. Create the layer with sparse=False."
        )


def flatten_in_memory_order(tensor: Tensor) -> Tensor:
    """Return the elements of a dense tensor in memory order, without a copy, and of any other in row-major order."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.detach().reshape(-1)


def is_dense(tensor: Tensor) -> bool:
    """Return True if the elements fill a range of memory without gaps, in any order of the axes."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
