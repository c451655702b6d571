"""The interpreters below a pool, seen from its owner: the supervisor, and the warm processes and spares it launches.

    launch(kind) --> supervisor there? --> asked to launch it --> hello: linked --> prepare(function) --> ... --> over

An interpreter is `over` when the supervisor has told its exit and its link has nothing more to say, in whatever order
the two come; only then is it known what it has done and what it has not. When the supervisor itself is gone, so are
all, and whatever they had started is looked for and ended here, in a thread. The next launch starts a new supervisor.

Runs on the hub's thread only. Knows nothing of jobs: workers' links are handed on.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ..base.errors import ClosedError, FanwiseError, WorkerLostError
from ..links.codec import pack_error
from ..links.hub import Hub
from ..links.link import Link, Reply, Request
from ..links.transports.unix import UnixListener
from .deaths import explain
from .functions import Packed
from .launching import launch
from .marks import MARK
from .outcomes import end_of_stderr
from .processes import kill_marked
from .specs import Prepared, RuntimeEnvironment

_log = logging.getLogger(__name__)

# Functions a process keeps at hand. Closures that are made anew for each submit are all different.
_MOST_FUNCTIONS = 32

# What supervisor and guard get to end all that is below them, when one of them was killed. As a rule milliseconds.
_ENDING_S = 8.0

Kind = Literal["warm", "spare"]


@dataclass(slots=True, eq=False)
class Interpreter:
    """A warm process or a spare. `pids`: the jobs it runs, by process; a spare has one, itself."""

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
    asking: dict[str, "_Asking"] = field(default_factory=dict)
    when_linked: list[Callable[[], None]] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether something may be asked of it, now or when it has linked up."""
        return not self.over and not self.retired and (self.link is None or self.link.ending is None)

    def death(self) -> str:
        """How it ended, for people."""
        status, said = self.status or 0, end_of_stderr(self.log)
        if status < 0:
            return explain(status, last_output=said).text
        return f"ended with exit code {status}." + (f" Its last output:\n{said}" if said else "")

    def end_if_idle(self) -> None:
        """A retired one is dismissed when it has nothing left to do."""
        busy = self.pids or self.asking or self.unanswered
        if self.retired and not busy and self.link is not None and self.link.ending is None:
            self.link.close("retired")


@dataclass(slots=True, eq=False)
class _Asking:
    """A function that an interpreter is loading, and who wants to know."""

    name: str
    thens: list[Callable[[Prepared], None]]


class InterpreterEvents(Protocol):
    """What the interpreters tell, and whom: the worker set."""

    def on_worker(self, request: Request) -> None: ...
    def on_child_exited(self, interpreter: Interpreter, pid: int, status: int) -> None: ...
    def on_over(self, interpreter: Interpreter) -> None: ...
    def on_supervisor_linked(self, link: Link) -> None: ...
    def on_supervisor_ended(self) -> None: ...
    def on_daemon_exited(self, pid: int, status: int) -> None: ...


class Interpreters:
    """See the module. `close` ends every process, `wait_closed` waits for that."""

    def __init__(self, hub: Hub, folder: Path, key: bytes, events: InterpreterEvents) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self._hub = hub
        self._folder = folder
        self._key = key
        self._events = events
        self._listener = UnixListener(hub, folder / "hub", key, on_link=self._arrived)
        self._links: set[Link] = set()
        self._all: dict[int, Interpreter] = {}
        self._numbers = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._guard_pidfd = -1
        self._supervisor_link: Link | None = None
        self._supervisors = 0
        self._keeping = False
        self._ending: threading.Thread | None = None
        self._closed = False

    @property
    def refused(self) -> Counter[str]:
        """Connections that were closed, by reason."""
        return Counter({str(why): count for why, count in self._listener.refused.items()})

    @property
    def supervisor_link(self) -> Link | None:
        """The link of the supervisor, if it has said hello."""
        return self._supervisor_link

    @property
    def is_busy(self) -> bool:
        """Return whether a process is loading a function, which may take forever, or a dead supervisor is replaced."""
        return self._ending is not None or any(interpreter.asking for interpreter in self._all.values())

    @property
    def line(self) -> str:
        """The mark of all processes below the supervisor of this moment."""
        own = os.environ.get(MARK)
        mark = f"{os.getpid()}.{id(self):x}.{self._supervisors}"
        return f"{own}/{mark}" if own else mark

    # -- launching -------------------------------------------------------------------------------------------------

    def launch(self, kind: Kind) -> Interpreter:
        """Begin to start one. Whatever goes wrong, it will be told as over."""
        self._numbers += 1
        interpreter = Interpreter(kind, self._numbers, self._folder / f"{kind}-{self._numbers}.log")
        self._all[interpreter.number] = interpreter
        if self._supervisor_link is not None:
            self._ask_supervisor(interpreter)
        elif not self._keeping:
            self._launch_supervisor()
        return interpreter

    def _launch_supervisor(self) -> None:
        self._keeping = True
        self._supervisors += 1
        config = {"owner_pid": os.getpid(), "folder": str(self._folder), "key": self._key.hex()}
        try:
            self._guard = launch(config, log=self._supervisor_log, mark=self.line, environment=self.environment)
            self._guard_pidfd = os.pidfd_open(self._guard.pid)
        except OSError as error:
            self._supervisor_log.write_text(f"it could not be started: {error}\n")
            self._hub.call_soon(self._supervisor_ended)  # later: whoever launches shall hold the interpreter first
            return
        self._hub.watch(self._guard_pidfd, lambda _events: self._supervisor_ended())

    @property
    def _supervisor_log(self) -> Path:
        return self._folder / "supervisor.log"

    def _ask_supervisor(self, interpreter: Interpreter) -> None:
        assert self._supervisor_link is not None, "called when it is linked"
        config = {
            "kind": interpreter.kind,
            "number": interpreter.number,
            "socket": str(self._folder / "hub"),
            "key": self._key.hex(),
            "log": str(interpreter.log),
        }
        with contextlib.suppress(FanwiseError):  # it has just ended, which tells of all interpreters
            reply = self._supervisor_link.call("launch", config)
            reply.add_done_callback(lambda reply: self._launched(interpreter, reply))

    def _launched(self, interpreter: Interpreter, reply: Reply) -> None:
        try:
            interpreter.pid = reply.result()
        except (WorkerLostError, ClosedError):
            return  # the supervisor is gone, which tells of all interpreters
        except Exception as error:
            interpreter.log.write_text(f"it could not be started: {error}\n")
            self._exited(interpreter, 1)

    # -- preparing -------------------------------------------------------------------------------------------------

    def prepare(
        self,
        interpreter: Interpreter,
        packed: Packed,
        environment: RuntimeEnvironment,
        then: Callable[[Prepared], None],
    ) -> None:
        """Have it load a function; `then(prepared)` comes once, now or later."""
        function_id = packed.function_id
        if interpreter.over:
            then(self._died(interpreter, packed.name))
        elif function_id in interpreter.prepared:
            interpreter.prepared.move_to_end(function_id)
            then(interpreter.prepared[function_id])
        elif function_id in interpreter.asking:
            interpreter.asking[function_id].thens.append(then)
        else:
            interpreter.asking[function_id] = _Asking(packed.name, [then])
            if interpreter.link is not None:
                self._ask_to_prepare(interpreter, packed, environment)
            else:
                interpreter.when_linked.append(lambda: self._ask_to_prepare(interpreter, packed, environment))

    def preload(self, interpreter: Interpreter, modules: Sequence[str], environment: RuntimeEnvironment) -> None:
        """Have it import modules before there is a function that needs them."""

        def ask() -> None:
            self._tell(interpreter.link, "preload", list(modules), environment)

        if interpreter.link is not None:
            ask()
        else:
            interpreter.when_linked.append(ask)

    def _ask_to_prepare(self, interpreter: Interpreter, packed: Packed, environment: RuntimeEnvironment) -> None:
        assert interpreter.link is not None, "called when it is linked"
        with contextlib.suppress(FanwiseError):  # it has just ended; who asks is told when it is over
            reply = interpreter.link.call(
                "prepare", packed.function_id, packed.function, list(packed.modules), environment
            )
            reply.add_done_callback(lambda reply: self._prepared(interpreter, packed, reply))

    def _prepared(self, interpreter: Interpreter, packed: Packed, reply: Reply) -> None:
        try:
            prepared: Prepared = reply.result()
        except (WorkerLostError, ClosedError):
            return  # who asks is told when it is over
        except Exception as error:
            prepared = Prepared(error=pack_error(error))
        if prepared.error is None and (prepared.refusal is None or prepared.refusal.why != "stale"):
            self._keep(interpreter, packed.function_id, prepared)  # what failed may be mended until the next job
        asking = interpreter.asking.pop(packed.function_id, None)
        for then in asking.thens if asking is not None else ():
            then(prepared)
        interpreter.end_if_idle()

    def _keep(self, interpreter: Interpreter, function_id: str, prepared: Prepared) -> None:
        interpreter.prepared[function_id] = prepared
        while len(interpreter.prepared) > _MOST_FUNCTIONS:
            oldest, _ = interpreter.prepared.popitem(last=False)
            self._tell(interpreter.link, "forget", oldest)

    def forget_functions(self) -> None:
        """Have all processes forget what they have loaded: the data of closures may be large."""
        for interpreter in self._all.values():
            for function_id in interpreter.prepared:
                self._tell(interpreter.link, "forget", function_id)
            interpreter.prepared.clear()

    def _died(self, interpreter: Interpreter, name: str) -> Prepared:
        text = f"the {interpreter.kind} process {interpreter.death()}\nIt was importing what {name!r} needs."
        killed = interpreter.status == -signal.SIGKILL
        return Prepared(error=pack_error(WorkerLostError(text)), killed=killed)

    # -- signals ---------------------------------------------------------------------------------------------------

    def signal_below(self, interpreter: Interpreter, pid: int, number: int) -> None:
        """Send a signal to a process through its parent, which knows whether the pid is still its child's."""
        parent = self._supervisor_link if interpreter.kind == "spare" else interpreter.link
        self._tell(parent, "signal", pid, number)

    def _tell(self, link: Link | None, method: str, *args: object) -> None:
        if link is not None and link.ending is None:
            with contextlib.suppress(FanwiseError):
                link.notify(method, *args)

    # -- links -----------------------------------------------------------------------------------------------------

    def _arrived(self, link: Link) -> None:
        self._links.add(link)
        link.handler = self._first_message
        link.on_ended(lambda link, ending: self._links.discard(link))

    def _first_message(self, request: Request) -> None:
        """Who is this? A worker's first message is `ready`; all others say hello."""
        if request.method != "hello":
            self._events.on_worker(request)
            return
        role, number = request.args
        if role == "supervisor":
            self._supervisor_linked(request.link)
        elif number in self._all:
            self._linked(self._all[number], request.link)
        else:
            request.link.close("its exit has been told already")

    def _supervisor_linked(self, link: Link) -> None:
        self._supervisor_link = link
        link.handler = self._from_supervisor
        link.on_ended(lambda link, ending: self._supervisor_ended())
        for interpreter in list(self._all.values()):
            if interpreter.status is None:
                self._ask_supervisor(interpreter)
        self._events.on_supervisor_linked(link)

    def _linked(self, interpreter: Interpreter, link: Link) -> None:
        interpreter.link = link
        interpreter.pid = link.peer.pid
        link.handler = lambda request: self._from_interpreter(interpreter, request)
        link.on_ended(lambda link, ending: self._over_if_both(interpreter))
        calls, interpreter.when_linked = interpreter.when_linked, []
        for call in calls:
            call()
        interpreter.end_if_idle()

    def _from_interpreter(self, interpreter: Interpreter, request: Request) -> None:
        assert request.method == "exited", request.method
        self._events.on_child_exited(interpreter, *request.args)
        interpreter.end_if_idle()

    def _from_supervisor(self, request: Request) -> None:
        assert request.method == "exited", request.method
        pid, status = request.args
        for interpreter in list(self._all.values()):
            if interpreter.pid == pid:
                self._exited(interpreter, status)
        self._events.on_daemon_exited(pid, status)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _exited(self, interpreter: Interpreter, status: int) -> None:
        interpreter.status = status
        # A hello may lie unread; what is unread now is read before the next turn but one.
        after_turns(self._hub, lambda: self._over_if_both(interpreter))

    def _over_if_both(self, interpreter: Interpreter) -> None:
        linked = interpreter.link is not None and interpreter.link.ending is None
        if interpreter.status is None or linked or interpreter.over or self._closed:
            return
        interpreter.over = True
        del self._all[interpreter.number]
        interpreter.when_linked.clear()
        asking, interpreter.asking = interpreter.asking, {}
        self._events.on_over(interpreter)
        for one in asking.values():
            died = self._died(interpreter, one.name)
            for then in one.thens:
                then(died)
        with contextlib.suppress(OSError):
            interpreter.log.unlink()

    def _supervisor_ended(self) -> None:
        """The supervisor or its guard is gone. Wait in a thread until all that was below is: the hub must not block."""
        if self._closed or not self._keeping or self._ending is not None:
            return
        link, self._supervisor_link = self._supervisor_link, None
        lost = list(self._all.values())
        for interpreter in lost:
            interpreter.retired = True  # what is to be started now waits for the next supervisor
        self._events.on_supervisor_ended()
        guard, self._guard = self._guard, None
        self._forget_guard()
        pidfd = os.dup(link.pidfd) if link is not None and link.pidfd >= 0 else -1
        line = self.line

        def end() -> None:
            status = _end_all(guard, pidfd, line)
            self._hub.call_soon(lambda: self._all_ended(link, lost, status))

        self._ending = threading.Thread(target=end, name="fanwise-ending", daemon=True)
        self._ending.start()

    def _all_ended(self, link: Link | None, lost: list[Interpreter], status: int) -> None:
        """Nothing is left of a supervisor and of the interpreters that it had launched."""
        if self._closed:
            return
        self._ending = None
        self._keeping = False
        if link is not None:
            link.close("it has ended")
            _log.warning(
                "the supervisor of the workers ended, and so did all workers; a new one is started when needed"
            )
        for interpreter in lost:
            if link is None:
                trouble = (
                    f"the supervisor of the workers ended before it was ready: {end_of_stderr(self._supervisor_log)}\n"
                )
                interpreter.log.write_text(trouble)
            self._exited(interpreter, status if link is None else -signal.SIGKILL)
        if any(interpreter.status is None for interpreter in self._all.values()):
            self._launch_supervisor()

    def _forget_guard(self) -> None:
        if self._guard_pidfd >= 0:
            self._hub.forget(self._guard_pidfd)
            os.close(self._guard_pidfd)
            self._guard_pidfd = -1

    def close(self) -> None:
        """End every process at once."""
        self._closed = True
        self._listener.close()
        for link in list(self._links):
            link.close("the pool was closed")

    def wait_closed(self, within_s: float = 10.0) -> None:
        """Block until the supervisor, and so everything below it, is gone. After `close`, off the hub's thread."""
        if self._ending is not None:
            self._ending.join()
        guard, self._guard = self._guard, None
        if guard is None:
            return
        guard.terminate()  # heeded only while it starts, when nothing is below it
        try:
            guard.wait(within_s)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
            kill_marked(self.line)
        self._forget_guard()


def _end_all(guard: "subprocess.Popen[bytes] | None", supervisor: int, line: str) -> int:
    """Block until guard and supervisor (a pidfd, or -1) are gone, and kill what carries the mark `line`.

    Whichever of the two is left has ended nearly all of that. Return the guard's exit status; 1 without a guard.
    """
    status = 1
    if supervisor >= 0:
        poll = select.poll()
        poll.register(supervisor, select.POLLIN)
        poll.poll(_ENDING_S * 1000)
        os.close(supervisor)
    if guard is not None:
        try:
            status = guard.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            status = guard.wait()
    kill_marked(line)
    return status


def after_turns(hub: Hub, call: Callable[[], None], turns: int = 3) -> None:
    """Call `call` after some more turns of the hub: what lay unread in a socket before is read by then."""
    if turns == 0:
        call()
    else:
        hub.call_soon(lambda: after_turns(hub, call, turns - 1))
