"""Jobs in tests: handles of submits made outside any job, and the engine of a local pool, as what they are."""

from fanwise.pool import JobHandle, Pool
from fanwise.pool.current import NestedHandle
from fanwise.pool.engine import LocalEngine


def submitted(handle: JobHandle | NestedHandle) -> JobHandle:
    """The handle, known to be a `JobHandle`."""
    assert isinstance(handle, JobHandle), f"submitted inside a job: {handle!r}"
    return handle


def local_engine(pool: Pool) -> LocalEngine:
    """The engine of a pool of this machine, for tests that look into its books."""
    assert isinstance(pool._engine, LocalEngine), f"no pool of this machine: {pool!r}"
    return pool._engine


def began(handle: JobHandle | NestedHandle, within_s: float = 30.0) -> JobHandle:
    """The handle, once its process is about to call the function."""
    job = submitted(handle)
    assert job.wait_began(within_s), f"it has not begun: {job!r}"
    return job
