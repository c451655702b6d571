"""The references of this worker: created, sent, received, used and released. The rest of rpc uses `References`.

    remote, share, receiving, expect --event--> table.RefTable --action--> messages to other workers, freed values

Events are reported under one lock; actions run after it is released. Batches are sent by `Agent.request`, which does
not block. Freed values are destroyed outside the lock. The end of an RRef may come on any thread, in a garbage
collection too, so `RRef.__del__` only puts its fork into a queue, which a thread reads.
"""

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future

from ...base.errors import ClosedError, DeadlineExceeded, OwnerLostError, WorkerLostError
from ..calling.futures import copy_exception, error_of
from ..membership.members import Event, Joined, lives, no_member
from ..messages import pickling
from ..messages.ids import Created, Fork, GlobalId, Invocation, WorkerKey
from ..messages.metadata import Address
from ..worker_info import WorkerInfo
from .protocol import Action, Batch, ConfirmFork, FailFork, FailValue, FreeValue, Send
from .rref import (
    CREATION_TIMED_OUT,
    NOT_IN_A_CALL,
    RRef,
    UserState,
    ValueFuture,
    creation_timeout,
    make_rref,
    owner_lost,
    received_rrefs,
)
from .table import RefTable

if TYPE_CHECKING:
    from ..agent import Agent

_log = logging.getLogger("fanwise.rpc")

_DELETE_S = 10.0
_RETRY_S = 1.0
# Number of attempts to send to a worker that is not a member: it may be a newcomer that this worker does not know yet.
_MAX_TRIES = 3


class References:
    """See the module. One per agent. `start` must be called before the first call is served."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self._table: RefTable
        self._values: dict[GlobalId, ValueFuture] = {}  # by reference
        self._users: dict[GlobalId, UserState] = {}  # by fork
        self._changed = threading.Condition()  # guards the table, the values and the users; reentrant
        self._numbers = itertools.count()
        self._is_closed = False
        self._released: queue.SimpleQueue[UserState | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to take part in reference counting, when this worker has joined its group."""
        self._table = RefTable(WorkerKey(self.agent.info.id, self.agent.incarnation))
        self.agent.group.on_event.append(self._on_event)
        self._thread = threading.Thread(target=self._run, name="fanwise-references", daemon=True)
        self._thread.start()
        self.agent.on("refs", self._on_batch)

    def new_id(self) -> GlobalId:
        """Return an id that is unique in the group."""
        me = self._table.me
        return GlobalId(me.id, me.incarnation, next(self._numbers))

    def new_actor_id(self) -> GlobalId:
        """As `new_id`, for an actor (`actors`)."""
        id = self.new_id()
        return id._replace(local_id=-1 - id.local_id)

    # -- creating --------------------------------------------------------------------------------------------------

    def remote(
        self, to: WorkerInfo, invocation: Invocation, *, timeout_s: float, address: Address | None = None
    ) -> RRef[Any]:
        """Run a function on `to` and keep the value there. Raises what sending a call raises.

        `address`: for a call to an actor, or one that creates an actor.
        """
        rref_id = self.new_id() if address is None or not address.concurrency else address.actor
        if to.id == self._table.me.id:
            return self._create_here(to, invocation, timeout_s, rref_id, address)
        user = UserState(Fork(rref_id, self.new_id(), self._key_of(to.id), self._table.me))
        fork_id = user.fork.fork_id
        self._users[fork_id] = user
        rref = make_rref(self, rref_id, None, user)
        rref._creation = creation = ValueFuture()
        try:
            self._apply(self._table.create, rref_id, fork_id, user.fork.owner)
            call = self.agent.call(to, invocation, timeout_s=timeout_s, remote=(rref_id, fork_id), address=address)
            call.add_done_callback(partial(self._on_creation_done, user, creation))
        except BaseException as error:
            user.confirm()
            if isinstance(error, Exception):
                self._apply(self._table.on_creation_unsent, fork_id, "not sent")
            else:  # Ctrl-C, perhaps after the call was sent
                self._apply(self._table.on_creation_timeout, fork_id)
            raise
        return rref

    def _create_here(
        self, to: WorkerInfo, invocation: Invocation, timeout_s: float, rref_id: GlobalId, address: Address | None
    ) -> RRef[Any]:
        value = self._values[rref_id] = ValueFuture()
        rref = make_rref(self, rref_id, value, None)
        rref._creation = creation = ValueFuture()

        def on_done(future: "Future[Any]") -> None:
            error = error_of(future)
            if error is not None:
                is_late = isinstance(error, DeadlineExceeded)
                rref._error = creation_timeout if is_late else partial(copy_exception, error)
                if not (is_late and _was_sent(future)):  # a late call that was sent still sets the value
                    value.settle(rref._error())
                    self._apply(self._table.on_value, rref_id, rref_id)
            creation.settle(error)

        try:
            self._apply(self._table.on_creation_received, rref_id, rref_id, self._table.me)
            call = self.agent.call(to, invocation, timeout_s=timeout_s, remote=(rref_id, rref_id), address=address)
            call.add_done_callback(on_done)
        except BaseException:
            self._apply(self._table.on_value, rref_id, rref_id)
            raise
        return rref

    def _on_creation_done(self, user: UserState, creation: ValueFuture, call: "Future[Any]") -> None:
        """Handle the reply to a creating call, or its error."""
        error, was_sent, fork_id = error_of(call), _was_sent(call), user.fork.fork_id
        is_late, is_lost = isinstance(error, DeadlineExceeded), isinstance(error, WorkerLostError)
        try:
            if error is None:
                self._apply(self._table.on_created, fork_id)
                return
            if is_late:
                user.fail(creation_timeout)
            elif is_lost:
                user.fail(partial(owner_lost, user.fork, self._name_of(user.fork.owner)))
            else:
                user.fail(partial(copy_exception, error))
            if is_late and was_sent:
                self._apply(self._table.on_creation_timeout, fork_id)
            elif not (is_lost and was_sent):  # otherwise the table learns of the loss
                self._apply(self._table.on_creation_unsent, fork_id, "timed out" if is_late else "not sent")
        finally:
            creation.settle(error)

    # -- sending and receiving -------------------------------------------------------------------------------------

    def share(self, rref: RRef[Any]) -> tuple[int]:
        """Add a fork to the message that this thread pickles. Return its index in the message.

        Raises:
            RuntimeError: no message is pickled; the reference was deleted, or its group was shut down.
            The error of its creation.
        """
        user = rref._user
        if user is not None:
            user.check("call fork an UserRRef")
        if self._is_closed:
            raise RuntimeError(
                f"{rref} belongs to a group that was shut down: no worker can use it any more.\n"
                f"Make a reference in this group: rpc.RRef(rref.local_value())."
            )
        if rref._error is not None:
            raise rref._error()
        message = pickling.encoding()
        if message is None:
            raise RuntimeError(NOT_IN_A_CALL)
        if message.forks is None:
            return (-1,)  # only a test whether the value can be pickled
        me, to = self._table.me, self._key_of(message.to)
        if self._table.is_lost(to):
            raise self._no_member(to.id)
        if user is None:
            fork = Fork(rref._rref_id, self.new_id(), me, me)
            self._apply(self._share_value, rref, fork, to)
        else:
            fork = Fork(user.fork.rref_id, self.new_id(), user.fork.owner, me)
            self._apply(self._table.fork, user.fork.fork_id, fork, to)
            try:  # again, because no receiver would learn that its creation has just failed
                user.check("call fork an UserRRef")
            except Exception:
                self.on_unsent([fork])
                raise
        message.forks.append(fork)
        return (len(message.forks) - 1,)

    def _share_value(self, rref: RRef[Any], fork: Fork, to: WorkerKey) -> list[Action]:
        assert rref._value is not None, "an owner has a value"
        self._values[fork.rref_id] = rref._value
        return self._table.share(fork, to)

    def keep_until_reply(self, rref: RRef[Any]) -> GlobalId | None:
        """Return the id of a reference that this thread sends to its owner in a call, and keep it until the reply.

        Saves a fork. Returns None if the reference must be shared.
        """
        user, message = rref._user, pickling.encoding()
        if user is None or message is None or message.keep_alive is None or not user.confirmed.done():
            return None
        has_failed = user.error is not None or user.deleted or rref._error is not None
        if has_failed or user.fork.owner != self._key_of(message.to):
            return None
        message.keep_alive.append(rref)
        return user.fork.rref_id

    def on_unsent(self, forks: Sequence[Fork]) -> None:
        """Release the forks of a message that was not sent."""
        for fork in forks:
            self._apply(self._table.on_fork_unsent, fork)

    @contextlib.contextmanager
    def receiving(self, forks: Sequence[Fork]) -> Iterator[None]:
        """Create references to the forks of a message while it is unpickled. Those that it does not use are released.

        Must be entered for every received message with forks, even if it cannot be unpickled.
        """
        outer, received_rrefs.current = received_rrefs.current, self._receive(forks)
        try:
            yield
        finally:
            users = [rref._user for rref in received_rrefs.current if rref._user is not None]
            received_rrefs.unconfirmed = [user.confirmed for user in users if not user.confirmed.done()]
            received_rrefs.current = outer

    def confirmation(self) -> "Future[Any] | None":
        """Return a future that is done when all references that this thread has just received are confirmed or failed.

        None if they are already.
        """
        unconfirmed, received_rrefs.unconfirmed = received_rrefs.unconfirmed, ()
        return torch.futures.collect_all(list(unconfirmed)) if unconfirmed else None

    def _receive(self, forks: Sequence[Fork]) -> list[RRef[Any]]:
        rrefs: list[RRef[Any]] = []
        actions: list[Action] = []
        with self._changed:
            for fork in forks:
                is_owner = fork.owner == self._table.me
                user = None if is_owner else UserState(fork)
                if user is not None:
                    self._users[fork.fork_id] = user
                rref = make_rref(self, fork.rref_id, None, user)
                value = self._values.get(fork.rref_id)  # before the event, which may free it
                fork_actions = self._update(self._table.on_fork_received, fork)
                if is_owner:
                    rref._value = value or self._find_value(fork.rref_id) or ValueFuture()
                    for action in fork_actions:
                        if type(action) is FailFork:
                            rref._error = partial(owner_lost, fork, self._name_of(action.lost))
                rrefs.append(rref)
                actions += fork_actions
        self._execute(actions)
        return rrefs

    # -- values of this worker -------------------------------------------------------------------------------------

    def expect(self, creation: Created) -> ValueFuture:
        """Return the future of a value whose creating call has arrived. Called on a reading thread."""
        rref_id, fork_id = creation
        with self._changed:
            value = self._values.setdefault(rref_id, ValueFuture())
            actions = self._update(self._table.on_creation_received, rref_id, fork_id, rref_id.creator)
        if rref_id.is_actor:
            self.agent.queues.register(rref_id, value)
        self._execute(actions)
        return value

    def set_value(self, rref_id: GlobalId, future: ValueFuture, error: Exception | None, value: object) -> None:
        """Set a value that a call has created, or its error."""
        future.settle(error, value)
        if rref_id.creator == self._table.me:
            self._apply(self._table.on_value, rref_id, rref_id)

    def value_of(self, rref_id: GlobalId) -> ValueFuture:
        """Return the future of a value of this worker. Raises OwnerLostError if it is not here any more."""
        with self._changed:
            value = self._find_value(rref_id)
        if value is None:
            raise self._not_here(rref_id)
        return value

    def owner_rref(self, rref_id: GlobalId) -> RRef[Any]:
        """Return a reference to a value of this worker. If it is not here any more, each use is an OwnerLostError."""
        with self._changed:
            value = self._find_value(rref_id)
        rref = make_rref(self, rref_id, value or ValueFuture(), None)
        if value is None:
            rref._error = partial(self._not_here, rref_id)
        return rref

    def _find_value(self, rref_id: GlobalId) -> ValueFuture | None:
        """Return a value that is here or yet to be created, or None. Called with the lock."""
        if rref_id in self._table.owned:
            return self._values.setdefault(rref_id, ValueFuture())
        return self._values.get(rref_id)

    def _not_here(self, rref_id: GlobalId) -> OwnerLostError:
        return OwnerLostError(
            f"worker {self.agent.info.name} does not have the value of {rref_id}: it was freed, or never made.\n"
            f"That happens when the worker that passed the reference on, or created it, died or gave up waiting "
            f"meanwhile."
        )

    # -- requests to owners ----------------------------------------------------------------------------------------

    def owner_of(self, fork: Fork) -> WorkerInfo:
        """Return the owner, even if it has left or was lost."""
        return self._info_of(fork.owner)

    def ask_owner(
        self, user: UserState, function: Callable[..., Any], args: tuple[object, ...], timeout_s: float
    ) -> Any:
        """Run an internal function on the owner and wait."""
        try:
            return self.agent.call_sync(self.owner_of(user.fork), (function, args, {}), timeout_s=timeout_s)
        except OwnerLostError:
            raise
        except WorkerLostError as error:
            if hasattr(error, "__notes__"):  # raised by the function on the owner
                raise
            raise owner_lost(user.fork, self._name_of(user.fork.owner)) from error

    # -- events and actions ----------------------------------------------------------------------------------------

    def _apply(self, event: Callable[..., list[Action]], *args: object) -> None:
        """Report an event to the table and execute its actions. Does not block."""
        self._execute(self._update(event, *args))

    def _update(self, event: Callable[..., list[Action]], *args: object) -> list[Action]:
        """Report an event to the table. Remove freed values under the lock, and destroy them after it."""
        freed = []
        with self._changed:
            actions = event(*args)
            for action in actions:
                if type(action) is FreeValue:
                    freed.append(self._values.pop(action.rref_id, None))
            self._changed.notify_all()
        return actions

    def _execute(self, actions: Sequence[Action]) -> None:
        """Execute actions. Called without the lock."""
        for action in actions:
            match action:
                case Send(batch):
                    self._send(batch)
                case ConfirmFork(fork_id):
                    user = self._users.get(fork_id)
                    if user is not None:
                        user.confirm()
                        self._forget(user)
                case FailFork(fork_id, lost):
                    user = self._users.get(fork_id)
                    if user is not None:
                        user.fail(partial(owner_lost, user.fork, self._name_of(lost)))
                case FailValue(rref_id, creator, reason):
                    self._fail_value(rref_id, creator, reason)

    def _fail_value(self, rref_id: GlobalId, creator: WorkerKey, reason: str) -> None:
        with self._changed:
            value = self._find_value(rref_id)
        if value is None:
            return
        name = self._name_of(creator)
        if reason == "timed out":
            text = f"{CREATION_TIMED_OUT} The call of {name} waited for its link until its time ran out."
            value.settle(DeadlineExceeded(text))
        elif reason == "died":
            value.settle(WorkerLostError(f"{name} died before its call made the value of {rref_id}."))
        else:
            value.settle(WorkerLostError(f"{name} could not send the call that was to make the value of {rref_id}."))

    def _send(self, batch: Batch, num_failures: int = 0) -> None:
        if not (self._is_closed or self._table.is_lost(batch.to)):
            reply = self.agent.request(batch.to.id, "refs", batch)
            reply.add_done_callback(partial(self._on_batch_reply, batch, num_failures))

    def _on_batch_reply(self, batch: Batch, num_failures: int, reply: "Future[Any]") -> None:
        """Handle the acknowledgment of a batch. One that failed while its receiver lives was not handled there."""
        is_ending = self.agent.group.ending.is_set  # then a worker that has left needs no messages
        if error_of(reply) is None or is_ending:
            if is_ending or reply.value():
                self._apply(self._table.on_delivered, batch)
        elif num_failures + 1 < _MAX_TRIES or lives(batch.to, self.agent.group.members()):
            self.agent.call_later(_RETRY_S, partial(self._send, batch, num_failures + 1))
        else:
            self._on_lost(batch.to)

    def _on_batch(self, _sender: WorkerInfo, batch: Batch) -> bool:
        """Handle a batch, on a reading thread. Return False if it is for another incarnation of this worker."""
        self._apply(self._table.on_batch, batch)
        return batch.to == self._table.me

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Joined):
            self._on_lost(event.member.key)

    def _on_lost(self, worker: WorkerKey) -> None:
        self._apply(self._table.on_lost, worker, [member.key for member in self.agent.group.members().values()])

    # -- members ---------------------------------------------------------------------------------------------------

    def _key_of(self, id: int) -> WorkerKey:
        member = self.agent.group.members().get(id)
        if member is None:
            raise self._no_member(id)
        return member.key

    def _no_member(self, id: int) -> WorkerLostError:
        group = self.agent.group
        return no_member(id, group.members(), group.former, group.fenced)

    def _info_of(self, key: WorkerKey) -> WorkerInfo:
        for members in (self.agent.group.members(), self.agent.group.former):
            member = members.get(key.id)
            if member is not None and member.key == key:
                return member.info
        return WorkerInfo(f"rank-{key.id}", key.id) if member is None else member.info

    def _name_of(self, key: WorkerKey) -> str:
        return f"worker {self._info_of(key).name}"

    # -- releasing -------------------------------------------------------------------------------------------------

    def release(self, user: UserState) -> None:
        """Release a fork that no RRef of the program uses. On any thread, also in a garbage collection."""
        self._released.put(user)

    def _run(self) -> None:
        while self._release_next():
            pass

    def _release_next(self) -> bool:
        """Wait for released forks and handle all that are in the queue. Return False at the end."""
        queued = [self._released.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                queued.append(self._released.get_nowait())
        users = [user for user in queued if user is not None]
        self._apply(self._table.release, *(user.fork.fork_id for user in users))
        for user in users:
            user.is_released = True
            self._forget(user)
        return len(users) == len(queued)

    def _forget(self, user: UserState) -> None:
        if user.is_released and user.confirmed.done():
            self._users.pop(user.fork.fork_id, None)

    # -- shutdown --------------------------------------------------------------------------------------------------

    def debug_info(self) -> dict[str, str]:
        """Return counts, under torch's names."""
        table = self._table
        with self._changed:
            return {
                "num_owner_rrefs": str(len(table.owned)),
                "num_pending_users": str(table.num_unconfirmed),
                "num_pending_futures": str(table.num_undelivered),
                "num_forks": str(table.num_forks),
            }

    def delete_all_user_and_unforked_owner_rrefs(self, timeout_s: float = _DELETE_S) -> None:
        """Release all references that this worker holds. Called by all workers when no call is open in the group.

        Waits, at most `timeout_s` seconds, until the owners know, and until nobody refers to values of this worker.
        """
        table = self._table
        with self.agent.waiting():
            self._wait_until(lambda: table.num_unconfirmed == 0, timeout_s)
            for user in list(self._users.values()):
                user.deleted = True
            self._apply(lambda: table.release(*table.user_forks.copy()))
            self._wait_until(
                lambda: not table.user_forks and table.num_undelivered == 0 and table.num_forks == 0, timeout_s
            )

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(condition, timeout_s)

    def destroy(self, ignore_leak: bool = True) -> None:
        """Stop taking part in reference counting. References that are left cannot be used any more.

        Raises:
            RuntimeError: values of this worker are still held, unless `ignore_leak`; then they are logged.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._released.put(None)
            thread.join()
        with self._changed:  # a message of another worker may be being handled
            self._is_closed = True
            users, values = list(self._users.values()), list(self._values.values())
            self._users.clear()
            self._values.clear()
            owned, self._table.owned = self._table.owned, {}
        for user in users:
            user.deleted = True
        for value in values:
            value.settle(ClosedError("RPC was shut down in this process before the value was made."))
        if owned:
            leaks = [f"Leaking RRef {rref_id} with {_describe(value.forks)}" for rref_id, value in owned.items()]
            leaks.append("Let references end before shutdown, or their values live until the process ends.")
            if not ignore_leak:
                raise RuntimeError("\n".join(leaks))
            _log.warning("%s", "\n".join(leaks))


def _was_sent(call: "Future[Any]") -> bool:
    """Return True if a call was sent. One that failed before has a future without `was_sent`."""
    return getattr(call, "was_sent", False)


def _describe(forks: dict[GlobalId, WorkerKey]) -> str:
    return ", ".join(f"fork Id {fork_id} on worker {holder.id}" for fork_id, holder in forks.items()) or "no fork"
