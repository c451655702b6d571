"""That a command is at work, when it takes longer than a second: one line on a terminal, gone when it is done.

    with at_work("drawing"):
        ...                         drawing ... 3 s

It goes to standard error, so that what is printed can be piped on, and only to a terminal: a log is told nothing.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

AFTER_S, EVERY_S = 1.0, 0.5

_GONE = (OSError, ValueError)  # how a terminal that has gone shows


@contextmanager
def at_work(what: str, *, after_s: float = AFTER_S, stream: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """Show `what` is being done until the block ends; print nothing meanwhile.

    Yields a function that says something else is being done from now on.
    """
    shown = sys.stderr if stream is None else stream
    if not _is_terminal(shown):
        yield lambda text: None
        return
    now_doing = [what]
    is_over = threading.Event()

    def show() -> None:
        began_s = time.monotonic()
        wait_s = after_s
        is_shown = False
        with suppress(*_GONE):
            while not is_over.wait(wait_s):
                shown.write(f"\r{now_doing[-1]} ... {time.monotonic() - began_s:.0f} s\x1b[K")
                shown.flush()
                is_shown, wait_s = True, EVERY_S
            if is_shown:
                shown.write("\r\x1b[K")
                shown.flush()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield now_doing.append
    finally:
        is_over.set()
        thread.join()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False
