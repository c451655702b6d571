"""Workers of rpc as real processes, each told by the test what to do.

    test --pipe--> first nursery: an interpreter that has imported torch, once for all tests --fork--> nursery, ...
    test --pipe--> nursery: has imported a test module --fork--> worker, worker, ...
    test --pipe--> worker: runs a function, sends back what it returns or raises, waits for the next

    with Nursery.start(folder) as first, first.another() as nursery:
        nursery.learn(__name__, __file__)                # functions of this test module travel by name
        workers = Workers(nursery, tmp_path)
        one, two, three = workers.group(3)
        one.do(ask, "w1")                                # ask("w1") in the process of one
        two.kill()

Forking takes milliseconds where a fresh process takes seconds, and the nursery has no threads. All workers end with the
nursery, and the nursery with the test.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from fanwise.testing.within import within

LIMIT_S = 30.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_REAP_EVERY_S = 0.1

# Any throughout: what the functions of tests take and return.


class Nursery:
    """The parent of workers, from the side of the test.

    Args:
        begin: starts its process, given the descriptor that it serves, and returns what waits for the end of it.
    """

    def __init__(self, begin: Callable[[int], Callable[[], object]]) -> None:
        mine, its = socket.socketpair()
        with its:
            self._wait = begin(its.fileno())
        self._socket = mine
        self._pipe = Connection(os.dup(mine.fileno()))

    @classmethod
    def start(cls, folder: Path) -> "Nursery":
        """An interpreter that loads torch. `folder` takes the sockets of the groups: a short path."""

        def begin(descriptor: int) -> Callable[[], object]:
            return subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main({descriptor})"],
                pass_fds=[descriptor],
                env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            ).wait

        return cls(begin)

    def another(self) -> "Nursery":
        """One that is forked from this. What it learns stays there: a test module may compute, which starts threads."""

        def begin(descriptor: int) -> Callable[[], object]:
            pid = self._fork("nursery", descriptor)
            return lambda: within(LIMIT_S, lambda: self.status(pid) is not None, "the nursery has ended")

        return Nursery(begin)

    def learn(self, name: str, path: str) -> None:
        """Workers forked from now on have the module `name`, read from `path`."""
        self._ask("learn", name, path)

    def fork(self, control: int, output: Path) -> int:
        """A new worker, told what to do through the descriptor `control`; what it prints goes to `output`."""
        return self._fork("worker", control, str(output))

    def status(self, pid: int) -> int | None:
        """The exit code of a worker, minus the signal that killed it; None while it lives. Does not block."""
        code = self._ask("status", pid)
        return None if code is None else int(code)

    def _fork(self, what: str, control: int, *args: object) -> int:
        self._pipe.send((what, args))
        socket.send_fds(self._socket, [b"."], [control])
        return int(self._answer())

    def _ask(self, method: str, *args: object) -> Any:
        self._pipe.send((method, args))
        return self._answer()

    def _answer(self) -> Any:
        assert self._pipe.poll(LIMIT_S), "the nursery does not answer"
        return self._pipe.recv()

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._socket.close()
        self._wait()


class Worker:
    """A worker process, from the side of the test."""

    def __init__(self, nursery: Nursery, name: str, output: Path) -> None:
        self.name = name
        self._nursery = nursery
        self._output = output
        output.touch()
        self._code: int | None = None
        mine, its = socket.socketpair()
        with its:
            self._pipe = Connection(mine.detach())
            self.pid = nursery.fork(its.fileno(), output)

    def begin(self, function: Callable[..., object], *args: object, **kwargs: object) -> "Worker":
        """Let it run `function`, and do not wait. One at a time."""
        self._pipe.send_bytes(pickle.dumps((function, args, kwargs)))
        return self

    @property
    def has_answered(self) -> bool:
        """Whether what was begun has ended."""
        return self._pipe.poll()

    def result(self) -> Any:
        """What the function that was begun returned; raises what it raised. Blocks."""
        if not self._pipe.poll(LIMIT_S):
            raise AssertionError(f"{self.name} has not answered within {LIMIT_S} s; it printed:\n{self.printed}")
        value, error = pickle.loads(self._pipe.recv_bytes())
        if error is not None:
            raise error
        return value

    def do(self, function: Callable[..., object], *args: object, **kwargs: object) -> Any:
        """`begin` and `result`."""
        return self.begin(function, *args, **kwargs).result()

    def send(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        self.send(signal.SIGKILL)
        self.ended()

    def leave(self) -> int:
        """Let its main thread come to the end of the program, and wait. The exit code."""
        self._pipe.send_bytes(pickle.dumps(None))
        return self.ended()

    def ended(self) -> int:
        """Wait until the process has ended. The exit code, minus the signal that killed it."""
        within(LIMIT_S, self._has_ended, f"the process of {self.name} has ended; it printed {self.printed!r}")
        assert self._code is not None
        return self._code

    def _has_ended(self) -> bool:
        if self._code is None:
            self._code = self._nursery.status(self.pid)
        return self._code is not None

    @property
    def printed(self) -> str:
        """All that it has written to its standard output and error so far."""
        return self._output.read_text(errors="replace")

    def close(self) -> None:
        """End it, whatever it does."""
        if not self._has_ended():
            self.kill()
        self._pipe.close()


class Workers:
    """All workers of a test, which meet at one place below `folder`."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self.url = f"file://{folder}/meet"
        self._nursery = nursery
        self._folder = folder
        self._all: list[Worker] = []

    def start(self, name: str) -> Worker:
        """A process that is no worker yet."""
        worker = Worker(self._nursery, name, self._folder / f"{name}-{len(self._all)}.txt")
        self._all.append(worker)
        return worker

    def begin(self, rank: int, size: int | None, name: str = "", **options: Any) -> Worker:
        """One that begins to join; its `result()` is there when it has."""
        worker = self.start(name or f"w{rank}")
        return worker.begin(join, worker.name, rank, size, self.url, **options)

    def join(self, rank: int, size: int | None = None, name: str = "", **options: Any) -> Worker:
        """One that has joined."""
        worker = self.begin(rank, size, name, **options)
        worker.result()
        return worker

    def group(self, size: int, *, dynamic: bool = False, **options: Any) -> list[Worker]:
        """Workers w0, w1, ... that have joined."""
        if dynamic:
            return [self.join(rank, None, **options) for rank in range(size)]
        workers = [self.begin(rank, size, **options) for rank in range(size)]
        for worker in workers:
            worker.result()
        return workers

    def close(self) -> None:
        """End all."""
        for worker in self._all:
            worker.close()


def all_do(workers: list[Worker], function: Callable[..., object], *args: object) -> list[Any]:
    """Let all of them run the function at the same time. What it returned, in their order."""
    for worker in workers:
        worker.begin(function, *args)
    return [worker.result() for worker in workers]


def join(name: str, rank: int, world_size: int | None, url: str, **options: Any) -> None:
    """In a worker: `init_rpc`. Calls may take as long as tests may, where `options` do not say otherwise."""
    from fanwise.rpc import TensorPipeRpcBackendOptions, init_rpc

    options = {"rpc_timeout": LIMIT_S, "init_method": url, **options}
    init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=TensorPipeRpcBackendOptions(**options))


def leave() -> None:
    """In a worker: `shutdown`, of all."""
    from fanwise.rpc import shutdown

    shutdown(timeout=LIMIT_S)


def names() -> list[str]:
    """In a worker: whom it sees in its group, itself too."""
    from fanwise.rpc import agent

    return [worker.name for worker in agent.current().workers()]


def num_owned() -> int:
    """In a worker: how many values it keeps that references are to."""
    from fanwise.rpc import agent

    gc.collect()
    return int(agent.current().references.debug_info()["num_owner_rrefs"])


# -- in the nursery ------------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """The first nursery's program. Returns in a worker, when that is told to come to its end."""
    gc.disable()  # nothing of what is loaded is garbage, and looking through it again and again takes long
    from fanwise.rpc import init_rpc  # noqa: F401  # loads torch, for all workers

    gc.freeze()  # a process that collects all this, at its end at the latest, works for half a second and copies it
    gc.enable()
    _nurse(descriptor)


def _nurse(descriptor: int) -> None:
    """Do what the test asks for, end when it has gone. Returns in a worker, as `main` does."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a dead worker leaves stays below the test, which sees it
    its = socket.socket(fileno=descriptor)
    pipe = Connection(os.dup(descriptor))
    codes: dict[int, int] = {}
    while True:
        while not pipe.poll(_REAP_EVERY_S):
            _reap(codes)
        try:
            method, args = pipe.recv()
        except EOFError:
            os._exit(0)  # nothing here waits for a clean end of the interpreter, which takes as long as a test
        if method == "learn":
            _learn(*args)
            pipe.send(None)
        elif method == "status":
            _reap(codes)
            pipe.send(codes.get(*args))
        else:
            control = socket.recv_fds(its, 1, 1)[1][0]
            pid = os.fork()
            if pid == 0:
                its.close()
                pipe.close()
                if method == "nursery":
                    os.setsid()
                    return _nurse(control)
                return _serve(control, *args)
            os.close(control)
            codes.pop(pid, None)  # of one that had this number before
            pipe.send(pid)


def _learn(name: str, path: str) -> None:
    import importlib.util

    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        gc.freeze()


def _reap(codes: dict[int, int]) -> None:
    """The exit codes of all that have ended, by pid."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _serve(control: int, output: str) -> None:
    """In a worker: do what the test says until it says None."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    pipe = Connection(control)
    while True:
        try:
            told = pickle.loads(pipe.recv_bytes())  # tensors by value: the pipe's own pickler shares them
        except EOFError:
            os._exit(0)
        if told is None:
            return
        function, args, kwargs = told
        try:
            answer: tuple[object, BaseException | None] = function(*args, **kwargs), None
        except BaseException as error:
            answer = None, error
        try:
            pipe.send_bytes(pickle.dumps(answer))
        except Exception as error:
            pipe.send_bytes(pickle.dumps((None, RuntimeError(f"the answer cannot be sent: {answer!r}: {error}"))))
