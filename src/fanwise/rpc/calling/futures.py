"""Waiting for futures so that Ctrl-C and cancellation interrupt the wait, and copying their errors.

A torch future holds its error, a raised error holds frames, and a frame may hold the future: a cycle through C++ that
the garbage collector cannot see. Therefore errors are stored without a traceback and raised as copies.
"""

import contextlib
import copy
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from torch.futures import Future

from ...base.errors import CancelledError
from .cancellation import check, current_scope

# A signal that arrives just before the sleep does not interrupt it, so sleep in slices.
_SIGNAL_CHECK_S = 1.0


def error_of(future: "Future[Any]") -> Exception | None:
    """Return the error of a completed future."""
    try:
        future.value()
    except Exception as error:
        return error.with_traceback(None)
    return None


def wait_for(future: "Future[Any]") -> None:
    """Block until a future is done. Unlike torch's own `wait`, Ctrl-C interrupts it."""
    if not future.done():
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        wait_for_event(done)


def wait_for_event(event: threading.Event) -> None:
    """Block until `event` is set, Ctrl-C, or cancellation of the running call (`CallCancelled`)."""
    scope = current_scope()
    if scope is None:
        _wait_for_event(event)
        return
    with scope.wake_on_cancel(event.set):
        _wait_for_event(event)


def _wait_for_event(event: threading.Event) -> None:
    while not event.wait(_SIGNAL_CHECK_S):
        pass


def result_of(future: "Future[Any]") -> Any:
    """Wait for a future and return its result, or raise a copy of its error."""
    if type(future).wait is Future.wait:  # else `Call.wait`
        wait_for(future)
    return unwrap(future.wait)


def unwrap(wait: Callable[[], Any]) -> Any:
    """Return the result of `wait`, the method of a future, or raise a copy of its error."""
    try:
        return wait()
    except Exception as error:
        original = error.with_traceback(None)
    raise_copy(original)


def copy_result(result: "Future[Any]", future: "Future[Any]") -> None:
    """Complete `result` with the result or error of the completed `future`."""
    try:
        result.set_result(future.value())
    except Exception as error:
        result.set_exception(error.with_traceback(None))


def raise_copy(error: Exception) -> NoReturn:
    """Raise a copy of an error that a future holds."""
    if isinstance(error, CancelledError):
        check()  # canceled with the running call: raise CallCancelled instead
    try:
        raise copy_exception(error)
    finally:
        del error


def copy_exception(error: Exception) -> Exception:
    """Return a copy of an error, or the error itself if it cannot be copied."""
    with contextlib.suppress(Exception):
        copied = copy.copy(error)
        if type(copied) is type(error) and copied.args == error.args:
            return copied
    try:  # the constructor takes other arguments than `args`
        copied = type(error).__new__(type(error), *error.args)
        copied.args = error.args
        copied.__dict__.update(error.__dict__)
    except Exception:
        return error
    return copied
