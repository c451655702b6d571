"""What the threads of this process are doing right now: text for a failed test."""

import sys
import threading
import traceback
from collections.abc import Iterable


def describe_threads(threads: Iterable[threading.Thread] | None = None) -> str:
    """The stacks of all threads of this process, or of those given, the innermost call last.

    A thread that C code started shows up without a name, and only while it runs Python.
    """
    frames = sys._current_frames()
    known = list(threading.enumerate() if threads is None else threads)
    labels = {thread.ident: f"{thread.name}{' (daemon)' if thread.daemon else ''}" for thread in known}
    idents = list(frames) if threads is None else [thread.ident for thread in known]
    parts = []
    for ident in idents:
        frame = frames.get(ident) if ident is not None else None
        stack = "".join(traceback.format_stack(frame)) if frame else "  (it runs no Python)\n"
        parts.append(f"thread {labels.get(ident, f'{ident}, not made by threading')}:\n{stack}")
    return "".join(parts)
