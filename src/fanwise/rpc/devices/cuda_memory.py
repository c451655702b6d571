"""`DeviceMemory` for CUDA: IPC handles, by the same functions of torch that torch.multiprocessing uses.

    lend    clone on the sender's stream --> _share_cuda_: handle of the allocation, event, counter in a shared file
    borrow  stream waits for the event --> _new_shared_cuda; the counter goes down when the storage ends

torch keeps a lent storage until its counter is zero, also when nobody refers to it: `reclaim` lowers the counter for a
receiver that died. The event is opened here and not by torch, which in 2.13 never closes the ones that it opens.
"""

import os
from collections.abc import Mapping, Sequence

import torch

from .device_memory import Handle
from .loans import Sight


class CudaMemory:
    """See the module. Touches CUDA when the first of its tensors is seen, not before. FANWISE_CUDA_IPC=0: never."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._is_on = environment.get("FANWISE_CUDA_IPC", "") != "0"

    def holds_any(self, tensors: Sequence[torch.Tensor]) -> bool:
        if self._is_on:
            for tensor in tensors:  # with no `any`: it takes longer, and every message with tensors comes here
                if tensor.is_cuda:
                    return True
        return False

    def sight(self) -> Sight:
        count = torch.cuda.device_count() if self._is_on else 0
        uuids = [_uuid(index) for index in range(count)]
        reach = frozenset(
            (uuids[one], uuids[other])
            for one in range(count)
            for other in range(count)
            if one != other and uuids[one] and uuids[other] and torch.cuda.can_device_access_peer(one, other)
        )
        return Sight({f"cuda:{index}": uuid for index, uuid in enumerate(uuids) if uuid}, reach)

    def uuid_of(self, tensor: torch.Tensor) -> str:
        return _uuid(tensor.device.index) if tensor.is_cuda else ""

    def lend(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Handle]:
        with torch.cuda.device(tensor.device):
            copy = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
            _index, *handle = copy.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]  # torch's
        return copy, tuple(handle)

    def borrow(self, uuid: str, handle: Handle, like: tuple[torch.dtype, tuple[int, ...]]) -> torch.Tensor:
        index = next((index for index in range(torch.cuda.device_count()) if _uuid(index) == uuid), None)
        if index is None:
            raise LookupError(f"this process does not see the device {uuid}")
        *memory, event, is_waiting_needed = handle
        dtype, shape = like
        with torch.cuda.device(index):
            if is_waiting_needed:
                device = torch.device("cuda", index)
                done = torch.cuda.Event.from_ipc_handle(device, event)  # type: ignore[no-untyped-call]  # torch's
                torch.cuda.current_stream(index).wait_event(done)
            storage = torch.UntypedStorage._new_shared_cuda(index, *memory, event, False)
            return torch.empty(0, dtype=dtype, device=storage.device).set_(storage).view(shape)

    def settle(self, copies: Sequence[torch.Tensor]) -> None:
        for device in {tensor.device for tensor in copies if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def reclaim(self, handle: Handle) -> None:
        _allocation, _size_bytes, _offset_bytes, counter, counter_place, *_event = handle
        torch.UntypedStorage._release_ipc_counter_cuda(counter, counter_place)
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # torch's


def _uuid(index: int) -> str:
    """ "" where this torch or this device has none: then nothing of it is lent."""
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
