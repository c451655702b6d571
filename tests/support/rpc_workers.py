"""Workers of rpc as real processes that run the functions that a test sends them.

    test --pipe--> first fork server: an interpreter that has imported torch, once --fork--> fork server, ...
    test --pipe--> fork server: has imported a test module --fork--> worker, worker, ...
    test --pipe--> worker: runs a function, sends back its result or error, waits for the next

    with ForkServer.start(folder) as first, first.fork_server() as server:
        server.load_module(__name__, __file__)           # functions of this test module are sent by name
        workers = Workers(server, tmp_path)
        one, two, three = workers.group(3)
        one.do(ask, "w1")                                # ask("w1") in the process of one
        two.kill()

Forking takes milliseconds where a new process takes seconds, and a fork server has no threads. All workers end with
their fork server, and the fork server with the test.
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
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import fanwise.rpc as rpc
from fanwise.rpc import agent as agents
from fanwise.testing.within import within

LIMIT_S = 30.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_REAP_EVERY_S = 0.1

# Any throughout: arguments and results of functions of tests.


class ForkServer:
    """The parent process of workers, as seen by the test.

    Args:
        start: starts the process, which serves the given descriptor, and returns a function that waits for its end.
    """

    def __init__(self, start: Callable[[int], Callable[[], object]]) -> None:
        self._socket, peer = socket.socketpair()
        with peer:
            self._wait = start(peer.fileno())
        self._pipe = Connection(os.dup(self._socket.fileno()))

    @classmethod
    def start(cls, folder: Path) -> "ForkServer":
        """Start an interpreter that imports torch. `folder` holds the sockets of the groups, so its path is short."""

        def start(descriptor: int) -> Callable[[], object]:
            return subprocess.Popen(
                [sys.executable, "-c", f"import gc; gc.disable(); import {__name__}; {__name__}.main({descriptor})"],
                pass_fds=[descriptor],
                env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            ).wait

        return cls(start)

    def fork_server(self) -> "ForkServer":
        """Fork another one. A module that it loads is not loaded here: importing a test module may start threads."""

        def start(descriptor: int) -> Callable[[], object]:
            pid = self._fork("fork_server", descriptor)
            return lambda: within(LIMIT_S, lambda: self.status(pid) is not None, "the fork server has ended")

        return ForkServer(start)

    def load_module(self, name: str, path: str) -> None:
        """Load the module `name` from `path`, for workers forked from now on."""
        self._request("load_module", name, path)

    def fork_worker(self, control: int, output: Path) -> int:
        """Fork a worker that serves the descriptor `control` and prints to `output`. Return its process id."""
        return self._fork("worker", control, str(output))

    def status(self, pid: int) -> int | None:
        """Return the exit code of a worker, minus the signal that killed it; None while it lives. Does not block."""
        code = self._request("status", pid)
        return None if code is None else int(code)

    def _fork(self, kind: str, control: int, *args: object) -> int:
        self._pipe.send((kind, args))
        socket.send_fds(self._socket, [b"."], [control])
        return int(self._receive())

    def _request(self, method: str, *args: object) -> Any:
        self._pipe.send((method, args))
        return self._receive()

    def _receive(self) -> Any:
        assert self._pipe.poll(LIMIT_S), "the fork server does not answer"
        return self._pipe.recv()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._socket.close()
        self._wait()


class Worker:
    """A worker process, as seen by the test."""

    def __init__(self, server: ForkServer, name: str, output: Path) -> None:
        self.name = name
        self._server = server
        self._output = output
        output.touch()
        self._code: int | None = None
        control, peer = socket.socketpair()
        with peer:
            self._pipe = Connection(control.detach())
            self.pid = server.fork_worker(peer.fileno(), output)

    def begin(self, function: Callable[..., object], *args: object, **kwargs: object) -> "Worker":
        """Start `function` there without waiting for it. One at a time."""
        self._pipe.send_bytes(pickle.dumps((function, args, kwargs)))
        return self

    @property
    def has_answered(self) -> bool:
        """Return True if the function has ended."""
        return self._pipe.poll()

    def result(self) -> Any:
        """Wait for the function, and return its result or raise its error."""
        if not self._pipe.poll(LIMIT_S):
            raise AssertionError(f"{self.name} has not answered within {LIMIT_S} s; it printed:\n{self.printed}")
        value, error = pickle.loads(self._pipe.recv_bytes())
        if error is not None:
            raise error
        return value

    def do(self, function: Callable[..., object], *args: object, **kwargs: object) -> Any:
        """Run `function` there: `begin` and `result`."""
        return self.begin(function, *args, **kwargs).result()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.send(signal.SIGKILL)
        self.wait()

    def leave(self) -> int:
        """End the program at the end of its main thread. Return the exit code."""
        self._pipe.send_bytes(pickle.dumps(None))
        return self.wait()

    def wait(self) -> int:
        """Wait until the process has ended. Return the exit code, minus the signal that killed it."""
        within(LIMIT_S, self._has_ended, f"the process of {self.name} has ended; it printed {self.printed!r}")
        assert self._code is not None
        return self._code

    def _has_ended(self) -> bool:
        if self._code is None:
            self._code = self._server.status(self.pid)
        return self._code is not None

    @property
    def printed(self) -> str:
        """The standard output and error of the process so far."""
        return self._output.read_text(errors="replace")

    def close(self) -> None:
        if not self._has_ended():
            self.kill()
        self._pipe.close()


class Workers:
    """All workers of a test, which meet at an address below `folder`."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self.url = f"file://{folder}/meet"
        self._server = server
        self._folder = folder
        self._all: list[Worker] = []

    def start(self, name: str) -> Worker:
        """Start a process that is no worker yet."""
        worker = Worker(self._server, name, self._folder / f"{name}-{len(self._all)}.txt")
        self._all.append(worker)
        return worker

    def begin(self, rank: int, size: int | None, name: str = "", **options: Any) -> Worker:
        """Start a worker that begins to join. Its `result()` returns when it has joined."""
        worker = self.start(name or f"w{rank}")
        return worker.begin(join, worker.name, rank, size, self.url, **options)

    def join(self, rank: int, size: int | None = None, name: str = "", **options: Any) -> Worker:
        """Start a worker that has joined."""
        worker = self.begin(rank, size, name, **options)
        worker.result()
        return worker

    def group(self, size: int, *, dynamic: bool = False, **options: Any) -> list[Worker]:
        """Start workers w0, w1, ... that have joined."""
        if dynamic:
            return [self.join(rank, None, **options) for rank in range(size)]
        workers = [self.begin(rank, size, **options) for rank in range(size)]
        for worker in workers:
            worker.result()
        return workers

    def close(self) -> None:
        for worker in self._all:
            worker.close()


def all_do(workers: list[Worker], function: Callable[..., object], *args: object) -> list[Any]:
    """Run the function in all workers at the same time. Return the results in their order."""
    for worker in workers:
        worker.begin(function, *args)
    return [worker.result() for worker in workers]


# -- functions for workers -----------------------------------------------------------------------------------------


def join(name: str, rank: int, world_size: int | None, url: str, **options: Any) -> None:
    """Call `init_rpc`. Calls may take as long as tests may, unless `options` contain another limit."""
    options = {"rpc_timeout": LIMIT_S, "init_method": url, **options}
    rpc.init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(**options))


def leave() -> None:
    rpc.shutdown(timeout=LIMIT_S)


def leave_at_once() -> None:
    rpc.shutdown(graceful=False)


def names() -> list[str]:
    """Return the names of all workers that this one knows, including its own."""
    return [worker.name for worker in agents.current().workers()]


def num_owned() -> int:
    """Return the number of values of this worker that have references."""
    gc.collect()
    return int(agents.current().references.debug_info()["num_owner_rrefs"])


def pid() -> int:
    return os.getpid()


def echo(value: Any) -> Any:
    return value


def call(to: Any, function: Callable[..., Any], *args: object, timeout: float = -1.0) -> Any:
    return rpc.rpc_sync(to, function, args, timeout=timeout)


def error_of(function: Callable[..., object], *args: object) -> str:
    """Return the type and text of the error of a function."""
    try:
        function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def errors_of_each_way(to: Any, function: Any, *args: object) -> list[str]:
    """Return the errors of rpc_sync, rpc_async and remote."""
    return [
        error_of(lambda: rpc.rpc_sync(to, function, args)),
        error_of(lambda: rpc.rpc_async(to, function, args).wait()),
        error_of(lambda: rpc.remote(to, function, args).to_here()),
    ]


def mark_and_wait(mark: Path, resume: Path) -> str:
    """Create a file, and wait for the other one."""
    mark.touch()
    within(3 * LIMIT_S, resume.exists, "the test continues")
    return "answered"


def mark_and_hang(mark: Path) -> None:
    mark.touch()
    threading.Event().wait()


def hold_the_interpreter(milliseconds: int) -> None:
    """Block all threads of this process."""
    ctypes.PyDLL(None).poll(None, 0, milliseconds)


def memory_mb(field: str = "VmHWM") -> float:
    """Return the peak memory of this process since `reset_peak_memory`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def reset_peak_memory() -> float:
    """Return the memory of this process in use, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS")


# -- in the fork server --------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """Run the first fork server. Returns in a worker, when that is to end."""
    gc.freeze()  # a process that collects all modules, at its end at the latest, needs half a second and copies them
    gc.enable()
    _serve_forks(descriptor)


def _serve_forks(descriptor: int) -> None:
    """Serve the test until it closes the connection. Returns in a worker, as `main` does."""
    # Children of a dead worker stay below the test, which checks that none is left.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=descriptor)
    pipe = Connection(os.dup(descriptor))
    codes: dict[int, int] = {}
    while True:
        while not pipe.poll(_REAP_EVERY_S):
            _reap(codes)
        try:
            method, args = pipe.recv()
        except EOFError:
            os._exit(0)  # a clean end of the interpreter takes as long as a test
        if method == "load_module":
            _load_module(*args)
            pipe.send(None)
        elif method == "status":
            _reap(codes)
            pipe.send(codes.get(*args))
        else:
            descriptor = socket.recv_fds(control, 1, 1)[1][0]
            pid = os.fork()
            if pid == 0:
                control.close()
                pipe.close()
                if method == "fork_server":
                    os.setsid()
                    return _serve_forks(descriptor)
                return _serve_worker(descriptor, *args)
            os.close(descriptor)
            codes.pop(pid, None)  # of an earlier process with this id
            pipe.send(pid)


def _load_module(name: str, path: str) -> None:
    import importlib.util

    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        gc.freeze()


def _reap(codes: dict[int, int]) -> None:
    """Add the exit codes of ended processes."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _serve_worker(control: int, output: str) -> None:
    """Run the functions that the test sends, until it sends None."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    pipe = Connection(control)
    while True:
        try:
            order = pickle.loads(pipe.recv_bytes())  # tensors by value: the pipe's own pickler shares them
        except EOFError:
            os._exit(0)
        if order is None:
            return
        function, args, kwargs = order
        try:
            answer: tuple[object, BaseException | None] = function(*args, **kwargs), None
        except BaseException as error:
            answer = None, error
        try:
            pipe.send_bytes(pickle.dumps(answer))
        except Exception as error:
            pipe.send_bytes(pickle.dumps((None, RuntimeError(f"the answer cannot be sent: {answer!r}: {error}"))))
