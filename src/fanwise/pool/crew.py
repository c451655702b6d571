"""The processes of a pool: its keeper, the warm process, spares, and the links of all workers.

    start(spec, packed) --> warm process there and prepared? --> fork      --> on_started(job, pid)
                                             refuses: unsafe --> a spare   --> on_started(job, pid)
                                             refuses: stale  --> a new warm process, then fork

Runs on the hub's thread only. Knows which process runs which job; does not know leases, queues or results. A warm
process that dies takes its jobs with it (the kernel and the keeper see to that); the next job starts a new one. The
same holds for the keeper.
"""

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..base.errors import FanwiseError, WorkerLostError
from ..links import Ending, Hub, Link, Reply, Request, UnixListener
from ..links.codec import pack_error
from .deaths import printable
from .functions import Packed
from .launching import launch
from .specs import How, JobSpec, Prepared, Refusal

_log = logging.getLogger(__name__)


class Boss(Protocol):
    """What the crew tells: the engine."""

    def on_started(self, job_id: int, pid: int) -> None: ...
    def on_not_started(self, job_id: int, error: bytes) -> None: ...
    def on_request(self, request: Request) -> None: ...
    def on_link_ended(self, link: Link, ending: Ending) -> None: ...
    def on_exited(self, job_id: int, status: int, why: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Process:
    """A warm process or a spare. `pids`: the jobs it forked; a spare has one job, itself."""

    kind: str
    number: int
    pid: int = 0
    link: Link | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)
    prepared: dict[str, Prepared | None] = field(default_factory=dict)
    asking: dict[str, list[Callable[[Prepared], None]]] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    function_id: str = ""
    job_id: int | None = None
    retired: bool = False


class Crew:
    """See the module. `close` ends every process and waits for the keeper."""

    def __init__(self, hub: Hub, folder: Path, key: bytes, boss: Boss) -> None:
        self.started: Counter[How] = Counter()
        self._hub = hub
        self._folder = folder
        self._key = key
        self._boss = boss
        self._listener = UnixListener(hub, folder / "hub", key, on_link=self._arrived)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._keeper_link: Link | None = None
        self._keeper_waiting: list[Callable[[], None]] = []
        self._warm: _Process | None = None
        self._processes: dict[int, _Process] = {}
        self._numbers = 0
        self._unforkable: dict[str, Refusal] = {}
        self._told: set[Refusal] = set()
        self._closing = False

    @property
    def refused(self) -> Counter[str]:
        """Connections that were closed, by reason."""
        return Counter(dict(self._listener.refused))

    # -- starting jobs ---------------------------------------------------------------------------------------------

    def warm_up(self, packed: Packed) -> None:
        """Begin to prepare `packed` before its first job comes."""
        self._ensure_prepared(self._warm_process(), packed, lambda prepared: None)

    def start(self, spec: JobSpec, packed: Packed) -> None:
        """Start a process for `spec`. Tells `on_started`, or `on_not_started` when the function cannot be loaded."""
        if spec.function_id in self._unforkable:
            self._start_spare(spec, packed)
            return
        warm = self._warm_process()
        self._ensure_prepared(warm, packed, lambda prepared: self._fork(warm, spec, packed, prepared))

    def _fork(self, warm: _Process, spec: JobSpec, packed: Packed, prepared: Prepared) -> None:
        if prepared.error is not None:
            self._boss.on_not_started(spec.job_id, prepared.error)
        elif prepared.refusal is not None:
            self._refused(warm, spec, packed, prepared.refusal)
        elif warm.link is None or warm.link.ending is not None:
            self.start(spec, packed)
        else:
            reply = warm.link.call("fork", spec)
            reply.add_done_callback(lambda reply: self._forked(warm, spec, packed, reply))

    def _forked(self, warm: _Process, spec: JobSpec, packed: Packed, reply: Reply) -> None:
        try:
            answer = reply.result()
        except FanwiseError:
            _log.warning("the warm process ended while job %d was started; it is started again", spec.job_id)
            self._hub.call_soon(lambda: self.start(spec, packed))
            return
        if isinstance(answer, Refusal):
            self._refused(warm, spec, packed, answer)
            return
        warm.pids[answer] = spec.job_id
        self.started["fork"] += 1
        self._boss.on_started(spec.job_id, answer)

    def _refused(self, warm: _Process, spec: JobSpec, packed: Packed, refusal: Refusal) -> None:
        if refusal.why == "stale":
            _log.info("%s changed: a new warm process is started", refusal.culprit)
            self._retire(warm)
            self.start(spec, packed)
            return
        if refusal not in self._told:
            self._told.add(refusal)
            what = "started threads" if refusal.why == "threads" else "touched the GPU"
            _log.warning("%s %s while it was imported: jobs run in fresh spares, which is slower", refusal.culprit, what)
        self._unforkable[spec.function_id] = refusal
        self._retire(warm)
        self._start_spare(spec, packed)

    def _ensure_prepared(self, process: _Process, packed: Packed, then: Callable[[Prepared], None]) -> None:
        known = process.prepared.get(packed.function_id)
        if known is not None:
            then(known)
            return
        asking = process.asking.setdefault(packed.function_id, [])
        asking.append(then)
        if len(asking) == 1:
            self._when_linked(process, lambda: self._prepare(process, packed))

    def _prepare(self, process: _Process, packed: Packed) -> None:
        assert process.link is not None, "called when it is linked"
        reply = process.link.call(
            "prepare", packed.function_id, packed.function, list(packed.modules), list(sys.path), os.getcwd()
        )
        reply.add_done_callback(lambda reply: self._prepared(process, packed, reply))

    def _prepared(self, process: _Process, packed: Packed, reply: Reply) -> None:
        then = process.asking.pop(packed.function_id, [])
        try:
            prepared: Prepared = reply.result()
        except FanwiseError:
            prepared = self._died_preparing(process, packed.name)
        process.prepared[packed.function_id] = prepared
        for call in then:
            call(prepared)

    def _died_preparing(self, process: _Process, name: str) -> Prepared:
        log = self._log_of(process)
        text = printable(log.read_text(errors="replace")[-2000:]) if log.exists() else ""
        what = f"the {process.kind} process ended while it imported what {name!r} needs."
        return Prepared(error=pack_error(WorkerLostError(f"{what}\n{text}".rstrip())))

    # -- processes -------------------------------------------------------------------------------------------------

    def _warm_process(self) -> _Process:
        if self._warm is None or self._warm.retired:
            self._warm = self._launch("warm")
        return self._warm

    def _retire(self, process: _Process) -> None:
        """Use it no more; it ends when its last job has."""
        process.retired = True
        if self._warm is process:
            self._warm = None
        self._end_if_idle(process)

    def _end_if_idle(self, process: _Process) -> None:
        linked = process.link is not None and process.link.ending is None
        if process.retired and linked and not process.pids and not process.asking:
            assert process.link is not None, "just looked"
            process.link.close("retired")

    def _start_spare(self, spec: JobSpec, packed: Packed) -> None:
        ready = [
            p for p in self._processes.values() if p.kind == "spare" and p.job_id is None and p.function_id == spec.function_id
        ]
        spare = ready[0] if ready else self._new_spare(packed)
        spare.job_id = spec.job_id
        self._ensure_prepared(spare, packed, lambda prepared: self._run_spare(spare, spec, prepared))
        if len(ready) <= 1:
            self._new_spare(packed)

    def _new_spare(self, packed: Packed) -> _Process:
        spare = self._launch("spare")
        spare.function_id = packed.function_id
        self._ensure_prepared(spare, packed, lambda prepared: None)
        return spare

    def _run_spare(self, spare: _Process, spec: JobSpec, prepared: Prepared) -> None:
        if prepared.error is not None:
            spare.job_id = None
            self._boss.on_not_started(spec.job_id, prepared.error)
            if spare.link is not None:
                spare.link.close("its function cannot be loaded")
            return
        assert spare.link is not None, "prepared, so linked"
        spare.link.notify("run", spec)
        spare.pids[spare.pid] = spec.job_id
        self.started["spare"] += 1
        self._boss.on_started(spec.job_id, spare.pid)

    def _launch(self, kind: str) -> _Process:
        self._numbers += 1
        process = _Process(kind, self._numbers)
        self._processes[process.number] = process
        self._when_kept(lambda: self._ask_keeper(process))
        return process

    def _ask_keeper(self, process: _Process) -> None:
        assert self._keeper_link is not None, "called when it is linked"
        config = {
            "main": "fanwise.pool.warm",
            "kind": process.kind,
            "number": process.number,
            "socket": str(self._folder / "hub"),
            "key": self._key.hex(),
            "path": list(sys.path),
        }
        reply = self._keeper_link.call("launch", config, str(self._log_of(process)))

        def launched(reply: Reply) -> None:
            process.pid = reply.result()

        reply.add_done_callback(launched)

    def _log_of(self, process: _Process) -> Path:
        return self._folder / f"{process.kind}-{process.number}.log"

    def _when_linked(self, process: _Process, call: Callable[[], None]) -> None:
        if process.link is not None and process.pid:
            call()
        else:
            process.waiting.append(call)

    def _when_kept(self, call: Callable[[], None]) -> None:
        if self._keeper_link is not None:
            call()
            return
        self._keeper_waiting.append(call)
        if self._keeper is None:
            self._keeper = launch(
                "fanwise.pool.keeper",
                {"owner_pid": os.getpid(), "folder": str(self._folder), "key": self._key.hex()},
                log=self._folder / "keeper.log",
            )

    # -- links -----------------------------------------------------------------------------------------------------

    def _arrived(self, link: Link) -> None:
        link.handler = self._first_message
        link.on_ended(self._boss.on_link_ended)

    def _first_message(self, request: Request) -> None:
        """Who is this? A worker's first message is `ready`; all others say hello."""
        link = request.link
        if request.method != "hello":
            link.handler = self._boss.on_request
            self._boss.on_request(request)
            return
        role, number = request.args
        if role == "keeper":
            self._keeper_link = link
            link.handler = self._from_keeper
            link.on_ended(self._keeper_ended)
            waiting, self._keeper_waiting = self._keeper_waiting, []
        else:
            process = self._processes[number]
            process.link = link
            process.pid = link.peer.pid
            link.handler = lambda request: self._from_warm(process, request)
            if process.kind == "warm":
                link.on_ended(lambda link, ending: self._retire(process))
            waiting, process.waiting = process.waiting, []
        for call in waiting:
            call()

    def _from_warm(self, process: _Process, request: Request) -> None:
        assert request.method == "exited", request.method
        pid, status = request.args
        job_id = process.pids.pop(pid, None)
        if job_id is not None:
            self._boss.on_exited(job_id, status, "")
        self._end_if_idle(process)

    def _from_keeper(self, request: Request) -> None:
        assert request.method == "exited", request.method
        pid, status = request.args
        for process in list(self._processes.values()):
            if process.pid == pid:
                self._process_exited(process, status)

    def _process_exited(self, process: _Process, status: int) -> None:
        """A warm process or spare is gone, and with it all that ran below it."""
        del self._processes[process.number]
        if self._warm is process:
            self._warm = None
        lost = {**process.pids}
        if process.job_id is not None and process.job_id not in lost.values():
            lost[process.pid] = process.job_id
        for pid, job_id in lost.items():
            own = pid == process.pid
            why = "" if own else f"its warm process (pid {process.pid}) ended with status {status}"
            self._boss.on_exited(job_id, status if own else -signal.SIGKILL, why)
        process.waiting.clear()
        asking, process.asking = process.asking, {}
        for function_id, then in asking.items():
            for call in then:
                call(self._died_preparing(process, function_id))

    def _keeper_ended(self, _link: Link, _ending: Ending) -> None:
        """Without its keeper nothing below lives on; a new one is launched for the next job."""
        self._keeper_link = None
        if self._keeper is not None:
            self._keeper.wait()
            self._keeper = None
        if not self._closing:
            _log.warning("the keeper of the workers ended; all its workers are gone and are counted as lost")
            for process in list(self._processes.values()):
                self._process_exited(process, -signal.SIGKILL)

    # -- signals and the end ---------------------------------------------------------------------------------------

    def signal(self, job_id: int, link: Link | None, number: int) -> None:
        """Send a signal to the process of a job, without the danger of hitting another process of the same pid."""
        if link is not None and link.pidfd >= 0:
            try:
                signal.pidfd_send_signal(link.pidfd, number)
            except ProcessLookupError:
                pass  # it has just ended: `on_exited` follows
            return
        for process in self._processes.values():
            for pid, known in process.pids.items():
                if known == job_id:
                    self._send_through_parent(process, pid, number)

    def _send_through_parent(self, process: _Process, pid: int, number: int) -> None:
        parent = self._keeper_link if process.kind == "spare" else process.link
        if parent is not None and parent.ending is None:
            parent.notify("signal", pid, number)

    def close(self) -> None:
        """End every process at once. On the hub's thread."""
        self._closing = True
        self._listener.close()
        if self._keeper_link is not None:
            self._keeper_link.close("the pool was closed")

    def wait_closed(self, within_s: float = 10.0) -> None:
        """Block until the keeper, and so everything below it, is gone. After `close`, off the hub's thread."""
        keeper = self._keeper
        if keeper is None:
            return
        try:
            keeper.wait(within_s)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
