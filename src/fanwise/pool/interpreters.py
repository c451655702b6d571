"""The interpreters of a pool, seen from its owner: warm processes and spares, launched by the supervisor.

An interpreter is `over` when the supervisor has reported its exit and its link is drained, in either order; only then
are its actions certain. When the supervisor itself ends, so do all interpreters, and everything that they
started is killed here, in a thread. The next launch starts a new supervisor.

Used on the event loop's thread. Links of workers are passed on to the worker set.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..base.errors import ClosedError, FanwiseError, WorkerLostError
from ..links.codec import pack_error
from ..links.hub import Hub
from ..links.link import Link, Reply, Request
from ..links.transports.unix import UnixListener
from .mps import MpsDaemon
from .outcomes import end_of_stderr, explain
from .processes import TAG, kill_lineage
from .runtime_environment import guard_environment, own_path
from .specs import Packed, Prepared, RuntimeEnvironment

_log = logging.getLogger(__name__)

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.buffer.readline()); sys.path[:] = c['path']; "
    "from fanwise.pool import supervisor; supervisor.main(c)"
)

# Maximum number of functions that a process keeps loaded. Closures created for each submit are all different.
_MAX_FUNCTIONS = 32

# Time for supervisor and guard to end everything below them when one of them was killed. Usually milliseconds.
_ENDING_S = 8.0

Kind = Literal["warm", "spare"]
OnPrepared = Callable[[Prepared], None]


@dataclass(slots=True, eq=False)
class Interpreter:
    """A warm process or a spare.

    Attributes:
        status: exit status, once the supervisor has reported it.
        over: it has exited and its link is drained.
        retired: it gets no more jobs, and is closed when the last one has ended.
        unanswered: number of start requests without an answer.
        pids: job ids by process id. A spare has only itself.
        prepared: loaded functions by id, the least recently used first.
        loading: names and callbacks of the functions that are being loaded, by id.
    """

    kind: Kind
    number: int
    log: Path
    pid: int = 0
    link: Link | None = None
    status: int | None = None
    over: bool = False
    retired: bool = False
    unanswered: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    prepared: OrderedDict[str, Prepared] = field(default_factory=OrderedDict)
    loading: dict[str, tuple[str, list[OnPrepared]]] = field(default_factory=dict)
    when_linked: list[Callable[[], None]] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """True if it can get requests, now or when its link is there."""
        return not self.over and not self.retired and (self.link is None or self.link.ending is None)

    def death(self) -> str:
        status, output = self.status or 0, end_of_stderr(self.log)
        if status < 0:
            return explain(status, last_output=output).text
        return f"ended with exit code {status}." + (f" Its last output:\n{output}" if output else "")

    def retire(self) -> None:
        """Give it no more jobs, so that it ends after its last one."""
        self.retired = True
        self.end_if_idle()

    def end_if_idle(self) -> None:
        """Close the link of a retired interpreter that has nothing left to do, which ends it."""
        is_busy = self.pids or self.loading or self.unanswered
        if self.retired and not is_busy and self.link is not None and self.link.ending is None:
            self.link.close("retired")


class Interpreters:
    """All interpreters of a pool, their supervisor and its MPS daemon.

    Args:
        on_worker: called with the first message of a worker.
        on_child_exited: called with interpreter, pid and exit status of a child, usually a worker.
        on_over: called when an interpreter is over, and so are its children.
    """

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        key: bytes,
        *,
        on_worker: Callable[[Request], None],
        on_child_exited: Callable[[Interpreter, int, int], None],
        on_over: Callable[[Interpreter], None],
    ) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.mps = MpsDaemon(hub, folder, self.environment)
        self._hub = hub
        self._folder = folder
        self._key = key
        self._supervisor_log = folder / "supervisor.log"
        self._on_worker = on_worker
        self._on_child_exited = on_child_exited
        self._report_over = on_over
        self._listener = UnixListener(hub, folder / "hub", key, on_link=self._on_link)
        self._links: set[Link] = set()
        self._all: dict[int, Interpreter] = {}
        self._last_number = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._guard_pidfd = -1
        self._supervisor_link: Link | None = None
        self._num_supervisors = 0
        self._has_supervisor = False  # launched or ending
        self._ending: threading.Thread | None = None
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """True while a function is being loaded, which may take forever, or a dead supervisor is being replaced."""
        return self._ending is not None or any(interpreter.loading for interpreter in self._all.values())

    @property
    def lineage(self) -> str:
        own = os.environ.get(TAG)
        tag = f"{os.getpid()}.{id(self):x}.{self._num_supervisors}"
        return f"{own}/{tag}" if own else tag

    def launch(self, kind: Kind) -> Interpreter:
        """Start an interpreter. Failures are reported by `on_over`."""
        self._last_number += 1
        interpreter = Interpreter(kind, self._last_number, self._folder / f"{kind}-{self._last_number}.log")
        self._all[interpreter.number] = interpreter
        if self._supervisor_link is not None:
            self._request_launch(interpreter)
        elif not self._has_supervisor:
            self._launch_supervisor()
        return interpreter

    def _launch_supervisor(self) -> None:
        self._has_supervisor = True
        self._num_supervisors += 1
        try:
            self._guard = self._start_guard()
            self._guard_pidfd = os.pidfd_open(self._guard.pid)
        except OSError as error:
            self._supervisor_log.write_text(f"it could not be started: {error}\n")
            self._hub.call_soon(self._on_supervisor_end)  # not now, because `launch` must return before `on_over`
            return
        self._hub.watch(self._guard_pidfd, lambda _events: self._on_supervisor_end())

    def _start_guard(self) -> "subprocess.Popen[bytes]":
        """Start a fresh interpreter, which gets its configuration on one line of its standard input.

        Nothing secret is on a command line or in the environment.
        """
        with self._supervisor_log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=guard_environment(self.environment, self.lineage),
                start_new_session=True,
            )
        config = {"path": own_path(), "owner_pid": os.getpid(), "folder": str(self._folder), "key": self._key.hex()}
        assert process.stdin is not None, "asked for a pipe"
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # it has exited already
            stdin.write(json.dumps(config).encode() + b"\n")
        return process

    def _request_launch(self, interpreter: Interpreter) -> None:
        assert self._supervisor_link is not None, "called when it is linked"
        with contextlib.suppress(FanwiseError):  # the supervisor has just ended, which ends all interpreters
            reply = self._supervisor_link.call("launch", interpreter.kind, interpreter.number)
            reply.add_done_callback(lambda reply: self._on_launched(interpreter, reply))

    def _on_launched(self, interpreter: Interpreter, reply: Reply) -> None:
        try:
            interpreter.pid = reply.result()
        except (WorkerLostError, ClosedError):
            return  # the supervisor has ended, which ends all interpreters
        except Exception as error:
            interpreter.log.write_text(f"it could not be started: {error}\n")
            self._on_exit(interpreter, 1)

    def prepare(
        self, interpreter: Interpreter, packed: Packed, environment: RuntimeEnvironment, callback: OnPrepared
    ) -> None:
        """Load a function. `callback(prepared)` is called once, now or later."""
        function_id = packed.function_id
        if interpreter.over:
            callback(self._death_as_prepared(interpreter, packed.name))
        elif function_id in interpreter.prepared:
            interpreter.prepared.move_to_end(function_id)
            callback(interpreter.prepared[function_id])
        elif function_id in interpreter.loading:
            interpreter.loading[function_id][1].append(callback)
        else:
            interpreter.loading[function_id] = packed.name, [callback]
            args = (function_id, packed.function, list(packed.modules), environment)

            def request() -> None:
                assert interpreter.link is not None, "called when it is linked"
                with contextlib.suppress(FanwiseError):  # it has just ended; the callbacks are called when it is over
                    reply = interpreter.link.call("prepare", *args)
                    reply.add_done_callback(lambda reply: self._on_prepared(interpreter, packed, reply))

            if interpreter.link is not None:
                request()
            else:
                interpreter.when_linked.append(request)

    def _on_prepared(self, interpreter: Interpreter, packed: Packed, reply: Reply) -> None:
        try:
            prepared: Prepared = reply.result()
        except (WorkerLostError, ClosedError):
            return  # the callbacks are called when it is over
        except Exception as error:
            prepared = Prepared(error=pack_error(error))
        if prepared.error is None and (prepared.refusal is None or prepared.refusal.why != "stale"):
            # Errors may be fixed before the next job, so they are not kept.
            interpreter.prepared[packed.function_id] = prepared
            while len(interpreter.prepared) > _MAX_FUNCTIONS:
                oldest, _ = interpreter.prepared.popitem(last=False)
                _notify(interpreter.link, "forget", oldest)
        _, callbacks = interpreter.loading.pop(packed.function_id, ("", []))
        for callback in callbacks:
            callback(prepared)
        interpreter.end_if_idle()

    def forget_functions(self) -> None:
        """Unload all functions of the warm process and the spares, because the data of closures may be large."""
        for interpreter in self._all.values():
            for function_id in interpreter.prepared:
                _notify(interpreter.link, "forget", function_id)
            interpreter.prepared.clear()

    def _death_as_prepared(self, interpreter: Interpreter, name: str) -> Prepared:
        text = f"the {interpreter.kind} process {interpreter.death()}\nIt was importing what {name!r} needs."
        killed = interpreter.status == -signal.SIGKILL
        return Prepared(error=pack_error(WorkerLostError(text)), killed=killed)

    def signal_child(self, interpreter: Interpreter, pid: int, number: int) -> None:
        """Send a signal to a worker through its parent, which knows whether the pid is still in use."""
        _notify(self._supervisor_link if interpreter.kind == "spare" else interpreter.link, "signal", pid, number)

    def _on_link(self, link: Link) -> None:
        self._links.add(link)
        link.handler = self._on_first_message
        link.on_ended(lambda link, ending: self._links.discard(link))

    def _on_first_message(self, request: Request) -> None:
        """Handle the first message of a process: `ready` of a worker, and `hello` of others."""
        if request.method != "hello":
            self._on_worker(request)
            return
        role, number = request.args
        if role == "supervisor":
            self._on_supervisor_link(request.link)
        elif number in self._all:
            self._on_interpreter_link(self._all[number], request.link)
        else:
            request.link.close("its exit was reported already")

    def _on_supervisor_link(self, link: Link) -> None:
        self._supervisor_link = link

        def on_exited(request: Request) -> None:
            assert request.method == "exited", request.method
            pid, status = request.args
            for interpreter in list(self._all.values()):
                if interpreter.pid == pid:
                    self._on_exit(interpreter, status)
            self.mps.exited(pid, status)

        link.handler = on_exited
        link.on_ended(lambda link, ending: self._on_supervisor_end())
        for interpreter in list(self._all.values()):
            if interpreter.status is None:
                self._request_launch(interpreter)
        self.mps.supervisor_linked(link)

    def _on_interpreter_link(self, interpreter: Interpreter, link: Link) -> None:
        interpreter.link = link
        interpreter.pid = link.peer.pid

        def on_exited(request: Request) -> None:
            assert request.method == "exited", request.method
            self._on_child_exited(interpreter, *request.args)
            interpreter.end_if_idle()

        link.handler = on_exited
        link.on_ended(lambda link, ending: self._check_over(interpreter))
        for call in interpreter.when_linked:
            call()
        interpreter.when_linked.clear()
        interpreter.end_if_idle()

    def _on_exit(self, interpreter: Interpreter, status: int) -> None:
        interpreter.status = status
        # Its `hello` may be unread.
        after_turns(self._hub, lambda: self._check_over(interpreter))

    def _check_over(self, interpreter: Interpreter) -> None:
        is_linked = interpreter.link is not None and interpreter.link.ending is None
        if interpreter.status is None or is_linked or interpreter.over or self._closed:
            return
        interpreter.over = True
        del self._all[interpreter.number]
        interpreter.when_linked.clear()
        all_loading, interpreter.loading = interpreter.loading, {}
        self._report_over(interpreter)
        for name, callbacks in all_loading.values():
            prepared = self._death_as_prepared(interpreter, name)
            for callback in callbacks:
                callback(prepared)
        with contextlib.suppress(OSError):
            interpreter.log.unlink()

    def _on_supervisor_end(self) -> None:
        """Handle the end of supervisor or guard. A thread waits for the processes below, so that the loop can run."""
        if self._closed or not self._has_supervisor or self._ending is not None:
            return
        link, self._supervisor_link = self._supervisor_link, None
        lost = list(self._all.values())
        for interpreter in lost:
            interpreter.retired = True  # new launches wait for the next supervisor
        self.mps.supervisor_ended()
        guard, self._guard = self._guard, None
        self._forget_guard()
        pidfd = os.dup(link.pidfd) if link is not None and link.pidfd >= 0 else -1
        lineage = self.lineage

        def end() -> None:
            status = _end_all(guard, pidfd, lineage)
            self._hub.call_soon(lambda: self._on_all_ended(link, lost, status))

        self._ending = threading.Thread(target=end, name="fanwise-ending", daemon=True)
        self._ending.start()

    def _on_all_ended(self, link: Link | None, lost: list[Interpreter], status: int) -> None:
        """Handle the end of all processes below a supervisor. Start another one if jobs wait for it."""
        if self._closed:
            return
        self._ending = None
        self._has_supervisor = False
        if link is not None:
            link.close("it has ended")
            _log.warning(
                "the supervisor of the workers ended, and so did all workers; a new one is started when needed"
            )
        for interpreter in lost:
            if link is None:
                output = end_of_stderr(self._supervisor_log)
                interpreter.log.write_text(f"the supervisor of the workers ended before it was ready: {output}\n")
            self._on_exit(interpreter, status if link is None else -signal.SIGKILL)
        if any(interpreter.status is None for interpreter in self._all.values()):
            self._launch_supervisor()

    def _forget_guard(self) -> None:
        if self._guard_pidfd >= 0:
            self._hub.forget(self._guard_pidfd)
            os.close(self._guard_pidfd)
            self._guard_pidfd = -1

    def close(self) -> None:
        """End every process. Does not block. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        for link in list(self._links):
            link.close("the pool was closed")

    def wait_closed(self, within_s: float = 10.0) -> None:
        """Block until the supervisor and everything below it are gone. Called after `close`, on another thread."""
        if self._ending is not None:
            self._ending.join()
        guard, self._guard = self._guard, None
        if guard is None:
            return
        guard.terminate()  # has an effect only during its start, when it has no children
        if _wait_for_guard(guard, within_s) == -signal.SIGKILL:  # it did not end by itself
            kill_lineage(self.lineage)
        self._forget_guard()


def _notify(link: Link | None, method: str, *args: object) -> None:
    if link is not None and link.ending is None:
        with contextlib.suppress(FanwiseError):
            link.notify(method, *args)


def _wait_for_guard(guard: "subprocess.Popen[bytes]", within_s: float) -> int:
    """Block until the guard has ended, and kill it after `within_s`. Return its exit status."""
    try:
        return guard.wait(within_s)
    except subprocess.TimeoutExpired:
        guard.kill()
        return guard.wait()


def _end_all(guard: "subprocess.Popen[bytes] | None", supervisor: int, lineage: str) -> int:
    """Block until guard and supervisor (a pidfd, or -1) are gone, and kill the processes of `lineage`.

    One of the two has ended nearly all of these already. Return the guard's exit status; 1 without a guard.
    """
    if supervisor >= 0:
        poll = select.poll()
        poll.register(supervisor, select.POLLIN)
        poll.poll(_ENDING_S * 1000)
        os.close(supervisor)
    status = 1 if guard is None else _wait_for_guard(guard, _ENDING_S)
    kill_lineage(lineage)
    return status


def after_turns(hub: Hub, call: Callable[[], None], turns: int = 3) -> None:
    """Call `call` after some iterations of the loop, when messages that are in sockets now have been read."""
    if turns == 0:
        call()
    else:
        hub.call_soon(lambda: after_turns(hub, call, turns - 1))
