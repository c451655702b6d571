"""A progress line for commands that take longer than a second, removed at the end.

    with at_work("drawing"):
        ...                         drawing ... 3 s

The line is written to standard error, and only if that is a terminal.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

AFTER_S, EVERY_S = 1.0, 0.5

_CLOSED = (OSError, ValueError)  # raised if the terminal is closed


@contextmanager
def at_work(
    activity: str, *, after_s: float = AFTER_S, stream: TextIO | None = None
) -> Iterator[Callable[[str], None]]:
    """Show the activity until the block ends. The block must not print.

    Yields a function that changes the activity.
    """
    shown = sys.stderr if stream is None else stream
    if not _is_terminal(shown):
        yield lambda text: None
        return
    activities = [activity]
    is_over = threading.Event()

    def show() -> None:
        began_s = time.monotonic()
        wait_s = after_s
        is_shown = False
        with suppress(*_CLOSED):
            while not is_over.wait(wait_s):
                shown.write(f"\r{activities[-1]} ... {time.monotonic() - began_s:.0f} s\x1b[K")
                shown.flush()
                is_shown, wait_s = True, EVERY_S
            if is_shown:
                shown.write("\r\x1b[K")
                shown.flush()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield activities.append
    finally:
        is_over.set()
        thread.join()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False
