"""Warns when a run in one process hangs. No other process could end or continue it, so the run goes on waiting.

The watchdog is a thread, so it does not run while native code holds the interpreter's lock. Time in which a tuner
decides does not count.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..comm.team import Alone
from .stack_dump import describe_thread
from .stragglers import StragglerDetector, limit_s

_log = logging.getLogger(__name__)

_MAX_INTERVAL_S = 0.5  # short enough that all time between two updates counts
_UPDATES_PER_TIMEOUT = 4


@contextmanager
def watched(team: Alone, step_timeout_s: float | None) -> Iterator[None]:
    """Watch this thread in this block, if there is a limit."""
    if step_timeout_s is None:
        yield
        return
    ended = threading.Event()
    arguments = (team, step_timeout_s, threading.current_thread(), ended)
    watchdog = threading.Thread(target=_watch, args=arguments, name="fanwise-watchdog", daemon=True)
    watchdog.start()
    try:
        yield
    finally:
        ended.set()
        watchdog.join()


def _watch(team: Alone, step_timeout_s: float, thread: threading.Thread, ended: threading.Event) -> None:
    detector, warned_at = StragglerDetector(), -1
    while not ended.wait(min(_MAX_INTERVAL_S, step_timeout_s / _UPDATES_PER_TIMEOUT)):
        late = detector.update(time.monotonic(), 0, {} if team.is_idle else {0: team.turns})
        limit = limit_s(step_timeout_s, has_stepped=team.has_stepped)
        if late.ranks and late.late_s >= limit and team.turns != warned_at:
            warned_at = team.turns
            _log.warning(
                "the run hangs: for %.1f s it has not come to the end of its next step, run.mean or run.report.\n%s\n"
                "step_timeout_s=%g has passed. The run waits, because it has only this process; with several, on_loss= "
                "would decide.",
                late.late_s,
                describe_thread(thread),
                step_timeout_s,
            )
