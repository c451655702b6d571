"""`async_execution` marks a function that returns a future of its result."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def async_execution(fn: Callable[P, R]) -> Callable[P, R]:
    """Mark `fn`, which returns a `torch.futures.Future`: the reply is sent when the future is done, without a thread.

    Use it for functions that make calls (`rpc_async(...).then(...)`) or wait for a future that another call completes.
    With `@staticmethod` and `@classmethod` this is the inner decorator. An `async def` function needs no mark.

    >>> @async_execution
    ... def add_on(to, x, y, z):
    ...     return rpc_async(to, torch.add, args=(x, y)).then(lambda future: future.wait() + z)
    """

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return fn(*args, **kwargs)

    wrapper._wrapped_async_rpc_function = fn  # type: ignore[attr-defined]  # the mark that torch uses
    return wrapper
