"""Programs that a test runs to their end: examples, code blocks, the command line.

    run_program(["train.py"], folder=tmp_path) --> Finished(status, out, err)

    with LoadedInterpreter("torch") as loaded:
        loaded.run(script, folder=tmp_path) --> Finished(status, out, err)
        with loaded.forks_here():
            Pool()    # its processes have torch at once

Each runs in a session of its own, without standard input, with its experiments below the folder it runs in. Whatever
it started ends with it when it takes too long, and the test is told that it did. `run_program` starts a fresh
interpreter. A `LoadedInterpreter` forks from one that has loaded foreign libraries, which saves seconds of each
program and of each interpreter that it starts; of fanwise nothing is loaded there, so they find it as in a fresh one.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import program_server

from fanwise.testing.within import within

LIMIT_S = 100.0


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program left: its exit status, standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Both outputs, one after the other."""
        return self.out + self.err


def run_program(
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    interrupt_after: str | None = None,
) -> Finished:
    """Run `python *arguments` in `folder`. Blocks until it has ended.

    Args:
        environment: variables besides those of this process; `FANWISE_HOME` is `folder/home` unless it is among them.
        limit_s: after so many seconds it is killed with its whole session, and `err` says so.
        interrupt_after: press Ctrl-C, once, when this text was printed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=_environment(folder, environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        note = ""
        try:
            if interrupt_after is not None:
                _wait_for(interrupt_after, out, lambda: process.poll() is not None, limit_s)
                process.send_signal(signal.SIGINT)  # does nothing to one that has ended
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            note = f"\nstill running after {limit_s} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Finished(process.returncode, _text_of(out), _text_of(err) + note)


# Errors, except one of torch 2.13 about parts of itself that it compiles when forward-mode derivatives are used.
_WARNINGS = ("-W", "error", "-W", "ignore:`torch.jit.script` is deprecated:DeprecationWarning")


class LoadedInterpreter:
    """An interpreter that has loaded `modules`, once, and of which programs are forked; warnings are errors in all.

    The modules must start no thread when they are loaded. What libraries read from the environment while they load is
    as this process has it now, but that they compute with one thread.
    """

    def __init__(self, *modules: str) -> None:
        mine, its = socket.socketpair()
        self._starts, its_starts = socket.socketpair()
        with its, its_starts:
            descriptors = its.fileno(), its_starts.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", *_WARNINGS, program_server.__file__, *map(str, descriptors), *modules],
                pass_fds=descriptors,
                # Importing numpy starts threads of OpenBLAS otherwise, and pandas one of pyarrow's allocator. A second
                # thread of torch's would mostly spin.
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                    "JE_ARROW_MALLOC_CONF": "background_thread:false",
                },
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = mine
        self._pipe = Connection(os.dup(mine.fileno()))
        assert self._answer() == "loaded"

    def run(
        self,
        script: Path,
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
        interrupt_after: str | None = None,
        forks: bool = False,
    ) -> Finished:
        """Run the script in `folder`, as `run_program` does. Blocks until it has ended.

        Args:
            forks: the interpreters that it starts, by `spawn` or a pool, are forked too. They have the modules, and
                nothing of the program; what they start themselves is fresh.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._pipe.send(("run", script, folder, _environment(folder, environment), forks))
            socket.send_fds(self._socket, [b"."], [out.fileno(), err.fileno()])
            pid = self._answer()
            _, [pidfd], _, _ = socket.recv_fds(self._socket, 1, 1)
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            note = ""
            try:
                if interrupt_after is not None:
                    _wait_for(interrupt_after, out, lambda: bool(ended.poll(0)), limit_s)
                    with contextlib.suppress(ProcessLookupError):  # it has ended
                        signal.pidfd_send_signal(pidfd, signal.SIGINT)
                if not ended.poll(limit_s * 1e3):
                    note = f"\nstill running after {limit_s} s"
            finally:
                if not ended.poll(0):
                    os.killpg(pid, signal.SIGKILL)
                    ended.poll()
                os.close(pidfd)
            self._pipe.send(("status", pid))
            return Finished(int(self._answer()), _text_of(out), _text_of(err) + note)

    @contextlib.contextmanager
    def forks_here(self) -> Iterator[None]:
        """Meanwhile the interpreters that this process starts with `python -c`, as a pool does, are forked too.

        They have the modules and are children of this process, and nothing of fanwise is loaded in them.
        """
        with program_server.forked_starts(self._starts):
            yield

    def _answer(self) -> Any:  # Any: what the server sends
        assert self._pipe.poll(LIMIT_S), "the loaded interpreter does not answer"
        return self._pipe.recv()

    def __enter__(self) -> "LoadedInterpreter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._socket.close()
        self._starts.close()
        self._process.wait()


def _environment(folder: Path, changes: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "FANWISE_HOME": str(folder / "home"), "MPLBACKEND": "Agg", **(changes or {})}


def _wait_for(text: str, out: IO[bytes], has_ended: Callable[[], bool], limit_s: float) -> None:
    """Block until the program has printed the text, or ended without."""
    within(limit_s, lambda: text in _text_of(out) or has_ended(), f"it prints {text!r}")


def _text_of(file: IO[bytes]) -> str:
    """All that was written so far. The program shares the position in the file, so it is not moved."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()
