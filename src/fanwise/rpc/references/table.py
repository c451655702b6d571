"""State machine for the references of one worker: which worker holds which remote value. Events in, actions out.

    events of a user    create, on_created, on_creation_timeout, on_creation_unsent, fork, release
    events of an owner  share, on_creation_received, on_value
    events of both      on_fork_received, on_fork_unsent, on_batch, on_delivered, on_lost

As in torch, the owner learns of the end of every fork, and a fork outlives its children until the owner knows them. A
user's fork is unconfirmed, then confirmed (the owner has handled its ForkRequest, or the call that created it), then
released, when the program has released it and it has no children. While two workers live, each batch between them is
handled exactly once.

Lost workers. A value that a lost worker held may live on in a fork that it had sent, whose holder the owner does not
know yet. Therefore its forks are not dropped at once. Owner and parents ask all other workers to accept nothing more
from lost workers (FlushRequest), and to reply when everything they had from those is confirmed (FlushReply). If a
worker is lost before it replies, it is flushed in turn. Then the forks are dropped. A fork that arrives later fails
(FailFork) and holds nothing.

Invariants: a value is freed when no fork is left, and never while a living worker holds one or is being sent one.
Messages of a lost worker are ignored. Only the keys of lost workers are kept for ever.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from ..messages.ids import Fork, GlobalId, WorkerKey
from .protocol import (
    Action,
    Batch,
    ChildAccepted,
    ConfirmFork,
    CreationFailed,
    FailFork,
    FailValue,
    FlushReply,
    FlushRequest,
    ForkRequest,
    FreeValue,
    Reason,
    Release,
    Send,
    TableMessage,
)


@dataclass(slots=True)
class UserFork:
    """A fork that this worker holds of a value of another worker.

    Attributes:
        parent: the worker to notify when the fork is confirmed.
        is_timed_out: the call that creates the value timed out.
        is_released: the program has released it.
        was_forked: other workers may have got the reference from here.
        children: forks sent to other workers that the owner may not know.
    """

    rref_id: GlobalId
    owner: WorkerKey
    parent: WorkerKey | None
    is_confirmed: bool = False
    is_timed_out: bool = False
    is_released: bool = False
    was_forked: bool = False
    children: dict[GlobalId, WorkerKey] = field(default_factory=dict)


@dataclass(slots=True)
class OwnedValue:
    """A value of this worker, and the holders of its forks. `is_created`: False while its call is awaited."""

    is_created: bool
    forks: dict[GlobalId, WorkerKey] = field(default_factory=dict)


@dataclass(slots=True)
class Flush:
    """Workers that have not replied to a FlushRequest, and the lost workers that it names."""

    pending: set[WorkerKey]
    lost_before: tuple[WorkerKey, ...]


@final
class RefTable:
    """See the module. `me` is this incarnation of this worker."""

    def __init__(self, me: WorkerKey) -> None:
        self.me = me
        self.user_forks: dict[GlobalId, UserFork] = {}  # by fork
        self.owned: dict[GlobalId, OwnedValue] = {}  # by reference
        self._canceled: dict[GlobalId, WorkerKey] = {}  # creators of forks canceled before their call arrived
        self._parent_of: dict[GlobalId, GlobalId] = {}  # child being sent -> the fork of ours it came from
        self._outbox: dict[WorkerKey, list[TableMessage]] = {}
        self._undelivered: Counter[WorkerKey] = Counter()  # number of messages
        self._fenced: set[WorkerKey] = set()  # lost workers, also those that only other workers have reported
        self._lost: set[WorkerKey] = set()
        self._requesters: dict[WorkerKey, set[WorkerKey]] = {}  # lost worker -> workers that wait for our FlushReply
        self._flushes: dict[WorkerKey, Flush] = {}  # by lost worker
        self._unannounced: set[WorkerKey] = set()  # lost workers that no completed flush has announced to all
        self._actions: list[Action] = []

    def is_lost(self, worker: WorkerKey) -> bool:
        """Return True if nothing may be sent to `worker` any more."""
        return worker in self._fenced

    @property
    def num_unconfirmed(self) -> int:
        """Number of forks held here that the owner may not know, and of children being sent."""
        forks = self.user_forks.values()
        return sum(not (fork.is_confirmed or fork.is_timed_out) for fork in forks) + len(self._parent_of)

    @property
    def num_undelivered(self) -> int:
        """Number of messages that were not acknowledged."""
        return self._undelivered.total()

    @property
    def num_forks(self) -> int:
        """Number of forks of the values of this worker."""
        return sum(len(owned.forks) for owned in self.owned.values())

    # -- events of a user ------------------------------------------------------------------------------------------

    def create(self, rref_id: GlobalId, fork_id: GlobalId, owner: WorkerKey) -> list[Action]:
        """The program calls `remote`: the call that carries both ids is about to be sent to another worker."""
        if owner in self._fenced:
            return [FailFork(fork_id, owner)]
        self.user_forks[fork_id] = UserFork(rref_id, owner, parent=None)
        return self._take_actions()

    def on_created(self, fork_id: GlobalId) -> list[Action]:
        """The owner has replied to the call that creates the value."""
        self._confirm(fork_id)
        return self._take_actions()

    def on_creation_timeout(self, fork_id: GlobalId) -> list[Action]:
        """The creating call was sent and has timed out. It may still arrive at the owner."""
        fork = self._find_uncreated(fork_id)
        if fork is not None:
            fork.is_timed_out = True
            self._release_unused(fork_id)
        return self._take_actions()

    def on_creation_unsent(self, fork_id: GlobalId, reason: Reason) -> list[Action]:
        """The creating call will never arrive at the owner, which other workers may have asked for the value."""
        fork = self._find_uncreated(fork_id)
        if fork is not None:
            if fork.was_forked:
                self._post(fork.owner, CreationFailed(fork.rref_id, fork_id, reason))
            else:
                del self.user_forks[fork_id]
        return self._take_actions()

    def _find_uncreated(self, fork_id: GlobalId) -> UserFork | None:
        """Return a fork that this worker created, if the owner has not confirmed it."""
        fork = self.user_forks.get(fork_id)
        return fork if fork is not None and not fork.is_confirmed and fork.parent is None else None

    def fork(self, source: GlobalId, fork: Fork, child: WorkerKey) -> list[Action]:
        """The fork `source`, held here, is being sent to `child` as `fork`."""
        held = self.user_forks.get(source)
        if held is not None and child not in self._fenced:
            held.was_forked = True
            held.children[fork.fork_id] = child
            self._parent_of[fork.fork_id] = source
        return self._take_actions()

    def release(self, *fork_ids: GlobalId) -> list[Action]:
        """The program has released these forks."""
        for fork_id in fork_ids:
            fork = self.user_forks.get(fork_id)
            if fork is not None:
                fork.is_released = True
                self._release_unused(fork_id)
        return self._take_actions()

    # -- events of an owner ----------------------------------------------------------------------------------------

    def share(self, fork: Fork, child: WorkerKey) -> list[Action]:
        """A value of this worker is being sent to `child` as a reference."""
        if child not in self._fenced:
            self.owned.setdefault(fork.rref_id, OwnedValue(is_created=True)).forks[fork.fork_id] = child
        return self._take_actions()

    def on_creation_received(self, rref_id: GlobalId, fork_id: GlobalId, creator: WorkerKey) -> list[Action]:
        """The call that creates this value has arrived. A value that this worker creates is held until `on_value`."""
        owned = self.owned.setdefault(rref_id, OwnedValue(is_created=True))
        owned.is_created = True
        if self._canceled.pop(fork_id, None) is None and creator not in self._fenced:
            owned.forks[fork_id] = creator
        self._free_unused(rref_id)
        return self._take_actions()

    def on_value(self, rref_id: GlobalId, fork_id: GlobalId) -> list[Action]:
        """A value that this worker created for itself is complete. From now on only its forks hold it."""
        self._drop_fork(rref_id, fork_id)
        return self._take_actions()

    # -- events of both --------------------------------------------------------------------------------------------

    def on_fork_received(self, fork: Fork) -> list[Action]:
        """A call has brought this fork."""
        lost = next((worker for worker in (fork.owner, fork.parent) if worker in self._fenced), None)
        if lost is not None:
            return [FailFork(fork.fork_id, lost)]
        if fork.owner == self.me:
            self._return_to_owner(fork)
        elif fork.fork_id not in self.user_forks:
            is_from_owner = fork.parent == fork.owner
            self.user_forks[fork.fork_id] = UserFork(fork.rref_id, fork.owner, None if is_from_owner else fork.parent)
            if is_from_owner:
                self._confirm(fork.fork_id)
            else:
                self._post(fork.owner, ForkRequest(fork.rref_id, fork.fork_id))
        return self._take_actions()

    def on_fork_unsent(self, fork: Fork) -> list[Action]:
        """The call that was to carry this fork was not sent."""
        if fork.owner == self.me:
            self._drop_fork(fork.rref_id, fork.fork_id)
        else:
            self._remove_child(fork.fork_id)
        return self._take_actions()

    def on_lost(self, worker: WorkerKey, alive: Iterable[WorkerKey]) -> list[Action]:
        """`worker` has died or left. `alive`: all workers that may have got forks from it."""
        if worker in self._lost or worker == self.me:
            return []
        self._lost.add(worker)
        self._unannounced.add(worker)
        self._fenced.add(worker)
        self._outbox.pop(worker, None)
        self._undelivered.pop(worker, None)
        for requesters in self._requesters.values():
            requesters.discard(worker)
        for fork_id in [fork_id for fork_id, fork in self.user_forks.items() if fork.owner == worker]:
            for child in self.user_forks.pop(fork_id).children:
                del self._parent_of[child]
            self._actions.append(FailFork(fork_id, worker))
        for fork_id in [fork_id for fork_id, creator in self._canceled.items() if creator == worker]:
            del self._canceled[fork_id]
        for rref_id, owned in list(self.owned.items()):
            if rref_id.creator == worker:
                self._fail_value(rref_id, owned, worker, "died")
                self._free_unused(rref_id)
        if self._holds_something(worker):
            self._begin_flush(worker, alive)
        self._reply_to_flushes()
        return self._take_actions()

    def on_batch(self, batch: Batch) -> list[Action]:
        """Messages have arrived. Those of lost workers, or for another incarnation, are ignored."""
        if batch.to != self.me or batch.sender in self._fenced:
            return []
        for message in batch.messages:
            self._handle(batch.sender, message)
        return self._take_actions()

    def on_delivered(self, batch: Batch) -> list[Action]:
        """The receiver has handled a batch of this worker."""
        if batch.to in self._undelivered:
            self._undelivered[batch.to] -= len(batch.messages)
            if not self._undelivered[batch.to]:
                del self._undelivered[batch.to]
            for message in batch.messages:
                if isinstance(message, ForkRequest | CreationFailed):
                    self._confirm(message.fork_id)
        return self._take_actions()

    # -- messages ---------------------------------------------------------------------------------------------------

    def _post(self, to: WorkerKey, message: TableMessage) -> None:
        if to not in self._fenced:
            self._outbox.setdefault(to, []).append(message)

    def _take_actions(self) -> list[Action]:
        """Return all actions since the last call."""
        outbox, self._outbox = self._outbox, {}
        for peer, messages in sorted(outbox.items()):
            self._undelivered[peer] += len(messages)
            self._actions.append(Send(Batch(self.me, peer, tuple(messages))))
        actions, self._actions = self._actions, []
        return actions

    def _handle(self, sender: WorkerKey, message: TableMessage) -> None:
        match message:
            case ForkRequest(rref_id, fork_id):
                if self._expect(rref_id):  # otherwise the holder gets an error when it asks for the value
                    self.owned[rref_id].forks[fork_id] = sender
            case ChildAccepted(fork_id):
                self._remove_child(fork_id)
            case Release(rref_id, fork_id):
                if not self._drop_fork(rref_id, fork_id) and rref_id.creator == sender:
                    self._canceled[fork_id] = sender  # the creating call is yet to arrive
            case CreationFailed(rref_id, fork_id, reason):
                owned = self.owned.setdefault(rref_id, OwnedValue(is_created=False))
                owned.forks[fork_id] = sender
                self._fail_value(rref_id, owned, sender, reason)
            case FlushRequest(lost, lost_before):
                self._fenced.update({lost, *lost_before} - {self.me})
                self._requesters.setdefault(lost, set()).add(sender)
                self._reply_to_flushes()
            case FlushReply(lost):
                self._on_flushed(lost, sender)

    # -- forks that this worker holds ------------------------------------------------------------------------------

    def _confirm(self, fork_id: GlobalId) -> None:
        fork = self.user_forks.get(fork_id)
        if fork is None or fork.is_confirmed:
            return
        fork.is_confirmed = True
        self._actions.append(ConfirmFork(fork_id))
        if fork.parent is not None:
            self._post(fork.parent, ChildAccepted(fork_id))
        self._reply_to_flushes()
        self._release_unused(fork_id)

    def _remove_child(self, fork_id: GlobalId) -> None:
        source = self._parent_of.pop(fork_id, None)
        if source is not None:
            self.user_forks[source].children.pop(fork_id)
            self._release_unused(source)

    def _release_unused(self, fork_id: GlobalId) -> None:
        """Release a fork that nothing here needs. An unconfirmed one waits, because the owner may not know it yet."""
        fork = self.user_forks.get(fork_id)
        if fork is None or not fork.is_released or fork.children or not (fork.is_confirmed or fork.is_timed_out):
            return
        del self.user_forks[fork_id]
        self._post(fork.owner, Release(fork.rref_id, fork_id))

    # -- values that this worker owns ------------------------------------------------------------------------------

    def _return_to_owner(self, fork: Fork) -> None:
        if fork.parent == self.me:
            self._drop_fork(fork.rref_id, fork.fork_id)
            return
        # The parent is alive and keeps the reference until it is accepted, so an unknown value is yet to be created.
        if not self._expect(fork.rref_id):
            self._actions.append(FailFork(fork.fork_id, fork.rref_id.creator))
        self._post(fork.parent, ChildAccepted(fork.fork_id))

    def _expect(self, rref_id: GlobalId) -> bool:
        """Return True if the value is here or may still be created; False if its creator died before its call came."""
        if rref_id not in self.owned:
            if rref_id.creator in self._fenced or rref_id.creator == self.me:
                return False
            self.owned[rref_id] = OwnedValue(is_created=False)
        return True

    def _fail_value(self, rref_id: GlobalId, owned: OwnedValue, creator: WorkerKey, reason: Reason) -> None:
        """Set a value whose call never arrives to an error."""
        if not owned.is_created:
            owned.is_created = True
            self._actions.append(FailValue(rref_id, creator, reason))

    def _drop_fork(self, rref_id: GlobalId, fork_id: GlobalId) -> bool:
        """Drop a fork. Return False if it is not known."""
        owned = self.owned.get(rref_id)
        if owned is None or owned.forks.pop(fork_id, None) is None:
            return False
        self._free_unused(rref_id)
        return True

    def _free_unused(self, rref_id: GlobalId) -> None:
        owned = self.owned.get(rref_id)
        if owned is not None and owned.is_created and not owned.forks:
            del self.owned[rref_id]
            self._actions.append(FreeValue(rref_id))

    # -- lost workers ----------------------------------------------------------------------------------------------

    def _holds_something(self, worker: WorkerKey) -> bool:
        return (
            any(worker in flush.pending for flush in self._flushes.values())
            or any(worker in owned.forks.values() for owned in self.owned.values())
            or any(worker in fork.children.values() for fork in self.user_forks.values())
        )

    def _begin_flush(self, lost: WorkerKey, alive: Iterable[WorkerKey]) -> None:
        pending = {worker for worker in alive if worker not in self._lost and worker != self.me}
        lost_before = tuple(sorted(self._unannounced))
        self._flushes[lost] = Flush(pending, lost_before)
        for worker in sorted(pending):
            self._post(worker, FlushRequest(lost, lost_before))
        self._end_flush(lost)

    def _on_flushed(self, lost: WorkerKey, by: WorkerKey) -> None:
        if lost in self._flushes:
            self._flushes[lost].pending.discard(by)
            self._end_flush(lost)

    def _end_flush(self, lost: WorkerKey) -> None:
        """Drop the forks of a lost worker if all others have replied."""
        flush = self._flushes.get(lost)
        if flush is None or flush.pending:
            return
        del self._flushes[lost]
        self._unannounced.difference_update(flush.lost_before)
        for rref_id, owned in list(self.owned.items()):
            for fork_id in [fork_id for fork_id, holder in owned.forks.items() if holder == lost]:
                self._drop_fork(rref_id, fork_id)
        for fork in list(self.user_forks.values()):
            for fork_id in [fork_id for fork_id, child in fork.children.items() if child == lost]:
                self._remove_child(fork_id)
        for other in list(self._flushes):
            self._on_flushed(other, lost)

    def _reply_to_flushes(self) -> None:
        """Send FlushReply when nothing that came from lost workers is unconfirmed any more."""
        forks = self.user_forks.values()
        if not self._requesters or any(fork.parent in self._fenced for fork in forks if not fork.is_confirmed):
            return
        for lost, requesters in self._requesters.items():
            for requester in sorted(requesters):
                self._post(requester, FlushReply(lost))
        self._requesters.clear()
