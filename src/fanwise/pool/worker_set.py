"""Starts the processes of jobs: forks of the warm process, or spares.

Used on the event loop's thread. A warm process that dies takes its jobs with it; the kernel and the supervisor see to
that. A job that has not begun is started again by a new warm process, a few times. A job that has begun is not
repeated.
"""

import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..base.errors import ClosedError, WorkerLostError
from ..links.codec import pack_error
from ..links.hub import Hub
from ..links.link import Link, Reply, Request
from ..links.peers import Ending
from .interpreters import Interpreter, Interpreters
from .leases import Gpu
from .mps import Variables
from .runtime_environment import capture_environment
from .specs import JobSpec, Packed, Prepared, Refusal, RuntimeEnvironment

_log = logging.getLogger(__name__)

# Maximum number of starts of a job whose warm process was killed or had imported files that were edited.
_MAX_TRIES = 3
_MAX_UNSAFE = 1000


class WorkerSetEvents(Protocol):
    """Event handlers of the engine."""

    def on_started(self, job_id: int, pid: int) -> None: ...
    def on_not_started(self, job_id: int, error: bytes) -> None: ...
    def on_request(self, request: Request) -> None: ...
    def on_link_ended(self, link: Link, ending: Ending) -> None: ...
    def on_exited(self, job_id: int, status: int, why: str) -> None: ...
    def has_begun(self, job_id: int) -> bool: ...


@dataclass(slots=True, eq=False)
class _Start:
    """A job without a process, perhaps with a reserved spare, or a start request to an interpreter."""

    spec: JobSpec
    packed: Packed
    tries: int = 0
    spare: Interpreter | None = None
    requested_from: Interpreter | None = None


class WorkerSet:
    """The processes of all jobs. It serves one engine after another, each from `attach` until it `is_settled`."""

    def __init__(self, hub: Hub, folder: Path, key: bytes) -> None:
        self._hub = hub
        self._events: WorkerSetEvents  # set by `attach`
        self.interpreters = Interpreters(
            hub,
            folder,
            key,
            on_worker=self._on_worker,
            on_child_exited=self._on_child_exited,
            on_over=self._on_over,
        )
        self.mps = self.interpreters.mps
        self._starts: dict[int, _Start] = {}
        self._processes: dict[int, tuple[Interpreter, int]] = {}  # by job: its parent and its pid
        self._warm: Interpreter | None = None
        self._idle_spare: Interpreter | None = None
        self._unsafe: set[str] = set()  # modules, and ids of functions
        self._warned: set[Refusal] = set()
        self._closed = False

    def attach(self, events: WorkerSetEvents, gpus: Sequence[Gpu] = (), *, mps: bool = True) -> None:
        """Start serving an engine with these GPUs. `mps`: run jobs that share a GPU under MPS."""
        self._events = events
        self._warned.clear()
        self.mps.attach(gpus, enabled=mps)

    def is_settled(self) -> bool:
        """Return whether another engine can be attached, because no jobs and no pending requests are left.

        This makes an MPS daemon quit, so call it again if it returns False.
        """
        if self._starts or self._processes or self.interpreters.is_busy or not self.mps.quit():
            return False
        self.interpreters.forget_functions()
        return True

    def warm_up(self, packed: Packed, environment: RuntimeEnvironment | None = None) -> None:
        if not self._is_unsafe(packed):
            environment = environment or capture_environment(self.interpreters.environment)
            self.interpreters.prepare(self._warm_process(), packed, environment, lambda prepared: None)

    def start(self, spec: JobSpec, packed: Packed) -> None:
        """Start a process for a job. `on_started` or `on_not_started` follows."""
        start = _Start(spec, packed)
        self._starts[spec.job_id] = start
        self._with_mps(spec, lambda variables: None)  # the daemon starts while the warm process imports
        self._begin(start)

    def cancel(self, job_id: int) -> bool:
        """Cancel a start. Return False if it was requested already, so that `on_started` follows."""
        start = self._starts.get(job_id)
        if start is None or start.requested_from is not None:
            return False
        del self._starts[job_id]
        self._keep_spare(start)
        return True

    def _begin(self, start: _Start) -> None:
        if self._closed:
            return
        is_unsafe = self._is_unsafe(start.packed)
        interpreter = self._spare_for(start) if is_unsafe else self._warm_process()
        self.interpreters.prepare(
            interpreter,
            start.packed,
            start.spec.runtime_environment,
            lambda prepared: self._on_prepared(start, interpreter, prepared),
        )

    def _try_again(self, start: _Start, error: bytes) -> None:
        start.tries += 1
        start.requested_from = start.spare = None
        if start.tries < _MAX_TRIES:
            self._begin(start)
        else:
            self._fail(start, error)

    def _fail(self, start: _Start, error: bytes) -> None:
        del self._starts[start.spec.job_id]
        self._keep_spare(start)
        self._events.on_not_started(start.spec.job_id, error)

    def _is_canceled(self, start: _Start) -> bool:
        return self._closed or self._starts.get(start.spec.job_id) is not start

    def _on_prepared(self, start: _Start, interpreter: Interpreter, prepared: Prepared) -> None:
        if self._is_canceled(start):
            return
        if prepared.error is not None:
            if prepared.killed:
                self._try_again(start, prepared.error)
            else:
                self._fail(start, prepared.error)
        elif prepared.refusal is not None and (interpreter.kind == "warm" or prepared.refusal.why == "stale"):
            self._on_refused(start, interpreter, prepared.refusal)
        else:
            self._with_mps(start.spec, lambda variables: self._request_start(start, interpreter, variables))

    def _with_mps(self, spec: JobSpec, callback: Callable[[Variables], None]) -> None:
        if spec.lease.shares_gpu:
            self.mps.use(spec.lease.gpus[0], callback)
        else:
            callback(())

    def _request_start(self, start: _Start, interpreter: Interpreter, mps_variables: Variables) -> None:
        if self._is_canceled(start):
            return
        if not interpreter.usable or interpreter.link is None:
            self._begin(start)
            return
        start.requested_from = interpreter
        interpreter.unanswered += 1
        reply = interpreter.link.call("start", replace(start.spec, mps_variables=mps_variables))
        reply.add_done_callback(lambda reply: self._on_answer(start, interpreter, reply))

    def _on_answer(self, start: _Start, interpreter: Interpreter, reply: Reply) -> None:
        if self._closed:
            return
        try:
            answer = reply.result()
        except (WorkerLostError, ClosedError):
            return  # whether it has begun is known when the interpreter is over
        except Exception as error:
            answer = error
        interpreter.unanswered -= 1
        match answer:
            case Exception():
                self._fail(start, pack_error(answer))
            case Refusal():
                self._on_refused(start, interpreter, answer)
            case pid:
                self._on_started(start, interpreter, pid)
        interpreter.end_if_idle()

    def _on_started(self, start: _Start, interpreter: Interpreter, pid: int) -> None:
        job_id = start.spec.job_id
        del self._starts[job_id]
        interpreter.pids[pid] = job_id
        self._processes[job_id] = (interpreter, pid)
        self._events.on_started(job_id, pid)
        if interpreter.kind == "spare" and _if_usable(self._idle_spare) is None:
            self._idle_spare = self.interpreters.launch("spare")  # for the next job, while this one runs
            environment = start.spec.runtime_environment
            self.interpreters.prepare(self._idle_spare, start.packed, environment, lambda prepared: None)

    def _on_refused(self, start: _Start, interpreter: Interpreter, refusal: Refusal) -> None:
        interpreter.retire()
        if refusal.why == "stale":
            _log.info("%s changed: a new %s process is started", refusal.culprit, interpreter.kind)
            error = WorkerLostError(f"{refusal.culprit} kept changing while a job was started.")
            self._try_again(start, pack_error(error))
            return
        if refusal not in self._warned:
            self._warned.add(refusal)
            reason = "started threads" if refusal.why == "threads" else "touched the GPU"
            _log.warning(
                "%s %s while it was imported: jobs run in fresh spares, which is slower", refusal.culprit, reason
            )
        modules = start.packed.modules
        if len(self._unsafe) >= _MAX_UNSAFE:
            self._unsafe.clear()  # each may be refused once more
        self._unsafe.add(refusal.culprit if refusal.culprit in modules else start.packed.function_id)
        start.requested_from = None
        self._begin(start)

    def _is_unsafe(self, packed: Packed) -> bool:
        return packed.function_id in self._unsafe or not self._unsafe.isdisjoint(packed.modules)

    def _warm_process(self) -> Interpreter:
        self._warm = _if_usable(self._warm) or self.interpreters.launch("warm")
        return self._warm

    def _spare_for(self, start: _Start) -> Interpreter:
        spare = _if_usable(start.spare)
        if spare is None:
            spare, self._idle_spare = _if_usable(self._idle_spare) or self.interpreters.launch("spare"), None
        start.spare = spare
        return spare

    def _keep_spare(self, start: _Start) -> None:
        spare, start.spare = _if_usable(start.spare), None
        if spare is not None and _if_usable(self._idle_spare) is None:
            self._idle_spare = spare
        elif spare is not None:
            spare.retire()

    def _on_worker(self, request: Request) -> None:
        request.link.handler = self._events.on_request
        request.link.on_ended(self._events.on_link_ended)
        self._events.on_request(request)

    def _on_child_exited(self, interpreter: Interpreter, pid: int, status: int) -> None:
        job_id = interpreter.pids.pop(pid, None)
        if job_id is not None:
            del self._processes[job_id]
            self._events.on_exited(job_id, status, "")

    def _on_over(self, interpreter: Interpreter) -> None:
        """Handle the exit of a warm process or a spare, and of all jobs below it."""
        status = interpreter.status or 0
        why = f"its {interpreter.kind} process (pid {interpreter.pid}) {interpreter.death()}"
        pids, interpreter.pids = interpreter.pids, {}
        for pid, job_id in pids.items():
            del self._processes[job_id]
            is_spare = pid == interpreter.pid
            self._events.on_exited(job_id, status if is_spare else -signal.SIGKILL, "" if is_spare else why)
        for job_id, start in list(self._starts.items()):
            if start.requested_from is not interpreter:
                continue
            if self._events.has_begun(job_id):
                del self._starts[job_id]
                self._events.on_exited(job_id, -signal.SIGKILL, why)
            else:
                _log.warning("the %s process ended before job %d began; it is started again", interpreter.kind, job_id)
                error = WorkerLostError(f"it could not be started in {_MAX_TRIES} tries: {why}")
                self._try_again(start, pack_error(error))

    def signal(self, job_id: int, link: Link | None, number: int) -> None:
        """Send a signal to the process of a job, safely if its pid was reused."""
        if link is not None and link.pidfd >= 0:
            try:
                signal.pidfd_send_signal(link.pidfd, number)
            except ProcessLookupError:
                pass  # it has just exited, and `on_exited` follows
        elif job_id in self._processes:
            interpreter, pid = self._processes[job_id]
            self.interpreters.signal_child(interpreter, pid, number)

    def close(self) -> None:
        """End every process. Does not block. May be called twice."""
        self._closed = True
        self._starts.clear()
        self.interpreters.close()


def _if_usable(interpreter: Interpreter | None) -> Interpreter | None:
    return interpreter if interpreter is not None and interpreter.usable else None
