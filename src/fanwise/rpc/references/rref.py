"""RRef: a reference to a value that lives on some worker, its owner.

    on the owner   the value itself, perhaps still being made
    elsewhere      a fork: a share that the owner has counted, or is about to

A reference is made by `RRef(value)`, by `rpc.remote`, and by receiving one in a call; it ends with the last Python
reference to it, on any thread, in a garbage collection too. So its end does one thing only: it puts the fork into a
queue of `references.References`, which does all the work. It can be pickled in calls only: the owner counts each copy.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from torch.futures import Future

from ...base.errors import DeadlineExceeded, OwnerLostError
from .. import current as process
from ..calling.futures import error_of, result_of, unwrap, wait_for
from ..constants import UNSET_RPC_TIMEOUT
from ..functions import async_execution
from ..messages import pickling
from ..messages.ids import Fork, GlobalId
from ..worker_info import WorkerInfo
from .proxy import RRefProxy
from .travel import received

if TYPE_CHECKING:
    from .references import References

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

TIMED_OUT = (
    "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist."
)


class UserState:
    """What a reference that is not on its owner knows about its fork. Shared with `References`, which changes it."""

    __slots__ = ("confirmed", "deleted", "ended", "error", "fork")

    def __init__(self, fork: Fork) -> None:
        self.fork = fork
        self.confirmed: Future[None] = Future()  # done without an error also when this has failed
        self.error: Callable[[], Exception] | None = None
        self.deleted = False
        self.ended = False

    @property
    def is_counted(self) -> bool:
        """Whether the owner knows of it: the value lives as long as it does."""
        return self.error is None and not self.deleted and self.confirmed.done()

    def confirm(self) -> None:
        """Nobody waits for the owner any longer."""
        if not self.confirmed.done():
            self.confirmed.set_result(None)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Each use raises `error()` from now on: a new one each time, since what is raised holds on to its frames."""
        if self.error is None:
            self.error = error
        self.confirm()

    def check(self, what: str) -> None:
        """Raises why this can be used no more. `what`: the use, in torch's words."""
        if self.error is not None:
            raise self.error()
        if self.deleted:
            raise RuntimeError(f"{self.described()} has been deleted. Cannot {what} after deletion.")

    def described(self) -> str:
        return f"UserRRef(rref_id={self.fork.rref_id}, fork_id={self.fork.fork_id})"


class Pending(Future[Any]):
    """What is yet to come, for all who wait: a value, on its owner; or whether the call that makes one was answered.

    What comes first counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unsettled = [True]

    def settle(self, error: Exception | None, result: object = None) -> None:
        """It is here, or will never be. By any thread; later ones change nothing."""
        try:
            self._unsettled.pop()
        except IndexError:
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)

    def wait(self) -> Any:
        """Block until it is settled. Raises the error as a copy, so that this does not hold the caller's frames."""
        if not self.done():
            with process.waiting():
                wait_for(self)
        return unwrap(self.value)


class RRef(Generic[T]):
    """A reference to a value on some worker; of the value given when made directly.

    Args:
        value: the value. This worker is its owner.
        type_hint: taken for torch's sake and not used.

    Raises:
        RuntimeError: this process is no worker.

    >>> rref = RRef(torch.ones(2))
    >>> rref.is_owner(), rref.local_value() is rref.to_here()
    (True, True)
    """

    __slots__ = (
        "__weakref__",
        "_creation",
        "_error",
        "_kind",
        "_profiled",
        "_references",
        "_rref_id",
        "_user",
        "_value",
    )

    def __init__(self, value: T, type_hint: object = None) -> None:
        if not process.is_set():
            raise RuntimeError("Current RPC agent is not set! Did you initialize the RPC framework with init_rpc?")
        references = process.current().references
        future = Pending()
        future.settle(None, value)
        self._set_up(references, references.new_id(), future, None)

    def _set_up(
        self, references: "References", rref_id: GlobalId, value: Pending | None, user: UserState | None
    ) -> None:
        self._references = references
        self._rref_id = rref_id
        self._value = value
        self._user = user
        self._error: Callable[[], Exception] | None = None
        self._creation: Pending | None = None
        self._kind: Future[type] | None = None
        self._profiled: Future[Any] | None = None

    def __del__(self) -> None:
        user: UserState | None = getattr(self, "_user", None)
        if user is not None:
            self._references.let_go(user)

    # -- whose it is -----------------------------------------------------------------------------------------------

    def owner(self) -> WorkerInfo:
        """The worker that has the value."""
        if self._user is None:
            return self._references.agent.info
        return self._references.owner_of(self._user.fork)

    def owner_name(self) -> str:
        """The name of the worker that has the value."""
        return self.owner().name

    def is_owner(self) -> bool:
        """Whether this worker has the value."""
        return self._user is None

    def confirmed_by_owner(self) -> bool:
        """Whether the owner knows of this reference. True on the owner."""
        user = self._user
        return user is None or (user.confirmed.done() and user.error is None)

    # -- the value -------------------------------------------------------------------------------------------------

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> T:
        """The value: itself on the owner, else a copy. Blocks until it is there.

        Args:
            timeout: seconds; -1 the default, 0 without a limit. Not used on the owner.

        Raises:
            What the function raised that was to make the value. DeadlineExceeded: not here in time, or its creation
            was not. OwnerLostError: the owner died or left. RuntimeError: used after `shutdown`.
        """
        user = self._user  # read once: that of an actor may change
        if user is None:
            return self.local_value()
        user.check("call to_here() on it")
        args = (user.fork.rref_id,)
        value: T = self._references.ask_owner(user, value_on_owner, args, timeout)
        return value

    def local_value(self) -> T:
        """The value itself, on its owner. Blocks until it is there. RuntimeError on other workers."""
        return self._get_value().wait()  # type: ignore[no-any-return]  # what it was made with

    def _get_value(self) -> Pending:
        """The value, which may be yet to come, on its owner. Raises as `local_value`, without waiting."""
        if self._value is None:
            assert self._user is not None, "a reference has a value or a fork"
            raise RuntimeError(
                f"For {self._user.described()}, can't call localValue() on user {self._references.agent.info}. "
                f"Call it on owner {self.owner()}"
            )
        if self._error is not None:
            raise self._error()
        return self._value

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A proxy: `rref.rpc_sync().size()` calls `size` on the owner and waits for the result, `timeout` seconds."""
        return RRefProxy(self, "rpc_sync", timeout)

    def rpc_async(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A proxy whose methods return futures."""
        return RRefProxy(self, "rpc_async", timeout)

    def rpc_stream(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A proxy whose methods return streams: `for item in rref.rpc_stream().items()`. `timeout`: for each item."""
        return RRefProxy(self, "rpc_stream", timeout)

    def remote(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A proxy whose methods return references to their results, which stay on the owner."""
        return RRefProxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Run the backward pass from this value, a scalar tensor, on its owner. Blocks until it is done.

        Args:
            dist_autograd_ctx_id: the context that takes the gradients; -1, on the owner only: `.grad` as usual.
            retain_graph: keep the graph for another pass.
        """
        user = self._user
        if user is not None and dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        if user is None:
            from .. import autograd  # programs that only make calls do without it

            autograd.backward_from(self.local_value(), dist_autograd_ctx_id, retain_graph)
        else:
            user.check("call backward() on it")
            args = (user.fork.rref_id, dist_autograd_ctx_id, retain_graph)
            self._references.ask_owner(user, backward_on_owner, args, UNSET_RPC_TIMEOUT)

    # -- what torch's programs use all the same --------------------------------------------------------------------

    def _get_type(self, timeout: float = UNSET_RPC_TIMEOUT, blocking: bool = True) -> Any:
        """The type of the value, asked for once. Not `blocking`: the future of it, always the same one."""
        user = self._user
        if user is None:
            if blocking:
                return type(self.local_value())
            if self._kind is None:
                self._kind = _type_of(self._get_value())
            return self._kind
        kind = self._kind
        if kind is None or (kind.done() and error_of(kind) is not None):
            user.check("call _get_type() on it")
            kind = self._kind = self._references.ask_later(user, _rref_typeof_on_owner, (user.fork.rref_id,), timeout)
        if not blocking:
            return kind
        with self._references.agent.waiting():
            return result_of(kind)

    def _get_future(self) -> "Future[Any]":
        """Done when the owner has made the value; with an error when it has not heard of it in time: so is each use."""
        if self._creation is None:
            return done_with(None)
        return self._creation

    def _get_profiling_future(self) -> "Future[Any]":
        if self._profiled is None:
            raise RuntimeError("Profiling future has not been set for this RRef.")
        return self._profiled

    def _set_profiling_future(self, future: "Future[Any]") -> None:
        self._profiled = future

    def _serialize(self) -> tuple[int]:
        """What stands for this in the message that is being pickled. RuntimeError when none is."""
        return self._references.share(self)

    @classmethod
    def _deserialize(cls, data: tuple[int]) -> "RRef[Any]":
        """What came for `data` in the message that is being unpickled."""
        came: RRef[Any] = received(*data)
        return came

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise RuntimeError(NOT_IN_A_CALL)

    def __str__(self) -> str:
        if self._user is None:
            return f"OwnerRRef({self._rref_id})"
        return f"UserRRef(RRefId = {self._rref_id}, ForkId = {self._user.fork.fork_id})"

    __repr__ = __str__

    if not TYPE_CHECKING:  # it would allow every name

        def __getattr__(self, name: str) -> NoReturn:
            """Only for what a reference does not have. Looks at nothing of its own: it may not be made yet."""
            hint = "" if name.startswith("_") else f". {_OF_THE_VALUE.format(name)}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")


# For whoever takes a reference for its value.
_OF_THE_VALUE = (
    "It is a reference: rref.rpc_sync().{0}(...) calls that method of its value, where it lives, and rref.to_here() "
    "brings a copy of the value"
)

NOT_IN_A_CALL = "Can not pickle rref in python pickler, rref can only be pickled when using RPC"


def make(references: "References", rref_id: GlobalId, value: Pending | None, user: UserState | None) -> RRef[Any]:
    """A reference that was made by `remote` or came in a call."""
    rref: RRef[Any] = RRef.__new__(RRef)
    rref._set_up(references, rref_id, value, user)
    return rref


def reduce(rref: RRef[Any]) -> tuple[Any, tuple[int, ...]]:
    """How calls pickle a reference: as its place among those of the message; for its owner, as its number."""
    number = rref._references.keep_until_answered(rref)
    return (received, rref._references.share(rref)) if number is None else (at_home, tuple(number))


def at_home(*rref_id: int) -> RRef[Any]:
    """On the owner: the reference of this number, which whoever calls keeps until the call is answered."""
    references: References = process.current().references
    return references.at_home(GlobalId(*rref_id))


pickling.register(RRef, reduce)


def done_with(value: Any) -> "Future[Any]":
    """A future that is done."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


# -- what others ask the owner to run ----------------------------------------------------------------------------------


def _returns(what: str) -> Callable[[Function], Function]:
    """Mark a function of ours, of (rref_id): errors about its result say `what` it is of which reference."""

    def mark(function: Function) -> Function:
        function._about_rref = what  # type: ignore[attr-defined]  # the mark
        return function

    return mark


@_returns("the value of")
@async_execution
def value_on_owner(rref_id: GlobalId) -> "Future[Any]":
    future: Future[Any] = process.current().references.value_of(rref_id)
    return future


@_returns("the type of the value of")
@async_execution
def _rref_typeof_on_owner(rref_id: GlobalId) -> "Future[type]":
    return _type_of(process.current().references.value_of(rref_id))


def _type_of(value: "Future[Any]") -> "Future[type]":
    kind: Future[type] = Future()

    def settle(future: "Future[Any]") -> None:
        error = error_of(future)
        if error is None:
            kind.set_result(type(future.value()))
        else:
            kind.set_exception(error)  # type: ignore[arg-type]  # annotated wrongly in torch

    value.add_done_callback(settle)
    return kind


def backward_on_owner(rref_id: GlobalId, context_id: int, retain_graph: bool) -> None:
    """Run the backward pass from a value of this worker."""
    agent = process.current()
    value = agent.references.value_of(rref_id)
    with agent.waiting():
        root = value.wait()
    from .. import autograd  # as above

    autograd.backward_from(root, context_id, retain_graph)


def gave_up() -> Exception:
    """The error of a reference whose creation was not answered in time."""
    return DeadlineExceeded(TIMED_OUT)


def owner_lost(fork: Fork, owner: object) -> Exception:
    """The error of a reference whose value died with its owner."""
    return OwnerLostError(
        f"{owner} died or left, and with it the value of {fork.rref_id}.\n"
        f"Make the value again on another worker; a worker that came back under the name begins without values."
    )
