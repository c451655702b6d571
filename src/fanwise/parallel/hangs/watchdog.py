"""A training in one process that does not come on: a thread of its own says where it is.

    training:   step ... step ... run.mean ... (hangs)
    watchdog:   looks a few times a second how many of these are done; after the limit: a warning, once for each place

There is nobody else here who could end it or go on without it, so it is only said. Whoever holds the interpreter's lock
in native code stops the watchdog, too. Time in which a tuner decides does not count.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..comm.team import Alone
from .stacks import doing_here
from .stalls import Stalls, limit_s

_log = logging.getLogger(__name__)

# Often enough for short limits, and for the time that a stopped process has not looked not to count as late.
_MOST_S = 0.5
_LOOKS = 4


@contextmanager
def watched(team: Alone, step_timeout_s: float | None) -> Iterator[None]:
    """This thread trains in this block. Without a limit nobody looks."""
    if step_timeout_s is None:
        yield
        return
    over = threading.Event()
    own = threading.current_thread()
    watching = threading.Thread(
        target=_watch, args=(team, step_timeout_s, own, over), name="fanwise-watchdog", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(team: Alone, step_timeout_s: float, own: threading.Thread, over: threading.Event) -> None:
    stalls, said = Stalls(), -1
    while not over.wait(min(_MOST_S, step_timeout_s / _LOOKS)):
        late = stalls.look(time.monotonic(), 0, {} if team.is_idle else {0: team.turns})
        limit = limit_s(step_timeout_s, has_stepped=team.has_stepped)
        if late.ranks and late.late_s >= limit and team.turns != said:
            said = team.turns
            _log.warning(
                "the run hangs: for %.1f s it has not come to the end of its next step, run.mean or run.report.\n%s\n"
                "step_timeout_s=%g has passed. It is waited for, because in one process there is nobody to go on "
                "without it; with devices=2 on_loss= would decide.",
                late.late_s,
                doing_here(own),
                step_timeout_s,
            )
