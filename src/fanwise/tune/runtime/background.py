"""A search that runs in the background, returned by `Tuner.run(block=False)`."""

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final

from ...base.errors import ClosedError, DeadlineExceeded
from ..experiment import Experiment

# Seconds that the exit of the program waits for the trials to stop, in addition to their grace period.
_LAST_WAIT_S = 5.0


@final
class RunningSearch:
    """A search that runs in a background thread. At the exit of the program it is stopped and its results are kept.

    The constructor blocks until the search has begun.

    Args:
        run: runs the search, and calls its argument when the search has begun.
        stop: ends the search, or raises ClosedError if it is not running.
        path: the experiment's folder.
        grace_s: seconds that its trials have to stop.

    Raises:
        Exception: the exception that prevented the search from beginning.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], None]], Experiment],
        stop: Callable[[str], None],
        path: Path,
        *,
        grace_s: float,
    ) -> None:
        self._run = run
        self._stop = stop
        self._path = path
        self._grace_s = grace_s
        self._has_begun = False
        self._begun_or_over = threading.Event()
        self._over = threading.Event()
        self._result: Experiment | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="fanwise-search", daemon=True)
        self._thread.start()
        self._begun_or_over.wait()
        if not self._has_begun and self._error is not None:
            self._thread.join()
            raise self._error
        atexit.register(self._leave)

    @property
    def experiment(self) -> Experiment:
        """The experiment. Its properties follow the running search."""
        return Experiment(self._path)

    @property
    def finished(self) -> bool:
        """True if the search is over, so that `wait` does not block."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> Experiment:
        """Block until the search is over, and return the experiment. Ctrl-C ends only the wait; see `stop`.

        Args:
            timeout_s: maximum wait in seconds. None: no limit.

        Raises:
            DeadlineExceeded: the search is not over after `timeout_s`. It continues to run.
            Exception: as `Tuner.run`.
        """
        if not self._over.wait(timeout_s):
            raise DeadlineExceeded(f"the search {self._path.name!r} is still running after {timeout_s:g} s.")
        self._thread.join()
        atexit.unregister(self._leave)
        if self._error is not None:
            raise self._error
        assert self._result is not None, "it ended with an experiment or an error"
        return self._result

    def stop(self, reason: str = "stopped by hand") -> None:
        """End the search as if its stopping criterion were met. Does not block. Do nothing if the search is over."""
        with suppress(ClosedError):
            self._stop(reason)

    def __repr__(self) -> str:
        state = "has ended" if self.finished else "is running"
        return f"RunningSearch({self._path.name!r}, {state})"

    def _repr_html_(self) -> str | None:
        return self.experiment._repr_html_()

    def _work(self) -> None:
        try:
            self._result = self._run(self._note_begun)
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()
            self._begun_or_over.set()

    def _note_begun(self) -> None:
        self._has_begun = True
        self._begun_or_over.set()

    def _leave(self) -> None:
        self.stop("its program ended")
        self._over.wait(self._grace_s + _LAST_WAIT_S)
