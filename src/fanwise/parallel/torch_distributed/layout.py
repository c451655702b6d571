"""Where the parameters of a step lie in flat memory, and which part of it each process owns.

    | param 0     | param 1   | param 2             |      each at a multiple of 64 bytes
    | owner 0           | owner 1           | owner 2 |    parts of the same length, a multiple of 64 bytes

64 bytes are 16 elements of float32: kernels that add several elements at once treat those of a part as in the whole.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..shared_memory.areas import is_dense

_ALIGNED_BYTES = 64
# More is added piece by piece, so that what was just added is still near when it is divided.
_STRETCH_BYTES = 1 << 22


class Piece(NamedTuple):
    """Elements `start` to `stop` of a parameter, which lie at bytes `first` to `last` of the part of their owner."""

    param: int
    start: int
    stop: int
    first: int
    last: int


class Stretch(NamedTuple):
    """Bytes `first` to `last` of the part of an owner, of one type, in which the nodes `operands` have gradients."""

    dtype: torch.dtype
    operands: tuple[int, ...]
    first: int
    last: int


class Layout:
    """See the module. `part_bytes`: of each owner."""

    def __init__(self, params: Sequence[nn.Parameter], owners: int) -> None:
        self._params = list(params)
        self._starts: list[int] = []
        end = 0
        for param in params:
            self._starts.append(end)
            end += _aligned(param.numel() * param.element_size())
        self.part_bytes = _aligned(-(-end // owners))
        self._pieces = [list(self._pieces_of(owner)) for owner in range(owners)]

    def pieces(self, owner: int) -> Sequence[Piece]:
        """What lies in the part of an owner, in order."""
        return self._pieces[owner]

    def _pieces_of(self, owner: int) -> Iterator[Piece]:
        begin, end = owner * self.part_bytes, (owner + 1) * self.part_bytes
        for place, (param, at) in enumerate(zip(self._params, self._starts, strict=True)):
            each = param.element_size()
            first, last = max(begin, at), min(end, at + param.numel() * each)
            if first < last:
                yield Piece(place, (first - at) // each, (last - at) // each, first - begin, last - begin)

    def stretches(self, owner: int, reached: Sequence[Sequence[int]]) -> list[Stretch]:
        """What can be added at once: neighbours of one type for which the same nodes have gradients.

        The gaps between parameters are added too; nobody reads them.

        Args:
            reached: for each node with samples and each parameter, whether it has a gradient.
        """
        found: list[Stretch] = []
        for piece in self._pieces[owner]:
            dtype = self._params[piece.param].dtype
            operands = tuple(number for number, flags in enumerate(reached) if flags[piece.param])
            before = found[-1] if found else None
            if before is None or (before.dtype, before.operands) != (dtype, operands):
                found.append(Stretch(dtype, operands, piece.first, piece.last))
            else:
                found[-1] = before._replace(last=piece.last)
        return [part for stretch in found if stretch.operands for part in _parts(stretch)]

    def whole(self, memory: Tensor, place: int) -> Tensor:
        """What lies in flat memory where a parameter lies, in its shape."""
        param, start = self._params[place], self._starts[place]
        flat = memory[start : start + param.numel() * param.element_size()].view(param.dtype)
        return flat.as_strided(param.shape, param.stride()) if is_dense(param) else flat.view(param.shape)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _parts(stretch: Stretch) -> Iterator[Stretch]:
    for first in range(stretch.first, stretch.last, _STRETCH_BYTES):
        yield stretch._replace(first=first, last=min(first + _STRETCH_BYTES, stretch.last))
