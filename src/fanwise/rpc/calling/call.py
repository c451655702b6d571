"""`Call`, the future that `rpc_async` returns: a `torch.futures.Future` that can be canceled and awaited."""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from torch.futures import Future

from ...base.errors import CancelledError
from ..messages.ids import Invocation
from .futures import claim, copy_result, unwrap

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


def calls_method(function: Function) -> Function:
    """Mark a function (target, name, args, kwargs) that calls a method: messages name that method instead."""
    function._calls_method = True  # type: ignore[attr-defined]
    return function


def method_called(call: Invocation) -> tuple[str, Invocation] | None:
    """Return the method name, and the call without target and name, if the function is marked by `calls_method`."""
    function, args, kwargs = call
    if getattr(function, "_calls_method", None) is not True or len(args) != 4 or kwargs:
        return None
    _target, name, args, kwargs = args
    return name, (function, args, kwargs)


class Call(Future[T]):
    """The future of a call, returned by `rpc_async`.

    `wait`, `then`, `done`, `value` and `add_done_callback` are those of `torch.futures.Future`. In a coroutine,
    `await call` waits without blocking the loop; canceling the awaiting task cancels the call.

    >>> rpc_async("worker1", max, args=(1, 2)).wait()
    2
    """

    def cancel(self) -> bool:
        """Cancel the call. Does not block.

        A call that has not started never starts. A running function gets `fanwise.errors.CallCancelled` at its next
        wait, and can check `cancelled()`; a coroutine gets `asyncio.CancelledError`. The calls that the function made
        are canceled too.

        Returns:
            True if `wait()` raises `fanwise.errors.CancelledError` from now on; False if the call is already done.
        """
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waker = loop.create_future()

            def wake(_: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_wake, waker)

            self.add_done_callback(wake)
            try:
                yield from waker
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.wait()


def _wake(waker: "asyncio.Future[None]") -> None:
    if not waker.done():
        waker.set_result(None)


class ChainedCall(Call[Any]):
    """A call that completes like another one, which is sent later; or that failed before it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self._followed: Call[Any] | None = None
        self._unclaimed = [True]

    @classmethod
    def failed(cls, error: Exception) -> "ChainedCall":
        """Return a call that failed before it was sent."""
        call = cls()
        call.fail(error)
        return call

    @property
    def was_sent(self) -> bool:
        """True if the call was sent: it arrives unless the callee is lost."""
        return self._followed is not None

    def wait(self) -> Any:
        """Block until the call is done. Raises a copy of its error."""
        return unwrap(super().wait)

    def follow(self, call: "Call[Any]") -> None:
        """Complete like `call`."""
        self._followed = call
        if not self._unclaimed:  # canceled meanwhile
            call.cancel()
        call.add_done_callback(self._on_followed_done)

    def fail(self, error: Exception) -> bool:
        """Fail before a call was sent. Return False if already done."""
        if not claim(self._unclaimed):
            return False
        self.set_exception(error.with_traceback(None))
        return True

    def cancel(self) -> bool:
        if self._followed is None and self.fail(CancelledError("the call was canceled before it was sent.")):
            if self._followed is not None:  # sent meanwhile, by another thread
                self._followed.cancel()
            return True
        return self._followed is not None and self._followed.cancel()

    def _on_followed_done(self, call: "Future[Any]") -> None:
        if claim(self._unclaimed):
            copy_result(self, call)
