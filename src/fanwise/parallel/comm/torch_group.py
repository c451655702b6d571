"""`TorchGroup`: process groups of torch.distributed for one run, on GPUs and under launchers.

    control group   Gloo, for bytes in main memory
    data group      for gradients: NCCL on GPUs, where calls return when they are queued on the stream; else Gloo

They are separate, because an error is sent by the control group while exchanges of gradients may be in progress.

The groups belong to the run, so the program can also use torch.distributed itself. If the program has not initialized
torch.distributed, the run does, and destroys it at the end.

A lost connection or a timeout raises `WorkerLostError`. Other errors, such as a lack of GPU memory, keep their type.
"""

import ctypes
import datetime
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import Store

from ...base.errors import WorkerLostError
from .stragglers import limit_s

TorchBackend = Literal["gloo", "nccl"]

_FIRST_BYTES = 4096  # most contents fit into the first message and need no second one
_HEAD_BYTES = 8
_SUPERVISED_LIMIT = datetime.timedelta(days=30)
# An error after this fraction of the time limit counts as a timeout, because torch measures the limit by another clock.
_TIMEOUT_FRACTION = 0.9
# Gloo raises plain RuntimeErrors.
_CONNECTION_ERRORS = re.compile("gloo|nccl|connection|socket|timed out|timeout|broken pipe", re.IGNORECASE)

_all_gather: Any = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # older torch


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run, and the rank of this one.

    `make_store` returns the store through which the processes find each other. None: the program has initialized
    torch.distributed with these processes.
    """

    rank: int
    size: int
    make_store: Callable[[], Store] | None = None
    has_supervisor: bool = False  # which finds processes that hang, so exchanges have no time limit


class TorchGroup:
    """See the module. The constructor blocks until all processes have called theirs.

    Args:
        backend: backend of the data group. None: NCCL for a GPU, else Gloo.
        on_operation: called with the sequence number of each exchange when it begins.
    """

    is_open = False  # of the class: a run of this process has initialized torch.distributed

    def __init__(
        self,
        world: World,
        device: torch.device,
        backend: TorchBackend | None = None,
        on_operation: Callable[[int], None] | None = None,
    ) -> None:
        self.index, self.size = world.rank, world.size
        self.is_broken = False  # an exchange has failed, so no other exchange can follow
        self.has_stepped = False  # the first step is done, which has a longer time limit than others
        self._limit_s: float | None = None
        self._on_operation = on_operation
        self._seq = 0
        self.num_fast = 0  # number of objects that start all-reduces
        self._started: list[distributed.Work | None] = []  # all-reduces
        self._is_closed = False
        self._must_leak = False
        self._is_initialized_here = world.make_store is not None
        self._timeout = _SUPERVISED_LIMIT if world.has_supervisor else None
        self._uses_nccl = use_nccl = device.type == "cuda" and backend != "gloo"
        with self._exchanging("meets the others"):
            if world.make_store is not None:
                backends = "cpu:gloo,cuda:nccl" if use_nccl else "gloo"
                distributed.init_process_group(
                    backends, timeout=self._timeout, store=world.make_store(), rank=world.rank, world_size=world.size
                )
                TorchGroup.is_open = True
            try:
                self._control = self._gloo_group()
                self._data = self._nccl_group(device) if use_nccl else self._gloo_group()
            except BaseException:
                self._destroy_own_initialization()
                raise

    def _gloo_group(self) -> distributed.ProcessGroup:
        group: distributed.ProcessGroup = distributed.new_group(backend="gloo", timeout=self._timeout)
        return group

    def _nccl_group(self, device: torch.device) -> distributed.ProcessGroup:
        # NCCL itself reports only after a while that two processes use the same GPU.
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        check_gpus(self.gather((socket.gethostname(), uuid or str(device))))
        group: distributed.ProcessGroup = distributed.new_group(backend="nccl", timeout=self._timeout)
        distributed.all_reduce(torch.zeros(1, device=device), group=group)  # connects all processes
        return group

    def close(self) -> None:
        """Close the connections. Exchanges of other processes with this one then fail at once."""
        self._is_closed = True
        if self._uses_nccl and not all(work is None or work.is_completed() for work in self._started):
            # A process that has failed does not start its part, for which destroying the group would wait.
            self._must_leak = True
            if hasattr(self._data, "abort"):
                self._data.abort()
        if self._must_leak:
            # Destroying the groups would block until all processes do it, and so would the end of the program, which
            # drops all references but these. The launcher ends processes that hang once another one has ended.
            for group in (self._data, self._control):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            return
        self._started.clear()  # they keep connections open
        for group in (self._data, self._control):
            distributed.destroy_process_group(group)
        del self._data, self._control, group  # the last reference closes the connections
        self._destroy_own_initialization()

    def _destroy_own_initialization(self) -> None:
        if self._is_initialized_here:
            TorchGroup.is_open = False
            distributed.destroy_process_group()

    def limit_operations(self, limit_s: float) -> None:
        """Make later exchanges fail that take longer than this time."""
        self._limit_s = limit_s

    def _limit(self) -> float | None:
        return None if self._limit_s is None else limit_s(self._limit_s, has_stepped=self.has_stepped)

    def gather(self, content: Any, within_s: float | None = None) -> list[Any]:
        """Return the contents of all processes, by index. Blocks until all processes call it.

        After the limit `within_s`, others that call it still receive the content, as long as this process lives.
        """
        data = pickle.dumps(content, protocol=5)
        with self._exchanging("waits for the others"):
            self._must_leak = within_s is not None
            first = self._gather_blocks(len(data).to_bytes(_HEAD_BYTES, "little") + data[:_FIRST_BYTES], within_s)
            sizes = [int.from_bytes(block[:_HEAD_BYTES], "little") for block in first]
            more_bytes = max(sizes) - _FIRST_BYTES
            more = [b""] * self.size
            if more_bytes > 0:
                more = self._gather_blocks(data[_FIRST_BYTES:], within_s, more_bytes)
            self._must_leak = False
        both = zip(first, more, sizes, strict=True)
        return [pickle.loads((block[_HEAD_BYTES:] + rest)[:size]) for block, rest, size in both]

    def _gather_blocks(
        self, data: bytes, within_s: float | None, size_bytes: int = _HEAD_BYTES + _FIRST_BYTES
    ) -> list[bytes]:
        own = torch.frombuffer(bytearray(data.ljust(size_bytes, b"\0")), dtype=torch.uint8)
        blocks = [torch.empty_like(own) for _ in range(self.size)]
        self._wait(distributed.all_gather(blocks, own, group=self._control, async_op=True), within_s)
        return [block.numpy().tobytes() for block in blocks]

    def _wait(self, work: distributed.Work | None, within_s: float | None = None) -> None:
        assert work is not None, "this process is in the group"
        limit = self._limit() if within_s is None else within_s
        if limit is None:
            work.wait()
        else:
            work.wait(datetime.timedelta(seconds=limit))

    def all_to_all(
        self, send: Tensor, receive: Tensor, send_bytes: Sequence[int], receive_bytes: Sequence[int]
    ) -> None:
        """Send each process its part of `send`, and write the parts from the others into `receive`, by index."""
        with self._exchanging("exchanges gradients"):
            works = [
                distributed.all_to_all_single(
                    receive, send, list(receive_bytes), list(send_bytes), group=self._data, async_op=True
                )
            ]
            self._finish(works)

    def all_gather(self, memory: Tensor) -> None:
        """Fill `memory`, which has a part of equal size for each process. This process has written its own part."""
        with self._exchanging("exchanges gradients"):
            parts = memory.view(self.size, -1)
            if not parts.numel():
                return
            if not self._uses_nccl:
                # Gloo's all_gather copies: it takes 100 ms for 45 MB between two processes, broadcasts take 19 ms.
                works = [
                    distributed.broadcast(part, index, group=self._data, async_op=True)
                    for index, part in enumerate(parts)
                ]
            else:
                works = [_all_gather(memory, parts[self.index], group=self._data, async_op=True)]
            self._finish(works)

    def start_all_reduce(self, tensor: Tensor) -> None:
        """Start to replace a tensor by its sum over all processes, which start theirs in the same order."""
        if self._is_closed:  # a suspended generator may abort its step after the run
            return
        self._started.append(distributed.all_reduce(tensor, group=self._data, async_op=True))

    def finish_all_reduce(self) -> None:
        """Block until all tensors are replaced."""
        with self._exchanging("exchanges gradients"):
            self._finish(self._started)
        self._started.clear()

    def _finish(self, works: Sequence[distributed.Work | None]) -> None:
        # Over NCCL only the stream waits, so a process that hangs is noticed at the next exchange of bytes.
        for work in works:
            if self._uses_nccl:
                assert work is not None, "this process is in the group"
                work.wait()
            else:
                self._wait(work)

    @contextmanager
    def _exchanging(self, operation: str) -> Iterator[None]:
        before, self.is_broken = self.is_broken, True
        self._seq += 1
        if self._on_operation is not None:
            self._on_operation(self._seq)
        began_s, limit = time.monotonic(), self._limit()
        try:
            yield
        except RuntimeError as error:
            if not is_connection_error(error):
                raise
            waited_s = time.monotonic() - began_s
            if limit is not None and waited_s >= _TIMEOUT_FRACTION * limit:
                self._must_leak = True
                raise WorkerLostError(
                    f"process {self.index} of {self.size} {operation}, and has waited for {waited_s:.1f} s "
                    f"(step_timeout_s={self._limit_s:g}). The process that hangs raises no such error. "
                    f"`py-spy dump --pid PID` prints its stack."
                ) from error
            raise WorkerLostError(
                f"process {self.index} of {self.size} {operation}, and torch.distributed says: {error}\n"
                f"Usually another process has ended: look at the end of its output. If all processes are alive, one "
                f"did not come within the timeout of the process group."
            ) from error
        self.is_broken = before


def is_connection_error(error: RuntimeError) -> bool:
    """Return True if another process or the network has caused this error of torch.distributed."""
    if isinstance(error, torch.OutOfMemoryError | getattr(torch, "AcceleratorError", torch.OutOfMemoryError)):
        return False
    return isinstance(error, distributed.DistError) or bool(_CONNECTION_ERRORS.search(str(error)))


def is_lost_peer(error: BaseException) -> bool:
    """Return True if an exchange of a `TorchGroup` has raised this error because of another process or the network."""
    cause = error.__cause__
    return isinstance(error, WorkerLostError) and isinstance(cause, RuntimeError) and is_connection_error(cause)


def check_gpus(gpus: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError if two processes use the same GPU. `gpus`: host and GPU of each process, by index."""
    first_users: dict[tuple[str, str], int] = {}
    for index, gpu in enumerate(gpus):
        first = first_users.setdefault(gpu, index)
        if first != index:
            raise ValueError(
                f"processes {first} and {index} of {len(gpus)} are on the same GPU, {gpu[1]} of {gpu[0]}; "
                f"each needs its own.\nStart one process for each GPU, or train on CPUs: devices='cpu'."
            )
