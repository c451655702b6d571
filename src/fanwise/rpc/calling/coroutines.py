"""The asyncio loop of a worker, where the functions of others that are coroutines run: one thread, made when needed.

A coroutine is cancelled with the call that runs it. Whatever it raises, the loop goes on. Knows no call but its scope.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

from torch.futures import Future

from .cancelling import cancel_once, here
from .sendable_errors import harmless
from .torch_state import with_own_grad_mode

_CANCEL_S = 1.0


class Coroutines:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looping: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run a coroutine on the loop of this worker. It is cancelled with the call that runs here, if one does."""
        future: Future[Any] = Future()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._looping = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="fanwise-asyncio", daemon=True
                )
                self._looping.start()
        task = _Task(self._loop, coroutine, future)
        scope = here()
        if scope is not None:  # before it begins: what it asks of others when it cleans up is not to be cancelled
            scope.add(task)
            scope.told()  # by asyncio.CancelledError
        self._loop.call_soon_threadsafe(task.begin)
        return future

    def close(self) -> None:
        """End the loop; what runs there is cancelled, and waited for only a moment. A second call does nothing."""
        looping, self._looping = self._looping, None
        if self._loop is not None and looping is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if looping is not threading.current_thread():
                looping.join(_CANCEL_S)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """The thread of the coroutines, until the loop is stopped."""
    loop.run_forever()
    loop.run_until_complete(_end(asyncio.all_tasks(loop)))
    loop.close()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Task:
    """A coroutine on the loop, from other threads."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], future: "Future[Any]"
    ) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._future = future
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        """On the loop's thread."""
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)
        if self._is_cancelled:
            self._cancel()

    def cancel(self) -> None:
        """By any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and has cancelled it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            cancel_once(self._task)

    async def _run(self) -> None:
        try:
            self._future.set_result(await with_own_grad_mode(self._coroutine))
        except BaseException as error:  # cancelled too; whatever it is, the loop goes on
            self._future.set_exception(harmless(error))

    def _ended(self, _task: object) -> None:
        if not self._future.done():  # cancelled before it began
            self._coroutine.close()
            self._future.set_exception(harmless(asyncio.CancelledError()))
