"""Waiting for futures so that Ctrl-C and cancellation interrupt the wait, and copying their errors.

A torch future holds its error, a raised error holds frames, and a frame may hold the future: a cycle through C++ that
the garbage collector cannot see. Therefore errors are stored without a traceback and raised as copies.

While this process is a worker, `install` replaces functions of torch:

* `torch.futures.wait_all` raises the first error at once, as with torch's own calls. For torch's C++ code an error set
  by Python is a value, so the original waits for all futures before it looks. Without errors both are the same.
* `wait` of the common base class of all futures, also of those of `then` and `collect_all`, is interrupted by Ctrl-C
  and by cancellation of the running call, and releases the thread slot of a called function to another call. torch's
  `wait` sleeps in C++ regardless of signals, so the main thread, which alone gets signals, sleeps in Python.
"""

import contextlib
import copy
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.futures import Future

from ...base.errors import CancelledError
from ..current import waiting
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


def wait_for(future: "Future[Any]", within_s: float | None = None) -> bool:
    """Block until a future is done, at most `within_s` seconds. Return whether it is done.

    Unlike torch's own `wait`, Ctrl-C interrupts it.
    """
    if future.done():
        return True
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    return wait_for_event(done, within_s)


def wait_for_event(event: threading.Event, within_s: float | None = None) -> bool:
    """Block until `event` is set, as `wait_for`. Raises `CallCancelled` if the running call is canceled."""
    scope, deadline_s = current_scope(), math.inf if within_s is None else time.monotonic() + within_s
    with contextlib.nullcontext() if scope is None else scope.wake_on_cancel(event.set):
        while not event.wait(max(0.0, min(_SIGNAL_CHECK_S, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                return False
    return True


def result_of(future: "Future[Any]") -> Any:
    """Wait for a future and return its result, or raise a copy of its error."""
    if type(future).wait is Future.wait:  # otherwise `Call.wait`
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


def claim(unclaimed: list[bool]) -> bool:
    """Return True for the first caller, without a lock: `pop` is atomic."""
    try:
        unclaimed.pop()
    except IndexError:
        return False
    return True


# -- replacements of torch's functions -----------------------------------------------------------------------------

_torch_wait_all = torch.futures.wait_all
_torch_wait = torch._C.Future.wait


def wait_all(futures: "Sequence[Future[Any]]") -> list[Any]:
    """Block until all are done and return their results, or raise the first error at once."""
    if len(futures) == 1:
        return [futures[0].wait()]  # this thread reads the reply itself
    finished, lock = threading.Event(), threading.Lock()
    pending, errors = set(map(id, futures)), list[Exception]()

    def on_done(future: "Future[Any]") -> None:
        error = error_of(future)
        with lock:
            pending.discard(id(future))
            if error is not None:
                errors.append(error)
            if errors or not pending:
                finished.set()

    for future in futures:
        future.add_done_callback(on_done)
    if pending or errors:
        with waiting():
            wait_for_event(finished)
    if errors:
        raise_copy(errors[0])
    return [future.wait() for future in futures]


def _wait(future: Any) -> Any:
    if not future.done():
        with waiting():
            if threading.current_thread() is threading.main_thread() or current_scope() is not None:
                wait_for(future)
            else:
                return _torch_wait(future)
    try:
        return _torch_wait(future)
    except CancelledError:
        check()  # canceled with the running call: raise CallCancelled instead
        raise


def install() -> None:
    """Replace torch's functions."""
    torch.futures.wait_all = wait_all
    torch._C.Future.wait = _wait  # type: ignore[method-assign,assignment]


def uninstall() -> None:
    """Restore torch's functions."""
    if torch.futures.wait_all is wait_all:
        torch.futures.wait_all = _torch_wait_all
    if torch._C.Future.wait is _wait:
        torch._C.Future.wait = _torch_wait  # type: ignore[method-assign]
