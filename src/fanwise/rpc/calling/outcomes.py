"""What came of a future, with errors that hold nothing alive; and how to wait for one so that Ctrl-C is heard.

A future of torch's holds its error; an error that was raised holds the frames it went through; a frame may hold the
future: a ring that goes through C++, which a garbage collection cannot see. So what a future keeps has no traceback,
and what is raised is a copy.
"""

import contextlib
import copy
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from torch.futures import Future

from ...base.errors import CancelledError
from .cancelling import check, here

# A signal that comes between Python's last look at signals and the sleep wakes nobody; so the sleep ends now and then.
_HEAR_S = 1.0


def error_of(future: "Future[Any]") -> Exception | None:
    """The error of a future that is done."""
    try:
        future.value()
    except Exception as error:
        # Its frames would hold the future, which holds it: a ring that the garbage collection cannot see through.
        return error.with_traceback(None)
    return None


def wait_for(future: "Future[Any]") -> None:
    """Block until a future is done, whatever came of it. Ctrl-C ends it; torch's own `wait` does not hear that."""
    if not future.done():
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        wait_for_event(done)


def wait_for_event(event: threading.Event) -> None:
    """Block until it is set. Ctrl-C ends it, also one that came just before this thread fell asleep.

    So does `cancel()` of the call that runs this function: `CallCancelled`.
    """
    scope = here()
    if scope is None:
        _wait_for_event(event)
        return
    with scope.waking(event.set):
        _wait_for_event(event)


def _wait_for_event(event: threading.Event) -> None:
    while not event.wait(_HEAR_S):
        pass


def result_of(future: "Future[Any]") -> Any:
    """Wait for a future and return its result; its error as a copy, so that the future does not hold our frames."""
    if type(future).wait is Future.wait:  # that of a call waits in its own way
        wait_for(future)
    return outcome_of(future.wait)


def outcome_of(wait: Callable[[], Any]) -> Any:
    """What `wait` of a future returns. What it raises is raised as a copy, as the future holds the error."""
    try:
        return wait()
    except Exception as error:
        found = error.with_traceback(None)
    raise_afresh(found)


def hand_on(result: "Future[Any]", future: "Future[Any]") -> None:
    """Finish `result` as `future` has. The error goes without its frames: they would hold the future that holds it."""
    try:
        result.set_result(future.value())
    except Exception as error:
        result.set_exception(error.with_traceback(None))


def raise_afresh(error: Exception) -> NoReturn:
    """Raise a copy, which holds the frames from here on; not this one, which holds it."""
    if isinstance(error, CancelledError):
        check()  # cancelled with the call that waits for it: that is what this learns
    try:
        raise afresh(error)
    finally:
        del error


def afresh(error: Exception) -> Exception:
    """A copy of an error to raise; itself when it cannot be copied."""
    with contextlib.suppress(Exception):
        again = copy.copy(error)
        if type(again) is type(error) and again.args == error.args:
            return again
    try:  # its constructor takes other arguments than it passes on
        again = type(error).__new__(type(error), *error.args)
        again.args = error.args
        again.__dict__.update(error.__dict__)
    except Exception:
        return error
    return again
