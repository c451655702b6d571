"""The program of a `LoadedInterpreter`: loads modules once, then forks a process for each program it is asked to run.

    test --"run", script, folder, environment + out, err--> here --fork--> the program, in a session of its own
         <-------------- pid + pidfd ---------------------
         --"status", pid--> here, once the pidfd is readable; answers with the exit status

Run by its path and not imported, so that the programs find nothing of fanwise loaded. Has no thread of its own and
loads only what starts none, or a fork would not be safe. Ends with the test: the kernel sees to that.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_REAP_EVERY_MS = 100


def _serve(channel: socket.socket, pipe: Connection) -> Path | None:
    """Answer until the test has gone: None. In the process of a program: its script, to be run."""
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
        script, folder, environment = told
        _, outputs, _, _ = socket.recv_fds(channel, 1, 2)
        pid = os.fork()
        if pid == 0:
            _become(script, folder, environment, outputs)
            return Path(script)
        pidfd = os.pidfd_open(pid)
        pipe.send(pid)
        socket.send_fds(channel, [b"."], [pidfd])
        for descriptor in (pidfd, *outputs):
            os.close(descriptor)


def _become(script: Path, folder: Path, environment: dict[str, str], outputs: list[int]) -> None:
    """In the process of a program: all that differs from a fresh interpreter's, but for the modules."""
    os.setsid()
    _end_with_parent()
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [str(script)]
    sys.path.insert(0, str(script.parent))
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(module).update(__file__=str(script), __cached__=None, __builtins__=__builtins__, __annotations__={})


def _reap(codes: dict[int, int]) -> None:
    """The exit statuses of all that have ended, by pid; what a program left behind has become a child of ours."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor: int, modules: Iterable[str]) -> Path | None:
    """Load the modules and serve until the test has gone: None. Returns in the process of a program too: its script."""
    _end_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a program leaves stays below the test, which sees it
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collector of a program would write to, and so copy, every page that it shares with us
    channel = socket.socket(fileno=descriptor)
    with channel, Connection(os.dup(descriptor)) as pipe:
        pipe.send("loaded")
        return _serve(channel, pipe)


if __name__ == "__main__":
    program = main(int(sys.argv[1]), sys.argv[2:])
    if program is not None:
        exec(compile(program.read_text(), program, "exec"), vars(sys.modules["__main__"]))
