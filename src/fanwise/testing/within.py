"""Waiting for a fact. Tests wait with this and with nothing else: neither sleeps nor retry marks.

A fact is a function that answers with something true once it holds. When the time runs out, the error says which fact
was missing and what every thread and every child process was doing, so that a hang in a far-away CI can be
understood from its log.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .processes import describe_children
from .threads import describe_threads

T = TypeVar("T")

# Short at first, because most facts hold soon; then rare enough to leave the cores to what is waited for.
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


def within(seconds: float, fact: Callable[[], T | None], what: str) -> T:
    """Block until `fact()` is true, and return what it returned.

    Args:
        seconds: how long to wait at most. Be generous: it costs nothing when the fact comes true.
        fact: called again and again in this thread; must not block. What it raises is raised at once.
        what: the fact in words, for the message: "the pool has two idle workers".

    Raises:
        AssertionError: the time ran out. Names the fact, its last answer, and the stacks of this process's threads
            and the state of all processes below it.

    >>> within(5.0, lambda: sum(range(4)), "the sum is there")
    6
    """
    pause = threading.Event()  # never set: its wait is the pause
    pause_s = _FIRST_PAUSE_S
    ends_s = time.monotonic() + seconds
    while not (answer := fact()):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise AssertionError(_missing(seconds, answer, what))
        pause.wait(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return answer


def _missing(seconds: float, answer: object, what: str) -> str:
    return (
        f"not within {seconds} s: {what} (the last answer was {answer!r})\n"
        f"\n{describe_threads()}\n{describe_children()}"
    )
