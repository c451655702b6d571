"""The job of a rank, in a pool of this process or, inside a job, in the pool of that job."""

from dataclasses import dataclass
from typing import Any

from ...base.errors import DeadlineExceeded, TrialStopped, WorkerLostError
from ...pool.current import NestedHandle
from ...pool.handles import JobHandle

_POLL_S = 0.002  # a handle inside a job learns of ends only while it waits
_NUM_OUTPUT_LINES = 20


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job, with its `value` or an error.

    Attributes:
        text: how its process died. is_crash: by itself, as far as is known.
    """

    value: Any = None  # Any: the function's result
    error: BaseException | None = None
    text: str = ""
    is_crash: bool = False

    @property
    def is_returned(self) -> bool:
        return self.error is None

    @property
    def is_lost(self) -> bool:
        return isinstance(self.error, WorkerLostError)


class RankJob:
    def __init__(self, handle: JobHandle | NestedHandle) -> None:
        self._handle = handle
        self._ended: Ended | None = None
        self._is_killed = False

    def is_over(self, *, is_dead: bool = False) -> bool:
        """Return True if its process is gone and the pool knows how it ended.

        Args:
            is_dead: its process is gone, so wait a moment for the pool to notice.
        """
        if self._ended is None:
            self._ended = self._poll(_POLL_S if is_dead else 0.0)
        return self._ended is not None

    def ended(self) -> Ended:
        """Return its end. Only after `is_over`."""
        assert self._ended is not None, "asked before it is over"
        return self._ended

    def _poll(self, within_s: float) -> Ended | None:
        handle, is_crash = self._handle, False
        try:
            if isinstance(handle, JobHandle):
                outcome = handle.outcome(within_s)
                is_crash = outcome.kind in ("signal", "exit") and not outcome.text.startswith("ended by SIGKILL")
            return Ended(handle.result(_POLL_S))
        except DeadlineExceeded:
            return None
        except TrialStopped as stopped:
            # A job that is killed before it begins ends so. Otherwise it is this process that is to stop.
            if not (self._is_killed and handle.done()):
                raise
            return Ended(error=stopped, text=str(stopped))
        except Exception as error:
            return Ended(error=error, text=str(error), is_crash=is_crash)

    def is_queued(self) -> bool | None:
        """Return True if it waits for resources of the pool. None: unknown, as inside a job."""
        return self._handle.queued() if isinstance(self._handle, JobHandle) else None

    def kill(self) -> None:
        """End it, also before it has begun."""
        self._is_killed = True
        if isinstance(self._handle, JobHandle):
            self._handle.kill()
        else:
            self._handle.stop(0.0)

    def output(self) -> str:
        """Return the last lines of its output for the note of an error; empty: none, or unknown."""
        if not isinstance(self._handle, JobHandle):
            return ""
        lines = "".join(self._handle.output()).rstrip().split("\n")[-_NUM_OUTPUT_LINES:]
        return "; its last output:\n" + "\n".join(lines) if lines != [""] else ""
