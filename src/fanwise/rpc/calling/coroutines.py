"""The asyncio loop of a worker: one thread, created on demand, that runs the called functions that are coroutines.

A coroutine is canceled with the call that runs it. No error of a coroutine ends the loop.
"""

import asyncio
import contextlib
import threading
import types
from collections.abc import Coroutine, Generator
from typing import Any

import torch
from torch.futures import Future

from .cancellation import cancel_once, current_scope
from .errors import as_exception

_CANCEL_S = 1.0


class Coroutines:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run a coroutine on the loop. It is canceled with the call that runs the current function."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="fanwise-asyncio", daemon=True
                )
                self._thread.start()
        task = _Task(self._loop, coroutine)
        scope = current_scope()
        if scope is not None:  # before it starts: calls made by its cleanup code must not be canceled
            scope.add(task)
            scope.mark_delivered()  # by asyncio.CancelledError
        self._loop.call_soon_threadsafe(task.begin)
        return task.result

    def close(self) -> None:
        """Cancel all coroutines, wait briefly for them, and stop the loop. Idempotent."""
        thread, self._thread = self._thread, None
        if self._loop is not None and thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if thread is not threading.current_thread():
                thread.join(_CANCEL_S)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


class _Task:
    """Thread-safe handle of a coroutine on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.result: Future[Any] = Future()
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        """Create the task, on the loop's thread."""
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._on_done)
        if self._is_cancelled:
            self._cancel()

    def cancel(self) -> None:
        """Cancel the task. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed and has canceled it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            cancel_once(self._task)

    async def _run(self) -> None:
        try:
            self.result.set_result(await _with_own_grad_mode(self._coroutine))
        except BaseException as error:  # includes CancelledError; no error ends the loop
            self.result.set_exception(as_exception(error))

    def _on_done(self, _task: object) -> None:
        if not self.result.done():  # canceled before it started
            self._coroutine.close()
            self.result.set_exception(as_exception(asyncio.CancelledError()))


@types.coroutine
def _with_own_grad_mode(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Wrap `coroutine` so that it starts with gradients enabled and keeps its own grad mode between its steps.

    Grad mode belongs to the thread, so a coroutine that changes it would affect the others on the loop.
    """
    is_enabled, value, error = True, None, None
    while True:
        previous = torch.is_grad_enabled()
        torch._C._set_grad_enabled(is_enabled)
        try:
            step = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            is_enabled = torch.is_grad_enabled()
            torch._C._set_grad_enabled(previous)
        try:
            value, error = (yield step), None
        except BaseException as raised:  # canceled
            value, error = None, raised
