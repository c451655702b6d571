"""`rref.rpc_sync().method(*args)`: methods of a remote object, called where it lives.

The type of the object is asked for once and kept by the reference: it says whether the method answers later
(`async_execution`). The call takes the reference along, so the object lives at least until the call has begun.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from .functions import async_execution

if TYPE_CHECKING:
    from .rref import RRef

Api = Callable[..., Any]  # Any: rpc_sync, rpc_async or remote


class RRefProxy:
    """What `rref.rpc_sync()`, `rref.rpc_async()` and `rref.remote()` return: has the methods of the remote object.

    Args:
        rref: the reference.
        rpc_api: how to call, with `rpc_async` alone answering before the type is known.
        timeout: seconds for each call, and for asking the type; -1 the default, 0 without a limit.
        waits: whether `rpc_api` may wait for the type.
    """

    def __init__(self, rref: "RRef[Any]", rpc_api: Api, timeout: float, *, waits: bool) -> None:  # Any: of any type
        self._rref = rref
        self._rpc_api = rpc_api
        self._timeout = timeout
        self._waits = waits

    def __getattr__(self, name: str) -> Callable[..., Any]:  # Any: what the method returns
        return partial(self._call if self._waits else self._call_later, name)

    def _call(self, name: str, /, *args: object, **kwargs: object) -> Any:  # Any: what the method returns
        return self._call_as(self._rref._get_type(self._timeout), name, args, kwargs)

    def _call_later(self, name: str, /, *args: object, **kwargs: object) -> "Future[Any]":  # Any: as above
        result: Future[Any] = Future()
        kind = self._rref._get_type(self._timeout, blocking=False)
        if kind.done():
            try:
                return self._call_as(kind.value(), name, args, kwargs)  # type: ignore[no-any-return]  # rpc_async's future
            except Exception as error:
                result.set_exception(error.with_traceback(None))
                return result

        def call(known: "Future[Any]") -> None:
            try:
                self._call_as(known.value(), name, args, kwargs).add_done_callback(partial(hand_on, result))
            except Exception as error:
                result.set_exception(error.with_traceback(None))

        kind.add_done_callback(call)
        return result

    def _call_as(self, kind: type, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:  # Any: above
        answers_later = hasattr(getattr(kind, name), "_wrapped_async_rpc_function")
        invoke = _invoke_async if answers_later else _invoke
        call_args = (self._rref, name, args, kwargs)
        return self._rpc_api(self._rref.owner(), invoke, args=call_args, timeout=self._timeout)


def hand_on(result: "Future[Any]", future: "Future[Any]") -> None:  # Any: of any type
    """Finish `result` as `future` has. The error goes without its frames: they would hold the future that holds it."""
    try:
        result.set_result(future.value())
    except Exception as error:
        result.set_exception(error.with_traceback(None))


def _invoke(rref: "RRef[Any]", name: str, args: Any, kwargs: Any) -> Any:  # Any: of any type
    return getattr(rref.local_value(), name)(*args, **kwargs)


@async_execution
def _invoke_async(rref: "RRef[Any]", name: str, args: Any, kwargs: Any) -> Any:  # Any: of any type
    return getattr(rref.local_value(), name)(*args, **kwargs)
