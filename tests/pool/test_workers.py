"""Workers that are to end: killed when they do not, and not missed when they have."""

from typing import cast

import pytest

from fanwise.links.hub import Hub
from fanwise.pool import Machine
from fanwise.pool.gpu_release import GpuReservation
from fanwise.pool.jobs import Worker
from fanwise.pool.leases import Lease, Ledger, Resources
from fanwise.pool.worker_set import WorkerSet
from fanwise.pool.workers import LeasedWorkers


@pytest.mark.parametrize("gone", [False, True])
def test_nobody_waits_for_the_end_of_a_process_that_has_ended(gone: bool) -> None:
    hub = Hub(name="test")
    try:
        lease = Lease(1, (), 0)
        worker = Worker(1, Resources(), lease, None, Ledger(Machine(1, 0)), GpuReservation(lease), is_reaped=gone)
        # What it said last may be read after its end: it is told to leave when it has.
        LeasedWorkers(hub, cast(WorkerSet, None)).kill_later(worker)
        assert (worker.timer is None) is gone
        worker.set_timer(None)
    finally:
        hub.close()
