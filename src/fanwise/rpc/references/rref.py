"""RRef: a reference to a value on some worker, its owner.

    on the owner   the value itself, perhaps not complete yet
    elsewhere      a fork: a share that the owner has counted, or is about to

An RRef is created by `RRef(value)`, by `rpc.remote`, or by receiving one in a call. It can only be pickled in calls,
because the owner counts each copy: the pickle has the index of its fork in the message, or the id of the value if the
receiver is the owner.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from torch.futures import Future

from ...base.errors import DeadlineExceeded, OwnerLostError
from .. import current as process
from ..calling.futures import claim, error_of, result_of, unwrap, wait_for
from ..constants import UNSET_RPC_TIMEOUT
from ..functions import async_execution
from ..messages import pickling
from ..messages.ids import Fork, GlobalId, Invocation
from ..worker_info import WorkerInfo
from .proxy import RRefProxy

if TYPE_CHECKING:
    from .references import References

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

CREATION_TIMED_OUT = (
    "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist."
)
NOT_IN_A_CALL = "Can not pickle rref in python pickler, rref can only be pickled when using RPC"
_METHOD_HINT = (
    "It is a reference: rref.rpc_sync().{0}(...) calls that method of its value, where it lives, and rref.to_here() "
    "brings a copy of the value"
)


class UserState:
    """The state of a fork that this worker holds. Shared by its RRef and `References`."""

    __slots__ = ("_unconfirmed", "confirmed", "deleted", "error", "fork", "is_released")

    def __init__(self, fork: Fork) -> None:
        self.fork = fork
        self.confirmed: Future[None] = Future()  # done without an error also when the fork has failed
        self._unconfirmed = [True]
        self.error: Callable[[], Exception] | None = None
        self.deleted = False
        self.is_released = False

    def confirm(self) -> None:
        """Set `confirmed`. Thread-safe."""
        if claim(self._unconfirmed):
            self.confirmed.set_result(None)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Make each use raise a new `error()`. A shared exception would keep the frames that raised it alive."""
        if self.error is None:
            self.error = error
        self.confirm()

    def check(self, use: str) -> None:
        """Raise the reason why the reference cannot be used any more. `use`: in torch's words."""
        if self.error is not None:
            raise self.error()
        if self.deleted:
            raise RuntimeError(f"{self} has been deleted. Cannot {use} after deletion.")

    def __str__(self) -> str:
        return f"UserRRef(rref_id={self.fork.rref_id}, fork_id={self.fork.fork_id})"


class ValueFuture(Future[Any]):
    """The future of a value on its owner, or of the reply to a creating call. Only the first result counts."""

    def __init__(self) -> None:
        super().__init__()
        self._unclaimed = [True]

    def settle(self, error: Exception | None, result: object = None) -> None:
        """Set the error or result, unless there is one. Thread-safe."""
        if not claim(self._unclaimed):
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)

    def wait(self) -> Any:
        """Block until it is settled. Raises a copy of the error, so that it does not keep the caller's frames alive."""
        if not self.done():
            with process.waiting():
                wait_for(self)
        return unwrap(self.value)


class RRef(Generic[T]):
    """A reference to a value on some worker. The constructor creates one to a value of this worker.

    Args:
        value: the value. This worker is its owner.
        type_hint: accepted for compatibility with torch, and ignored.

    Raises:
        RuntimeError: this process is no worker.

    >>> rref = RRef(torch.ones(2))
    >>> rref.is_owner(), rref.local_value() is rref.to_here()
    (True, True)
    """

    __slots__ = ("__weakref__", "_creation", "_error", "_references", "_rref_id", "_type", "_user", "_value")

    def __init__(self, value: T, type_hint: object = None) -> None:
        if not process.is_set():
            raise RuntimeError("Current RPC agent is not set! Did you initialize the RPC framework with init_rpc?")
        references = process.current().references
        future = ValueFuture()
        future.settle(None, value)
        self._set_up(references, references.new_id(), future, None)

    def _set_up(
        self, references: "References", rref_id: GlobalId, value: ValueFuture | None, user: UserState | None
    ) -> None:
        self._references = references
        self._rref_id = rref_id
        self._value = value
        self._user = user
        self._error: Callable[[], Exception] | None = None
        self._creation: ValueFuture | None = None
        self._type: Future[type] | None = None

    def __del__(self) -> None:
        user: UserState | None = getattr(self, "_user", None)
        if user is not None:
            self._references.release(user)

    # -- the owner -------------------------------------------------------------------------------------------------

    def owner(self) -> WorkerInfo:
        """Return the worker that has the value."""
        if self._user is None:
            return self._references.agent.info
        return self._references.owner_of(self._user.fork)

    def owner_name(self) -> str:
        """Return the name of the worker that has the value."""
        return self.owner().name

    def is_owner(self) -> bool:
        """Return True if this worker has the value."""
        return self._user is None

    def confirmed_by_owner(self) -> bool:
        """Return True if the owner knows this reference. Always True on the owner."""
        user = self._user
        return user is None or (user.confirmed.done() and user.error is None)

    # -- the value -------------------------------------------------------------------------------------------------

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> T:
        """Return the value: itself on the owner, otherwise a copy. Blocks until it is complete.

        Args:
            timeout: seconds; -1 for the default, 0 for no limit. Ignored on the owner.

        Raises:
            The error of the function that was to create the value. DeadlineExceeded: the value did not arrive in time,
            or its creation timed out. OwnerLostError: the owner died or left. RuntimeError: used after `shutdown`.
        """
        user = self._user
        if user is None:
            return self.local_value()
        user.check("call to_here() on it")
        value: T = self._references.ask_owner(user, value_on_owner, (user.fork.rref_id,), timeout)
        return value

    def local_value(self) -> T:
        """Return the value itself, on its owner. Blocks until it is complete. RuntimeError on other workers."""
        return self._get_value().wait()  # type: ignore[no-any-return]

    def _get_value(self) -> ValueFuture:
        """Return the future of the value, on its owner. Raises as `local_value`, but does not block."""
        if self._value is None:
            raise RuntimeError(
                f"For {self._user}, can't call localValue() on user {self._references.agent.info}. "
                f"Call it on owner {self.owner()}"
            )
        if self._error is not None:
            raise self._error()
        return self._value

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return a proxy: `rref.rpc_sync().size()` calls `size` on the owner and waits `timeout` seconds at most."""
        return RRefProxy(self, "rpc_sync", timeout)

    def rpc_async(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return a proxy whose methods return futures."""
        return RRefProxy(self, "rpc_async", timeout)

    def rpc_stream(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return a proxy whose methods return streams: `for item in rref.rpc_stream().items()`.

        `timeout` applies to each item.
        """
        return RRefProxy(self, "rpc_stream", timeout)

    def remote(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return a proxy whose methods return references to their results, which stay on the owner."""
        return RRefProxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Run the backward pass from this value, a scalar tensor, on its owner. Blocks until it is done.

        Args:
            dist_autograd_ctx_id: the context for the gradients; -1, only on the owner, sets `.grad` as usual.
            retain_graph: keep the graph for another pass.
        """
        user = self._user
        if user is None:
            _backward(self.local_value(), dist_autograd_ctx_id, retain_graph)
            return
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        user.check("call backward() on it")
        args = (user.fork.rref_id, dist_autograd_ctx_id, retain_graph)
        self._references.ask_owner(user, _backward_on_owner, args, UNSET_RPC_TIMEOUT)

    # -- private names that programs for torch use -----------------------------------------------------------------

    def _get_type(self, timeout: float = UNSET_RPC_TIMEOUT, blocking: bool = True) -> Any:
        """Return the type of the value, or without `blocking` a future of it. The owner is asked once."""
        user = self._user
        if user is None:
            if blocking:
                return type(self.local_value())
            if self._type is None:
                self._type = _type_of(self._get_value())
            return self._type
        future = self._type
        if future is None or (future.done() and error_of(future) is not None):
            user.check("call _get_type() on it")
            call: Invocation = (_rref_typeof_on_owner, (user.fork.rref_id,), {})
            future = self._type = self._references.agent.call(self.owner(), call, timeout_s=timeout)
        if not blocking:
            return future
        with self._references.agent.waiting():
            return result_of(future)

    def _get_future(self) -> "Future[Any]":
        """Return a future that is done when the owner has created the value, or fails as each use of this does."""
        if self._creation is None:
            future: Future[Any] = Future()
            future.set_result(None)
            return future
        return self._creation

    def _serialize(self) -> tuple[int]:
        """Return the index of this reference in the message that is being pickled. RuntimeError if none is."""
        return self._references.share(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise RuntimeError(NOT_IN_A_CALL)

    def __str__(self) -> str:
        if self._user is None:
            return f"OwnerRRef({self._rref_id})"
        return f"UserRRef(RRefId = {self._rref_id}, ForkId = {self._user.fork.fork_id})"

    __repr__ = __str__

    if not TYPE_CHECKING:  # it would allow every name

        def __getattr__(self, name: str) -> NoReturn:
            """Explain a missing attribute. Uses no attributes, because this may not be initialized yet."""
            hint = "" if name.startswith("_") else f". {_METHOD_HINT.format(name)}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")


def make_rref(
    references: "References", rref_id: GlobalId, value: ValueFuture | None, user: UserState | None
) -> RRef[Any]:
    """Create a reference for `remote` or a received fork."""
    rref: RRef[Any] = RRef.__new__(RRef)
    rref._set_up(references, rref_id, value, user)
    return rref


# -- pickling in calls -------------------------------------------------------------------------------------------------


class _ReceivedRRefs(threading.local):
    """The references of the message that this thread unpickles, and the unconfirmed ones of the last message."""

    current: Sequence[RRef[Any]] = ()
    unconfirmed: "Sequence[Future[None]]" = ()


received_rrefs = _ReceivedRRefs()


def _received(index: int) -> RRef[Any]:
    if not 0 <= index < len(received_rrefs.current):
        raise RuntimeError("Can not unpickle rref in python pickler, rref can only be unpickled when using RPC")
    return received_rrefs.current[index]


def _owner_rref(*rref_id: int) -> RRef[Any]:
    """Return a reference on the owner. The caller keeps its own until the call is answered."""
    references: References = process.current().references
    return references.owner_rref(GlobalId(*rref_id))


def _reduce(rref: RRef[Any]) -> tuple[Any, tuple[int, ...]]:
    rref_id = rref._references.keep_until_reply(rref)
    return (_received, rref._references.share(rref)) if rref_id is None else (_owner_rref, tuple(rref_id))


pickling.register(RRef, _reduce)


# -- functions that run on the owner -----------------------------------------------------------------------------------


def _returns(result: str) -> Callable[[Function], Function]:
    """Mark an internal function of (rref_id), so that errors about its result name the reference."""

    def mark(function: Function) -> Function:
        function._about_rref = result  # type: ignore[attr-defined]
        return function

    return mark


@_returns("the value of")
@async_execution
def value_on_owner(rref_id: GlobalId) -> "Future[Any]":
    references: References = process.current().references
    return references.value_of(rref_id)


@_returns("the type of the value of")
@async_execution
def _rref_typeof_on_owner(rref_id: GlobalId) -> "Future[type]":
    return _type_of(process.current().references.value_of(rref_id))


def _type_of(value: "Future[Any]") -> "Future[type]":
    result: Future[type] = Future()

    def on_done(future: "Future[Any]") -> None:
        error = error_of(future)
        if error is None:
            result.set_result(type(future.value()))
        else:
            result.set_exception(error)  # type: ignore[arg-type]  # annotated wrongly in torch

    value.add_done_callback(on_done)
    return result


def _backward_on_owner(rref_id: GlobalId, context_id: int, retain_graph: bool) -> None:
    _backward(process.current().references.value_of(rref_id).wait(), context_id, retain_graph)


def _backward(root: Any, context_id: int, retain_graph: bool) -> None:
    from .. import autograd  # not loaded by programs that only make calls

    autograd.backward_from(root, context_id, retain_graph)


# -- errors ------------------------------------------------------------------------------------------------------------


def creation_timeout() -> Exception:
    """Return the error of a reference whose creation timed out."""
    return DeadlineExceeded(CREATION_TIMED_OUT)


def owner_lost(fork: Fork, owner: object) -> Exception:
    """Return the error of a reference whose value was lost with its owner."""
    return OwnerLostError(
        f"{owner} died or left, and with it the value of {fork.rref_id}.\n"
        f"Make the value again on another worker; a worker that came back under the name begins without values."
    )
