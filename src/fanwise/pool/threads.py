"""What a function has left running in its process: threads that the process cannot end before.

    function returns --left_running--> told with its outcome --> process: end_executors, join the rest --> exit

Idle threads of executors are not counted: they end when the interpreter tells them to, which `end_executors` does here,
because a worker does not end as an interpreter does. Daemon threads end with the process.
"""

import os
import sys
import threading
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Any

from ..base.text import printable

# concurrent.futures tells its idle threads to end by a hook of its own at the end of the interpreter.
_EXECUTORS = ("concurrent.futures.thread", "concurrent.futures.process")
_NOWHERE = "in a function of the standard library"
_LIBRARY = os.path.dirname(os.__file__)


def left_running() -> tuple[str, ...]:
    """A line for each thread, beside this one, that the process must wait for: its name, and where it is."""
    if threading.active_count() == 1:
        return ()
    frames = sys._current_frames()
    left = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    return tuple(_told(each, frames.get(each.ident or 0)) for each in left if not _is_idle(each, frames))


def end_executors() -> None:
    """Tell the threads of executors that nobody has shut down to end, once they have done what they were given."""
    for module in _loaded():
        module._python_exit()


def _loaded() -> list[Any]:  # Any: the modules
    return [sys.modules[name] for name in _EXECUTORS if name in sys.modules]


def _is_idle(thread: threading.Thread, frames: Mapping[int, FrameType]) -> bool:
    """Whether it is of an executor. One of a pool of threads is idle when it is in no function that it was given."""
    if any(thread in getattr(module, "_threads_wakeups", ()) for module in _loaded()):
        return True
    frame = frames.get(thread.ident or 0)
    waits = frame is not None and frame.f_code.co_name == "_worker"
    return waits and any(thread in getattr(module, "_threads_queues", ()) for module in _loaded())


def _told(thread: threading.Thread, frame: FrameType | None) -> str:
    """The innermost line of the user's own code says most: what lies below it is the standard library's waiting."""
    where = "in native code"
    if frame is not None:
        stack = traceback.extract_stack(frame)
        theirs = [line for line in stack if not _is_of_library(line.filename)]
        where = f"in {theirs[-1].name}, {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else _NOWHERE
    return printable(f"{thread.name!r} {where}")


def _is_of_library(path: str) -> bool:
    return path.startswith(_LIBRARY) and "site-packages" not in path
