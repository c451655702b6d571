"""Threads, executors and child processes that a function left running: find and end them.

Python waits without limit for non-daemon threads and the processes of `multiprocessing`. A worker does not: threads get
GRACE_S to end by themselves, and child processes get SIGTERM and the same time. Only exit handlers, which the user
registered, may take longer; the pool limits them (see `workers`). The worker's parent kills the rest after the exit
(see `processes.Children`).
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from ..base.text import printable, printable_line
from ..links.process_state import Stat, stat_of
from .processes import descendants_of

# Time for threads to end, and for child processes after SIGTERM.
GRACE_S = 0.5
_POLL_S = 0.002
_COMMAND_CHARS = 60

_LIBRARY = os.path.dirname(os.__file__)


def running_threads() -> tuple[str, ...]:
    """Return name and location of every other non-daemon thread.

    Idle threads of executors are omitted, because they exit when their executor shuts down.
    """
    if threading.active_count() == 1:
        return ()
    frames = sys._current_frames()
    running = [thread for thread in _other_threads() if not thread.daemon and not _is_idle(thread, frames)]
    return tuple(_describe_thread(thread, frames.get(thread.ident or 0)) for thread in running)


def has_child_processes() -> bool:
    """Return True if this process has descendants, running or not reaped, other than resource trackers."""
    if not _has_children():
        return False
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].active_children()  # reaps those that have ended
    trackers = _resource_trackers()
    return any(pid not in trackers for pid in descendants_of(os.getpid()))


def end_all() -> tuple[str, ...]:
    """End all threads and child processes and run the exit handlers, because this process is about to exit.

    Returns:
        A description of each child process that was still running GRACE_S after SIGTERM.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a worker of a DataLoader ends
    if threading.active_count() > 1 and any(not thread.daemon for thread in _other_threads()):
        _call_within_grace(_end_threads)
    if "multiprocessing.util" in sys.modules:
        _call_within_grace(_end_multiprocessing)
    atexit._run_exitfuncs()
    return _end_children()


def _other_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread is not threading.current_thread()]


def _call_within_grace(call: Callable[[], None]) -> None:
    """Run `call` in a thread for at most GRACE_S, because it may join a thread or process that never ends."""
    thread = threading.Thread(target=call, name="fanwise-leftovers", daemon=True)
    with contextlib.suppress(RuntimeError):  # the process may have no memory for a thread
        thread.start()
        thread.join(GRACE_S)


def _end_threads() -> None:
    """Shut down executors and join all non-daemon threads, as Python does before exit handlers."""
    for end_executors in reversed(threading._threading_atexits):  # type: ignore[attr-defined]  # private to CPython
        end_executors()
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()


def _end_multiprocessing() -> None:
    """Run the finalizers of `multiprocessing`. Terminate non-daemon children before, which they would join."""
    for child in sys.modules["multiprocessing.process"].active_children():
        if not child.daemon:
            child.terminate()
    sys.modules["multiprocessing.util"]._exit_function()


def _end_children() -> tuple[str, ...]:
    """Send SIGTERM to all descendants. Return a description of each that is still running after GRACE_S."""
    pids = descendants_of(os.getpid()) if _has_children() else []
    remaining = {pid: stat for pid in pids if (stat := stat_of(pid)).is_running}
    if not remaining:
        return ()  # the search for trackers touches every module, which costs a fork 1 ms of page copies
    trackers = _resource_trackers()
    for pid in remaining:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    for pipe in trackers.values():  # trackers ignore SIGTERM and clean up when their pipe is closed
        with contextlib.suppress(OSError):
            os.close(pipe)
    until_s = time.monotonic() + GRACE_S
    while remaining and time.monotonic() < until_s:
        time.sleep(_POLL_S)
        remaining = {pid: stat for pid, stat in remaining.items() if _is_alive(pid, stat)}
    return tuple(_describe_process(pid) for pid in remaining if pid not in trackers)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _is_alive(pid: int, before: Stat) -> bool:
    stat = stat_of(pid)
    return stat.is_running and stat.started_s == before.started_s


def _resource_trackers() -> dict[int, int]:
    """Return the pids of resource trackers, of `multiprocessing` and loky, with the pipes that end them if closed."""
    modules = [module for name, module in list(sys.modules.items()) if name.endswith("resource_tracker")]
    trackers = [tracker for module in modules if (tracker := getattr(module, "_resource_tracker", None)) is not None]
    return {tracker._pid: tracker._fd for tracker in trackers if tracker._pid is not None and tracker._fd is not None}


def _describe_process(pid: int) -> str:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        return printable_line(f"{command[:_COMMAND_CHARS]!r} (pid {pid})")
    return f"pid {pid}"


def _is_idle(thread: threading.Thread, frames: Mapping[int, FrameType]) -> bool:
    if type(thread).__name__ == "_ExecutorManagerThread":  # manager thread of a ProcessPoolExecutor, also in loky
        return True
    frame = frames.get(thread.ident or 0)
    is_in_worker_loop = frame is not None and frame.f_code.co_name == "_worker"
    return is_in_worker_loop and thread in getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())


def _describe_thread(thread: threading.Thread, frame: FrameType | None) -> str:
    """Return the thread's name and its innermost line outside the standard library."""
    location = "in native code"
    if frame is not None:
        lines = traceback.extract_stack(frame)
        stack = [line for line in lines if not line.filename.startswith(_LIBRARY) or "site-packages" in line.filename]
        location = "in a function of the standard library"
        if stack:
            location = f"in {stack[-1].name}, {stack[-1].filename}:{stack[-1].lineno}"
    return printable(f"{thread.name!r} {location}")
