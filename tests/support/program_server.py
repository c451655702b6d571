"""The program of a `LoadedInterpreter`: loads modules once, then forks a process for each program it is asked to run.

    test --"run", script, folder, environment, forks + out, err--> server --fork--> a program, in a session of its own
         <-------------- pid + pidfd ------------------------------
         --"status", pid--> server, once the pidfd is readable; answers with the exit status

Interpreters that a program starts with `python -c`, as multiprocessing's `spawn` and a pool do, can be forked too, and
so can those of the test:

    server --fork--> the program --fork, before it runs--> one that stands by --fork--> what the program starts

    what the test has started, and loads --fork--> server
                                         --fork, when it is asked--> what the test starts

Run by its path and not imported, so that the programs find nothing of fanwise loaded. Has no thread of its own and
loads only what starts none, or a fork would not be safe. Ends with the test: the kernel sees to that.
"""

import _posixsubprocess
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_REAP_EVERY_MS = 100

_Started = tuple[str, str]  # source, and the name of its file


def _serve(channel: socket.socket, pipe: Connection) -> _Started | None:
    """Answer until the test has gone: None. In the process of a program: what it is to run."""
    codes: dict[int, int] = {}
    waiting = select.poll()
    waiting.register(pipe.fileno(), select.POLLIN)
    while True:
        while not waiting.poll(_REAP_EVERY_MS):
            _reap(codes)
        try:
            what, *told = pipe.recv()
        except EOFError:
            return None
        if what == "status":
            _reap(codes)
            pipe.send(codes.pop(told[0]))
            continue
        script, folder, environment, forks = told
        _, outputs, _, _ = socket.recv_fds(channel, 1, 2)
        pid = os.fork()
        if pid == 0:
            channel.close()
            pipe.close()
            _become(folder, environment, outputs)
            return (_stand_by() if forks else None) or _be_main(script)
        pidfd = os.pidfd_open(pid)
        pipe.send(pid)
        socket.send_fds(channel, [b"."], [pidfd])
        for descriptor in (pidfd, *outputs):
            os.close(descriptor)


def _become(folder: Path, environment: dict[str, str], outputs: list[int]) -> None:
    """In the process of a program: all that a fresh process has of its own."""
    os.setsid()
    _end_with_parent()
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def _be_main(script: Path) -> _Started:
    """In the process of a program: all that a fresh interpreter knows of its script."""
    sys.argv[:] = [str(script)]
    sys.path.insert(0, str(script.parent))
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(module).update(__file__=str(script), __cached__=None, __builtins__=__builtins__, __annotations__={})
    return script.read_text(), str(script)


def _stand_by() -> _Started | None:
    """Fork a process that has the modules and nothing of the script, and of which what the program starts is forked.

    Both ways to start an interpreter, subprocess and multiprocessing's `spawn`, end in `fork_exec`, which asks there.
    Returns None in the program itself, and in each started interpreter what it is to run.
    """
    ours, its = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _end_with_parent()
        started = _start_interpreters(its)
        if started is None:
            os._exit(0)
        return started
    its.close()
    _start_by(_asking(ours, _posixsubprocess.fork_exec))
    return None


@contextlib.contextmanager
def forked_starts(channel: socket.socket) -> Iterator[None]:
    """Meanwhile what this process starts with `python -c` is forked of the process at the other end, as its child."""
    usual = _posixsubprocess.fork_exec
    _start_by(_asking(channel, usual))
    try:
        yield
    finally:
        _start_by(usual)


def _start_by(fork_exec: Callable[..., int]) -> None:
    _posixsubprocess.fork_exec = fork_exec
    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]  # the stubs leave it out


def _asking(channel: socket.socket, usual: Callable[..., int]) -> Callable[..., int]:
    """A `fork_exec` that asks `_start_interpreters` at the other end of the channel."""
    program, lock = os.getpid(), threading.Lock()

    def fork_exec(arguments: Sequence[str | bytes], *others: Any) -> int:  # Any: twenty, see subprocess
        _, _, kept, folder, environment, stdin, _, _, stdout, _, stderr, _, failed, _, setsid, *_ = others
        asked = [os.fsdecode(argument) for argument in arguments]
        # Only of this very process: what it forks itself has no part in this.
        if asked[0] != sys.executable or "-c" not in asked or os.getpid() != program:
            return int(usual(arguments, *others))
        standard = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
        kept = [descriptor for descriptor in kept if descriptor != failed]  # would tell of a failed exec
        numbers = [0, 1, 2, *kept]
        environment = [b"=".join(item) for item in os.environb.items()] if environment is None else environment
        with lock, _adopting():
            message = pickle.dumps((asked, numbers, folder, environment, setsid))
            channel.sendall(struct.pack("i", len(message)))
            channel.sendall(message)
            socket.send_fds(channel, [b"."], [*standard, *kept])
            pid: int = struct.unpack("i", channel.recv(4, socket.MSG_WAITALL))[0]
        return pid

    return fork_exec


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """What loses its parent becomes a child of this process, as if it had been started here."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _start_interpreters(channel: socket.socket) -> _Started | None:
    """Serve `fork_exec` until who asks has ended: None. In each process that it starts: what that is to run."""
    while size := channel.recv(4, socket.MSG_WAITALL):
        told = pickle.loads(channel.recv(struct.unpack("i", size)[0], socket.MSG_WAITALL))
        arguments, numbers, folder, environment, setsid = told
        descriptors = socket.recv_fds(channel, 1, len(numbers))[1]
        (told_r, told_w), (adopted_r, adopted_w) = os.pipe(), os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid != 0:
                os.write(told_w, struct.pack("i", pid))
                os._exit(0)  # so the other one becomes the program's
            os.close(adopted_w)
            os.read(adopted_r, 1)  # ends when nobody has the other end: it shall never see another parent
            for descriptor in (told_r, told_w, adopted_r, channel.detach()):
                os.close(descriptor)
            _place(descriptors, numbers)
            return _be_started(arguments, folder, environment, setsid)
        os.waitpid(between, 0)
        os.close(adopted_w)
        channel.sendall(os.read(told_r, 4))
        for descriptor in (told_r, told_w, adopted_r, *descriptors):
            os.close(descriptor)
    return None


def _place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give the descriptors these numbers."""
    beyond = max(*numbers, *descriptors) + 1
    out_of_the_way = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, beyond) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(out_of_the_way, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _be_started(arguments: list[str], folder: str | None, environment: list[bytes], setsid: bool) -> _Started:
    """In a process that the program has started: all that an interpreter finds that is started with `-c`."""
    if setsid:
        os.setsid()
    if folder is not None:
        os.chdir(folder)
    os.environ.clear()
    os.environb.update(dict(item.split(b"=", 1) for item in environment))
    at = arguments.index("-c")
    if "-W" not in arguments[:at] and "-Werror" not in arguments[:at]:
        sys.warnoptions.clear()
        others = [each for each in warnings.filters if each[0] != "error"]
        warnings.resetwarnings()
        warnings.filters[:] = others  # type: ignore[index]  # a list, whatever the stubs say
    sys.argv[:] = arguments[at : at + 1] + arguments[at + 2 :]
    sys.modules["__main__"] = types.ModuleType("__main__")
    return arguments[at + 1], "<string>"


def _reap(codes: dict[int, int]) -> None:
    """The exit statuses of all that have ended, by pid; what a program left behind has become a child of ours."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _leave_to_the_kernel(modules: dict[str, types.ModuleType]) -> None:
    """Forked processes shall not clear up what was loaded here: a third of a second each with torch.

    Python's exit functions of a program, the clearing of its own modules and the destructors of the libraries that it
    loaded itself come before; those of the libraries that were loaded here do not run.
    """

    def forget() -> None:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    # For ever: `forget` goes when a process of a pool clears the exit functions, and to free this there touches each
    # module, which copies 7 MB of pages.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
    atexit.register(forget)
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # called with the exit status


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(programs: int, starts: int, modules: Iterable[str]) -> _Started | None:
    """Load the modules and serve until the test has gone: None. In each forked process returns what it is to run.

    Args:
        programs: the socket of the server, which `run` talks to.
        starts: the socket of this process; see `forked_starts`.
    """
    _end_with_parent()
    _load(modules)
    server = os.fork()
    if server == 0:
        os.close(starts)
        _end_with_parent()
        # What a program leaves stays below the test, which sees it. Not so of the process above: what that starts
        # becomes a child of the test.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        channel = socket.socket(fileno=programs)
        with channel, Connection(os.dup(programs)) as pipe:
            pipe.send("loaded")
            return _serve(channel, pipe)
    os.close(programs)
    with socket.socket(fileno=starts) as channel:
        started = _start_interpreters(channel)
    if started is None:
        os.waitpid(server, 0)
    return started


def _load(modules: Iterable[str]) -> None:
    before = set(sys.modules)
    gc.disable()  # what is loaded stays: to look at it again and again takes a tenth of the time
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    _leave_to_the_kernel({name: sys.modules[name] for name in set(sys.modules) - before})
    gc.collect()
    gc.freeze()  # the collector of a program would write to, and so copy, every page that it shares with us


if __name__ == "__main__":
    started = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    if started is not None:
        exec(compile(*started, "exec"), vars(sys.modules["__main__"]))
