"""`RankJob`: the job of a rank, in a pool of this process or, inside a job, in the pool of that job."""

from typing import Any

from ...base.errors import DeadlineExceeded, TrialStopped
from ...pool.current import NestedHandle
from ...pool.handles import JobHandle

_POLL_S = 0.002  # a `NestedHandle` receives the end of its job only while it waits
_NUM_OUTPUT_LINES = 20


class RankJob:
    """See the module.

    Attributes:
        value: result of the job's function. Valid after `is_over` has returned True, like `error`.
        error: error with which the job has ended. None: it has returned.
    """

    def __init__(self, handle: JobHandle | NestedHandle) -> None:
        self._handle = handle
        self._is_over = self._is_killed = False
        self.value: Any = None
        self.error: BaseException | None = None

    def is_over(self, *, is_dead: bool = False) -> bool:
        """Return True if the job's process has ended and the pool knows how. `is_dead`: the process has ended."""
        if self._is_over:
            return True
        try:
            self.value = self._handle.result(_POLL_S if is_dead else 0.0)
        except DeadlineExceeded:
            return False
        except TrialStopped as stopped:
            # A job that is killed before it begins raises this. Otherwise this process itself must stop.
            if not (self._is_killed and self._handle.done()):
                raise
            self.error = stopped
        except Exception as error:
            self.error = error
        self._is_over = True
        return True

    def is_queued(self) -> bool:
        """Return True if the job waits for resources of the pool. False inside a job, where this is unknown."""
        return isinstance(self._handle, JobHandle) and self._handle.queued()

    def kill(self) -> None:
        """End the job, also before it begins."""
        self._is_killed = True
        if isinstance(self._handle, JobHandle):
            self._handle.kill()
        else:
            self._handle.stop(0.0)

    def output(self) -> str:
        """Return a text with the last lines of the job's output, for messages; "" if there is none, or inside a job."""
        if not isinstance(self._handle, JobHandle):
            return ""
        lines = "".join(self._handle.output()).rstrip().split("\n")[-_NUM_OUTPUT_LINES:]
        return "; its last output:\n" + "\n".join(lines) if lines != [""] else ""
