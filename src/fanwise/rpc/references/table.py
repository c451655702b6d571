"""State machine of the references of one worker: which worker holds which remote value. Events in, orders out.

    user of a reference                                     owner
      created, confirmed, gave_up, not_sent, dropped          begun, value_ready
      forked, unsent, received                                shared, unsent, received
    both: lost, on_batch, delivered

As in torch, the owner learns of the end of every fork, and a fork outlives its children until their owner knows them.
A user's fork is unconfirmed, then confirmed (its owner has handled its ForkRequest, or the call that created it), then
released, when the program has dropped it and it has no children. Messages to one worker are handled once and in order,
because links do that while both workers live.

Lost workers. A value that a lost worker held may live on in a fork that it had sent, whose holder the owner does not
know yet. Therefore its forks are not dropped at once. Owner and parents ask all other workers to accept nothing more
from lost workers (Drain), and to reply when everything they had from those is confirmed (Drained). A worker that is
lost before it replies is asked about in turn. Then the forks are dropped. A fork that arrives later is Refused: its use
is an error, and it holds nothing.

Invariants: a value is freed when no fork is left, and never while a living worker holds one or is being sent one;
events may be late or repeated; messages of a lost worker are ignored. Only the keys of lost workers are kept for ever.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from ..messages.ids import Fork, GlobalId, WorkerKey
from .orders import (
    Batch,
    ChildAccepted,
    Confirmed,
    Drain,
    Drained,
    FailRefs,
    FailValue,
    Forget,
    ForkRequest,
    FreeValue,
    Order,
    Refused,
    Release,
    Send,
    TableMessage,
    Unmade,
    Why,
)


@dataclass(slots=True)
class Held:
    """A fork that this worker holds of another's value. `parent`: who must hear that it is confirmed.

    `was_shared`: others may have it from here.
    """

    rref_id: GlobalId
    owner: WorkerKey
    parent: WorkerKey | None
    confirmed: bool = False
    given_up: bool = False
    dropped: bool = False
    was_shared: bool = False
    children: dict[GlobalId, WorkerKey] = field(default_factory=dict)


@dataclass(slots=True)
class Owned:
    """A value of this worker that others hold. `begun`: its value is here or being made; else its call is awaited."""

    begun: bool
    forks: dict[GlobalId, WorkerKey] = field(default_factory=dict)


@final
class RefTable:
    """See the module. `me` is this life of this worker."""

    def __init__(self, me: WorkerKey) -> None:
        self.me = me
        self.held: dict[GlobalId, Held] = {}  # by fork
        self.owned: dict[GlobalId, Owned] = {}  # by reference
        # Forks that were given up before their call came, and who made them.
        self._forgotten: dict[GlobalId, WorkerKey] = {}
        self._parent_of: dict[GlobalId, GlobalId] = {}  # child on its way -> the fork of ours it came from
        self._posted: dict[WorkerKey, list[TableMessage]] = {}  # since the last `_done`
        self._undelivered: Counter[WorkerKey] = Counter()  # number of messages
        self._fenced: set[WorkerKey] = set()
        self._lost: set[WorkerKey] = set()
        self._asked: dict[WorkerKey, set[WorkerKey]] = {}  # the lost -> who waits for our Drained
        self._inquiries: dict[WorkerKey, set[WorkerKey]] = {}  # the lost -> whose Drained we wait for
        # The lost of whom a Drain of ours may not have come to everybody: each Drain tells of all of them.
        self._untold: set[WorkerKey] = set()
        self._told_with: dict[WorkerKey, tuple[WorkerKey, ...]] = {}  # by inquiry
        self._orders: list[Order] = []

    # -- what the service asks -------------------------------------------------------------------------------------

    def is_lost(self, worker: WorkerKey) -> bool:
        """Whether nothing may be sent to it any more."""
        return worker in self._fenced

    def waiting_for(self) -> list[WorkerKey]:
        """Return the workers to which messages are on their way."""
        return list(self._undelivered)

    @property
    def num_unconfirmed(self) -> int:
        """Forks held here whose owner is not known to know of them, and children on their way."""
        return sum(not (held.confirmed or held.given_up) for held in self.held.values()) + len(self._parent_of)

    @property
    def num_unanswered(self) -> int:
        """Messages on their way."""
        return self._undelivered.total()

    @property
    def num_forks(self) -> int:
        """Forks of the values of this worker."""
        return sum(len(owned.forks) for owned in self.owned.values())

    # -- facts of a user -------------------------------------------------------------------------------------------

    def created(self, rref_id: GlobalId, fork_id: GlobalId, owner: WorkerKey) -> list[Order]:
        """The program calls `remote`: the call that carries both ids is about to go to another worker."""
        if owner in self._fenced:
            return [Refused(fork_id, owner)]
        self.held[fork_id] = Held(rref_id, owner, parent=None)
        return self._done()

    def confirmed(self, fork_id: GlobalId) -> list[Order]:
        """The owner has answered the call that created this."""
        self._confirm(fork_id)
        return self._done()

    def gave_up(self, fork_id: GlobalId) -> list[Order]:
        """The call that creates this was sent and ran out of time. It may still come to the owner."""
        held = self.held.get(fork_id)
        if held is not None and not held.confirmed and held.parent is None:
            held.given_up = True
            self._settle(fork_id)
        return self._done()

    def not_sent(self, fork_id: GlobalId, *, timed_out: bool) -> list[Order]:
        """The call that creates this will never come to the owner, who may have been asked for the value by others."""
        held = self.held.get(fork_id)
        if held is not None and not held.confirmed and held.parent is None:
            if held.was_shared:
                self._post(held.owner, Unmade(held.rref_id, fork_id, "timed out" if timed_out else "not sent"))
            else:
                del self.held[fork_id]
        return self._done()

    def forked(self, source: GlobalId, fork: Fork, child: WorkerKey) -> list[Order]:
        """`source`, a fork held here, is being sent to `child` as `fork`."""
        held = self.held.get(source)
        if held is not None and child not in self._fenced:
            held.was_shared = True
            held.children[fork.fork_id] = child
            self._parent_of[fork.fork_id] = source
        return self._done()

    def dropped(self, *fork_ids: GlobalId) -> list[Order]:
        """The program has let go of these forks."""
        for fork_id in fork_ids:
            held = self.held.get(fork_id)
            if held is not None:
                held.dropped = True
                self._settle(fork_id)
        return self._done()

    def received(self, fork: Fork) -> list[Order]:
        """A call has brought this. The owner's own comes home: nothing to hold, its parent may go."""
        lost = next((worker for worker in (fork.owner, fork.parent) if worker in self._fenced), None)
        if lost is not None:
            return [Refused(fork.fork_id, lost)]
        if fork.owner == self.me:
            self._came_home(fork)
        elif fork.fork_id not in self.held:
            by_owner = fork.parent == fork.owner
            self.held[fork.fork_id] = Held(fork.rref_id, fork.owner, None if by_owner else fork.parent)
            if by_owner:
                self._confirm(fork.fork_id)
            else:
                self._post(fork.owner, ForkRequest(fork.rref_id, fork.fork_id))
        return self._done()

    def unsent(self, fork: Fork) -> list[Order]:
        """The call that was to carry this never left."""
        if fork.owner == self.me:
            self._drop_fork(fork.rref_id, fork.fork_id)
        else:
            self._accepted(fork.fork_id)
        return self._done()

    # -- facts of an owner -----------------------------------------------------------------------------------------

    def shared(self, fork: Fork, child: WorkerKey) -> list[Order]:
        """A value of this worker is being sent to `child` as a reference."""
        if child not in self._fenced:
            self.owned.setdefault(fork.rref_id, Owned(begun=True)).forks[fork.fork_id] = child
        return self._done()

    def begun(self, rref_id: GlobalId, fork_id: GlobalId, creator: WorkerKey) -> list[Order]:
        """The call that creates this value is here. `creator` may be this worker: then until `value_ready`."""
        owned = self.owned.setdefault(rref_id, Owned(begun=True))
        owned.begun = True
        if self._forgotten.pop(fork_id, None) is None and creator not in self._fenced:
            owned.forks[fork_id] = creator
        self._free_unused(rref_id)
        return self._done()

    def value_ready(self, rref_id: GlobalId, fork_id: GlobalId) -> list[Order]:
        """The value that this worker created for itself is there: whoever wants it holds it."""
        self._drop_fork(rref_id, fork_id)
        return self._done()

    # -- facts of everybody ----------------------------------------------------------------------------------------

    def lost(self, worker: WorkerKey, alive: Iterable[WorkerKey]) -> list[Order]:
        """`worker` is dead or has left. `alive`: all who may have had something from it."""
        if worker in self._lost or worker == self.me:
            return []
        self._lost.add(worker)
        self._untold.add(worker)
        self._fenced.add(worker)
        self._posted.pop(worker, None)
        self._undelivered.pop(worker, None)
        for askers in self._asked.values():
            askers.discard(worker)
        self._fail_refs_of(worker)
        self._fail_values_from(worker)
        if self._holds_something(worker):
            self._inquire(worker, alive)
        self._answer_drains()
        return self._done()

    def on_batch(self, batch: Batch) -> list[Order]:
        """Messages have come. The lost are not heard, nor is who means another life of this worker."""
        if batch.to != self.me or batch.sender in self._fenced:
            return []
        for message in batch.messages:
            self._handle(batch.sender, message)
        return self._done()

    def left(self, worker: WorkerKey) -> list[Order]:
        """The shutdown of all is over, and `worker` has gone already: what it has not answered it needs no more."""
        self._undelivered.pop(worker, None)
        return self._done()

    def delivered(self, batch: Batch) -> list[Order]:
        """The receiver has handled our batch."""
        if batch.to in self._undelivered:
            self._undelivered[batch.to] -= len(batch.messages)
            if not self._undelivered[batch.to]:
                del self._undelivered[batch.to]
            for message in batch.messages:
                if isinstance(message, ForkRequest | Unmade):
                    self._confirm(message.fork_id)
        return self._done()

    # -- messages ---------------------------------------------------------------------------------------------------

    def _post(self, to: WorkerKey, message: TableMessage) -> None:
        if to not in self._fenced:
            self._posted.setdefault(to, []).append(message)

    def _done(self) -> list[Order]:
        """All orders since the last call."""
        posted, self._posted = self._posted, {}
        for peer, messages in sorted(posted.items()):
            self._undelivered[peer] += len(messages)
            self._orders.append(Send(Batch(self.me, peer, tuple(messages))))
        orders, self._orders = self._orders, []
        return orders

    def _handle(self, sender: WorkerKey, message: TableMessage) -> None:
        match message:
            case ForkRequest(rref_id, fork_id):
                self._register(rref_id, fork_id, sender)
            case ChildAccepted(fork_id):
                self._accepted(fork_id)
            case Release(rref_id, fork_id):
                self._drop_fork(rref_id, fork_id)
            case Forget(rref_id, fork_id):
                self._forget(rref_id, fork_id, sender)
            case Unmade(rref_id, fork_id, why):
                self._make_error(rref_id, fork_id, sender, why)
            case Drain(lost, lost_before):
                self._fenced.update({lost, *lost_before} - {self.me})
                self._asked.setdefault(lost, set()).add(sender)
                self._answer_drains()
            case Drained(lost):
                self._has_drained(lost, sender)

    # -- forks that this worker holds ------------------------------------------------------------------------------

    def _confirm(self, fork_id: GlobalId) -> None:
        held = self.held.get(fork_id)
        if held is None or held.confirmed:
            return
        held.confirmed = True
        self._orders.append(Confirmed(fork_id))
        if held.parent is not None:
            self._post(held.parent, ChildAccepted(fork_id))
        self._answer_drains()
        self._settle(fork_id)

    def _accepted(self, fork_id: GlobalId) -> None:
        source = self._parent_of.pop(fork_id, None)
        if source is not None:
            self.held[source].children.pop(fork_id)
            self._settle(source)

    def _settle(self, fork_id: GlobalId) -> None:
        """Release a fork that nobody here needs. One that is unconfirmed waits: the owner may not know it yet."""
        held = self.held.get(fork_id)
        if held is None or not held.dropped or held.children or not (held.confirmed or held.given_up):
            return
        del self.held[fork_id]
        if held.confirmed:
            self._post(held.owner, Release(held.rref_id, fork_id))
        else:
            self._post(held.owner, Forget(held.rref_id, fork_id))

    # -- values that this worker owns ------------------------------------------------------------------------------

    def _came_home(self, fork: Fork) -> None:
        if fork.parent == self.me:
            self._drop_fork(fork.rref_id, fork.fork_id)
            return
        # Its parent lives and holds the reference until we accept: so it was not freed, it is yet to be created.
        if not self._expect(fork.rref_id):
            self._orders.append(Refused(fork.fork_id, fork.rref_id.creator))
        self._post(fork.parent, ChildAccepted(fork.fork_id))

    def _expect(self, rref_id: GlobalId) -> bool:
        """Whether the value is here or may still be created. Its creator may be a dead worker, and its call lost."""
        if rref_id not in self.owned:
            if rref_id.creator in self._fenced or rref_id.creator == self.me:
                return False
            self.owned[rref_id] = Owned(begun=False)
        return True

    def _register(self, rref_id: GlobalId, fork_id: GlobalId, holder: WorkerKey) -> None:
        if self._expect(rref_id):  # else the holder learns it when it asks for the value
            self.owned[rref_id].forks[fork_id] = holder

    def _forget(self, rref_id: GlobalId, fork_id: GlobalId, creator: WorkerKey) -> None:
        owned = self.owned.get(rref_id)
        if owned is not None and fork_id in owned.forks:
            self._drop_fork(rref_id, fork_id)
        else:
            self._forgotten[fork_id] = creator

    def _make_error(self, rref_id: GlobalId, fork_id: GlobalId, creator: WorkerKey, why: Why) -> None:
        """As if the call had come, and its function had failed: whoever has the reference from there learns it."""
        owned = self.owned.setdefault(rref_id, Owned(begun=False))
        owned.forks[fork_id] = creator
        if not owned.begun:
            owned.begun = True
            self._orders.append(FailValue(rref_id, creator, why))

    def _drop_fork(self, rref_id: GlobalId, fork_id: GlobalId) -> None:
        owned = self.owned.get(rref_id)
        if owned is not None and owned.forks.pop(fork_id, None) is not None:
            self._free_unused(rref_id)

    def _free_unused(self, rref_id: GlobalId) -> None:
        owned = self.owned.get(rref_id)
        if owned is not None and owned.begun and not owned.forks:
            del self.owned[rref_id]
            self._orders.append(FreeValue(rref_id))

    # -- deaths ----------------------------------------------------------------------------------------------------

    def _fail_refs_of(self, owner: WorkerKey) -> None:
        failed = [fork_id for fork_id, held in self.held.items() if held.owner == owner]
        for fork_id in failed:
            for child in self.held.pop(fork_id).children:
                del self._parent_of[child]
        if failed:
            self._orders.append(FailRefs(tuple(failed), owner))

    def _fail_values_from(self, creator: WorkerKey) -> None:
        for fork_id in [fork_id for fork_id, maker in self._forgotten.items() if maker == creator]:
            del self._forgotten[fork_id]
        for rref_id, owned in list(self.owned.items()):
            if not owned.begun and rref_id.creator == creator:
                owned.begun = True
                self._orders.append(FailValue(rref_id, creator, "died"))
                self._free_unused(rref_id)

    def _holds_something(self, worker: WorkerKey) -> bool:
        return (
            any(worker in awaited for awaited in self._inquiries.values())
            or any(worker in owned.forks.values() for owned in self.owned.values())
            or any(worker in held.children.values() for held in self.held.values())
        )

    def _inquire(self, lost: WorkerKey, alive: Iterable[WorkerKey]) -> None:
        awaited = {worker for worker in alive if worker not in self._lost and worker != self.me}
        self._inquiries[lost] = awaited
        self._told_with[lost] = untold = tuple(sorted(self._untold))
        for worker in sorted(awaited):
            self._post(worker, Drain(lost, untold))
        self._end_inquiry(lost)

    def _has_drained(self, lost: WorkerKey, by: WorkerKey) -> None:
        if lost in self._inquiries:
            self._inquiries[lost].discard(by)
            self._end_inquiry(lost)

    def _end_inquiry(self, lost: WorkerKey) -> None:
        if self._inquiries.get(lost) != set():
            return
        del self._inquiries[lost]
        self._untold.difference_update(self._told_with.pop(lost))
        for rref_id, owned in list(self.owned.items()):
            for fork_id in [fork_id for fork_id, holder in owned.forks.items() if holder == lost]:
                self._drop_fork(rref_id, fork_id)
        for held in list(self.held.values()):
            for fork_id in [fork_id for fork_id, child in held.children.items() if child == lost]:
                self._accepted(fork_id)
        for other in list(self._inquiries):
            self._has_drained(other, lost)

    def _answer_drains(self) -> None:
        """Say Drained when nothing that came from the fenced is unconfirmed any more."""
        if not self._asked or any(held.parent in self._fenced for held in self.held.values() if not held.confirmed):
            return
        for lost, askers in self._asked.items():
            for asker in sorted(askers):
                self._post(asker, Drained(lost))
        self._asked.clear()
