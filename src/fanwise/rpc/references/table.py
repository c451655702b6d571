"""The reference table of one worker: who holds which remote value. Facts in, orders out.

    user of a reference                                     owner
      created, confirmed, gave_up, not_sent, dropped          begun, value_ready, expect
      forked, leaving, unsent, received                       shared, leaving, unsent, received
    everybody: lost, cut, over, tick, on_batch, on_answer

What torch promises: the owner learns of the end of every fork; a fork outlives its children until their owner knows of
them. A user's fork is UNCONFIRMED -> confirmed (its owner has answered its ForkRequest, or the call that created it)
-> dropped by the program and without children -> Release. Messages go in numbered streams, so that each is handled
once and in order; each `tick` repeats what was unanswered at the tick before: who calls it chooses the time.

Death. What a dead worker held may live on in a fork that it had sent and whose holder is not yet known to the owner. So
its forks are not dropped at once: owner and parents ask all others (Drain) to take nothing more from the dead, all of
them, and to answer (Drained) when all they had from those is confirmed. Who dies before answering is asked about in
turn. Then the forks go. A fork that arrives after that is Refused: its use is an error, and it holds nothing.

Cuts. What was on a link that was cut, between workers that live, came or did not. Each side knows by which link a fork
left (`leaving`). When the other side has let go of that link (`cut` here, `over` there) it is asked again by its id:
what it does not hold by then it never will (Cut, NeverCame); and a call that did not come leaves an error in its
value's place (Unmade). To ask twice, or about what has long been settled, changes nothing.

Invariants: a value is freed when no fork is left, never while a living worker holds one or is being sent one; facts may
come late or twice; a lost worker is never heard again. What stays for ever is one number per peer and stream, one per
link that was cut while the peer lives, and the keys of the lost. Knows no values, threads, links or time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from ..messages.ids import Fork, GlobalId, WorkerKey
from .delivery import Inbox, Outbox
from .orders import (
    Acknowledge,
    Batch,
    ChildAccepted,
    Confirmed,
    Cut,
    Drain,
    Drained,
    FailRefs,
    FailValue,
    Forget,
    ForkRequest,
    FreeValue,
    NeverCame,
    Order,
    Refused,
    Release,
    Send,
    TableMessage,
    Unmade,
    Why,
)

_FORKS_A_MESSAGE = 1000


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
    was_cut: bool = False
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
        # Forks that were given up before their call came: who made them, by which link that call left, and of what.
        self._forgotten: dict[GlobalId, tuple[WorkerKey, int, GlobalId]] = {}
        # Forks that others have or will have from us: their reference, and the link.
        self._left_by: dict[GlobalId, tuple[GlobalId, int]] = {}
        self._over: dict[WorkerKey, set[int]] = {}  # links that nothing comes over any more
        self._parent_of: dict[GlobalId, GlobalId] = {}  # child on its way -> the fork of ours it came from
        self._outboxes: dict[WorkerKey, Outbox] = {}
        self._inboxes: dict[WorkerKey, Inbox] = {}
        self._fenced: set[WorkerKey] = set()
        self._lost: set[WorkerKey] = set()
        self._asked: dict[WorkerKey, set[WorkerKey]] = {}  # the lost -> who waits for our Drained
        self._inquiries: dict[WorkerKey, set[WorkerKey]] = {}  # the lost -> whose Drained we wait for
        # The lost of whom a Drain of ours may not have come to everybody: each Drain tells of all of them.
        self._untold: set[WorkerKey] = set()
        self._told_with: dict[WorkerKey, tuple[WorkerKey, ...]] = {}  # by inquiry
        self._orders: list[Order] = []
        self._posted: set[WorkerKey] = set()

    # -- what the service asks -------------------------------------------------------------------------------------

    def is_lost(self, worker: WorkerKey) -> bool:
        """Whether nothing may be sent to it any more."""
        return worker in self._fenced

    def waiting_for(self) -> list[WorkerKey]:
        """Whose answer is awaited. When there is nobody, a tick does nothing."""
        return [peer for peer, box in self._outboxes.items() if box.unanswered]

    @property
    def num_unconfirmed(self) -> int:
        """Forks held here whose owner is not known to know of them, and children on their way."""
        return sum(not (held.confirmed or held.given_up) for held in self.held.values()) + len(self._parent_of)

    @property
    def num_unanswered(self) -> int:
        """Messages on their way."""
        return sum(len(box.unanswered) for box in self._outboxes.values())

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
            self._left_by.pop(fork_id, None)
            if held.was_shared:
                self._post(held.owner, Unmade(held.rref_id, fork_id, "timed out" if timed_out else "not sent"))
            elif not held.was_cut:  # else its owner is asked, and knows of it then
                del self.held[fork_id]
        return self._done()

    def leaving(self, forks: Iterable[tuple[GlobalId, GlobalId]], link: int) -> list[Order]:
        """These, (reference, fork), leave by this link: forks for others, and those of calls that create."""
        for rref_id, fork_id in forks:
            owned = self.owned.get(rref_id)
            if fork_id in self.held or fork_id in self._parent_of or (owned is not None and fork_id in owned.forks):
                self._left_by[fork_id] = rref_id, link
        return self._done()

    def stays(self, fork_id: GlobalId) -> bool:
        """The call that creates this has not left after all. False: its owner is asked already: it must not leave."""
        return self._left_by.pop(fork_id, None) is not None

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

    def cut(self, peer: WorkerKey, link: int) -> list[Order]:
        """A link to `peer`, which lives, was cut: nothing that left by it will come there any more. May be repeated."""
        if peer in self._fenced:
            return []
        asked = []
        for fork_id in [fork_id for fork_id, (_, left_by) in self._left_by.items() if left_by == link]:
            rref_id, _ = self._left_by.pop(fork_id)
            held = self.held.get(fork_id)
            if held is not None:  # a call that creates
                if not held.confirmed:
                    held.was_cut = True
                    self._post(peer, Unmade(rref_id, fork_id, "cut"))
                continue
            asked.append((rref_id, fork_id))
        for begin in range(0, len(asked), _FORKS_A_MESSAGE):
            self._post(peer, Cut(tuple(asked[begin : begin + _FORKS_A_MESSAGE])))
        return self._done()

    def over(self, peer: WorkerKey, link: int) -> list[Order]:
        """Nothing that `peer` sent by this link will come any more. May be repeated."""
        if peer not in self._fenced:
            self._over.setdefault(peer, set()).add(link)
            for fork_id in [
                f for f, (maker, left_by, _) in self._forgotten.items() if (maker, left_by) == (peer, link)
            ]:
                *_, rref_id = self._forgotten.pop(fork_id)
                self._never_comes(rref_id, peer)
        return self._done()

    def again(self, peer: WorkerKey) -> list[Order]:
        """There is a new link to `peer`: what it has not answered is sent again."""
        box = self._outboxes.get(peer)
        if box is not None and box.unanswered:
            self._orders.append(Send(Batch(self.me, peer, *box.first())))
        return self._done()

    def lost(self, worker: WorkerKey, alive: Iterable[WorkerKey]) -> list[Order]:
        """`worker` is dead or has left. `alive`: all who may have had something from it."""
        if worker in self._lost or worker == self.me:
            return []
        self._lost.add(worker)
        self._untold.add(worker)
        self._fenced.add(worker)
        self._outboxes.pop(worker, None)
        self._inboxes.pop(worker, None)
        self._over.pop(worker, None)
        for askers in self._asked.values():
            askers.discard(worker)
        self._fail_refs_of(worker)
        self._fail_values_from(worker)
        if self._holds_something(worker):
            self._inquire(worker, alive)
        self._answer_drains()
        return self._done()

    def tick(self) -> list[Order]:
        """Some time has gone by: what was unanswered at the last tick, too, is sent again."""
        for peer, box in self._outboxes.items():
            again = box.overdue()
            if again is not None:
                self._orders.append(Send(Batch(self.me, peer, *again)))
        return self._done()

    def on_batch(self, batch: Batch) -> list[Order]:
        """Messages have come. The lost are not heard, nor is who means another life of this worker."""
        if batch.to != self.me or batch.sender in self._fenced:
            return []
        inbox = self._inboxes.setdefault(batch.sender, Inbox())
        for message in inbox.take(batch.first, batch.messages):
            self._handle(batch.sender, message)
        return [Acknowledge(batch.sender, inbox.up_to), *self._done()]

    def left(self, worker: WorkerKey) -> list[Order]:
        """The shutdown of all is over, and `worker` has gone already: what it has not answered it needs no more."""
        box = self._outboxes.get(worker)
        if box is not None:
            box.unanswered.clear()
        return self._done()

    def on_answer(self, peer: WorkerKey, up_to: int) -> list[Order]:
        """`peer` has our messages up to this number."""
        box = self._outboxes.get(peer)
        for message in box.answered(up_to) if box is not None else ():
            if isinstance(message, ForkRequest | Unmade):
                self._confirm(message.fork_id)
        return self._done()

    # -- streams ---------------------------------------------------------------------------------------------------

    def _post(self, to: WorkerKey, message: TableMessage) -> None:
        if to not in self._fenced:
            self._outboxes.setdefault(to, Outbox()).post(message)
            self._posted.add(to)

    def _done(self) -> list[Order]:
        """All orders since the last call."""
        for peer in sorted(self._posted):
            box = self._outboxes.get(peer)
            if box is not None and box.fresh_number < box.next_number:
                self._orders.append(Send(Batch(self.me, peer, *box.fresh())))
        self._posted.clear()
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
            case Forget(rref_id, fork_id, link):
                self._forget(rref_id, fork_id, sender, link)
            case Unmade(rref_id, fork_id, why):
                self._make_error(rref_id, fork_id, sender, why)
            case Cut(forks):
                absent = tuple((rref_id, fork_id) for rref_id, fork_id in forks if fork_id not in self.held)
                if absent:
                    self._post(sender, NeverCame(absent))
            case NeverCame(forks):
                for rref_id, fork_id in forks:
                    self._accepted(fork_id)
                    self._drop_fork(rref_id, fork_id)
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
        self._left_by.pop(fork_id, None)
        self._orders.append(Confirmed(fork_id))
        if held.parent is not None:
            self._post(held.parent, ChildAccepted(fork_id))
        self._answer_drains()
        self._settle(fork_id)

    def _accepted(self, fork_id: GlobalId) -> None:
        source = self._parent_of.pop(fork_id, None)
        self._left_by.pop(fork_id, None)
        if source is not None:
            self.held[source].children.pop(fork_id)
            self._settle(source)

    def _settle(self, fork_id: GlobalId) -> None:
        """Release a fork that nobody here needs. One that is unconfirmed waits: the owner may not know it yet."""
        held = self.held.get(fork_id)
        if held is None or not held.dropped or held.children or not (held.confirmed or held.given_up):
            return
        if held.was_cut and not held.confirmed:  # its owner is just asked
            return
        del self.held[fork_id]
        _, link = self._left_by.pop(fork_id, (held.rref_id, 0))
        if held.confirmed:
            self._post(held.owner, Release(held.rref_id, fork_id))
        else:
            self._post(held.owner, Forget(held.rref_id, fork_id, link))

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

    def _forget(self, rref_id: GlobalId, fork_id: GlobalId, creator: WorkerKey, link: int) -> None:
        owned = self.owned.get(rref_id)
        if owned is not None and fork_id in owned.forks:
            self._drop_fork(rref_id, fork_id)
        elif link in self._over.get(creator, ()):
            self._never_comes(rref_id, creator)
        else:
            self._forgotten[fork_id] = creator, link, rref_id

    def _never_comes(self, rref_id: GlobalId, creator: WorkerKey) -> None:
        """The call that was to create this was cut, and its creator has given it up; others may have asked for it."""
        owned = self.owned.get(rref_id)
        if owned is not None and not owned.begun:
            owned.begun = True
            self._orders.append(FailValue(rref_id, creator, "cut"))
            self._free_unused(rref_id)

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
            self._left_by.pop(fork_id, None)
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
            self._left_by.pop(fork_id, None)
            for child in self.held.pop(fork_id).children:
                del self._parent_of[child]
                self._left_by.pop(child, None)
        if failed:
            self._orders.append(FailRefs(tuple(failed), owner))

    def _fail_values_from(self, creator: WorkerKey) -> None:
        for fork_id in [fork_id for fork_id, (maker, *_) in self._forgotten.items() if maker == creator]:
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
