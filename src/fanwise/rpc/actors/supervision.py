"""Actors that are made again when their worker is lost: at the worker that made them, and at those that call them.

    creator   the actor's worker has gone --> one of the same name is there --> the same class and arguments again
    caller    the reference's owner has gone --where is it now?--> creator --> a reference to the new one, in its place

A call that was under way fails, and is not made again: nobody knows how far it got. A call that is made while the actor
is down waits for it, within its time; those of one reference go in their order when it is there. The creator does so
for as long as it has the reference that `remote` returned; others follow it by that worker.

`restarts.py` decides; this waits for nobody but on threads that may.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch.futures import Future

from ...base.errors import DeadlineExceeded, OwnerLostError, WorkerLostError
from ...links.flow_control.credits import CALL_COST, OVERDRAFT
from .. import agent as _agent
from ..agent import Agent
from ..calling.call import Call, Following, Invocation
from ..calling.outcomes import error_of
from ..functions import async_execution
from ..membership.members import Event, Joined, Member, lives
from ..references.orders import GlobalId
from ..references.rref import RRef, UserState, owner_lost
from ..worker_info import WorkerInfo, WorkerKey
from .address import Address
from .restarts import Restarts

_log = logging.getLogger("fanwise.rpc")

# Any throughout: of any type, what users' classes take and return.


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an actor is made."""

    invocation: Invocation  # of the class
    timeout_s: float
    concurrency: int

    @property
    def name(self) -> str:
        """Of the class, for messages."""
        return self.invocation[0].__qualname__

    def make(self, agent: Agent, to: WorkerInfo) -> RRef[Any]:
        """Make it on worker `to`. Raises as `remote` does."""
        address = Address(agent.references.new_actor_id(), 0.0, self.concurrency)
        return agent.references.remote(to, self.invocation, timeout_s=self.timeout_s, address=address)


@dataclass(slots=True, eq=False)
class _Supervised:
    """An actor that this worker has made."""

    recipe: Recipe
    restarts: Restarts
    rref: "weakref.ref[RRef[Any]]"
    ids: list[GlobalId]
    waiting: "list[tuple[GlobalId, Future[RRef[Any]]]]" = field(default_factory=list)  # who knew it by which number


@dataclass(slots=True, eq=False)
class _Late:
    """A call that is made when the actor is there again."""

    send: Callable[[], Call[Any]] | None  # None: its turn has come, or its time is over
    num_bytes: int
    future: Following = field(default_factory=Following)


@dataclass(slots=True, eq=False)
class _Queue:
    """The calls of one reference that wait until its actor is there again. `num_bytes`: what they keep."""

    calls: deque[_Late] = field(default_factory=deque)
    num_bytes: int = 0

    def takes(self, late: _Late) -> bool:
        """One more. False: it would be too many bytes."""
        if late.num_bytes and self.num_bytes and self.num_bytes + late.num_bytes > OVERDRAFT:
            return False
        self.calls.append(late)
        self.num_bytes += late.num_bytes
        return True

    def releases(self, late: _Late) -> Callable[[], Call[Any]] | None:
        """What makes the call, once; then it waits here no more."""
        send, late.send = late.send, None
        if send is not None:
            self.calls.remove(late)
            self.num_bytes -= late.num_bytes
        return send


class Supervision:
    """See the module. One for each worker."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._lock = threading.RLock()
        self._supervised: dict[GlobalId, _Supervised] = {}  # by all numbers that it had
        self._moving: weakref.WeakKeyDictionary[RRef[Any], _Queue] = weakref.WeakKeyDictionary()
        self._listens = False

    # -- at the creator ------------------------------------------------------------------------------------------------

    def supervise(self, rref: RRef[Any], recipe: Recipe, restart: int) -> None:
        """From now on the actor of this reference is made again when it is lost, at most `restart` times."""
        user = rref._user
        assert user is not None, "it is on another worker"
        fork = user.fork
        place = self._agent.references.owner_of(fork).name
        ids = [fork.rref_id]

        def forget(_: object) -> None:  # in a garbage collection too, so without the lock
            for id in list(ids):
                self._supervised.pop(id, None)

        one = _Supervised(recipe, Restarts(place, restart, fork.rref_id, fork.owner), weakref.ref(rref, forget), ids)
        with self._lock:
            self._supervised[fork.rref_id] = one
            listens, self._listens = self._listens, True
        if not listens:
            self._agent.group.on_event.append(self._happened)
        if not self._is_there(fork.owner):  # before anybody listened
            self._agent.outside(partial(self._gone, fork.owner))

    def supervised(self, id: GlobalId) -> "RRef[Any] | None":
        """The reference of an actor that this worker supervises, by any number that it had; None: it does not."""
        one = self._supervised.get(id)
        return None if one is None else one.rref()

    def where(self, id: GlobalId) -> "Future[RRef[Any]]":
        """The actor that somebody knew by this number, and knows to be gone: done when it is there again.

        Done with OwnerLostError when it never will be.
        """
        future: Future[RRef[Any]] = Future()
        with self._lock:
            one = self._supervised.get(id)
            rref = None if one is None else one.rref()
            if one is None or rref is None:
                future.set_exception(OwnerLostError(_NOT_SUPERVISED))  # type: ignore[arg-type]  # annotated wrongly
            elif one.restarts.state == "over":
                future.set_exception(_over(one))  # type: ignore[arg-type]  # as above
            elif one.restarts.state == "down" or one.restarts.knows(id):
                one.waiting.append((id, future))
            else:
                future.set_result(rref)
        return future

    def _happened(self, event: Event) -> None:
        """On the hub's thread."""
        if isinstance(event, Joined):
            self._agent.outside(partial(self._look_for_places, [event.member]))
        else:
            self._agent.outside(partial(self._gone, event.member.key))

    def _gone(self, key: WorkerKey) -> None:
        with self._lock:
            lost = [one for one in self._each() if one.restarts.gone(key)]
            over = [one for one in lost if one.restarts.state == "over"]
            told = [(future, _over(one)) for one in over for _, future in one.waiting]
            for one in over:
                one.waiting = []
        for future, error in told:
            future.set_exception(error)  # type: ignore[arg-type]  # annotated wrongly
        if lost:
            self._look_for_places(list(self._agent.group.members().values()))

    def _look_for_places(self, members: Sequence[Member]) -> None:
        for member in members:
            with self._lock:
                ready = [one for one in self._each() if one.restarts.there(member.name, member.key)]
            for one in ready:
                self._make_again(one, member.info, member.key)

    def _make_again(self, one: _Supervised, to: WorkerInfo, key: WorkerKey) -> None:
        rref = one.rref()
        if rref is None:
            return
        try:
            fresh = one.recipe.make(self._agent, to)
        except WorkerLostError:  # it has gone again
            self._gone(key)
            return
        except Exception as error:  # such as an argument that cannot be sent any more
            _log.exception("the actor %s was not made again on worker %s", one.recipe.name, to.name)
            with self._lock:
                one.restarts.cannot_be_made()
                waiting, one.waiting = one.waiting, []
            for _, future in waiting:
                future.set_exception(error.with_traceback(None))  # type: ignore[arg-type]  # annotated wrongly
            return
        fork = fresh._user.fork if fresh._user is not None else None
        assert fork is not None, "it is on another worker"
        with self._lock:
            one.restarts.made(fork.rref_id, fork.owner)
            one.ids.append(fork.rref_id)
            self._supervised[fork.rref_id] = one
            become(rref, fresh)
            waiting, one.waiting = one.waiting, []
        for _, future in waiting:
            future.set_result(rref)
        if not self._is_there(fork.owner):
            self._gone(fork.owner)

    # -- at who calls --------------------------------------------------------------------------------------------------

    def is_lost(self, rref: RRef[Any], user: UserState) -> bool:
        """Whether the actor's worker has gone, or calls wait already until it is there again."""
        return not self._is_there(user.fork.owner) or bool(self._moving and rref in self._moving)

    def call_later(
        self, rref: RRef[Any], send: Callable[[], Call[Any]], limit_s: float | None, *, num_bytes: int
    ) -> Following | Literal["full", "there"]:
        """Make a call when the actor is there again, after those that wait already. `limit_s`: until it fails.

        `num_bytes`: what `send` keeps; 0: there is always room for it. "full": there is none, and it is not made.
        "there": neither is it, as the actor is there by now, and nothing waits any more.
        """
        late = _Late(send, num_bytes and CALL_COST + num_bytes)
        with self._lock:
            is_first = rref not in self._moving
            if is_first and rref._user is not None and self._is_there(rref._user.fork.owner):
                return "there"
            queue = self._moving.setdefault(rref, _Queue())
            if not queue.takes(late):
                return "full"
        if limit_s is not None:
            self._agent.later(limit_s, partial(self._agent.answer, partial(self._give_up, queue, late, _late(rref))))
        if is_first:
            self._located(rref).add_done_callback(lambda found: self._agent.outside(partial(self._go_on, rref, found)))
        return late.future

    def _give_up(self, queue: _Queue, late: _Late, error: DeadlineExceeded) -> None:
        """The time of a call is over."""
        with self._lock:
            was_waiting = queue.releases(late) is not None
        if was_waiting:
            late.future.fail(error)

    def wait_until_there(self, rref: RRef[Any], limit_s: float | None) -> None:
        """Block until the actor is there again. Raises OwnerLostError, DeadlineExceeded."""
        there = self.call_later(rref, _nothing, limit_s, num_bytes=0)
        assert there != "full", "there is room for it"
        if there != "there":
            there.wait()

    def _located(self, rref: RRef[Any]) -> "Future[RRef[Any]]":
        assert rref._user is not None, "it is on another worker"
        fork = rref._user.fork
        creator = fork.rref_id.creator
        if self.supervised(fork.rref_id) is rref:
            return self.where(fork.rref_id)
        if not self._is_there(creator):
            return _failed(owner_lost(fork, f"worker {self._agent.references.owner_of(fork).name}"))
        to = self._agent.worker(creator.id)
        return self._agent.call(to, (where_is, (tuple(fork.rref_id),), {}), timeout_s=0.0)

    def _go_on(self, rref: RRef[Any], found: "Future[RRef[Any]]") -> None:
        """The actor is there again, or never will be. What waits goes first, in its order."""
        error = error_of(found)
        if error is None:
            fresh = found.value()
            if fresh is not rref:  # the creator's has become the new one already
                with self._lock:
                    become(rref, fresh)
        elif isinstance(error, WorkerLostError) and not isinstance(error, OwnerLostError):
            assert rref._user is not None, "it is on another worker"
            error = owner_lost(rref._user.fork, f"worker {rref.owner_name()}")
        while True:
            with self._lock:
                queue = self._moving[rref]
                if not queue.calls:
                    del self._moving[rref]
                    return
                late = queue.calls[0]
                send = queue.releases(late)
            if late.future.done():
                continue  # it was cancelled
            assert send is not None, "who releases a call takes it out"
            try:
                if error is not None:
                    raise error
                late.future.follow(send())
            except Exception as failed:
                late.future.fail(failed.with_traceback(None))
            del send

    def _each(self) -> list[_Supervised]:
        """All that there are; a garbage collection may end one meanwhile."""
        return list(dict.fromkeys(list(self._supervised.values())))

    def _is_there(self, key: WorkerKey) -> bool:
        return lives(key, self._agent.group.members())


@async_execution
def where_is(id: tuple[int, int, int]) -> "Future[RRef[Any]]":  # Any: of any type
    """On the worker that made an actor: where it is by now, for who knows that it is not where it was."""
    actors: Any = _agent.current().actors  # Any: of `calls`, which uses this
    found: Future[RRef[Any]] = actors.supervision.where(GlobalId(*id))
    return found


def become(rref: RRef[Any], other: RRef[Any]) -> None:
    """`rref` refers to what `other` does; and that, to what ends with it."""
    for name in ("_rref_id", "_creation", "_error", "_kind", "_value", "_user"):
        mine, its = getattr(rref, name), getattr(other, name)
        setattr(rref, name, its)
        setattr(other, name, mine)


def _nothing() -> Call[Any]:
    done = Following()
    done.set_result(None)
    return done


def _failed(error: Exception) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


_NOT_SUPERVISED = (
    "the worker of this actor died or left, and nobody makes the actor again.\n"
    "rpc.remote(to, cls, restart=n) does, for as long as the worker that called it has the reference."
)


def _over(one: _Supervised) -> OwnerLostError:
    return OwnerLostError(
        f"worker {one.restarts.place}, which had this actor ({one.recipe.name}), died or left, and the "
        f"actor was made again as often as restart= allowed.\nMake another one, or give restart= a larger number."
    )


def _late(rref: RRef[Any]) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the worker of this actor died or left, and no worker named {rref.owner_name()} has joined in time: the call "
        f"was not made.\nStart a process that calls init_rpc under that name; the actor is made again there."
    )
