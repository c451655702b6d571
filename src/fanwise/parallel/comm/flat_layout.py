"""Where the parameters of a step lie in flat memory, whose slice each of them is, and what is added at once.

    | param 0     | param 1   | param 2             |      each at a multiple of 64 bytes
    | owner 0           | owner 1           | owner 2 |    slices of the same length, a multiple of 64 bytes
    | bucket | bucket   | b | b   | bucket  | bucket  |    of one parameter, one owner and at most 4 MiB

64 bytes are 16 elements of float32: kernels that add several elements at once treat those of a slice as in the whole.
The elements of a parameter follow each other as they lie in its own memory. One layout for every transport: the memory
may be shared, on a GPU, or what a message is made of.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

_ALIGNED_BYTES = 64
# What was just added is still near when it is divided.
_BUCKET_BYTES = 1 << 22


class Bucket(NamedTuple):
    """What is added at once: bytes `first` to `last` of flat memory, of one type.

    They begin with element `start` of the parameter `param`. Where neighbours were joined, those follow, with the gaps
    between them, which are nobody's.
    """

    param: int
    start: int
    first: int
    last: int
    dtype: torch.dtype

    def of(self, memory: Tensor, begin: int = 0) -> Tensor:
        """Its elements in memory that is laid out so, from byte `begin` on."""
        return memory[self.first - begin : self.last - begin].view(self.dtype)

    def of_flat(self, flat: Tensor) -> Tensor:
        """Its elements in those of its parameter; not of joined ones."""
        return flat[self.start : self.start + (self.last - self.first) // self.dtype.itemsize]


class Layout:
    """See the module. `size_bytes`: from the first element to the last.

    Args:
        places: of the parameters that have room in it; None: all.
    """

    def __init__(self, params: Sequence[nn.Parameter], places: Iterable[int] | None = None) -> None:
        self.params = list(params)
        self._starts: dict[int, int] = {}
        end = 0
        for place in range(len(self.params)) if places is None else places:
            self._starts[place] = end
            end += _aligned(self._bytes_of(place))
        self.size_bytes = end
        self._owned: dict[tuple[int, int], list[Bucket]] = {}

    def _bytes_of(self, place: int) -> int:
        return self.params[place].numel() * self.params[place].element_size()

    def slice_bytes(self, owners: int) -> int:
        """Of each of so many owners; the last ones may have less, or nothing."""
        return _aligned(-(-self.size_bytes // owners))

    def owned(self, owner: int, owners: int) -> list[Bucket]:
        """The slice of one of so many owners, in order."""
        if (owner, owners) not in self._owned:
            each = self.slice_bytes(owners)
            self._owned[owner, owners] = list(self._buckets(owner * each, (owner + 1) * each))
        return self._owned[owner, owners]

    def _buckets(self, begin: int, end: int) -> Iterator[Bucket]:
        for place, at in self._starts.items():
            dtype = self.params[place].dtype
            first, last = max(begin, at), min(end, at + self._bytes_of(place))
            while first < last:
                stop = min(first + _BUCKET_BYTES, last)
                yield Bucket(place, (first - at) // dtype.itemsize, first, stop, dtype)
                first = stop

    def whole(self, memory: Tensor, place: int) -> Tensor:
        """What lies in flat memory where a parameter lies, in its shape."""
        param, flat = self.params[place], self.flat(memory, place)
        return flat.as_strided(param.shape, param.stride()) if is_dense(param) else flat.view(param.shape)

    def flat(self, memory: Tensor, place: int) -> Tensor:
        """The same, its elements in their order."""
        start = self._starts[place]
        return memory[start : start + self._bytes_of(place)].view(self.params[place].dtype)

    def shaped(self, memory: Tensor) -> list[Tensor | None]:
        """All parameters, each in its shape; None for those that have no room in it."""
        return [self.whole(memory, place) if place in self._starts else None for place in range(len(self.params))]


def joined(
    buckets: Iterable[Bucket], reached: Sequence[Sequence[int]], most_bytes: int = _BUCKET_BYTES
) -> list[Bucket]:
    """Neighbours of one type for which the same nodes have gradients as one bucket; without those that no node has.

    Args:
        reached: for each node with samples and each parameter, whether it has a gradient.
    """
    found: list[Bucket] = []
    before: list[int] = []
    for bucket in buckets:
        operands = [number for number, flags in enumerate(reached) if flags[bucket.param]]
        is_near = operands and before == operands and bucket.first - found[-1].last < _ALIGNED_BYTES
        if is_near and found[-1].dtype == bucket.dtype and bucket.last - found[-1].first <= most_bytes:
            found[-1] = found[-1]._replace(last=bucket.last)
        elif operands:
            found.append(bucket)
        before = operands
    return found


def extent(buckets: Sequence[Bucket]) -> range:
    """The bytes from the first of these buckets to the last; nothing for none."""
    return range(buckets[0].first, buckets[-1].last) if buckets else range(0)


def flat_gradient(param: nn.Parameter, grad: Tensor) -> Tensor:
    """The elements of a gradient in the order in which those of the parameter lie in memory.

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
    """Raises TypeError for a sparse one."""
    if grad.layout is not torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(grad.shape)} got a {grad.layout} gradient, which several processes cannot "
            f"add. Make the layer with sparse=False."
        )


def in_order(tensor: Tensor) -> Tensor:
    """Its elements as they lie in memory, without a copy where they fill a range of it."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.detach().reshape(-1)


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a range of memory, in whatever order of the axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
