"""Where the parameters of a step lie in the shared memory: one layout, in several areas of the same size.

    sum          the gradients of all shards            new params   what the owners have updated
    state        of a sharded optimizer, each key in two versions
    nodes        what the shards of each rank brought, a few for each rank, if asked for in several versions

In an area the parameters follow each other, each at a multiple of 64 bytes, its elements in the order in which they lie
in the memory of the parameter. A slice of an area begins and ends at such multiples, and is a list of pieces. Areas are
mapped when they are first used; a part that nobody writes takes no memory.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...base.huge_pages import HUGE_PAGE_BYTES, FileMap
from ..shards import cut
from .memory import SharedMemory, bytes_of, pages

_ALIGNED_BYTES = 64
# Of the shared memory; what is below are numbers and boxes.
_FIRST = 1 << 40
# Larger parameters are several pieces, so that what was just added is still near when it is divided.
_PIECE_BYTES = 1 << 22
# Of the tree over the shards, for a range of them: two for each level.
_MOST_NODES = 22
_MOST_KEYS = 3
_SUM, _NEW, _STATE, _NODES = 0, 1, 2, 2 + 2 * _MOST_KEYS


class Piece(NamedTuple):
    """Elements `start` to `stop` of a parameter, which lie at `offset` bytes of an area."""

    param: int
    start: int
    stop: int
    offset: int


class Span(NamedTuple):
    """Parameters of one type that follow each other, from this one on: bytes `first` to `last` of an area."""

    param: int
    first: int
    last: int
    dtype: torch.dtype


class Areas:
    """See the module. `params_bytes`: from the first element to the last. `area_bytes`: of one area, in whole pages.
    `size_bytes`: of all, mostly untouched.

    Args:
        ranks: how many bring nodes. offset: bytes that the areas of other steps take. versions: of each node.
    """

    def __init__(
        self, memory: SharedMemory, params: Sequence[nn.Parameter], ranks: int, offset: int, versions: int = 1
    ) -> None:
        self.params = list(params)
        self._memory = memory
        self._starts: list[int] = []
        end = 0
        for param in params:
            self._starts.append(end)
            end += -(-param.numel() * param.element_size() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self.params_bytes = end
        self._lines = end // _ALIGNED_BYTES
        self.area_bytes = pages(max(end, 1))
        self._offset = _FIRST + offset
        self._areas_a_rank = versions * _MOST_NODES
        self.size_bytes = pages(max(HUGE_PAGE_BYTES, self.area_bytes * (_NODES + self._areas_a_rank * ranks)))
        self._areas: dict[int, tuple[FileMap, Tensor]] = {}
        self._views: dict[tuple[int, Piece], Tensor] = {}
        self._slices: dict[tuple[int, int], list[Piece]] = {}
        self._flats = [_in_order(param) for param in params]

    def slice(self, place: int, size: int) -> list[Piece]:
        """What the process at this place of so many owns."""
        if (place, size) not in self._slices:
            lines = cut(self._lines, size)[place]
            self._slices[place, size] = list(self._pieces(lines.start * _ALIGNED_BYTES, lines.stop * _ALIGNED_BYTES))
        return self._slices[place, size]

    def _pieces(self, first: int, last: int) -> Iterator[Piece]:
        for place, (param, begin) in enumerate(zip(self.params, self._starts, strict=True)):
            each = param.element_size()
            at, end = max(first, begin), min(last, begin + param.numel() * each)
            while at < end:
                stop = min(at + _PIECE_BYTES, end)
                yield Piece(place, (at - begin) // each, (stop - begin) // each, at)
                at = stop

    def extent(self, pieces: Sequence[Piece]) -> range:
        """The bytes of an area from the first of these pieces to the last; nothing for none."""
        if not pieces:
            return range(0)
        last = pieces[-1]
        return range(pieces[0].offset, last.offset + self._size_of(last))

    def _size_of(self, piece: Piece) -> int:
        return (piece.stop - piece.start) * self.params[piece.param].element_size()

    def spans(self, wanted: Sequence[int], *, apart: bool) -> list[Span]:
        """Where the parameters with a flag lie, neighbours of one type in one span; with `apart` each by itself.

        What lies between two parameters of a span is nobody's.
        """
        found: list[Span] = []
        neighbour = None
        for place, (param, first) in enumerate(zip(self.params, self._starts, strict=True)):
            if wanted[place]:
                last = first + param.numel() * param.element_size()
                if found and place == neighbour and found[-1].dtype == param.dtype and not apart:
                    found[-1] = found[-1]._replace(last=last)
                else:
                    found.append(Span(place, first, last, param.dtype))
                neighbour = place + 1
        return found

    # -- pieces of areas -------------------------------------------------------------------------------------------

    def sum(self, piece: Piece) -> Tensor:
        return self._view(_SUM, piece)

    def new_params(self, piece: Piece) -> Tensor:
        return self._view(_NEW, piece)

    def state(self, key: int, version: int, piece: Piece) -> Tensor:
        return self._view(_STATE + 2 * key + version, piece)

    def node(self, rank: int, number: int, piece: Piece) -> Tensor:
        return self._view(_NODES + rank * self._areas_a_rank + number, piece)

    def flat(self, piece: Piece) -> Tensor:
        """Of the parameter itself, in this process."""
        return self._flats[piece.param].detach()[piece.start : piece.stop]

    def _view(self, area: int, piece: Piece) -> Tensor:
        view = self._views.get((area, piece))
        if view is None:
            mapping, memory = self._area(area)
            mapping.gather(piece.offset, self._size_of(piece))
            view = self._views[area, piece] = self.piece_of(memory, piece)
        return view

    def piece_of(self, memory: Tensor, piece: Piece, first: int = 0) -> Tensor:
        """A piece in memory that is laid out as an area is, from its byte `first` on."""
        begin = piece.offset - first
        return memory[begin : begin + self._size_of(piece)].view(self.params[piece.param].dtype)

    def _bytes(self, area: int) -> Tensor:
        return self._area(area)[1]

    def _area(self, area: int) -> tuple[FileMap, Tensor]:
        if area not in self._areas:
            mapping = self._memory.map(self._offset + area * self.area_bytes, self.area_bytes)
            self._areas[area] = mapping, bytes_of(mapping)
        return self._areas[area]

    def bytes_of_sum(self) -> Tensor:
        return self._bytes(_SUM)

    def bytes_of_node(self, rank: int, number: int, version: int = 0) -> Tensor:
        return self._bytes(_NODES + rank * self._areas_a_rank + version * _MOST_NODES + number)

    # -- whole parameters of areas ---------------------------------------------------------------------------------

    def whole_state(self, key: int, version: int, place: int) -> Tensor:
        """In the shape of the parameter."""
        return self._whole(self._bytes(_STATE + 2 * key + version), place)

    def take_params(self, places: Sequence[int]) -> None:
        """These parameters of this process become what the owners have written."""
        new = self._bytes(_NEW)
        torch._foreach_copy_([self.params[place] for place in places], [self._whole(new, place) for place in places])

    def map_sum(self) -> tuple[FileMap, Tensor, list[Tensor]]:
        """The sum through a private mapping: the mapping, its bytes, and each gradient, shaped as its parameter."""
        mapping = self._memory.map(self._offset + _SUM, self.area_bytes, private=True)
        whole = bytes_of(mapping)
        return mapping, whole, self.shaped(whole)

    def flat_in(self, memory: Tensor) -> list[Tensor]:
        """The elements of each parameter in memory that is laid out as an area is."""
        starts = zip(self.params, self._starts, strict=True)
        return [
            memory[start : start + param.numel() * param.element_size()].view(param.dtype) for param, start in starts
        ]

    def shaped(self, memory: Tensor) -> list[Tensor]:
        """The same, each in the shape of its parameter."""
        return [self._whole(memory, place) for place in range(len(self.params))]

    def _whole(self, area: Tensor, place: int) -> Tensor:
        param, start = self.params[place], self._starts[place]
        flat = area[start : start + param.numel() * param.element_size()].view(param.dtype)
        return flat.as_strided(param.shape, param.stride()) if is_dense(param) else flat.view(param.shape)


def flat_gradient(param: nn.Parameter, grad: Tensor | None) -> Tensor | None:
    """The elements of a gradient in the order in which those of the parameter lie in memory.

    Raises:
        TypeError: it is sparse.
    """
    if grad is None:
        return None
    check_strided(grad)
    if grad.is_contiguous() and param.is_contiguous() and grad.dtype == param.dtype:
        return grad.view(-1)
    if is_dense(param) and (grad.stride() != param.stride() or grad.dtype != param.dtype):
        grad = torch.empty_like(param, requires_grad=False).copy_(grad)
    return _in_order(grad) if is_dense(param) else grad.reshape(-1)


def check_strided(grad: Tensor) -> None:
    """Raises TypeError for a sparse one."""
    if grad.layout is not torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(grad.shape)} got a {grad.layout} gradient, which several processes cannot "
            f"add. Make the layer with sparse=False."
        )


def _in_order(tensor: Tensor) -> Tensor:
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
