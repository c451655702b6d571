"""Process groups of torch.distributed for one run: the data plane of everything but CPU ranks of one machine.

    control   Gloo, host memory: every process sends bytes to all others
    data      gradients: NCCL on GPUs, where a call returns once it is queued on the stream; else the control group

The groups belong to the run, so the program may use torch.distributed as well. If the program has not initialized it,
the run does, and undoes it at its end.

A failed connection or a timeout becomes `WorkerLostError`. Other errors, such as a lack of GPU memory, keep their type.
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
from ...links.codec import dumps, loads
from ..hangs.stragglers import limit_s
from .neighbors import Neighbors

TorchBackend = Literal["gloo", "nccl"]

_FIRST_BYTES = 4096  # most contents fit into the first message and need no second one
_HEAD_BYTES = 8
_SUPERVISED_LIMIT = datetime.timedelta(days=30)
# An exchange that failed after this part of the time limit is taken for a timeout: torch's clock may be ahead of ours.
_TIMEOUT_FRACTION = 0.9
# Gloo raises plain RuntimeErrors.
_CONNECTION_ERRORS = re.compile("gloo|nccl|connection|socket|timed out|timeout|broken pipe", re.IGNORECASE)

_all_gather: Any = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # older torch


@dataclass(frozen=True, slots=True)
class World:
    """This process among those of a run.

    Attributes:
        make_store: returns the store in which the processes find each other. None if the program has initialized
            torch.distributed, whose processes then are those of the run.
        has_supervisor: on this machine, which names processes that hang, so that exchanges have no limit in practice.
    """

    rank: int
    size: int
    make_store: Callable[[], Store] | None = None
    has_supervisor: bool = False


class TorchGroup:
    """See the module.

    Args:
        device: of the gradients of this process.
        backend: of their exchange. By default NCCL for a GPU, else Gloo.

    Attributes:
        is_broken: an exchange has failed, so no other one can follow.
        has_stepped: the first step is done, which takes longer than others.
        is_open: of the class: a run of this process has initialized torch.distributed.
    """

    is_open = False

    def __init__(self, world: World, device: torch.device, backend: TorchBackend | None = None) -> None:
        self.place, self.size = world.rank, world.size
        self.is_broken = self.has_stepped = False
        self._limit_s: float | None = None
        self._neighbors: Neighbors | None = None
        self._on_exchange: Callable[[int], None] = lambda number: None
        self._number = 0
        self._must_leak = False
        self._initialized_here = world.make_store is not None
        self._timeout = _SUPERVISED_LIMIT if world.has_supervisor else None
        use_nccl = device.type == "cuda" and backend != "gloo"
        with self._exchanging("meets the others"):
            if world.make_store is not None:
                backends = "cpu:gloo,cuda:nccl" if use_nccl else "gloo"
                distributed.init_process_group(
                    backends, timeout=self._timeout, store=world.make_store(), rank=world.rank, world_size=world.size
                )
                TorchGroup.is_open = True
            try:
                self._control = distributed.new_group(backend="gloo", timeout=self._timeout)
                self._data = self._nccl_group(device) if use_nccl else self._control
            except BaseException:
                self._undo()
                raise

    def _nccl_group(self, device: torch.device) -> distributed.ProcessGroup:
        """Raises ValueError in all processes if two have the same GPU, for which NCCL's own error comes late."""
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        check_gpus(self.gather((socket.gethostname(), uuid or str(device))))
        group: distributed.ProcessGroup = distributed.new_group(backend="nccl", timeout=self._timeout)
        distributed.all_reduce(torch.zeros(1, device=device), group=group)  # connects all of them
        return group

    def close(self) -> None:
        """Close the connections. Processes that wait for this one fail at once."""
        if self._must_leak:
            # Destroying the groups would block until all processes come, and so would the end of the program,
            # which drops all references but these. The launcher ends processes that hang once another one has ended.
            for group in (self._data, self._control):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            return
        for group in {id(group): group for group in (self._data, self._control)}.values():
            distributed.destroy_process_group(group)
        del self._data, self._control, group  # the last reference closes the connections
        self._undo()

    def _undo(self) -> None:
        if self._initialized_here:
            TorchGroup.is_open = False
            distributed.destroy_process_group()

    def limit_exchanges(self, neighbors: Neighbors, limit_s: float) -> None:
        """Fail exchanges that take longer than this from now on, and name the late processes as far as known."""
        self._neighbors, self._limit_s = neighbors, limit_s

    def on_exchange(self, call: Callable[[int], None]) -> None:
        """Call this with the number of each exchange at its beginning."""
        self._on_exchange = call

    def _limit(self) -> float | None:
        return None if self._limit_s is None else limit_s(self._limit_s, has_stepped=self.has_stepped)

    # -- bytes -----------------------------------------------------------------------------------------------------

    def gather(self, content: Any, within_s: float | None = None) -> list[Any]:  # Any: anything that can be pickled
        """Return the contents of all processes, by place. Blocks until all have given theirs.

        Args:
            within_s: time to wait for the others. Those that come later still receive the content, as long as this
                process lives.
        """
        data = _pack(content)
        with self._exchanging("waits for the others"):
            self._must_leak = within_s is not None
            first = self._gather_blocks(len(data).to_bytes(_HEAD_BYTES, "little") + data[:_FIRST_BYTES], within_s)
            sizes = [int.from_bytes(block[:_HEAD_BYTES], "little") for block in first]
            rest = max(sizes) - _FIRST_BYTES
            more = self._gather_blocks(data[_FIRST_BYTES:], within_s, rest) if rest > 0 else [b""] * self.size
            self._must_leak = False
        both = zip(first, more, sizes, strict=True)
        return [_unpack((block[_HEAD_BYTES:] + other)[:size]) for block, other, size in both]

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

    # -- gradients -------------------------------------------------------------------------------------------------

    def all_to_all(
        self, send: Tensor, receive: Tensor, send_bytes: Sequence[int], receive_bytes: Sequence[int]
    ) -> None:
        """Send each process its part of `send`, and receive the parts for this process in `receive`, by place."""
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
            if self._data is self._control:
                # Over Gloo all_gather copies: 100 ms for 45 MB between two processes, broadcasts 19.
                works = [
                    distributed.broadcast(part, place, group=self._data, async_op=True)
                    for place, part in enumerate(parts)
                ]
            else:
                works = [_all_gather(memory, parts[self.place], group=self._data, async_op=True)]
            self._finish(works)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace these tensors by their sums over all processes."""
        with self._exchanging("exchanges gradients"):
            self._finish([distributed.all_reduce(tensor, group=self._data, async_op=True) for tensor in tensors])

    def _finish(self, works: Sequence[distributed.Work | None]) -> None:
        """Over NCCL only the stream waits. A process that hangs is then missed at the next exchange of bytes."""
        for work in works:
            if self._data is self._control:
                self._wait(work)
            else:
                assert work is not None, "this process is in the group"
                work.wait()

    @contextmanager
    def _exchanging(self, operation: str) -> Iterator[None]:
        before, self.is_broken = self.is_broken, True
        self._number += 1
        self._on_exchange(self._number)
        if self._neighbors is not None:
            self._neighbors.note(self._number)
        began_s, limit = time.monotonic(), self._limit()
        try:
            yield
        except RuntimeError as error:
            if not is_connection_error(error):
                raise
            waited_s = time.monotonic() - began_s
            if limit is not None and waited_s >= _TIMEOUT_FRACTION * limit:
                self._must_leak = True
                raise WorkerLostError(self._describe_late(operation, waited_s)) from error
            raise WorkerLostError(
                f"process {self.place} of {self.size} {operation}, and torch.distributed says: {error}\n"
                f"Usually another process has ended: look at the end of its output. If all are alive, one did not come "
                f"within the timeout of the process group."
            ) from error
        self.is_broken = before

    def _describe_late(self, operation: str, waited_s: float) -> str:
        assert self._neighbors is not None and self._limit_s is not None, "there is a limit"
        late, unknown = self._neighbors.late(self._number)
        text = "\n".join(late) or "No process of this machine is late."
        if unknown:
            text += f"\nThese are gone or on another machine, so their state is unknown: {', '.join(unknown)}."
        return (
            f"process {self.place} of {self.size} {operation}, and has waited for {waited_s:.1f} s "
            f"(step_timeout_s={self._limit_s:g}).\n{text}"
        )


def is_connection_error(error: RuntimeError) -> bool:
    """Return True if an exchange failed because of another process or the network, and not in this process."""
    if isinstance(error, torch.OutOfMemoryError | getattr(torch, "AcceleratorError", torch.OutOfMemoryError)):
        return False
    return isinstance(error, distributed.DistError) or bool(_CONNECTION_ERRORS.search(str(error)))


def is_lost_peer(error: BaseException) -> bool:
    """Return True if an exchange has raised this because another process, or the network, has failed."""
    cause = error.__cause__
    return isinstance(error, WorkerLostError) and isinstance(cause, RuntimeError) and is_connection_error(cause)


def check_gpus(gpus: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError if two processes are on the same host and GPU. `gpus`: host and GPU of each, by place."""
    places: dict[tuple[str, str], int] = {}
    for place, gpu in enumerate(gpus):
        first = places.setdefault(gpu, place)
        if first != place:
            raise ValueError(
                f"processes {first} and {place} of {len(gpus)} are on the same GPU, {gpu[1]} of {gpu[0]}; "
                f"each needs its own.\nStart one process for each GPU, or train on CPUs: devices='cpu'."
            )


def _pack(content: Any) -> bytes:  # Any: as in gather
    head, buffers = dumps(content)
    return pickle.dumps((head, [bytes(buffer) for buffer in buffers]), protocol=5)


def _unpack(data: bytes) -> Any:  # Any: as in gather
    head, buffers = pickle.loads(data)
    return loads(head, [memoryview(bytearray(buffer)) for buffer in buffers])
