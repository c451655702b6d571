"""A worker: a fork of the process that trains, which reads shards until that process wants no more.

    process --(shard, places)--> worker: dataset[index] ..., collate_fn --(shard, file)--> process

It has the data set as it was at the fork, so nothing has to be sent, and nothing has to be sendable. It computes with
one thread, touches no GPU, lets Ctrl-C pass, and ends with the process: when its socket is closed, at the latest when
the process, or the thread that forked it, is gone.
"""

import errno
import gc
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any, Protocol

import torch

from ...links.codec import pack_error
from ...pool.current import in_job
from ...pool.processes import die_with_parent
from ..hangs.stacks import told_on_request
from .parcels import sent
from .splitting import Content

InitFn = Callable[[int], Any]  # Any: what it returns is not looked at

# A message is one of these: a task or its answer, a few numbers, or the beginning of a pass.
MESSAGE_BYTES = 1 << 13
NO_SAMPLE = -1
_NUMBER_BYTES = 8
# So many files were on their way that the kernel takes no more: until the process has taken some.
_PAUSE_S = 0.002


class Source(Protocol):
    """What workers read, and the process that trains where it needs more than they were asked for."""

    def begin(self, *state: Any) -> None:  # Any: of its own making, small, can be pickled
        """Another pass begins."""
        ...

    def read(self, *places: Any) -> Content:  # Any: as above
        """One shard."""
        ...

    def watched(self, watch: Callable[[int], None]) -> None:
        """`watch` is told the index of each sample before it is read."""
        ...


def forked(body: Callable[[], None]) -> int:
    """The pid of a child that does `body`, and nothing after it, without the handlers of signals of this process."""
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():
        # Python and JAX warn where there are other threads: the child calls nothing of theirs.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(parent)
        body()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C, or an order to stop, comes after this block: a process that was just made, or is ending, is not lost."""
    came: list[int] = []
    before: dict[int, Any] = {}  # Any: handlers
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for each in came:
            signal.raise_signal(each)


def serve(number: int, source: Source, own: socket.socket, cell: mmap, stacks: str, init: InitFn | None) -> None:
    """The life of worker `number`.

    Args:
        cell: where the process sees which sample it is at. stacks: the path of a file for its Python stack.
    """
    gc.freeze()  # what was there before is the process's to look after; to mark it would copy its pages
    if in_job():
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # the output of the job, not of its run
    told_on_request(stacks)
    torch.set_num_threads(1)
    source.watched(_watch(own, cell))
    broken = _begun(number, init)
    while message := _next(own):
        shard, what = pickle.loads(message)
        if shard is None:
            source.begin(*what)
            continue
        _note(cell, NO_SAMPLE)
        answer = pack_error(broken) if broken is not None else _read(source, what)
        if not _tell(own, shard, answer):
            return


def _next(own: socket.socket) -> bytes:
    """The next message; empty when there is nobody any more."""
    try:
        return own.recv(MESSAGE_BYTES)
    except ConnectionResetError:
        return b""


def _watch(own: socket.socket, cell: mmap) -> Callable[[int], None]:
    gone = select.poll()
    gone.register(own, 0)  # only whether it was closed

    def watch(index: int) -> None:
        if gone.poll(0):
            os._exit(0)
        _note(cell, index)

    return watch


def _note(cell: mmap, index: int) -> None:
    cell[:_NUMBER_BYTES] = index.to_bytes(_NUMBER_BYTES, "little", signed=True)


def sample_at(cell: mmap) -> int:
    """The index of the sample that a worker is at; NO_SAMPLE before the first one of a shard."""
    return int.from_bytes(cell[:_NUMBER_BYTES], "little", signed=True)


def _begun(number: int, init: InitFn | None) -> BaseException | None:
    """What the user's function has raised."""
    try:
        if init is not None:
            init(number)
    except BaseException as error:
        error.add_note(f"in worker_init_fn({number})")
        return error
    return None


def _read(source: Source, what: tuple[Any, ...]) -> tuple[int, int, int] | bytes:  # Any: as the source takes it
    """The file with a shard, or the error that came of it."""
    try:
        return sent(source.read(*what))
    except BaseException as error:
        return pack_error(error)


def _tell(own: socket.socket, shard: tuple[int, int], answer: tuple[int, int, int] | bytes) -> bool:
    """False: nobody is there any more."""
    failed = isinstance(answer, bytes)
    fd, begin, end = sent(answer) if isinstance(answer, bytes) else answer
    message = pickle.dumps((shard, failed, begin, end), protocol=5)
    try:
        while True:
            try:
                socket.send_fds(own, [message], [fd])
                return True
            except (BrokenPipeError, ConnectionResetError):
                return False
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
            time.sleep(_PAUSE_S)
    finally:
        os.close(fd)
