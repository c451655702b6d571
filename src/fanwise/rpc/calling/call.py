"""What `rpc_async` returns: a `torch.futures.Future` that can be cancelled, and awaited in asyncio.

Knows no link and no agent; who makes one says how it is cancelled.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from torch.futures import Future

from ...base.errors import CancelledError
from .outcomes import hand_on, outcome_of

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

# What is called: a function, its arguments, and those that have names.
Invocation = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def calls_method(function: Function) -> Function:
    """Mark a function of ours, of (target, name, args, kwargs): what is told of its calls is told of that method."""
    function._calls_method = True  # type: ignore[attr-defined]  # the mark
    return function


def method_called(call: Invocation) -> tuple[str, Invocation] | None:
    """Of a call of such a function the method's name, and the call without the rest; None: it is of another one."""
    function, args, kwargs = call
    if getattr(function, "_calls_method", None) is not True or len(args) != 4 or kwargs:
        return None
    _target, name, args, kwargs = args
    return name, (function, args, kwargs)


class Call(Future[T]):
    """A call that was made with `rpc_async`.

    `wait`, `then`, `done`, `value` and `add_done_callback` are those of a `torch.futures.Future`. In a coroutine,
    `await call` waits without blocking the loop, whatever thread that is on; when the awaiting task is cancelled,
    so is the call.

    >>> rpc_async("worker1", max, args=(1, 2)).wait()
    2
    """

    def cancel(self) -> bool:
        """Do not wait for it any more. Does not block.

        A call that has not begun never begins. The function of one that runs hears of it at its next wait, with
        `fanwise.errors.CallCancelled`, and can ask `cancelled()`; a coroutine gets `asyncio.CancelledError`. What the
        function has asked of other workers is cancelled with it.

        Returns:
            True: `wait()` raises `fanwise.errors.CancelledError` from now on. False: it was answered, or has failed.
        """
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            loop = asyncio.get_running_loop()
            woken = loop.create_future()

            def wake(_: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
                    loop.call_soon_threadsafe(_set, woken)

            self.add_done_callback(wake)
            try:
                yield from woken
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.wait()


def _set(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


class Following(Call[Any]):
    """A call that ends as another one does, which is not made yet; or that has failed before it was made."""

    def __init__(self) -> None:
        super().__init__()
        self._followed: Call[Any] | None = None
        self._unsettled = [True]

    @classmethod
    def failed(cls, error: Exception) -> "Following":
        """One that was never made."""
        call = cls()
        call.fail(error)
        return call

    def wait(self) -> Any:
        """Block until it is done. Raises a copy of its error, which would hold the caller's frames."""
        return outcome_of(super().wait)

    def follow(self, call: "Call[Any]") -> None:
        """It ends as `call` does."""
        self._followed = call
        if not self._unsettled:  # it was cancelled just now
            call.cancel()
        call.add_done_callback(self._end_as)

    def fail(self, error: Exception) -> bool:
        """There will be none to follow. False: it has ended already."""
        if not self._is_first():
            return False
        self.set_exception(error.with_traceback(None))
        return True

    def cancel(self) -> bool:
        if self._followed is not None:
            return self._followed.cancel()
        return self.fail(CancelledError("the call was cancelled before it was made."))

    def _end_as(self, call: "Future[Any]") -> None:
        if self._is_first():
            hand_on(self, call)

    def _is_first(self) -> bool:
        try:
            self._unsettled.pop()
        except IndexError:
            return False
        return True
