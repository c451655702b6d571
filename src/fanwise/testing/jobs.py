"""Jobs in tests: the handle of a submit that was made outside any job, so that its own methods may be used."""

from ..pool import JobHandle
from ..pool.current import NestedHandle


def submitted(handle: JobHandle | NestedHandle) -> JobHandle:
    """The handle, known to be a `JobHandle`."""
    assert isinstance(handle, JobHandle), f"submitted inside a job: {handle!r}"
    return handle


def began(handle: JobHandle | NestedHandle, within_s: float = 30.0) -> JobHandle:
    """The handle, once its process is about to call the function."""
    job = submitted(handle)
    assert job.wait_began(within_s), f"it has not begun: {job!r}"
    return job
