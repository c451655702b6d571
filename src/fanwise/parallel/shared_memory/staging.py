"""Gradients that lie on a GPU are added there, and go through the shared memory: the carrier of GPU ranks.

    own nodes, on the device --others' slices--> shared memory --our slice of theirs--> rows, on the device
    sum, on the device       <--others' slices-- shared memory <--our slice----------- added along the tree

Memory on the device is kept from step to step: one area for each own node and one for the sum, and our slice of each
node of the others. Copies are queued on the stream of the program; whoever tells the others that something is there has
waited for it, so there is nothing under way where others write, or when this process is killed and its share is done
again. What is copied with is registered with CUDA, so that the GPU copies by itself; without that it works, slowly.

The same code runs with memory of the CPU in the place of the GPU's. On a GPU it has not run yet.
"""

import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..teams.node_info import NodeInfo
from .areas import Areas, Piece

_log = logging.getLogger(__name__)

# Of cudaHostRegister: registered for all contexts.
_PORTABLE = 1


class Staged:
    """See the module and two_shot.py.

    Args:
        rank: of this process. device: of its gradients.
    """

    def __init__(self, areas: Areas, rank: int, device: torch.device) -> None:
        self._areas = areas
        self._rank = rank
        self._device = device
        self._own: dict[int, Tensor] = {}
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._first = 0
        self._sum = self._memory(areas.area_bytes)
        self._grads = areas.shaped(self._sum)
        self._registered: dict[int, Tensor] = {}
        weakref.finalize(self, _unregister, self._registered)

    # -- what shards brought ---------------------------------------------------------------------------------------

    def hand_out(self, number: int, flats: Sequence[Tensor | None], slices: Sequence[Sequence[Piece]]) -> None:
        areas = self._areas
        if number not in self._own:
            self._own[number] = self._memory(areas.area_bytes)
        own, shared = self._own[number], self._shared(areas.bytes_of_node(self._rank, number))
        # One copy a slice, not one a parameter: what the loss did not reach goes along, and nobody reads it.
        both = [(to, of) for to, of in zip(areas.flat_in(own), flats, strict=True) if of is not None]
        if both:
            torch._foreach_copy_([to for to, _ in both], [of for _, of in both])
        for pieces in slices:
            _copy(shared, own, areas.extent(pieces))

    def wait(self) -> None:
        if self._device.type != "cpu":
            torch.get_device_module(self._device).current_stream(self._device).synchronize()

    def bring(self, rank: int, nodes: Sequence[NodeInfo], pieces: Sequence[Piece]) -> None:
        part = self._areas.extent(pieces)
        self._first = part.start
        for number, node in enumerate(nodes):
            if node.reached:
                row = self._rows.get((rank, number))
                if row is None or len(row) != len(part):
                    row = self._rows[rank, number] = self._memory(len(part))
                shared = self._shared(self._areas.bytes_of_node(rank, number))
                row.copy_(shared[part.start : part.stop], non_blocking=True)

    def others_node(self, rank: int, number: int, piece: Piece) -> Tensor:
        return self._areas.piece_of(self._rows[rank, number], piece, self._first)

    # -- the sum ---------------------------------------------------------------------------------------------------

    def sum(self, piece: Piece) -> Tensor:
        return self._areas.piece_of(self._sum, piece)

    def publish(self, pieces: Sequence[Piece]) -> None:
        _copy(self._shared(self._areas.bytes_of_sum()), self._sum, self._areas.extent(pieces))
        self.wait()

    def collect(self, slices: Sequence[Sequence[Piece]]) -> list[Tensor]:
        shared = self._shared(self._areas.bytes_of_sum())
        for pieces in slices:
            _copy(self._sum, shared, self._areas.extent(pieces))
        return self._grads

    def settle(self) -> None:
        """The gradients are this process's own."""

    # -- memory ----------------------------------------------------------------------------------------------------

    def _memory(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def _shared(self, memory: Tensor) -> Tensor:
        """An area of the shared memory, which the device can copy from and to by itself."""
        if self._device.type == "cuda" and memory.data_ptr() not in self._registered:
            _register(memory, self._device)
            self._registered[memory.data_ptr()] = memory
        return memory


def _copy(to: Tensor, of: Tensor, part: range) -> None:
    """These bytes; queued where one of them is on a GPU."""
    if part:
        to[part.start : part.stop].copy_(of[part.start : part.stop], non_blocking=True)


def _register(memory: Tensor, device: torch.device) -> None:
    """As pinned memory, with CUDA; what cannot be is copied by way of buffers of the driver."""
    cudart: Any = torch.cuda.cudart  # Any: torch has not annotated it
    result = int(cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), _PORTABLE))
    if result != 0:
        _log.info("CUDA could not register %d bytes of shared memory (error %d)", memory.numel(), result)
        # The failed call has left its error for whoever launches next, which is this.
        with suppress(RuntimeError):
            torch.zeros(1, device=device)


def _unregister(registered: dict[int, Tensor]) -> None:
    """The mappings end only after this: they are held here."""
    cudart: Any = torch.cuda.cudart  # Any: as above
    for address in registered:
        cudart().cudaHostUnregister(address)
    registered.clear()
