"""A device's memory played by main memory: hands tensors to other processes of this host as `rpc.cuda_memory` does.

    memory = HostMemory({"cpu": "card-1"})      # what this process sees: its CPU tensors lie on card-1
    copy, handle = memory.lend(torch.ones(4))   # here
    view = HostMemory({"cpu": "card-1"}).borrow("card-1", handle, (torch.float32, (4,)))    # in another process

What is lent lies in an anonymous file that the handle names by process and descriptor; at its head stands a counter, 1
while somebody has borrowed it, as in torch's own. Memory that nobody refers to, and whose counter says that it is in
use, is kept in `limbo`. Tests let it fail: `why_not_lent`, `why_not_borrowed`.
"""

import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence

import torch

from fanwise.rpc.devices.device_memory import Handle
from fanwise.rpc.devices.loans import Sight

_COUNTER = struct.Struct("<q")
_HEAD_BYTES = 64


class HostMemory:
    """See the module. It is `rpc.device_memory.DeviceMemory`.

    Args:
        devices: UUIDs of the played cards, by the names of devices. Tensors of this process lie on the first.
        reach: pairs of cards of which the one reads the memory of the other.

    Attributes:
        num_lent, num_borrowed: how often that was done.
        limbo: what was let go of here before the borrower had.
        on_borrow: called when something was opened. on_settle: called when it was copied, before that counts as done.
    """

    def __init__(self, devices: Mapping[str, str], reach: frozenset[tuple[str, str]] = frozenset()) -> None:
        self.devices = dict(devices)
        self.reach = reach
        self.why_not_lent = self.why_not_borrowed = ""
        self.num_lent = self.num_borrowed = 0
        self.limbo: list[_Lent] = []
        self.on_borrow: Callable[[], object] = lambda: None
        self.on_settle: Callable[[], object] = lambda: None

    def holds_any(self, tensors: Sequence[torch.Tensor]) -> bool:
        return bool(tensors)

    def sight(self) -> Sight:
        return Sight(self.devices, self.reach)

    def uuid_of(self, tensor: torch.Tensor) -> str:
        return next(iter(self.devices.values()), "")

    def lend(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Handle]:
        if self.why_not_lent:
            raise RuntimeError(self.why_not_lent)
        self.collect()
        lent = _Lent(_HEAD_BYTES + tensor.nbytes, self.limbo)
        _COUNTER.pack_into(lent, 0, 1)
        copy = _over(lent, tensor.dtype, tuple(tensor.shape))
        copy.copy_(tensor.detach())
        self.num_lent += 1
        return copy, (os.getpid(), lent.descriptor, len(lent))

    def borrow(self, uuid: str, handle: Handle, like: tuple[torch.dtype, tuple[int, ...]]) -> torch.Tensor:
        if self.why_not_borrowed:
            raise RuntimeError(self.why_not_borrowed)
        if uuid not in self.devices.values():
            raise LookupError(f"this process does not see {uuid}")
        pid, descriptor, size_bytes = handle
        tensor = _over(_borrowed(pid, descriptor, size_bytes), *like)
        self.num_borrowed += 1
        self.on_borrow()
        return tensor

    def settle(self, copies: Sequence[torch.Tensor]) -> None:
        self.on_settle()

    def reclaim(self, handle: Handle) -> None:
        _pid, descriptor, size_bytes = handle
        if _is_open(descriptor, size_bytes):  # else the borrower did let go, and so did we
            _let_go(mmap.mmap(descriptor, size_bytes))
        self.collect()

    def collect(self) -> int:
        """Give back what is in limbo without need. How much is left there."""
        kept = [lent for lent in self.limbo if _COUNTER.unpack_from(lent, 0)[0] > 0]
        for lent in self.limbo:
            if lent not in kept:
                lent.end()
        self.limbo[:] = kept
        return len(kept)


class _Lent(mmap.mmap):
    """Memory of this process with a descriptor, which others open by."""

    descriptor: int
    limbo: "list[_Lent]"

    def __new__(cls, size_bytes: int, limbo: "list[_Lent]") -> "_Lent":
        descriptor = os.memfd_create("played device", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size_bytes)
        lent = super().__new__(cls, descriptor, size_bytes)
        lent.descriptor, lent.limbo = descriptor, limbo
        return lent

    def __del__(self) -> None:
        if self.descriptor >= 0 and _COUNTER.unpack_from(self, 0)[0] > 0:
            self.limbo.append(self)
        else:
            self.end()

    def end(self) -> None:
        """Close the descriptor: nobody can open it any more."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


class _Borrowed(mmap.mmap):
    """Memory of another process. Its counter goes down when nothing here refers to it any more."""

    def __del__(self) -> None:
        _let_go(self)


def _borrowed(pid: int, descriptor: int, size_bytes: int) -> _Borrowed:
    mine = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return _Borrowed(mine, size_bytes)
    finally:
        os.close(mine)


def _let_go(memory: mmap.mmap) -> None:
    _COUNTER.pack_into(memory, 0, _COUNTER.unpack_from(memory, 0)[0] - 1)


def _is_open(descriptor: int, size_bytes: int) -> bool:
    try:
        return os.fstat(descriptor).st_size == size_bytes
    except OSError:
        return False


def _over(memory: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = (len(memory) - _HEAD_BYTES) // dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=_HEAD_BYTES).view(shape)
