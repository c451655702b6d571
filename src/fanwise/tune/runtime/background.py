"""A search that runs in the background, returned by `Tuner.run(block=False)`."""

import atexit
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from ...base.errors import ClosedError, DeadlineExceeded
from ..experiment import Experiment
from .search_run import SearchRun

# At exit, the program waits for the trials for this time in addition to their grace period.
_EXIT_WAIT_S = 5.0


@final
@dataclass(eq=False, repr=False)
class RunningSearch:
    """A search that runs in a background thread. It is stopped when the program exits, and its results are kept.

    The constructor blocks until the search has begun, and raises the exception if it cannot begin.
    """

    _search_run: SearchRun

    def __post_init__(self) -> None:
        self._result: Future[Experiment] = Future()
        has_begun: Future[None] = Future()

        def work() -> None:
            try:
                self._result.set_result(self._search_run.run(on_begin=lambda: has_begun.set_result(None)))
            except BaseException as error:
                self._result.set_exception(error)

        self._thread = threading.Thread(target=work, name="fanwise-search", daemon=True)
        self._thread.start()
        futures: list[Future[Any]] = [has_begun, self._result]
        wait(futures, return_when=FIRST_COMPLETED)
        if not has_begun.done():
            self._thread.join()
            self._result.result()  # raises
        atexit.register(self._stop_at_exit)

    @property
    def experiment(self) -> Experiment:
        """The experiment. Its properties follow the running search."""
        return Experiment(self._search_run.path)

    @property
    def finished(self) -> bool:
        """True if the search is over, so that `wait` does not block."""
        return self._result.done()

    def wait(self, timeout_s: float | None = None) -> Experiment:
        """Block until the search is over, and return the experiment. Ctrl-C ends only the wait, not the search.

        Args:
            timeout_s: maximum wait in seconds. None: no limit.

        Raises:
            DeadlineExceeded: the search is not over after `timeout_s`. It continues to run.
            Exception: as `Tuner.run`.
        """
        if not wait([self._result], timeout_s).done:
            raise DeadlineExceeded(f"the search {self._search_run.name!r} is still running after {timeout_s:g} s.")
        self._thread.join()
        atexit.unregister(self._stop_at_exit)
        return self._result.result()

    def stop(self, reason: str = "stopped by hand") -> None:
        """End the search and ask the running trials to stop. A second call kills them. Does not block."""
        with suppress(ClosedError):
            self._search_run.stop(reason)

    def __repr__(self) -> str:
        state = "has ended" if self.finished else "is running"
        return f"RunningSearch({self._search_run.name!r}, {state})"

    def _repr_html_(self) -> str | None:
        return self.experiment._repr_html_()

    def _stop_at_exit(self) -> None:
        self.stop("its program ended")
        wait([self._result], self._search_run.settings.stop_grace_s + _EXIT_WAIT_S)
