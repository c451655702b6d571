"""Process groups of torch.distributed that a run has for itself, and what they are used for.

    control   Gloo, in main memory: bytes of each process to all
    data      of the device: slices of gradients; on a GPU NCCL, else the same group

Over NCCL a call returns when it is queued, and what waits for its result is the stream of the program, not the program.
With NCCL this has not run yet.

The program may use torch.distributed beside it, in its own groups. If nobody has initialised it, it is done here, and
undone in the end. What the back end says when a process is gone, or does not come within its time-out (torch's, 30
minutes for Gloo and 10 for NCCL), becomes a `WorkerLostError`.
"""

import ctypes
import datetime
import pickle
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ...base.errors import WorkerLostError
from ...links.codec import dumps, loads
from ..hangs.stragglers import limit_s
from .launcher import Launched
from .neighbours import Neighbours

# What fits into the first message needs no second one; most does.
_FIRST_BYTES = 4096
_HEAD_BYTES = 8

# Of a limit; the clock of the back end may run a little ahead of ours.
_MOST_OF = 0.9

# The rendezvous of the launcher, once found, and how many runs have used it. It is kept, because the process of rank 0
# may serve it: another that came back to it early would find the one that is about to close.
_store: Store | None = None
_uses = 0


class Groups:
    """See the module. `is_broken`: an exchange has failed, so no other can follow."""

    def __init__(self, launched: Launched, device: torch.device) -> None:
        self.place, self.size = launched.rank, launched.size
        self.is_broken = False
        self.has_stepped = False
        self._limit_s: float | None = None
        self._neighbours: Neighbours | None = None
        self._number = 0
        self._is_telling = False
        self._is_ours = not launched.is_joined
        with self._exchanging("comes together with the others"):
            if self._is_ours:
                _initialise(launched, device)
            try:
                self._control = distributed.new_group(backend="gloo")
                self._data = self._control if device.type == "cpu" else self._group_of_gpus(device)
            except BaseException:
                self._undo()
                raise

    def _group_of_gpus(self, device: torch.device) -> ProcessGroup:
        """Over NCCL. Raises ValueError, in all processes, when two have the same GPU, which NCCL refuses late."""
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        check_gpus(self.gather((socket.gethostname(), uuid or str(device))))
        group: ProcessGroup = distributed.new_group(backend="nccl")
        # Messages from one to another are allowed for some of the processes only after a first exchange of all.
        distributed.all_reduce(torch.zeros(1, device=device), group=group)
        return group

    def close(self) -> None:
        """Others that still wait for this process learn at once that it is gone."""
        if self._is_telling:
            # It would block until all have come, and so would the end of the program, which gives back all references
            # but these: a launcher ends those that hang when one process has ended, and not before.
            for group in (self._data, self._control):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            return
        is_shared = self._data is self._control
        distributed.destroy_process_group(self._data)
        if not is_shared:
            distributed.destroy_process_group(self._control)
        # The last reference closes the connections.
        del self._data, self._control
        self._undo()

    def _undo(self) -> None:
        if self._is_ours:
            distributed.destroy_process_group()

    def watch(self, neighbours: Neighbours, within_s: float) -> None:
        """From now on no exchange waits longer for the others; who did not come is named, where that is known."""
        self._neighbours, self._limit_s = neighbours, within_s

    def _limit(self) -> float | None:
        return None if self._limit_s is None else limit_s(self._limit_s, has_stepped=self.has_stepped)

    # -- bytes -----------------------------------------------------------------------------------------------------

    def gather(self, content: Any, within_s: float | None = None) -> list[Any]:  # Any: anything that can be pickled
        """What all processes gave, by place.

        Args:
            within_s: to wait for the others; those that come later are still told, as long as this process lives.
        """
        data = _pack(content)
        with self._exchanging("waits for what the others say"):
            self._is_telling = within_s is not None
            first = self._gather_blocks(len(data).to_bytes(_HEAD_BYTES, "little") + data[:_FIRST_BYTES], within_s)
            sizes = [int.from_bytes(block[:_HEAD_BYTES], "little") for block in first]
            rest = max(sizes) - _FIRST_BYTES
            more = self._gather_blocks(data[_FIRST_BYTES:], within_s, rest) if rest > 0 else [b""] * self.size
            self._is_telling = False
        both = zip(first, more, sizes, strict=True)
        return [_unpack((block[_HEAD_BYTES:] + other)[:size]) for block, other, size in both]

    def _gather_blocks(
        self, data: bytes, within_s: float | None, size_bytes: int = _HEAD_BYTES + _FIRST_BYTES
    ) -> list[bytes]:
        """Blocks of one size, the data at their beginning."""
        own = torch.frombuffer(bytearray(data.ljust(size_bytes, b"\0")), dtype=torch.uint8)
        blocks = [torch.empty_like(own) for _ in range(self.size)]
        work = distributed.all_gather(blocks, own, group=self._control, async_op=True)
        assert work is not None, "this process is in the group"
        self._wait(work, within_s)
        return [block.numpy().tobytes() for block in blocks]

    def _wait(self, work: distributed.Work, within_s: float | None = None) -> None:
        limit = self._limit() if within_s is None else within_s
        if limit is None:
            work.wait()
        else:
            work.wait(datetime.timedelta(seconds=limit))

    def _wait_for_data(self, work: distributed.Work) -> None:
        """Over NCCL the program does not wait; a process that hangs is missed at the next exchange of bytes."""
        if self._data is self._control:
            self._wait(work)
        else:
            work.wait()

    # -- gradients -------------------------------------------------------------------------------------------------

    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> None:
        """Send each process its own, and receive what each has for this one, in the memory given for it."""
        with self._exchanging("exchanges gradients"):
            receive[self.place].copy_(send[self.place])
            both = [
                distributed.P2POp(kind, tensor, place, self._data)
                for kind, tensors in ((distributed.isend, send), (distributed.irecv, receive))
                for place, tensor in enumerate(tensors)
                if place != self.place and tensor.numel()
            ]
            for work in distributed.batch_isend_irecv(both) if both else ():
                self._wait_for_data(work)

    def all_gather(self, memory: Tensor) -> None:
        """Each process has made its part of `memory`, which is cut evenly; then all have all of it."""
        with self._exchanging("exchanges gradients"):
            parts = memory.view(self.size, -1)
            # Not all_gather, which copies over Gloo: 92 ms against 14 for 45 MB between two processes.
            works = [
                distributed.broadcast(part, place, group=self._data, async_op=True)
                for place, part in enumerate(parts)
                if part.numel()
            ]
            for work in works:
                assert work is not None, "this process is in the group"
                self._wait_for_data(work)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """The sums over all processes, in place."""
        with self._exchanging("exchanges gradients"):
            works = [distributed.all_reduce(tensor, group=self._data, async_op=True) for tensor in tensors]
            for work in works:
                assert work is not None, "this process is in the group"
                self._wait_for_data(work)

    @contextmanager
    def _exchanging(self, what: str) -> Iterator[None]:
        before, self.is_broken = self.is_broken, True
        self._number += 1
        if self._neighbours is not None:
            self._neighbours.comes_to(self._number)
        began_s, limit = time.monotonic(), self._limit()
        try:
            yield
        except RuntimeError as error:  # Gloo's errors have no type of their own
            waited_s = time.monotonic() - began_s
            if limit is not None and waited_s >= _MOST_OF * limit:
                self._is_telling = True  # closing would block until all have come
                raise WorkerLostError(self._missed(what, waited_s)) from error
            raise WorkerLostError(
                f"process {self.place} of {self.size} {what}, and torch.distributed says: {error}\n"
                f"As a rule another process has ended; what it printed last is the cause. When all are alive, one did "
                f"not come within the time-out of the process group."
            ) from error
        self.is_broken = before

    def _missed(self, what: str, waited_s: float) -> str:
        """Who did not come."""
        assert self._neighbours is not None and self._limit_s is not None, "there is a limit"
        late, unknown = self._neighbours.late(self._number)
        who = "\n".join(late) or "All processes of this machine have come."
        if unknown:
            who += f"\nOf others nothing is known here, as they are gone or on another machine: {', '.join(unknown)}."
        return (
            f"process {self.place} of {self.size} {what}, and has waited for {waited_s:.1f} s "
            f"(step_timeout_s={self._limit_s:g}).\n{who}\n"
            f"To end what hangs, and to start again, is the launcher's task."
        )


def check_gpus(each: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError when two processes, by place, are on the same machine and GPU."""
    seen: dict[tuple[str, str], int] = {}
    for place, where in enumerate(each):
        first = seen.setdefault(where, place)
        if first != place:
            raise ValueError(
                f"processes {first} and {place} of {len(each)} are on the same GPU, {where[1]} of {where[0]}; "
                f"each needs one of its own.\nStart one for each GPU, or train on CPUs: devices='cpu'."
            )


def _initialise(launched: Launched, device: torch.device) -> None:
    global _store, _uses
    if _store is None:
        _store, _, _ = next(iter(rendezvous(launched.init_method, launched.rank, launched.size)))
    _uses += 1
    # A run finds no addresses of the run before it under its own prefix.
    store = PrefixStore(f"fanwise/{_uses}", _store)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, store=store, rank=launched.rank, world_size=launched.size)


def _pack(content: Any) -> bytes:  # Any: as in gather
    head, buffers = dumps(content)
    return pickle.dumps((head, [bytes(buffer) for buffer in buffers]), protocol=5)


def _unpack(data: bytes) -> Any:  # Any: whatever was packed
    head, buffers = pickle.loads(data)
    return loads(head, [memoryview(bytearray(buffer)) for buffer in buffers])
