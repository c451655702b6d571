"""Which process runs which job, and how it is started: forked from the warm process, or in a spare.

    start(spec, packed) --> warm process prepared? --> asked to start it --> on_started(job, pid)
                                        refuses: unsafe --> a spare      --> on_started(job, pid)
                                        refuses: stale  --> a new warm process, which is asked instead

Runs on the hub's thread only. Does not know leases, queues or results. A warm process that dies takes its jobs with it
(the kernel and the supervisor see to that). A job that it was asked to start and that has not begun is started again,
by a new one, a few times; a job that has begun is never repeated here.
"""

import logging
import signal
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..base.errors import ClosedError, WorkerLostError
from ..links.codec import pack_error
from ..links.hub import Hub
from ..links.link import Link, Reply, Request
from ..links.peers import Ending
from .functions import Packed
from .interpreters import Interpreter, Interpreters
from .leases import Gpu
from .mps import MpsDaemon, Variables
from .runtime_environment import look
from .specs import How, JobSpec, Prepared, Refusal

_log = logging.getLogger(__name__)

# How often a job is started again because the process that was to start it was killed, or its sources were edited.
_MOST_TRIES = 3
_MOST_UNSAFE = 256


class WorkerSetEvents(Protocol):
    """What the worker set tells, and whom: the engine."""

    def on_started(self, job_id: int, pid: int) -> None: ...
    def on_not_started(self, job_id: int, error: bytes) -> None: ...
    def on_request(self, request: Request) -> None: ...
    def on_link_ended(self, link: Link, ending: Ending) -> None: ...
    def on_exited(self, job_id: int, status: int, why: str) -> None: ...
    def has_begun(self, job_id: int) -> bool: ...


@dataclass(slots=True, eq=False)
class _Start:
    """A job on its way to a process. `asked`: the interpreter that was asked to start it."""

    spec: JobSpec
    packed: Packed
    tries: int = 0
    spare: Interpreter | None = None
    asked: Interpreter | None = None


class WorkerSet:
    """See the module. `close` ends every process and `wait_closed` waits for the supervisor.

    It serves one engine after another, each from `attach` until it `is_settled`.
    """

    def __init__(self, hub: Hub, folder: Path, key: bytes) -> None:
        self.started: Counter[How] = Counter()
        self._hub = hub
        self._events: WorkerSetEvents  # before the first `attach` there is nothing to tell
        self._interpreters = Interpreters(hub, folder, key, self)
        self._mps = MpsDaemon(hub, folder, self.environment)
        self._starts: dict[int, _Start] = {}
        self._where: dict[int, tuple[Interpreter, int]] = {}
        self._warm: Interpreter | None = None
        self._idle_spare: Interpreter | None = None
        self._unsafe: OrderedDict[str, None] = OrderedDict()
        self._told: set[Refusal] = set()
        self._closed = False

    def attach(self, events: WorkerSetEvents, gpus: Sequence[Gpu] = (), *, mps: bool = True) -> None:
        """Begin to serve an engine.

        Args:
            gpus: the GPUs of the pool. mps: jobs that share one of them run under MPS.
        """
        self._events = events
        self.started = Counter()
        self._told.clear()
        self._mps.attach(gpus, enabled=mps)

    def is_settled(self) -> bool:
        """Return whether another engine can be attached: nothing of a job is left, and nothing is waited for.

        An MPS daemon is told to quit, so call it again if it returns False.
        """
        if self._starts or self._where or self._interpreters.is_busy or not self._mps.quit():
            return False
        self._interpreters.forget_functions()
        return True

    @property
    def num_refused(self) -> int:
        """Number of connections that were closed because they did not prove themselves."""
        return self._interpreters.refused.total()

    @property
    def uses_mps(self) -> bool:
        """Whether jobs that share a GPU run under MPS."""
        return self._mps.is_used

    @property
    def environment(self) -> Mapping[str, str]:
        """What the processes below were started with."""
        return self._interpreters.environment

    # -- starting jobs ---------------------------------------------------------------------------------------------

    def preload(self, modules: Sequence[str]) -> None:
        """Begin to import modules in the warm process before there is a function that needs them."""
        if self._unsafe.keys().isdisjoint(modules):
            self._interpreters.preload(self._warm_process(), modules, look(self.environment))

    def warm_up(self, packed: Packed) -> None:
        """Begin to prepare `packed` before its first job comes."""
        if not self._is_unsafe(packed):
            environment = look(self.environment)
            self._interpreters.prepare(self._warm_process(), packed, environment, lambda prepared: None)

    def start(self, spec: JobSpec, packed: Packed) -> None:
        """Start a process for `spec`. Tells `on_started`, or `on_not_started` when that cannot be done."""
        start = _Start(spec, packed)
        self._starts[spec.job_id] = start
        self._with_mps(spec, lambda variables: None)  # a daemon starts while the warm process imports
        self._begin(start)

    def cancel(self, job_id: int) -> bool:
        """Do not start it after all. False when a process was asked to already: it will be told as started."""
        start = self._starts.get(job_id)
        if start is None or start.asked is not None:
            return False
        del self._starts[job_id]
        self._keep_spare(start)
        return True

    def _begin(self, start: _Start) -> None:
        if self._closed:
            return
        unsafe = self._is_unsafe(start.packed)
        interpreter = self._spare_for(start) if unsafe else self._warm_process()
        self._interpreters.prepare(
            interpreter,
            start.packed,
            start.spec.runtime_environment,
            lambda prepared: self._prepared(start, interpreter, prepared),
        )

    def _again(self, start: _Start, error: bytes) -> None:
        """Its process was killed, or is out of date: another one; `error` is told when that was tried often enough."""
        start.tries += 1
        start.asked = start.spare = None
        if start.tries < _MOST_TRIES:
            self._begin(start)
        else:
            self._not_started(start, error)

    def _not_started(self, start: _Start, error: bytes) -> None:
        del self._starts[start.spec.job_id]
        self._keep_spare(start)
        self._events.on_not_started(start.spec.job_id, error)

    def _prepared(self, start: _Start, interpreter: Interpreter, prepared: Prepared) -> None:
        if self._closed or self._starts.get(start.spec.job_id) is not start:
            return  # it was cancelled meanwhile
        if prepared.error is not None:
            if prepared.killed:
                self._again(start, prepared.error)
            else:
                self._not_started(start, prepared.error)
        elif prepared.refusal is not None and (interpreter.kind == "warm" or prepared.refusal.why == "stale"):
            self._refused(start, interpreter, prepared.refusal)
        else:
            self._with_mps(start.spec, lambda variables: self._ask_to_start(start, interpreter, variables))

    def _with_mps(self, spec: JobSpec, then: Callable[[Variables], None]) -> None:
        """Call `then` with the variables for MPS, at once if the job does not share a GPU."""
        if spec.gpus and spec.gpu_fraction < 1:
            self._mps.use(spec.gpus[0], spec.gpu_fraction, then)
        else:
            then(())

    def _ask_to_start(self, start: _Start, interpreter: Interpreter, mps_variables: Variables) -> None:
        if self._closed or self._starts.get(start.spec.job_id) is not start:
            return  # it was canceled meanwhile
        if not interpreter.usable or interpreter.link is None:
            self._begin(start)
            return
        start.asked = interpreter
        interpreter.unanswered += 1
        reply = interpreter.link.call("start", replace(start.spec, mps_variables=mps_variables))
        reply.add_done_callback(lambda reply: self._answered(start, interpreter, reply))

    def _answered(self, start: _Start, interpreter: Interpreter, reply: Reply) -> None:
        if self._closed:
            return
        try:
            answer = reply.result()
        except (WorkerLostError, ClosedError):
            return  # it may have begun or not: that is known when the interpreter is over
        except Exception as error:
            interpreter.unanswered -= 1
            self._not_started(start, pack_error(error))
            return
        interpreter.unanswered -= 1
        if isinstance(answer, Refusal):
            self._refused(start, interpreter, answer)
        else:
            self._started(start, interpreter, answer)
        interpreter.end_if_idle()

    def _started(self, start: _Start, interpreter: Interpreter, pid: int) -> None:
        job_id = start.spec.job_id
        del self._starts[job_id]
        interpreter.pids[pid] = job_id
        self._where[job_id] = (interpreter, pid)
        self.started["fork" if interpreter.kind == "warm" else "spare"] += 1
        self._events.on_started(job_id, pid)
        if interpreter.kind == "spare":
            self._spare_ahead(start)

    def _refused(self, start: _Start, interpreter: Interpreter, refusal: Refusal) -> None:
        self._retire(interpreter)
        if refusal.why == "stale":
            _log.info("%s changed: a new %s process is started", refusal.culprit, interpreter.kind)
            self._again(start, pack_error(WorkerLostError(f"{refusal.culprit} kept changing while a job was started.")))
            return
        if refusal not in self._told:
            self._told.add(refusal)
            what = "started threads" if refusal.why == "threads" else "touched the GPU"
            _log.warning(
                "%s %s while it was imported: jobs run in fresh spares, which is slower", refusal.culprit, what
            )
        modules = start.packed.modules
        self._unsafe[refusal.culprit if refusal.culprit in modules else start.packed.function_id] = None
        if len(self._unsafe) > _MOST_UNSAFE:
            self._unsafe.popitem(last=False)
        start.asked = None
        self._begin(start)

    def _is_unsafe(self, packed: Packed) -> bool:
        return packed.function_id in self._unsafe or not self._unsafe.keys().isdisjoint(packed.modules)

    # -- processes -------------------------------------------------------------------------------------------------

    def _warm_process(self) -> Interpreter:
        if self._warm is None or not self._warm.usable:
            self._warm = self._interpreters.launch("warm")
        return self._warm

    def _retire(self, interpreter: Interpreter) -> None:
        """Use it no more; it ends when its last job has."""
        interpreter.retired = True
        if self._warm is interpreter:
            self._warm = None
        interpreter.end_if_idle()

    def _spare_for(self, start: _Start) -> Interpreter:
        """The idle spare, whatever it has imported so far, or a new one."""
        if start.spare is None or not start.spare.usable:
            idle, self._idle_spare = self._idle_spare, None
            start.spare = idle if idle is not None and idle.usable else self._interpreters.launch("spare")
        return start.spare

    def _spare_ahead(self, start: _Start) -> None:
        """Have one spare ready for the next job; it is prepared while this one runs."""
        if self._idle_spare is None or not self._idle_spare.usable:
            self._idle_spare = self._interpreters.launch("spare")
            self._interpreters.prepare(
                self._idle_spare, start.packed, start.spec.runtime_environment, lambda prepared: None
            )

    def _keep_spare(self, start: _Start) -> None:
        """The spare of a job that was not started after all."""
        spare, start.spare = start.spare, None
        if spare is None or not spare.usable:
            return
        if self._idle_spare is None or not self._idle_spare.usable:
            self._idle_spare = spare
        else:
            self._retire(spare)

    # -- what the interpreters tell --------------------------------------------------------------------------------

    def on_worker(self, request: Request) -> None:
        """The first message of a worker."""
        request.link.handler = self._events.on_request
        request.link.on_ended(self._events.on_link_ended)
        self._events.on_request(request)

    def on_child_exited(self, interpreter: Interpreter, pid: int, status: int) -> None:
        """A job that was forked is gone, with all it started."""
        job_id = interpreter.pids.pop(pid, None)
        if job_id is not None:
            del self._where[job_id]
            self._events.on_exited(job_id, status, "")

    def on_over(self, interpreter: Interpreter) -> None:
        """A warm process or spare is gone, and with it all that ran below it."""
        if self._warm is interpreter:
            self._warm = None
        if self._idle_spare is interpreter:
            self._idle_spare = None
        status = interpreter.status or 0
        pids, interpreter.pids = interpreter.pids, {}
        for pid, job_id in pids.items():
            del self._where[job_id]
            own = pid == interpreter.pid
            self._events.on_exited(job_id, status if own else -signal.SIGKILL, "" if own else self._why(interpreter))
        for start in [start for start in self._starts.values() if start.asked is interpreter]:
            self._over_while_asked(start, interpreter)

    def on_supervisor_linked(self, link: Link) -> None:
        self._mps.supervisor_linked(link)

    def on_supervisor_ended(self) -> None:
        self._mps.supervisor_ended()

    def on_daemon_exited(self, pid: int, status: int) -> None:
        self._mps.exited(pid, status)

    def _over_while_asked(self, start: _Start, interpreter: Interpreter) -> None:
        job_id = start.spec.job_id
        if self._events.has_begun(job_id):
            del self._starts[job_id]
            self._events.on_exited(job_id, -signal.SIGKILL, self._why(interpreter))
            return
        _log.warning("the %s process ended before job %d began; it is started again", interpreter.kind, job_id)
        text = f"it could not be started in {_MOST_TRIES} tries: {self._why(interpreter)}"
        self._again(start, pack_error(WorkerLostError(text)))

    @staticmethod
    def _why(interpreter: Interpreter) -> str:
        return f"its {interpreter.kind} process (pid {interpreter.pid}) {interpreter.death()}"

    # -- signals and the end ---------------------------------------------------------------------------------------

    def signal(self, job_id: int, link: Link | None, number: int) -> None:
        """Send a signal to the process of a job, without the danger of hitting another process of the same pid."""
        if link is not None and link.pidfd >= 0:
            try:
                signal.pidfd_send_signal(link.pidfd, number)
            except ProcessLookupError:
                pass  # it has just ended: `on_exited` follows
        elif job_id in self._where:
            interpreter, pid = self._where[job_id]
            self._interpreters.signal_below(interpreter, pid, number)

    def close(self) -> None:
        """End every process at once. On the hub's thread. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._starts.clear()
        self._interpreters.close()

    def wait_closed(self, within_s: float = 10.0) -> None:
        """Block until the supervisor, and so everything below it, is gone. After `close`, off the hub's thread."""
        self._interpreters.wait_closed(within_s)
