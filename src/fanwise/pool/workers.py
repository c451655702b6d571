"""The worker processes of a pool and their leases.

    lease free --> started --> runs its job --> (reused: idle until the next job) --> exits --> reaped: lease returned

A process holds its lease from its start until everything that it started is reaped and its GPUs are free. Used on the
event loop's thread. The engine decides which job runs next.
"""

import logging
import signal
from collections.abc import Callable
from dataclasses import replace

from ..links.hub import Hub
from ..links.link import Link
from .devices import ooms_so_far
from .gpu_release import GpuReservation
from .jobs import Job, Worker
from .leases import Ledger
from .worker_set import WorkerSet

_log = logging.getLogger(__name__)

# Time to exit before a process is killed. Only exit handlers of user code take that long (see `leftovers`).
_EXIT_S = 5.0


class LeasedWorkers:
    """All worker processes that hold leases, by the id of their first job."""

    def __init__(self, hub: Hub, worker_set: WorkerSet) -> None:
        self._hub = hub
        self._worker_set = worker_set
        self._workers: dict[int, Worker] = {}

    def start(self, job: Job, ledger: Ledger) -> bool:
        """Start a process for a job. Return False if `ledger` has no lease for it now."""
        lease = ledger.take(job.request.resources, job.id)
        if lease is None:
            self.dismiss_idle(ledger)
            return False
        job.ooms_before = ooms_so_far()
        job.worker = Worker(job.id, job.request.resources, lease, job.parent, ledger, GpuReservation(lease), job=job)
        self._workers[job.id] = job.worker
        self._worker_set.start(replace(job.spec, lease=lease), job.request.packed)
        return True

    def of_link(self, link: Link) -> Worker | None:
        return next((worker for worker in self._workers.values() if worker.link is link), None)

    def has_neighbor(self, worker: Worker) -> bool:
        gpus = {share.visible for share in worker.lease.gpus}
        neighbors = (neighbor for neighbor in self._workers.values() if neighbor is not worker)
        return any(share.visible in gpus for neighbor in neighbors for share in neighbor.lease.gpus)

    def remove(self, worker_id: int) -> Worker | None:
        """Remove a worker whose process is reaped or was never started. Its lease stays until `return_lease`."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            worker.is_reaped = True
            worker.request = None
            worker.set_timer(None)
        return worker

    def return_lease(self, worker: Worker, callback: Callable[[], None]) -> None:
        """Return the lease once its GPUs are free, then call `callback`."""

        def on_free() -> None:
            worker.ledger.give_back(worker.id)
            callback()

        worker.gpus.on_free(self._hub, f"job {worker.id}", on_free)

    def kill_later(self, worker: Worker) -> None:
        """Kill the process if it does not exit in time. Later calls have no effect."""
        job = worker.job
        name = f"job {worker.id}" if job is None else f"job {job.spec.number} {job.spec.name!r}"

        def kill() -> None:
            worker.killed = True
            _log.warning(
                "the process of %s should have exited %g s ago and is killed. An exit handler (atexit) may be waiting "
                "for something",
                *(name, _EXIT_S),
            )
            self._worker_set.signal(worker.id, worker.link, signal.SIGKILL)

        if worker.timer is None and not worker.is_reaped:  # its last message may be read after its exit
            worker.set_timer(self._hub.call_at(self._hub.now_s() + _EXIT_S, kill))

    def close(self) -> None:
        for worker in self._workers.values():
            worker.set_timer(None)
        self._workers.clear()

    def hand_over(self, job: Job) -> bool:
        """Give a job to an idle worker of the same resources. Return False if there is none."""
        for worker in self._workers.values():
            is_equal = worker.resources == job.request.resources and worker.parent is job.parent
            if is_equal and worker.job is None and worker.request is not None:
                request, worker.request = worker.request, None
                job.worker, worker.job = worker, job
                job.ooms_before = ooms_so_far()
                request.answer(replace(job.spec, lease=worker.lease))
                return True
        return False

    def take_back(self, job: Job) -> None:
        """Undo `hand_over`, because the worker has died or exits instead."""
        assert job.worker is not None, "it was handed over"
        job.worker.job = None
        job.worker = job.exited = None

    def dismiss_idle(self, ledger: Ledger | None = None) -> None:
        """Dismiss all idle workers, or one with a lease of `ledger` unless another one is exiting already."""
        jobless = [worker for worker in self._workers.values() if worker.job is None]
        if ledger is not None:
            jobless = [worker for worker in jobless if worker.ledger is ledger]
            jobless = jobless[:1] if all(worker.request is not None for worker in jobless) else []
        for worker in jobless:
            if worker.request is not None:
                worker.request.answer(None)
                worker.request = None
                self.kill_later(worker)
