"""Gradients that lie on a GPU are added there, and go through the shared memory: the transport of GPU ranks.

    own nodes, on the device --others' slices--> shared memory --our slice of theirs--> rows, on the device
    sum, on the device       <--others' slices-- shared memory <--our slice----------- added along the tree

Memory on the device is kept from step to step: one area for each own node and one for the sum, and our slice of each
node of the others. Copies are queued on the stream of the program; whoever tells the others that something is there has
waited for it, so there is nothing under way where others write, or when this process is killed and its share is done
again. What is copied with is registered with CUDA, so that the GPU copies by itself; without that it works, slowly.

The same code runs with memory of the CPU in the place of the GPU's. On a GPU it has run between ranks that share one.
"""

import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..all_reduce.contract import AllReducePlan, Found
from .flat_layout import Bucket, extent, flat_gradient, joined
from .shm_areas import Areas

_log = logging.getLogger(__name__)

# Of cudaHostRegister: registered for all contexts.
_PORTABLE = 1


class Staged:
    """See the module and all_reduce/two_shot.py.

    Args:
        device: of the gradients.
    """

    def __init__(self, areas: Areas, device: torch.device) -> None:
        self._areas = areas
        self._device = device
        self._own: dict[int, Tensor] = {}
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._handed: set[int] = set()
        self._sum = self._memory(areas.area_bytes)
        self._grads = areas.layout.shaped(self._sum)
        self._registered: dict[int, Tensor] = {}
        self.meet = areas.team.barrier
        weakref.finalize(self, _unregister, self._registered)

    # -- what shards brought ---------------------------------------------------------------------------------------

    def hand_out(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        layout = self._areas.layout
        if number not in self._own:
            self._own[number] = self._memory(self._areas.area_bytes)
        found = [(place, grad) for place, grad in enumerate(grads, first) if grad is not None]
        if found:
            of = [flat_gradient(layout.params[place], grad) for place, grad in found]
            torch._foreach_copy_([layout.flat(self._own[number], place) for place, _ in found], of)
        self._handed.add(number)

    def wait(self) -> None:
        # One copy a slice, not one a parameter: what the loss did not reach goes along, and nobody reads it.
        for number in self._handed:
            shared = self._shared(self._areas.whole_node(self._areas.team.rank, number))
            for buckets in self._areas.others():
                _copy(shared, self._own[number], extent(buckets))
        self._handed.clear()
        self._synchronize()

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.get_device_module(self._device).current_stream(self._device).synchronize()

    def bring(self, met: AllReducePlan) -> list[Bucket]:
        team, owned = self._areas.team, self._areas.owned()
        part = extent(owned)
        for place, number, node in met.found:
            if node.reached and place != team.place:
                row = self._rows.get((place, number))
                if row is None or len(row) != len(part):
                    row = self._rows[place, number] = self._memory(len(part))
                shared = self._shared(self._areas.whole_node(team.members[place], number))
                row.copy_(shared[part.start : part.stop], non_blocking=True)
        return joined(owned, met.flags())

    def operand(self, each: Found, bucket: Bucket) -> Tensor:
        if each.place == self._areas.team.place:
            return bucket.of(self._own[each.number])
        return bucket.of(self._rows[each.place, each.number], extent(self._areas.owned()).start)

    # -- the sum ---------------------------------------------------------------------------------------------------

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.of(self._sum)

    def publish(self) -> None:
        _copy(self._shared(self._areas.whole_sum()), self._sum, extent(self._areas.owned()))
        self._synchronize()

    def collect(self) -> list[Tensor | None]:
        shared = self._shared(self._areas.whole_sum())
        for buckets in self._areas.others():
            _copy(self._sum, shared, extent(buckets))
        return self._grads

    def settle(self) -> None:
        """The gradients are this process's own."""

    def abort(self) -> None:
        self._handed.clear()
        self._synchronize()

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
