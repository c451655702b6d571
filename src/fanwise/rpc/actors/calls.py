"""Calls of an actor's methods, from both ends: how they are made, and what runs there when it is their turn.

    rpc.remote(to, Class, serial=True)  make --> a reference whose number is below zero, and a queue at its owner
    rref.rpc_sync().step(x)             call --> with the actor's address to its queue --> invoke --> the method

Only calls of methods through a reference (`rref.rpc_sync()`, `rpc_async()`, `remote()`) wait for turns. A function
that takes the reference as an argument runs at once, as any other.
"""

from contextvars import ContextVar
from types import CoroutineType
from typing import Any

from ...base.clocks import Clock, SystemClock
from ...base.errors import FanwiseError, WindowFullError, WorkerLostError
from ..agent import Agent
from ..calling.call import Call, Following, Invocation, calls_method
from ..calling.serving import answer_later
from ..calls import collect
from ..constants import UNSET_RPC_TIMEOUT
from ..messages.pickling import Copied, explained
from ..references.orders import GlobalId
from ..references.proxy import Api, method_of
from ..references.rref import RRef, UserState
from ..worker_info import WorkerInfo
from .address import Address
from .supervision import Recipe, Supervision

_LEAST_S = 0.001  # 0 would be for ever

# The actor whose method this thread, or this coroutine, runs.
_running: ContextVar[GlobalId | None] = ContextVar("fanwise_actor", default=None)


# The name of a method, its arguments, and those that have names.
_Asked = tuple[str, tuple[object, ...], dict[str, object]]


class Actors:
    """See the module. One for each worker."""

    def __init__(self, agent: Agent, clock: Clock | None = None) -> None:
        self._agent = agent
        self._now_s = (clock or SystemClock()).now_s
        self.supervision = Supervision(agent)

    def make(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        *,
        timeout_s: float,
        concurrency: int,
        restart: int,
    ) -> RRef[Any]:  # Any: the user's
        """An object on worker `to`, as its class makes it, of which at most `concurrency` calls run at a time.

        `restart`: how often it is made again when its worker is lost. ValueError: this one, which would be lost too.
        """
        recipe = Recipe(invocation, timeout_s, concurrency)
        if restart and to.id == self._agent.info.id:
            raise ValueError(
                f"restart={restart}: worker {to.name} would make the actor again when it is lost, and has the actor "
                f"itself. Make it on another worker, or leave restart= out."
            )
        rref = recipe.make(self._agent, to)
        if restart:
            self.supervision.supervise(rref, recipe, restart)
        return rref

    def call(
        self,
        rref: RRef[Any],  # Any: of any type
        api: Api,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        timeout_s: float,
    ) -> Any:  # Any: a result, its future, or a reference to it
        """Call a method in its turn. Raises as `rpc_sync`, `rpc_async` and `remote` do."""
        if api == "rpc_stream":
            raise TypeError(
                f"{name!r} is a method of an actor, and no stream of its items can be had: its turn, and so all calls "
                f"behind it, would last until the last item was taken.\n"
                f"Make the object with rpc.remote(to, cls), without serial= and concurrency=, or fetch items by calls."
            )
        agent, user, asked = self._agent, rref._user, (name, args, kwargs)
        if user is not None and user.deleted:  # else its worker would seem to be away
            user.check(f"call {name!r} on it")
        if api == "rpc_async":
            call = self._begin(rref, asked, timeout_s)
            collect(call)
            return call
        if user is not None and self.supervision.is_lost(rref, user):
            if api == "rpc_sync":
                return self._begin(rref, asked, timeout_s).wait()
            self.supervision.wait_until_there(rref, self._limit(timeout_s))
            user = rref._user
        to, address = self._address_of(rref, user)
        if api == "remote":
            return agent.references.remote(to, (invoke, (rref, *asked), {}), timeout_s=timeout_s, address=address)
        self._check_is_not_its_own(rref, name)
        return agent.call_sync(to, (invoke, (rref, *asked), {}), timeout_s=timeout_s, address=address)

    def supervised(self, rref: RRef[Any]) -> RRef[Any] | None:  # Any: of any type
        """The reference by which this worker makes the same actor again when it is lost; None: it does not."""
        return self.supervision.supervised(rref._rref_id)

    def wait_until_there(self, rref: RRef[Any]) -> None:  # Any: of any type
        """Block while the actor's worker is gone. Raises OwnerLostError, DeadlineExceeded."""
        if rref._user is not None and self.supervision.is_lost(rref, rref._user):
            self.supervision.wait_until_there(rref, self._limit(UNSET_RPC_TIMEOUT))

    def _begin(self, rref: RRef[Any], asked: _Asked, timeout_s: float) -> Call[Any]:  # Any: the user's
        """Call a method, now or when the actor is there again.

        Does not wait, unless the actor is away and as many bytes of calls as may wait for it already do, or a context
        of distributed autograd is open: what is sent in it belongs to this thread. WindowFullError: it must not wait.
        """
        user = rref._user
        if user is None or not self.supervision.is_lost(rref, user):
            return self._begin_now(rref, asked, timeout_s)
        limit_s = self._limit(timeout_s)
        due_s = None if limit_s is None else self._now_s() + limit_s

        def left_s() -> float:
            return 0.0 if due_s is None else max(_LEAST_S, due_s - self._now_s())

        if not self._agent.serializer.records_history:
            try:
                as_they_are = Copied(asked)  # the caller may change them as soon as this returns
            except Exception as error:
                raise explained(error, (invoke, (rref, *asked), {}), asked[0], rref.owner()) from error

            def begin() -> Call[Any]:
                return self._begin_now(rref, as_they_are.value(), left_s())

            call = self.supervision.call_later(rref, begin, limit_s, num_bytes=as_they_are.num_bytes)
            if call == "there":
                return self._begin(rref, asked, left_s())
            if call != "full":
                return call
        if not self._agent.may_wait():
            raise WindowFullError(
                f"the call of {asked[0]} was not made: its actor's worker, {rref.owner_name()}, is away, as many calls "
                f"as may wait for it do, and this thread reads answers, so it must not wait.\n"
                f"Call from a thread of your own, or from a callback of a call's future (`then`), which may wait."
            )
        try:
            self.supervision.wait_until_there(rref, limit_s)
        except FanwiseError as error:
            return Following.failed(error)
        return self._begin(rref, asked, left_s())

    def _begin_now(self, rref: RRef[Any], asked: _Asked, timeout_s: float) -> Call[Any]:  # Any: the user's
        to, address = self._address_of(rref, rref._user)
        try:
            return self._agent.call(to, (invoke, (rref, *asked), {}), timeout_s=timeout_s, address=address)
        except WorkerLostError as error:
            return Following.failed(error)

    def _address_of(self, rref: RRef[Any], user: UserState | None) -> tuple[WorkerInfo, Address]:  # Any: of any type
        """The owner and the actor's number there. Both of `user`, which was read once: `rref` may move meanwhile."""
        if user is None:
            return self._agent.info, Address(rref._rref_id, 0.0)
        return self._agent.references.owner_of(user.fork), Address(user.fork.rref_id, 0.0)

    def _limit(self, timeout_s: float) -> float | None:
        limit_s = self._agent.timeout_s if timeout_s == UNSET_RPC_TIMEOUT else max(_LEAST_S, timeout_s)
        return None if timeout_s == 0 or limit_s == 0 else limit_s

    def _check_is_not_its_own(self, rref: RRef[Any], name: str) -> None:  # Any: of any type
        if _running.get() == rref._rref_id and self._agent.queues.concurrency_of(rref._rref_id) == 1:
            raise RuntimeError(
                f"{name!r} was called with rpc_sync by a method of the same actor, which runs one call at a time: the "
                f"two would wait for each other.\n"
                f"  wrong:  rref.rpc_sync().{name}(...)\n"
                f"  right:  self.{name}(...), now; or rref.rpc_async().{name}(...), later, and not waited for here"
            )


@calls_method
def invoke(rref: Any, name: str, args: Any, kwargs: Any) -> Any:  # Any: of any type
    """On the owner, when it is the call's turn: the method's result; what comes later when that does."""
    actor = rref._rref_id
    method = method_of(rref.local_value(), name)
    before = _running.set(actor)
    try:
        value = method(*args, **kwargs)
    finally:
        _running.reset(before)
    if type(value) is CoroutineType:
        return _running_in(actor, value)
    if hasattr(method, "_wrapped_async_rpc_function"):
        return answer_later(getattr(method, "__qualname__", name), value)
    return value


async def _running_in(actor: GlobalId, coroutine: Any) -> Any:  # Any: the user's
    _running.set(actor)  # of this task alone
    return await coroutine
