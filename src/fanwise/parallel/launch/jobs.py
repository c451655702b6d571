"""The job of a rank, whether a pool of this process runs it or, inside a job, the pool of that job."""

from dataclasses import dataclass
from typing import Any

from ...base.errors import DeadlineExceeded, TrialStopped, WorkerLostError
from ...pool.current import NestedHandle
from ...pool.handles import JobHandle

# A handle inside a job learns of ends while it waits.
_LOOK_S = 0.002
_SAID_LINES = 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: `value` if it returned, else the error.

    `is_lost`: its process died, and `text` tells how; `is_crash`: of its own describe_process, as far as can be told.
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
    """See the module."""

    def __init__(self, handle: JobHandle | NestedHandle) -> None:
        self._handle = handle
        self._ended: Ended | None = None
        self._is_killed = False

    def is_over(self, *, is_dead: bool = False) -> bool:
        """Whether its process is gone and the pool knows how it ended.

        Args:
            is_dead: its process is gone, so the pool will know in a moment: wait for a little of that.
        """
        if self._ended is None:
            self._ended = self._look(_LOOK_S if is_dead else 0.0)
        return self._ended is not None

    def ended(self) -> Ended:
        """How. Only when it is over."""
        assert self._ended is not None, "asked before it is over"
        return self._ended

    def _look(self, within_s: float) -> Ended | None:
        handle = self._handle
        if isinstance(handle, JobHandle):
            try:
                outcome = handle.outcome(within_s)
            except DeadlineExceeded:
                return None
            is_crash = outcome.kind in ("signal", "exit") and not outcome.text.startswith("ended by SIGKILL")
        else:
            is_crash = False
        try:
            return Ended(handle.result(_LOOK_S))
        except DeadlineExceeded:
            return None
        except TrialStopped as stopped:
            # What a job that has not begun comes to when it is killed; else it is this process that is to stop.
            if not (self._is_killed and handle.done()):
                raise
            return Ended(error=stopped, text=str(stopped))
        except Exception as error:
            return Ended(error=error, text=str(error), is_crash=is_crash)

    def is_queued(self) -> bool | None:
        """Whether it waits for what other jobs of the pool hold. None: not known, as inside a job."""
        return self._handle.queued() if isinstance(self._handle, JobHandle) else None

    def kill(self) -> None:
        """End it, before it has said where it is."""
        self._is_killed = True
        if isinstance(self._handle, JobHandle):
            self._handle.kill()
        else:
            self._handle.stop(0.0)

    def said(self) -> str:
        """The last lines of its output, for the note of an error; empty: none, or not known."""
        if not isinstance(self._handle, JobHandle):
            return ""
        lines = "".join(self._handle.output()).rstrip().split("\n")[-_SAID_LINES:]
        return "; its last output:\n" + "\n".join(lines) if lines != [""] else ""
