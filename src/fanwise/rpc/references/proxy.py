"""`rref.rpc_sync().method(*args)`: methods of a remote object, called where it lives.

    rref.rpc_sync()           RRefProxy      the reference, and how to call: by rpc_sync, rpc_async or remote
    rref.rpc_sync().method    RemoteMethod   the same and a name. A function like any other

Both are plain values that hold a reference, so both travel: `rpc_async(rref.owner(), rref.rpc_sync().method, args=...)`
sends the method there, where its call is one of the owner to itself.

The type of the object is asked for once and kept by the reference: it says whether the method answers later
(`async_execution`). The reference is an argument of the call like any other, so the object lives until that has begun.
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


class Functions:
    """The functions that users call, which are above references: `calls` tells."""

    by_name: Callable[[Api], Callable[..., Any]]


functions = Functions()

# Python and its libraries look up many names between double underscores to learn what an object is (`copy`, `pickle`,
# `inspect`, numpy). A proxy passes on only those that programs call as methods.
_CALLED_AS_METHODS = frozenset((
    *(name for name, it in vars(operator).items() if name.startswith("__") and isinstance(it, BuiltinFunctionType)),
    *("__len__", "__iter__", "__next__", "__reversed__", "__bool__", "__int__", "__float__", "__enter__", "__exit__"),
))  # fmt: skip


class RRefProxy:
    """What `rref.rpc_sync()`, `rref.rpc_async()` and `rref.remote()` return: has the methods of the remote object.

    Args:
        rref: the reference.
        api: how to call. With "rpc_async" nothing waits for the type of the object.
        timeout: seconds for each call, and for asking the type; -1 the default, 0 without a limit.
    """

    __slots__ = ("_made_of",)

    def __init__(self, rref: "RRef[Any]", api: Api, timeout: float) -> None:
        self._made_of = (rref, api, timeout)

    def __getattr__(self, name: str) -> "RemoteMethod":
        if (name.startswith("__") and name not in _CALLED_AS_METHODS) or name in RRefProxy.__slots__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return RemoteMethod(*self._made_of, name)

    def __getitem__(self, key: object) -> Any:
        return RemoteMethod(*self._made_of, "__getitem__")(key)

    def __iter__(self) -> NoReturn:  # else Python would ask for [0], [1], ... one by one
        raise TypeError(
            "the items of a remote object cannot be gone through one by one: fetch it with to_here(), or call a "
            "function on its owner that does the work there."
        )

    def __reduce__(self) -> "tuple[type[RRefProxy], tuple[RRef[Any], Api, float]]":
        return RRefProxy, self._made_of

    def __repr__(self) -> str:
        rref, api, _ = self._made_of
        return f"<{api} proxy of {rref}>"


class RemoteMethod:
    """A method of a remote object. Calling it calls the method on the owner, by rpc_sync, rpc_async or remote."""

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
            return self._call_later(args, kwargs)
        return self._call(self._rref._get_type(self._timeout), args, kwargs)

    def _call_later(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Call[Any]:
        result = ChainedCall()
        kind = self._rref._get_type(self._timeout, blocking=False)
        if kind.done():
            try:
                return self._call(kind.value(), args, kwargs)  # type: ignore[no-any-return]  # rpc_async's future
            except Exception as error:
                result.fail(error)
                return result

        def call(known: "Future[Any]") -> None:
            try:
                if not result.done():
                    result.follow(self._call(known.value(), args, kwargs))
            except Exception as error:
                result.fail(error)

        kind.add_done_callback(call)
        return result

    def _call(self, kind: type, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        name = self.__name__
        if not hasattr(kind, name):  # raised outside of any except, which would hold this frame in the error
            raise AttributeError(
                f"type object {kind.__name__!r} has no attribute {name!r}, and a proxy calls methods of the class. If "
                f"the object has a value of that name:\n{_how_to_read(name)}"
            )
        answers_later = hasattr(getattr(kind, name), "_wrapped_async_rpc_function")
        invoke = _invoke_async if answers_later else _invoke
        rref, call = self._rref, functions.by_name(self._api)
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
