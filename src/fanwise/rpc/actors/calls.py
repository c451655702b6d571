"""Calls of an actor's methods, from both ends: how they are made, and what runs there when it is their turn.

    rpc.remote(to, Class, serial=True)  make --> a reference whose number is below zero, and a queue at its owner
    rref.rpc_sync().step(x)             call --> with the actor's address to its queue --> invoke --> the method

Only calls of methods through a reference (`rref.rpc_sync()`, `rpc_async()`, `remote()`) wait for turns. A function
that takes the reference as an argument runs at once, as any other.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from types import CoroutineType
from typing import Any

from ...base.errors import WorkerLostError
from .. import agent as _agent
from ..agent import Agent
from ..calling.call import Following
from ..calling.serving import answer_later
from ..calls import collect
from ..references.orders import GlobalId
from ..references.proxy import Api, method_of
from ..references.rref import RRef
from ..worker_info import WorkerInfo
from .address import Address

# The actor whose method this thread, or this coroutine, runs.
_running: ContextVar[GlobalId | None] = ContextVar("fanwise_actor", default=None)


class Actors:
    """See the module. One for each worker."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def make(
        self,
        to: WorkerInfo,
        kind: type,
        args: Sequence[object],
        kwargs: dict[str, object],
        *,
        timeout_s: float,
        concurrency: int,
    ) -> RRef[Any]:  # Any: the user's
        """An object of class `kind` on worker `to`, of which at most `concurrency` calls run at a time."""
        references = self._agent.references
        address = Address(references.new_actor_id(), 0.0, concurrency)
        return references.remote(to, kind, args, kwargs, timeout_s=timeout_s, address=address)

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
        agent, to, address = self._agent, rref.owner(), Address(rref._rref_id, 0.0)
        is_held = api != "remote" and _is_known_to_owner(rref)
        message = (tuple(rref._rref_id) if is_held else rref, name, args, kwargs)
        if api == "rpc_sync":
            self._check_is_not_its_own(rref, name)
            return agent.call_sync(to, invoke, message, {}, timeout_s=timeout_s, address=address)
        if api == "remote":
            return agent.references.remote(to, invoke, message, {}, timeout_s=timeout_s, address=address)
        try:
            future = agent.call(to, invoke, message, {}, timeout_s=timeout_s, address=address)
        except WorkerLostError as error:
            future = Following.failed(error)
        if is_held:
            future.add_done_callback(partial(_until_answered, rref))
        collect(future)
        return future

    def _check_is_not_its_own(self, rref: RRef[Any], name: str) -> None:  # Any: of any type
        if _running.get() == rref._rref_id and self._agent.queues.concurrency_of(rref._rref_id) == 1:
            raise RuntimeError(
                f"{name!r} was called with rpc_sync by a method of the same actor, which runs one call at a time: the "
                f"two would wait for each other.\n"
                f"  wrong:  rref.rpc_sync().{name}(...)\n"
                f"  right:  self.{name}(...), now; or rref.rpc_async().{name}(...), later, and not waited for here"
            )


def _is_known_to_owner(rref: RRef[Any]) -> bool:  # Any: of any type
    """Whether the value lives as long as `rref` does, which need not travel then: that costs as much as a call."""
    user = rref._user
    return user is not None and user.error is None and user.confirmed.done() and not user.deleted


def _until_answered(rref: RRef[Any], _: object) -> None:  # Any: of any type
    """Keeps the reference until the call is answered."""


def invoke(target: Any, name: str, args: Any, kwargs: Any) -> Any:  # Any: of any type
    """On the owner, when it is the call's turn: the method's result; what comes later when that does.

    `target`: the actor, by a reference, or by the number of one that its caller holds.
    """
    if isinstance(target, RRef):
        actor, value = target._rref_id, target.local_value()
    else:
        actor = GlobalId(*target)
        value = _agent.current().references.value_here(actor)
    method = method_of(value, name)
    before = _running.set(actor)
    try:
        value = method(*args, **kwargs)
    finally:
        _running.reset(before)
    if type(value) is CoroutineType:
        return _running_in(actor, value)
    if hasattr(method, "_wrapped_async_rpc_function"):
        return answer_later(method, value)
    return value


async def _running_in(actor: GlobalId, coroutine: Any) -> Any:  # Any: the user's
    _running.set(actor)  # of this task alone
    return await coroutine
