"""Gradients of all processes, added in the memory that they share: each process owns a slice of every sum.

    1  each writes the slices of others from its nodes of the tree       gather: what each node holds
    2  each adds its own slice of all nodes, along the tree, and divides   barrier
    3  each reads the whole sum                                          until the next step

So a process reads and adds 1/k of what there is, whatever the number of shards, and bytes move once each way: the
traffic of a ring (D2L 13.5, exercise 3). Slices begin at multiples of 64 bytes. The tree is that of `shards`, and every
element is added in its order, so the bits do not depend on who owns it.

The sum is read through a private mapping: an optimizer, or clipping, that writes into its gradients gets pages of its
own, and the others see nothing. Such pages are given up after the step.
"""

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ..gradients import Partial, add
from ..shards import Node, cut, total
from ..team import check_count
from .memory import bytes_of, pages

if TYPE_CHECKING:
    from .member import Member

_ALIGNED_BYTES = 64
_SUMS = 1 << 40
# Larger gradients are added in pieces, so that what was just added is still near when it is divided.
_PIECE_BYTES = 1 << 22
# Of the tree over the shards, for a range of them: two for each level, and there are no more than 1,024 shards' levels.
_MOST_NODES = 22


class _Piece(NamedTuple):
    """Elements `start` to `stop` of a parameter, which lie at `offset` bytes of an area."""

    param: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Brought:
    """What a node holds besides its gradients.

    `reached`: of which parameters it has a gradient; empty: none of its shards had samples.
    """

    start: int
    stop: int
    reached: bytes = b""
    loss: Tensor | None = None
    count: float = 0
    samples: int = 0
    buffers: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    executed: int = 0


class _Found(NamedTuple):
    """A node, and where its gradients are."""

    rank: int
    number: int
    node: _Brought


_Flats = dict[int, list[Tensor | None]]


class SharedSums:
    """The sums of one step. `size_bytes`: of its part of the memory, mostly untouched."""

    def __init__(self, member: "Member", params: Sequence[nn.Parameter], offset: int) -> None:
        self._member = member
        self._params = list(params)
        self._starts: list[int] = []
        end = 0
        for param in params:
            self._starts.append(end)
            end += -(-param.numel() * param.element_size() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._lines = end // _ALIGNED_BYTES
        self._area_bytes = pages(max(end, 1))
        self._offset = _SUMS + offset
        self.size_bytes = self._area_bytes * (1 + _MOST_NODES * member.ranks)
        self._areas: dict[int, Tensor] = {}
        self._views: dict[tuple[int | None, int, _Piece], Tensor] = {}
        self._slices: dict[tuple[int, int], list[_Piece]] = {}
        self._read = member.memory.map(self._offset, self._area_bytes, private=True)
        self._base = bytes_of(self._read)
        self._version = self._base._version
        self._sum_views = self._views_of_sums()

    def _views_of_sums(self) -> list[Tensor]:
        """Each gradient of the sum, as it is read."""
        views = []
        for param, start in zip(self._params, self._starts, strict=True):
            flat = self._base[start : start + param.numel() * param.element_size()].view(param.dtype)
            views.append(flat.as_strided(param.shape, param.stride()) if _is_dense(param) else flat.view(param.shape))
        return views

    # -- one step --------------------------------------------------------------------------------------------------

    def total(self, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        member, own = self._member, _Flats()
        for number, node in enumerate(nodes):
            if node.value is not None:
                both = zip(self._params, node.value.grads, strict=True)
                own[number] = [_flat(param, grad) for param, grad in both]
                self._hand_out(number, own[number])
        said = member.gather("makes a step", (member.joining, [_brought(node) for node in nodes]))
        found = [
            _Found(rank, number, node)
            for rank, (_, theirs) in zip(member.members, said, strict=True)
            for number, node in enumerate(theirs)
        ]
        done = self._added(found, own, shards, mean)
        member.barrier()
        if said[0][0]:
            member.admit_soon()
        self.settle()  # also what a step that failed has left
        if not mean:
            done.grads = [None if grad is None else grad.clone() for grad in done.grads]
        return done

    def settle(self) -> None:
        if self._base._version != self._version:
            self._read.madvise(mmap.MADV_DONTNEED)
            self._version = self._base._version

    # -- step by step ----------------------------------------------------------------------------------------------

    def _hand_out(self, number: int, flats: Sequence[Tensor | None]) -> None:
        """What the others add, of one node of ours."""
        member = self._member
        to: list[Tensor] = []
        of: list[Tensor] = []
        for place in range(member.size):
            if place != member.place:
                for piece in self._slice(place):
                    flat = flats[piece.param]
                    if flat is not None:
                        to.append(self._view(member.rank, number, piece))
                        of.append(flat[piece.start : piece.stop])
        if to:
            torch._foreach_copy_(to, of)

    def _added(self, found: Sequence[_Found], own: _Flats, shards: int, mean: bool) -> Partial:
        """Our slice of the sum goes into the memory; what the nodes hold besides is added for all, by everyone."""
        done = total([Node(each.node.start, each.node.stop, _without_grads(each.node)) for each in found], shards, add)
        check_count(done.count, done.samples)
        for piece in self._slice(self._member.place):
            self._add_piece(piece, found, own, shards, done.count if mean else None)
        for place, view in enumerate(self._sum_views):
            is_reached = any(each.node.reached[place] for each in found if each.node.reached)
            done.grads.append(view if is_reached else None)
        return done

    def _add_piece(self, piece: _Piece, found: Sequence[_Found], own: _Flats, shards: int, count: float | None) -> None:
        """One piece of all nodes, along the tree; the last addition puts it where it is read."""
        nodes = [Node(each.node.start, each.node.stop, self._operand(each, own, piece)) for each in found]
        operands = sum(node.value is not None for node in nodes)
        if operands == 0:
            return
        out = self._view(None, 0, piece)
        additions = 0

        def plus(left: Tensor, right: Tensor) -> Tensor:
            nonlocal additions
            additions += 1
            return torch.add(left, right, out=out) if additions == operands - 1 else left.add_(right)

        result = total(nodes, shards, plus)
        if operands == 1:
            out.copy_(result)
        if count is not None:
            out.div_(count)

    def _operand(self, each: _Found, own: _Flats, piece: _Piece) -> Tensor | None:
        if not each.node.reached or not each.node.reached[piece.param]:
            return None
        if each.rank != self._member.rank:
            return self._view(each.rank, each.number, piece)
        flat = own[each.number][piece.param]
        assert flat is not None, "it was reached"
        return flat[piece.start : piece.stop]

    # -- places in the memory --------------------------------------------------------------------------------------

    def _slice(self, place: int) -> list[_Piece]:
        """What the process at this place owns."""
        size = self._member.size
        if (place, size) not in self._slices:
            lines = cut(self._lines, size)[place]
            first, last = lines.start * _ALIGNED_BYTES, lines.stop * _ALIGNED_BYTES
            self._slices[place, size] = list(self._pieces_of(first, last))
        return self._slices[place, size]

    def _pieces_of(self, first: int, last: int) -> Iterator[_Piece]:
        for place, (param, begin) in enumerate(zip(self._params, self._starts, strict=True)):
            each = param.element_size()
            at, end = max(first, begin), min(last, begin + param.numel() * each)
            while at < end:
                stop = min(at + _PIECE_BYTES, end)
                yield _Piece(place, (at - begin) // each, (stop - begin) // each, at)
                at = stop

    def _view(self, rank: int | None, number: int, piece: _Piece) -> Tensor:
        """A piece of a node of a rank, or of the sum (None)."""
        key = (rank, number, piece)
        view = self._views.get(key)
        if view is None:
            param = self._params[piece.param]
            stop = piece.offset + (piece.stop - piece.start) * param.element_size()
            view = self._area(rank, number)[piece.offset : stop].view(param.dtype)
            self._views[key] = view
        return view

    def _area(self, rank: int | None, number: int) -> Tensor:
        place = 0 if rank is None else 1 + rank * _MOST_NODES + number
        if place not in self._areas:
            mapping = self._member.memory.map(self._offset + place * self._area_bytes, self._area_bytes)
            self._areas[place] = bytes_of(mapping)
        return self._areas[place]


def _flat(param: nn.Parameter, grad: Tensor | None) -> Tensor | None:
    """The elements of a gradient in the order in which those of the parameter lie in memory."""
    if grad is None:
        return None
    if grad.layout != torch.strided:
        raise TypeError(
            f"a parameter of shape {tuple(param.shape)} got a {grad.layout} gradient, which several processes cannot "
            f"add. Make the layer with sparse=False."
        )
    if not _is_dense(param):
        return grad.reshape(-1)
    if grad.stride() != param.stride() or grad.dtype != param.dtype:
        grad = torch.empty_like(param, requires_grad=False).copy_(grad)
    return grad.as_strided((grad.numel(),), (1,))


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a range of memory, in whatever order of the axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _without_grads(node: _Brought) -> Partial | None:
    if not node.reached:
        return None
    assert node.loss is not None, "it has samples"
    return Partial([], node.loss, node.count, node.samples, node.buffers, node.executed)


def _brought(node: Node[Partial]) -> _Brought:
    if node.value is None:
        return _Brought(node.start, node.stop)
    value = node.value
    reached = bytes(grad is not None for grad in value.grads)
    return _Brought(
        node.start, node.stop, reached, value.loss, value.count, value.samples, value.buffers, value.executed
    )
