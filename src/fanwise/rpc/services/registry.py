"""Names for values: `register`, `lookup`, `unregister`.

    register(name, value) --> the worker that keeps the value --reserve--> coordinator: granted, or taken
    lookup(name)          --find--> coordinator: at whom --> that worker hands a reference out

The worker that keeps a value has its name too: it goes with that worker and with nobody else. The coordinator has a
table of who has which name (`directory`). When there is another one, it asks all who are there, once, before it
answers; whoever asked the one before asks again.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch.futures import Future

from ...base.clocks import Clock, SystemClock
from ...base.errors import ClosedError, DeadlineExceeded, LinkLostError, WorkerLostError
from .. import agent as _agent
from ..actors.address import is_actor
from ..agent import Agent
from ..calling.cancelling import here
from ..calling.outcomes import error_of
from ..constants import UNSET_RPC_TIMEOUT
from ..membership.members import Event, Joined
from ..references.rref import RRef
from ..worker_info import WorkerInfo, WorkerKey
from .directory import Directory, Respond, Taken

NAME_SIZE_MAX = 256
_LOOK_AGAIN_S = 0.05
# So long a lookup waits at the coordinator before it asks again. One that Ctrl-C or a cancelling has ended is open
# there until then, and a graceful shutdown waits for what is open.
_FIND_S = 2.0
# Who asks waits so much longer for the coordinator's word that the time is over.
_GRACE_S = 2.0


def register(name: str, value: object, *, timeout: float = UNSET_RPC_TIMEOUT) -> None:
    """Give a value a name that is unique in the group: `lookup(name)` returns a reference to it on any worker.

    The value lives for as long as the name does: until `unregister`, or until the worker that keeps it ends. Who
    registered it may leave.

    Args:
        name: any text of at most 256 characters.
        value: an `RRef`, of any worker; anything else is kept by this worker.
        timeout: seconds; -1 the default, 0 without a limit.

    Raises:
        ValueError: the name is taken; says by whom. DeadlineExceeded: the coordinator has not answered in time.
        OwnerLostError: the value of the reference is gone.

    >>> register("replay-buffer", [1, 2, 3])
    >>> lookup("replay-buffer").to_here()
    [1, 2, 3]
    """
    _check(name)
    services = _agent.current().services
    rref = value if isinstance(value, RRef) else RRef(value)
    if rref.is_owner():
        services.hold(name, rref, services.until(timeout))
    elif not (is_actor(rref._rref_id) and services.hold_supervised(name, rref, timeout)):
        services.ask(rref.owner(), hold, (name, rref, timeout), timeout)


def lookup(name: str, *, timeout: float = UNSET_RPC_TIMEOUT) -> "RRef[Any]":  # Any: of any type
    """A reference to the value that is registered under this name. Waits until there is one.

    Args:
        timeout: seconds to wait at most; -1 the default, 0 without a limit.

    Raises:
        DeadlineExceeded: nobody has registered it in time, or whoever had is gone; says which names there are.
    """
    _check(name)
    return _agent.current().services.lookup(name, timeout)  # type: ignore[no-any-return]  # a reference


def unregister(name: str, *, timeout: float = UNSET_RPC_TIMEOUT) -> None:
    """Take a name away from its value, on any worker. The value ends when nobody else refers to it.

    Raises:
        LookupError: there is no such name; says which there are. DeadlineExceeded: no answer in time.
    """
    _check(name)
    _agent.current().services.unregister(name, timeout)


def _check(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a service is known by a text, got {name!r} of type {type(name).__name__}.")
    if not 0 < len(name) <= NAME_SIZE_MAX:
        raise ValueError(f"a service's name has 1 to {NAME_SIZE_MAX} characters; {name[:40]!r} has {len(name)}.")


class Services:
    """What this worker knows of names: those of its own values; as the coordinator, whose the others are.

    Made before the group is joined; `joined` after that.
    """

    def __init__(self, agent: Agent, clock: Clock | None = None) -> None:
        self._agent = agent
        self._now_s = (clock or SystemClock()).now_s
        self._changed = threading.Condition()
        self._held: dict[str, RRef[Any]] = {}  # Any: of any type
        # Names of which the coordinator is just being told. Where it sends who looks for one, it has been granted.
        self._asking: dict[str, RRef[Any] | None] = {}  # None: it is being given up
        self._num_collected = 0  # how often a coordinator has asked for them
        self._directory: Directory | None = None
        self._tickets: dict[int, Future[Any]] = {}  # Any: an answer, as plain values
        self._num_asked = 0
        agent.on("services.reserve", self._on_reserve)
        agent.on("services.find", self._on_find)
        agent.on("services.drop", self._on_drop)
        agent.on("services.names", self._on_names)

    def joined(self) -> None:
        """The group is there."""
        self._agent.group.on_event.append(self._on_event)

    def close(self) -> None:
        """Let go of all values."""
        with self._changed:
            held, self._held = self._held, {}
        held.clear()

    # -- the worker that keeps the value -------------------------------------------------------------------------------

    def hold(self, name: str, rref: "RRef[Any]", until_s: float | None) -> None:  # Any: of any type
        """Reserve the name for a value of this worker. Blocks. Raises as `register`."""
        with self._changed:
            if name in self._held or name in self._asking:
                raise _taken(name, self._agent.info)
            self._asking[name] = rref
        is_known = False
        try:
            while True:
                num_collected = self._num_collected
                answer = self._ask_coordinator(until_s, "services.reserve", name)
                if answer[1] != self._me:
                    is_known = True
                    raise _taken(name, self._info_of(answer[1]))
                with self._changed:
                    if num_collected == self._num_collected:
                        self._held[name] = rref
                        del self._asking[name]
                        return
        finally:
            with self._changed:
                if self._asking.pop(name, None) is not None and not is_known:
                    self._forget(name)  # it may have been granted

    def hold_supervised(self, name: str, rref: "RRef[Any]", timeout_s: float) -> bool:  # Any: of any type
        """As `hold`, by the worker that makes an actor again when it is lost. False: none does."""
        own = self._agent.actors.supervised(rref)
        if own is not None:
            self.hold(name, own, self.until(timeout_s))
            return True
        creator = rref._rref_id.creator
        member = self._agent.group.members().get(creator.id)
        if creator == self._me or member is None or member.key != creator:
            return False
        return bool(self.ask(member.info, hold_supervised, (name, rref, timeout_s), timeout_s))

    def hand_out(self, name: str) -> "RRef[Any] | None":  # Any: of any type
        """The reference of a name that this worker has; None: it has not, any more."""
        with self._changed:
            rref = self._held.get(name) or self._asking.get(name)
            if rref is None and name not in self._asking:
                self._forget(name)
        if rref is not None and is_actor(rref._rref_id):
            self._agent.actors.wait_until_there(rref)
        return rref

    def release(self, name: str) -> bool:
        """This worker's name is free, for anybody, when this returns. False: it is not its name."""
        with self._changed:
            if self._held.pop(name, None) is None:
                if name not in self._asking:
                    self._forget(name)
                return False
            self._asking[name] = None
        try:
            self._ask_coordinator(self.until(UNSET_RPC_TIMEOUT), "services.drop", name)
        finally:
            with self._changed:
                del self._asking[name]
        return True

    def _forget(self, name: str) -> None:
        """Without waiting. With the lock: what is asked of the coordinator later comes to it later."""
        coordinator = self._coordinator()
        if coordinator is not None:
            self._agent.request(coordinator.id, "services.drop", name)

    def _on_names(self, sender: WorkerInfo) -> list[str]:
        """Another coordinator asks. What was granted by the one before and comes from now on counts no more."""
        with self._changed:
            self._num_collected += 1
            return list(self._held)

    # -- who asks --------------------------------------------------------------------------------------------------

    def lookup(self, name: str, timeout_s: float) -> "RRef[Any]":  # Any: of any type
        """See `lookup`."""
        until_s = self.until(timeout_s)
        while True:
            left_s = _FIND_S if until_s is None else min(_FIND_S, until_s - self._now_s())
            answer = self._ask_coordinator(until_s, "services.find", name, wait_s=max(_NOT, left_s))
            if answer[0] == "unknown":
                if until_s is None or self._now_s() < until_s:
                    continue
                raise DeadlineExceeded(
                    f"no service {name!r} was registered within {self._limit(timeout_s):g} s; "
                    f"{_there_are(answer[1])}.\n"
                    f"Register it with rpc.register({name!r}, value); the names of a worker end with it."
                )
            rref = self._at(answer[1], hand_out, name, until_s)
            if rref is not None:
                return rref  # type: ignore[no-any-return]  # a reference

    def unregister(self, name: str, timeout_s: float) -> None:
        """See `unregister`."""
        until_s = self.until(timeout_s)
        while True:
            answer = self._ask_coordinator(until_s, "services.find", name, wait_s=_NOT)
            if answer[0] == "unknown":
                raise LookupError(f"no service {name!r} is registered; {_there_are(answer[1])}.")
            if self._at(answer[1], release, name, until_s):
                return

    def ask(self, to: WorkerInfo, function: Callable[..., Any], args: tuple[object, ...], timeout_s: float) -> Any:
        """Run a function of ours on another worker. Any: what it returns."""
        return self._agent.call_sync(to, (function, args, {}), timeout_s=timeout_s)

    def _at(self, holder: WorkerKey, function: Callable[..., Any], name: str, until_s: float | None) -> Any:
        """What the worker that has a name does about it; None when it is gone. Any: as that."""
        member = self._agent.group.members().get(holder.id)
        if member is None or member.key != holder:
            self._wait_a_moment(until_s)
            return None
        try:
            return self.ask(member.info, function, (name,), self._left_s(until_s) or 0.0)
        except (WorkerLostError, LinkLostError) as error:
            if hasattr(error, "__notes__"):
                raise
            self._wait_a_moment(until_s)
            return None

    def _ask_coordinator(self, until_s: float | None, method: str, name: str, wait_s: float | None = None) -> Any:
        """The coordinator's word, whoever that is by then. Any: plain values. Raises DeadlineExceeded, ClosedError."""
        while True:
            left_s = self._left_s(until_s)
            waits = (0.0 if left_s is None else left_s) if wait_s is None else wait_s
            coordinator = self._coordinator()
            if coordinator is not None:
                args = (name, waits) if method == "services.find" else (name,)
                future = self._agent.request(coordinator.id, method, *args)
                if self._wait_for(future, None if left_s is None else left_s + _GRACE_S):
                    error = error_of(future)
                    if error is None and future.value()[0] != "elsewhere":
                        return future.value()
                    if error is not None and not isinstance(error, (WorkerLostError, LinkLostError)):
                        raise error
            if until_s is not None and self._now_s() >= until_s:
                raise DeadlineExceeded(
                    f"the coordinator of the group has not answered in time about the service {name!r}."
                )
            self._wait_a_moment(until_s)

    def _wait_for(self, future: "Future[Any]", within_s: float | None) -> bool:  # Any: of any type
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        until_s = None if within_s is None else self._now_s() + within_s
        scope = here()
        with self._agent.waiting(), nullcontext() if scope is None else scope.waking(done.set):
            while not done.wait(1.0 if until_s is None else max(0.0, min(1.0, until_s - self._now_s()))):
                if until_s is not None and self._now_s() >= until_s:
                    return False
        return True

    def _wait_a_moment(self, until_s: float | None) -> None:
        """Who the coordinator is, or who is there, is about to change."""
        if self._agent.is_closed or self._agent.group.has_left:
            raise ClosedError("RPC has been shut down in this process; call init_rpc first.")
        if until_s is not None and self._now_s() >= until_s:
            return
        with self._agent.waiting(), self._changed:
            self._changed.wait(_LOOK_AGAIN_S)

    def until(self, timeout_s: float) -> float | None:
        """When the time is over; None: never."""
        limit_s = self._limit(timeout_s)
        return self._now_s() + limit_s if limit_s else None

    def _limit(self, timeout_s: float) -> float:
        return self._agent.timeout_s if timeout_s == UNSET_RPC_TIMEOUT else max(0.0, timeout_s)

    def _left_s(self, until_s: float | None) -> float | None:
        return None if until_s is None else max(0.001, until_s - self._now_s())

    # -- the coordinator -------------------------------------------------------------------------------------------

    @property
    def _me(self) -> WorkerKey:
        return WorkerKey(self._agent.info.id, self._agent.incarnation)

    def _coordinator(self) -> WorkerKey | None:
        group = self._agent.group
        return next((m.key for m in group.members().values() if m.incarnation == group.coordinator), None)

    def _info_of(self, key: WorkerKey) -> WorkerInfo:
        member = self._agent.group.members().get(key.id)
        return WorkerInfo(member.name if member is not None else f"rank-{key.id}", key.id)

    def _on_reserve(self, sender: WorkerInfo, name: str) -> Any:  # Any: a future, or plain values
        return self._asked(sender, partial(self._reserve, name=name), 0.0)

    def _on_find(self, sender: WorkerInfo, name: str, wait_s: float) -> Any:  # Any: as above
        return self._asked(sender, partial(self._find, name=name), float(wait_s))

    def _on_drop(self, sender: WorkerInfo, name: str) -> Any:  # Any: plain values
        by = self._key_of(sender)
        if by is None or self._coordinator() != self._me:
            return ("elsewhere", ())
        with self._changed:
            if self._directory is not None:
                self._directory.drop(by, name)
        return ("dropped", ())

    def _reserve(self, ticket: int, by: WorkerKey, *, name: str) -> list[Respond]:
        assert self._directory is not None, "made before anything is asked"
        return self._directory.reserve(ticket, by, name)

    def _find(self, ticket: int, by: WorkerKey, *, name: str) -> list[Respond]:
        assert self._directory is not None, "as above"
        return self._directory.find(ticket, by, name)

    def _key_of(self, sender: WorkerInfo) -> WorkerKey | None:
        """None: it is no member any more, or this worker is none yet."""
        member = self._agent.group.members().get(sender.id) if self._agent.has_joined else None
        return None if member is None else member.key

    def _asked(
        self, sender: WorkerInfo, ask: "Callable[[int, WorkerKey], list[Respond]]", wait_s: float
    ) -> Any:  # Any: a future, or plain values
        """On a reading thread."""
        by = self._key_of(sender)
        if by is None or self._coordinator() != self._me:
            return ("elsewhere", ())
        self._become_coordinator()
        future: Future[Any] = Future()
        with self._changed:
            self._num_asked += 1
            ticket = self._num_asked
            self._tickets[ticket] = future
            answers = ask(ticket, by)
        if wait_s and not any(answer.ticket == ticket for answer in answers):
            self._agent.later(max(0.0, wait_s), partial(self._give_up, ticket))
        self._answer(answers)
        return future

    def _become_coordinator(self) -> None:
        """This worker is the coordinator: from now on it knows all names. The first one knows that there are none."""
        group = self._agent.group
        with self._changed:
            if self._directory is not None:
                return
            self._directory = Directory()
            others = {member.key for id, member in group.members().items() if id != self._agent.info.id}
            if group.knows[0] > 1:
                self._directory.collect({*others, self._me})
            else:
                others = set()
        for member in others:
            self._collect(member)
        if group.knows[0] > 1:
            self._note(self._directory.told, self._me, self._on_names(self._agent.info))

    def _collect(self, member: WorkerKey) -> None:
        self._agent.request(member.id, "services.names").add_done_callback(partial(self._collected, member))

    def _collected(self, member: WorkerKey, future: "Future[Any]") -> None:  # Any: names
        assert self._directory is not None, "it collects"
        if self._agent.is_closed:
            return
        error = error_of(future)
        if error is None:
            self._note(self._directory.told, member, tuple(future.value()))
        elif self._key_of(self._info_of(member)) == member:  # its link was cut, or it is about to be lost
            self._agent.later(_LOOK_AGAIN_S, partial(self._collect, member))
        else:
            self._note(self._directory.gone, member)

    def _on_event(self, event: Event) -> None:
        """On the hub's thread."""
        if self._directory is not None and not isinstance(event, Joined):
            self._note(self._directory.gone, event.member.key)
        with self._changed:
            self._changed.notify_all()

    def _give_up(self, ticket: int) -> None:
        assert self._directory is not None, "it was asked"
        self._note(self._directory.give_up, ticket)

    def _note(self, fact: Callable[..., list[Respond]], *args: object) -> None:
        with self._changed:
            answers = fact(*args)
        self._answer(answers)

    def _answer(self, answers: Sequence[Respond]) -> None:
        for ticket, answer in answers:
            with self._changed:
                future = self._tickets.pop(ticket, None)  # type: ignore[call-overload]  # an int
            if future is None:
                continue
            if isinstance(answer, Taken):
                future.set_result(("taken", answer.holder))
            else:
                future.set_result(("unknown", answer.names))


_NOT = 0.001  # as good as not at all; 0 would be for ever


def _taken(name: str, by: WorkerInfo) -> ValueError:
    return ValueError(
        f"the service {name!r} is taken: worker {by.name} (rank {by.id}) keeps what is registered under that name.\n"
        f"Take another name, or rpc.unregister({name!r}) first."
    )


def _there_are(names: Sequence[str]) -> str:
    return f"there are {', '.join(map(repr, names))}" if names else "there is none"


# -- what workers ask of the one that keeps a value ----------------------------------------------------------------


def hold(name: str, rref: "RRef[Any]", timeout_s: float) -> None:  # Any: of any type
    """Give a value of this worker a name."""
    services = _agent.current().services
    _check(name)
    services.hold(name, rref, services.until(timeout_s))


def hold_supervised(name: str, rref: "RRef[Any]", timeout_s: float) -> bool:  # Any: of any type
    """Give an actor a name, if this worker makes it again when it is lost."""
    services = _agent.current().services
    _check(name)
    own = _agent.current().actors.supervised(rref)
    if own is not None:
        services.hold(name, own, services.until(timeout_s))
    return own is not None


def hand_out(name: str) -> "RRef[Any] | None":  # Any: of any type
    """The reference of a name of this worker."""
    return _agent.current().services.hand_out(name)  # type: ignore[no-any-return]  # a reference


def release(name: str) -> bool:
    """Take a name of this worker away."""
    return bool(_agent.current().services.release(name))
