"""Workers that read shards ahead of the steps: started, told what to read, heard, replaced when they die, and ended.

    want {shard: places} --> ReadAhead --> workers --files in memory--> take(shard)

What is to be read by whom is decided in ahead.py, what a worker does is in worker.py. Everything here happens in the
thread that trains, when it asks for a shard or begins a batch: there is no thread that could be left behind, and no
step is interrupted. A worker that dies is replaced, and what it had is read again by others; a shard at which several
have died is an error. When something is raised here in the middle, Ctrl-C as well, all workers are ended, and others
begin again with what is wanted.
"""

import logging
import os
import pickle
import select
import signal
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from typing import Any

from ...base.errors import DeadlineExceeded, WorkerLostError
from ...links.codec import unpack_error
from ..hangs.stacks import Stacks, doing
from .ahead import ReadAhead, Shard
from .parcels import received
from .splitting import Content
from .worker import MESSAGE_BYTES, NO_SAMPLE, InitFn, Source, forked, sample_at, serve, uninterrupted

_log = logging.getLogger(__name__)

# What a worker gets to end by itself, which it does after the sample that it is at.
_GRACE_S = 2.0
# Deaths at one shard: by then the work, and not chance, kills.
_MOST_DEATHS = 3
# When it is said whom a step waits for, where there is no limit.
_SAID_S = (60.0, 600.0)

_INT = struct.Struct("i")

# Of this process: the ends of all workers that a new one must not hold open.
_ends: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Failed:
    """A shard that could not be read. `error` makes what is raised, anew each time."""

    error: Callable[[], BaseException]


class _Worker:
    """One process."""

    def __init__(self, number: int, source: Source, init: InitFn | None) -> None:
        self.socket, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.cell = mmap(-1, 8)
        self.stacks = Stacks.create()
        _ends.add(self.socket)
        self.owner = os.getpid()

        def life() -> None:
            for end in list(_ends):
                end.close()
            serve(number, source, own, self.cell, self.stacks.path, init)

        with own:
            self.pid = forked(life)

    def at(self) -> str:
        """Which sample it is at, for an error."""
        index = sample_at(self.cell)
        return "before the first sample of a shard" if index == NO_SAMPLE else f"at sample {index} of the data set"

    def doing(self) -> str:
        return doing(self.pid, self.stacks, partial(os.kill, self.pid))

    def hang_up(self) -> None:
        self.socket.close()

    def ended(self, until_s: float) -> str:
        """Wait until it is gone, no longer than until `until_s` (monotonic) before it is killed. How it ended."""
        with suppress(ProcessLookupError, ChildProcessError):
            watched = select.poll()
            pidfd = os.pidfd_open(self.pid)
            watched.register(pidfd, select.POLLIN)
            try:
                if not watched.poll(max(0.0, until_s - time.monotonic()) * 1000):
                    os.kill(self.pid, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            finally:
                os.close(pidfd)
                self._let_go()
            return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        return "has ended"

    def _let_go(self) -> None:
        self.socket.close()
        self.stacks.close()
        self.cell.close()


class LoaderWorkers:
    """See the module. May be used for several passes.

    Args:
        source: what they read; each has it as it is when the worker is started.
        init: called with its number in each worker, before it reads.
        timeout_s: how long `take` waits; 0: without a limit.
    """

    def __init__(self, source: Source, count: int, *, init: InitFn | None = None, timeout_s: float = 0) -> None:
        self._source = source
        self._init = init
        self._timeout_s = timeout_s
        self._book = ReadAhead(count)
        self._what: dict[Shard, tuple[Any, ...]] = {}  # Any: as the source takes it
        self._there: dict[Shard, Content | _Failed] = {}
        self._workers: list[_Worker | None] = [None] * count
        self._end = weakref.finalize(self, _end, self._workers)

    def pids(self) -> list[int]:
        """Of those that live."""
        return [worker.pid for worker in self._workers if worker is not None]

    def begin(self, *state: Any) -> None:  # Any: as the source takes it
        """Another pass begins; nothing of the one before is wanted any more."""
        self._source.begin(*state)
        with self._whole():
            if any(self._book.held):
                self._stop()  # what they are at is of another pass, and would be taken for this one
            self._forget()
            for worker in self._workers:
                if worker is not None:
                    worker.socket.send(pickle.dumps((None, state), protocol=5))

    def want(self, what: Mapping[Shard, tuple[Any, ...]]) -> None:  # Any: as the source takes it
        """These shards are to be read. Does not block."""
        self._what |= what
        self._book.want(what)
        with self._whole():
            self._hear(0)
            self._send()

    def is_there(self, shard: Shard) -> bool:
        """Whether `take` would not block, and not raise."""
        return shard in self._there and not isinstance(self._there[shard], _Failed)

    def take(self, shard: Shard) -> Content:
        """A shard that was wanted. Blocks until it is there.

        Raises:
            What the data set has raised, in its own type, with the index of the sample and the worker's traceback.
            WorkerLostError: the workers that were at it died. DeadlineExceeded: it took longer than the limit.
        """
        began_s = time.monotonic()
        said = 0
        while shard not in self._there:
            assert self._book.knows(shard), f"shard {shard} was wanted, and is not read by any worker: a bug of fanwise"
            waited_s = time.monotonic() - began_s
            limits_s = [self._timeout_s] if self._timeout_s else _SAID_S[said:]
            if limits_s and waited_s >= limits_s[0]:
                said += 1
                self._overdue(shard, waited_s)
            with self._whole():
                self._send()
                self._hear(limits_s[0] - waited_s if limits_s else None)
        self._book.taken(shard)
        found = self._there.pop(shard)
        if isinstance(found, _Failed):
            raise found.error()
        return found

    def drop_before(self, batch: int) -> None:
        """Shards of batches before this one are not wanted any more."""
        for shard in self._book.drop_before(batch):
            del self._there[shard]
        self._what = {shard: what for shard, what in self._what.items() if shard[0] >= batch}

    def close(self) -> None:
        """End all workers. Blocks until they are gone: for a sample, and for 2 s at most."""
        self._stop()
        self._forget()

    # -- telling and hearing ---------------------------------------------------------------------------------------

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is raised in this block may have cut a message short: then nobody knows who has what."""
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def _forget(self) -> None:
        self._there.clear()
        self._what.clear()
        self._book = ReadAhead(self._book.workers)

    def _stop(self) -> None:
        """End all workers. What they had waits for others, which begin when something is sent."""
        _end(self._workers)
        for number in range(len(self._workers)):
            if (shard := self._book.died(number)) is not None:
                self._book.deaths.pop(shard)

    def _send(self) -> None:
        for order in self._book.sends():
            worker = self._workers[order.worker] or self._start(order.worker)
            with suppress(BrokenPipeError, ConnectionResetError):  # it has died: `_hear` will see that
                worker.socket.send(pickle.dumps((order.shard, self._what[order.shard]), protocol=5))

    def _start(self, number: int) -> _Worker:
        with uninterrupted():
            made = self._workers[number] = _Worker(number, self._source, self._init)
        return made

    def _hear(self, within_s: float | None) -> None:
        """What has come, after at most so long."""
        numbers = {worker.socket.fileno(): number for number, worker in enumerate(self._workers) if worker is not None}
        heard = select.poll()
        for fd in numbers:
            heard.register(fd, select.POLLIN)
        for fd, _ in heard.poll(None if within_s is None else max(0, 1000 * within_s)):
            self._hear_from(numbers[fd])

    def _hear_from(self, number: int) -> None:
        worker = self._workers[number]
        assert worker is not None, "only those that live are heard"
        while (heard := _received(worker.socket)) is not None:
            message, fd = heard
            if not message:
                self._lost(number, worker)
                return
            try:
                shard, failed, begin, end = pickle.loads(message)
                if self._book.came(number, shard):
                    content = received(fd, begin, end)
                    self._there[shard] = _Failed(partial(_error_of, content, number, worker.pid)) if failed else content
            finally:
                os.close(fd)

    def _lost(self, number: int, worker: _Worker) -> None:
        """A worker has died."""
        at, self._workers[number] = worker.at(), None
        how = f"worker {number} (pid {worker.pid}) of a data loader {worker.ended(0)} {at}"
        shard = self._book.died(number)
        if shard is None or self._book.deaths[shard] < _MOST_DEATHS:
            _log.warning("%s; what it had is read again.", how)
        else:
            text = (
                f"{how}; {_MOST_DEATHS} workers have died at this shard of the batch.\nThe data set crashes there, or "
                f"needs more memory than there is: read that sample with num_workers=0."
            )
            self._book.failed(shard)
            self._there[shard] = _Failed(partial(WorkerLostError, text))
        self._send()

    def _overdue(self, shard: Shard, waited_s: float) -> None:
        """Raises DeadlineExceeded where there is a limit; else it is said."""
        number = next((number for number, held in enumerate(self._book.held) if shard in held), None)
        worker = None if number is None else self._workers[number]
        if worker is None:
            return
        who = f"worker {number} (pid {worker.pid}) of a data loader, {worker.at()}"
        text = f"a step has waited {waited_s:.0f} s for {who}.\n{worker.doing()}"
        if not self._timeout_s:
            _log.warning("%s\nWith timeout= that is an error.", text)
            return
        with self._whole():
            raise DeadlineExceeded(f"{text}\nGive more time where the sample is only slow (timeout=).")


def _received(end: socket.socket) -> tuple[bytes, int] | None:
    """A message and the descriptor that came with it; an empty one at the end; None: nothing has come yet."""
    try:
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC  # socket.recv_fds of Python 3.11 leaves them out
        message, along, *_ = end.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(_INT.size), flags)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b"", -1
    return message, _INT.unpack(along[0][2])[0] if along else -1


def _error_of(packed: bytes, number: int, pid: int) -> BaseException:
    error = unpack_error(packed)
    error.add_note(f"in worker {number} (pid {pid}) of a data loader")
    return error


def _end(workers: list[_Worker | None]) -> None:
    """End them, and forget them. In a fork of their owner they are only forgotten."""
    with uninterrupted():
        living = [worker for worker in workers if worker is not None and worker.owner == os.getpid()]
        workers[:] = [None] * len(workers)
        for worker in living:
            worker.hang_up()
        until_s = time.monotonic() + _GRACE_S
        for worker in living:
            worker.ended(until_s)
