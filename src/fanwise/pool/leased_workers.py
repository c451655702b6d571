"""The worker processes of a pool and the leases they hold: started, handed jobs, let go, reaped.

    lease free --> started --> runs its job --> (reused: idle, asks for the next) --> leaves --> gone: lease back

A lease is held by a process, from its start until all it started is reaped and its GPUs are free. Runs on the hub's
thread only. Does not know which job comes next, nor what is told to whom.
"""

import logging
import signal
from collections.abc import Callable

from ..links.hub import Hub
from ..links.link import Link
from .devices import ooms_so_far
from .gpu_return import HeldGpus
from .jobs import Job, Worker
from .leases import Ledger
from .worker_set import WorkerSet

_log = logging.getLogger(__name__)

# How long a process may take to exit once it should. Only exit handlers of user code take long (see `leftovers`).
_EXIT_S = 5.0


class LeasedWorkers:
    """See the module."""

    def __init__(self, hub: Hub, worker_set: WorkerSet) -> None:
        self._hub = hub
        self._worker_set = worker_set
        self._workers: dict[int, Worker] = {}

    def start(self, job: Job, ledger: Ledger) -> bool:
        """Start a process for a job, if `ledger` has a lease for it now."""
        lease = ledger.take(job.request.resources, job.id)
        if lease is None:
            self._dismiss_one(ledger)
            return False
        job.ooms_before = ooms_so_far()
        job.worker = Worker(job.id, job.request.resources, lease, job.parent, ledger, HeldGpus(lease), job=job)
        self._workers[job.id] = job.worker
        self._worker_set.start(job.spec(), job.request.packed)
        return True

    def of_link(self, link: Link) -> Worker | None:
        """The worker at the other end."""
        return next((worker for worker in self._workers.values() if worker.link is link), None)

    def has_neighbor(self, worker: Worker) -> bool:
        """Return whether another process has a share of the same GPU."""
        gpus = {share.visible for share in worker.lease.gpus}
        others = (other for other in self._workers.values() if other is not worker)
        return any(share.visible in gpus for other in others for share in other.lease.gpus)

    def gone(self, worker_id: int) -> Worker | None:
        """Its process is gone, with all it started, or never came. The lease is still its own."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            worker.gone = True
            worker.request = None
            worker.set_timer(None)
        return worker

    def give_back(self, worker: Worker, then: Callable[[], None]) -> None:
        """The lease comes back, for GPUs when they are free; then `then` is called."""

        def back() -> None:
            worker.ledger.give_back(worker.id)
            then()

        worker.gpus.when_free(self._hub, f"job {worker.id}", back)

    def kill_later(self, worker: Worker) -> None:
        """Kill the process if it does not exit by itself in time. The first call counts."""

        job = worker.job
        name = f"job {worker.id}" if job is None else f"job {job.number} {job.request.packed.name!r}"

        def kill() -> None:
            worker.killed = True
            _log.warning(
                "the process of %s should have exited %g s ago and is killed. An exit handler (atexit) may be waiting "
                "for something",
                *(name, _EXIT_S),
            )
            self._worker_set.signal(worker.id, worker.link, signal.SIGKILL)

        if worker.timer is None and not worker.gone:  # its last message may be read after its exit
            worker.set_timer(self._hub.call_at(self._hub.now_s() + _EXIT_S, kill))

    def close(self) -> None:
        """Forget all; their processes are ended by others."""
        for worker in self._workers.values():
            worker.set_timer(None)
        self._workers.clear()

    def __len__(self) -> int:
        return len(self._workers)

    # -- reused ----------------------------------------------------------------------------------------------------

    def hand_over(self, job: Job) -> bool:
        """Give a job to an idle worker of the same resources, if there is one."""
        idle = [w for w in self._workers.values() if w.request is not None and w.job is None]
        worker = next((w for w in idle if w.resources == job.request.resources and w.parent == job.parent), None)
        if worker is None:
            return False
        request, worker.request = worker.request, None
        assert request is not None, "an idle worker has an open question"
        job.worker, worker.job = worker, job
        job.ooms_before = ooms_so_far()
        self._worker_set.started["reuse"] += 1
        request.answer(job.spec())
        return True

    def take_back(self, job: Job) -> None:
        """A job that was handed over will not begin there: its worker is gone, or leaves."""
        assert job.worker is not None, "it was handed over"
        self._worker_set.started["reuse"] -= 1
        job.worker.job = None
        job.worker = job.exited = None

    def _dismiss_one(self, ledger: Ledger) -> None:
        """Let one idle worker go, unless one is leaving; its lease comes back when it has ended."""
        resting = [worker for worker in self._workers.values() if worker.ledger is ledger and worker.job is None]
        if resting and all(worker.request is not None for worker in resting):
            self._dismiss(resting[0])

    def dismiss_idle(self) -> None:
        """Let all idle workers go; their leases come back when they have ended."""
        for worker in self._workers.values():
            if worker.job is None and worker.request is not None:
                self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        request, worker.request = worker.request, None
        assert request is not None, "it is idle"
        request.answer(None)
        self.kill_later(worker)
