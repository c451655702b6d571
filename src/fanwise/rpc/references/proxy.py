"""`rref.rpc_sync().method(*args)`: methods of a remote object, called on its owner.

    rref.rpc_sync()           RRefProxy      a reference, and how to call: by rpc_sync, rpc_async, remote or rpc_stream
    rref.rpc_sync().method    RemoteMethod   the same and a name; a callable

Both can be sent in calls: `rpc_async(rref.owner(), rref.rpc_sync().method, args=...)` sends the method to its owner,
where the call is local. The type of the object is requested once and cached by the reference: it tells whether the
method replies later (`async_execution`). The reference is an argument of the call, so the object lives until then.
"""

import operator
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from torch.futures import Future

from .. import current as process
from ..calling.call import Call, ChainedCall, calls_method
from ..functions import async_execution

if TYPE_CHECKING:
    from .rref import RRef

Api = Literal["rpc_sync", "rpc_async", "remote", "rpc_stream"]

calls: Any = None  # the module `rpc.calls`, which is above this one and sets it

# Python and its libraries look up many special names to learn what an object is (`copy`, `pickle`, `inspect`, numpy). A
# proxy has only those that programs call as methods.
_SPECIAL_METHODS = frozenset((
    *(name for name, it in vars(operator).items() if name.startswith("__") and isinstance(it, BuiltinFunctionType)),
    *("__len__", "__iter__", "__next__", "__reversed__", "__bool__", "__int__", "__float__", "__enter__", "__exit__"),
))  # fmt: skip


class RRefProxy:
    """Has the methods of a remote object. Returned by `rref.rpc_sync()`, `rref.rpc_async()` and `rref.remote()`.

    Args:
        rref: the reference.
        api: how to call. With "rpc_async" nothing waits for the type of the object.
        timeout: seconds for each call and for the request of the type; -1 for the default, 0 for no limit.
    """

    __slots__ = ("_state",)

    def __init__(self, rref: "RRef[Any]", api: Api, timeout: float) -> None:
        self._state = (rref, api, timeout)

    def __getattr__(self, name: str) -> "RemoteMethod":
        if (name.startswith("__") and name not in _SPECIAL_METHODS) or name in RRefProxy.__slots__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return RemoteMethod(*self._state, name)

    def __getitem__(self, key: object) -> Any:
        return RemoteMethod(*self._state, "__getitem__")(key)

    def __iter__(self) -> NoReturn:  # otherwise Python would call __getitem__ with 0, 1, ...
        raise TypeError(
            "the items of a remote object cannot be gone through one by one: fetch it with to_here(), or call a "
            "function on its owner that does the work there."
        )

    def __reduce__(self) -> "tuple[type[RRefProxy], tuple[RRef[Any], Api, float]]":
        return RRefProxy, self._state

    def __repr__(self) -> str:
        rref, api, _ = self._state
        return f"<{api} proxy of {rref}>"


class RemoteMethod:
    """A method of a remote object. Calling it calls the method on the owner."""

    __slots__ = ("__name__", "_api", "_rref", "_timeout")

    def __init__(self, rref: "RRef[Any]", api: Api, timeout: float, name: str) -> None:
        self._rref = rref
        self._api = api
        self._timeout = timeout
        self.__name__ = name

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        if self._rref._rref_id.is_actor:
            actors = process.current().actors
            return actors.call(self._rref, self._api, self.__name__, args, kwargs, timeout_s=self._timeout)
        if self._api == "rpc_async":
            return self._call_async(args, kwargs)
        return self._call(self._rref._get_type(self._timeout), args, kwargs)

    def _call_async(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Call[Any]:
        result = ChainedCall()
        future = self._rref._get_type(self._timeout, blocking=False)
        if future.done():
            try:
                return self._call(future.value(), args, kwargs)  # type: ignore[no-any-return]
            except Exception as error:
                result.fail(error)
                return result

        def on_type(future: "Future[Any]") -> None:
            try:
                if not result.done():
                    result.follow(self._call(future.value(), args, kwargs))
            except Exception as error:
                result.fail(error)

        future.add_done_callback(on_type)
        return result

    def _call(self, kind: type, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        name, rref = self.__name__, self._rref
        if not hasattr(kind, name):  # raised outside of any `except`, which would keep this frame alive in the error
            raise AttributeError(
                f"type object {kind.__name__!r} has no attribute {name!r}, and a proxy calls methods of the class. If "
                f"the object has a value of that name:\n{_how_to_read(name)}"
            )
        replies_later = hasattr(getattr(kind, name), "_wrapped_async_rpc_function")
        invoke = _invoke_async if replies_later else _invoke
        # Looked up at each call, because programs monkey-patch these functions.
        call = calls.stream if self._api == "rpc_stream" else getattr(calls, self._api)
        return call(rref.owner(), invoke, args=(rref, name, args, kwargs), timeout=self._timeout)

    def __reduce__(self) -> "tuple[type[RemoteMethod], tuple[RRef[Any], Api, float, str]]":
        return RemoteMethod, (self._rref, self._api, self._timeout, self.__name__)

    def __repr__(self) -> str:
        return f"<{self._api} method {self.__name__!r} of {self._rref}>"


def _how_to_read(name: str) -> str:
    return (
        f"Read it on the owner, with a function that both workers import:\n"
        f"  def read(rref): return rref.local_value().{name}\n"
        f"  rpc.rpc_sync(rref.owner(), read, args=(rref,))"
    )


def method_of(value: Any, name: str) -> Callable[..., Any]:
    """Return a method of a value of this worker, which another worker calls. Raises TypeError if it is not callable."""
    method: Callable[..., Any] = getattr(value, name)
    if not callable(method):
        kind = type(value).__qualname__
        raise TypeError(
            f"{kind}.{name} is no method but a value of type {type(method).__qualname__}, and a proxy calls methods.\n"
            f"{_how_to_read(name)}"
        )
    return method


@calls_method
def _invoke(rref: Any, name: str, args: Any, kwargs: Any) -> Any:
    return method_of(rref.local_value(), name)(*args, **kwargs)


@calls_method
@async_execution
def _invoke_async(rref: Any, name: str, args: Any, kwargs: Any) -> Any:
    return method_of(rref.local_value(), name)(*args, **kwargs)
