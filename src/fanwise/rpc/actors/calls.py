"""Calls of an actor's methods, on the caller and on the owner.

    rpc.remote(to, Class, serial=True)  create --> a reference with a negative number, and a queue on the owner
    rref.rpc_sync().step(x)             call ----> the actor's queue on the owner --> invoke --> the method

Only methods called through a reference (`rref.rpc_sync()`, `rpc_async()`, `remote()`) are queued. A function that gets
the reference as an argument runs at once.
"""

from contextvars import ContextVar
from types import CoroutineType
from typing import Any

from ...base.errors import WorkerLostError
from ..agent import Agent
from ..calling.call import ChainedCall, calls_method
from ..calling.server import delayed_reply
from ..calls import collect
from ..messages.ids import GlobalId, Invocation
from ..messages.metadata import Address
from ..references.proxy import Api, method_of
from ..references.rref import RRef
from ..worker_info import WorkerInfo

# The actor whose method this thread or coroutine runs.
_running: ContextVar[GlobalId | None] = ContextVar("fanwise_actor", default=None)


class Actors:
    """Creates and calls actors. One per worker."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def create(self, to: WorkerInfo, invocation: Invocation, *, timeout_s: float, concurrency: int) -> RRef[Any]:
        """Create an object on `to` that runs at most `concurrency` calls at a time. Raises as `remote` does."""
        references = self._agent.references
        address = Address(references.new_actor_id(), 0.0, concurrency)
        rref: RRef[Any] = references.remote(to, invocation, timeout_s=timeout_s, address=address)
        return rref

    def call(
        self,
        rref: RRef[Any],
        api: Api,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        timeout_s: float,
    ) -> Any:
        """Call a method through the actor's queue. Returns and raises as `rpc_sync`, `rpc_async` and `remote` do."""
        if api == "rpc_stream":
            raise TypeError(
                f"{name!r} is a method of an actor, so its items cannot be streamed: the call would block the actor's "
                f"queue until the last item was consumed.\n"
                f"Create the object without serial= and concurrency=, or fetch items by calls."
            )
        user = rref._user
        if user is None:
            to, address = self._agent.info, Address(rref._rref_id, 0.0)
        else:
            if user.deleted:
                user.check(f"call {name!r} on it")
            to, address = self._agent.references.owner_of(user.fork), Address(user.fork.rref_id, 0.0)
        invocation: Invocation = (invoke, (rref, name, args, kwargs), {})
        if api == "remote":
            return self._agent.references.remote(to, invocation, timeout_s=timeout_s, address=address)
        if api == "rpc_sync":
            self._check_no_deadlock(rref, name)
            return self._agent.call_sync(to, invocation, timeout_s=timeout_s, address=address)
        try:
            call = self._agent.call(to, invocation, timeout_s=timeout_s, address=address)
        except WorkerLostError as error:
            call = ChainedCall.failed(error)
        collect(call)
        return call

    def _check_no_deadlock(self, rref: RRef[Any], name: str) -> None:
        """Raise RuntimeError if a method of a serial actor calls its own actor and would wait for itself."""
        if _running.get() == rref._rref_id and self._agent.queues.concurrency_of(rref._rref_id) == 1:
            raise RuntimeError(
                f"{name!r} was called with rpc_sync by a method of the same actor, which runs one call at a time: the "
                f"two would wait for each other.\n"
                f"  wrong:  rref.rpc_sync().{name}(...)\n"
                f"  right:  self.{name}(...) or rref.rpc_async().{name}(...) without waiting for the future"
            )


@calls_method
def invoke(rref: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Run a method on the owner. Return its result, or a future if the method replies later."""
    actor = rref._rref_id
    method = method_of(rref.local_value(), name)
    token = _running.set(actor)
    try:
        value = method(*args, **kwargs)
    finally:
        _running.reset(token)
    if type(value) is CoroutineType:
        return _run_coroutine(actor, value)
    if hasattr(method, "_wrapped_async_rpc_function"):
        return delayed_reply(getattr(method, "__qualname__", name), value)
    return value


async def _run_coroutine(actor: GlobalId, coroutine: Any) -> Any:
    _running.set(actor)  # only in the context of this task
    return await coroutine
