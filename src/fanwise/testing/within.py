"""Wait for a condition in a test, without sleeping for a fixed time.

On a timeout, the error shows the stacks of all threads and the state of all child processes, so that a hang on a CI
machine can be understood from its log.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil

T = TypeVar("T")

# Most conditions hold soon. Later polls are rare, so that they leave the cores to the code under test.
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


def within(timeout_s: float, condition: Callable[[], T | None], description: str) -> T:
    """Block until `condition()` is true, and return its value.

    Args:
        timeout_s: maximum time to wait. A long timeout costs nothing if the condition holds early.
        condition: called repeatedly in this thread; must not block. Its exceptions are raised at once.
        description: the condition in words, for the error: "the pool has two idle workers".

    Raises:
        AssertionError: the timeout expired. The message has the description, the last value of the condition, the
            stacks of the threads of this process and the state of its child processes.

    >>> within(5.0, lambda: sum(range(4)), "the sum is available")
    6
    """
    pause = threading.Event()  # never set
    pause_s = _FIRST_PAUSE_S
    ends_s = time.monotonic() + timeout_s
    while not (value := condition()):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise AssertionError(
                f"not within {timeout_s} s: {description} (the last value was {value!r})\n\n"
                f"{describe_threads()}\n{describe_children()}"
            )
        pause.wait(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return value


def describe_threads() -> str:
    """Return the stacks of all threads of this process that run Python."""
    labels = {thread.ident: f"{thread.name}{' (daemon)' if thread.daemon else ''}" for thread in threading.enumerate()}
    return "".join(
        f"thread {labels.get(ident, f'{ident}, not started by threading')}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def describe_children() -> str:
    """Return command line and state of all processes below this one."""
    lines = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            facts = process.as_dict(["name", "cmdline", "status", "ppid"])
            command = " ".join(facts["cmdline"] or [facts["name"]])[:300]
            lines.append(f"process {process.pid}: {command}\n  {facts['status']}, parent {facts['ppid']}\n")
    return "".join(lines) or "no child processes\n"
