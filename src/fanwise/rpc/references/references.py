"""The references of this worker, as the rest of rpc sees them: made, sent, received, asked for, ended.

    remote, share, received, keep --facts--> keeper.Keeper --> table.RefTable, which decides who holds what

How the rest of rpc uses it:

* Made with its agent. `destroy` after the group is left; before that, when all have arrived,
  `delete_all_user_and_unforked_owner_rrefs`.
* `Serializer`: pickling adds to the forks of a message, which are `unsent` when it fails; `with receiving(forks)`
  around unpickling, whether that succeeds or not, so that no fork is left on its way.
* `Server`: `keep` runs a call whose value stays here; `confirmed`, right after `receiving` on the same thread, is the
  future of all references that came, or None when none is unconfirmed: only then may the function run.

* `rref` makes its references through this; `let_go` is all that the end of one does.
"""

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future

from ...base.clocks import Clock
from ...base.errors import ClosedError, DeadlineExceeded, OwnerLostError, WorkerLostError
from ..calling.futures import copy_exception, copy_result, error_of, wait_for
from ..calling.server import DelayedReply
from ..messages import pickling
from ..messages.ids import Created, Fork, GlobalId, Invocation, WorkerKey
from ..messages.metadata import Address
from ..worker_info import WorkerInfo
from .keeper import Keeper
from .orders import Order, Refused
from .rref import NOT_IN_A_CALL, Pending, RRef, UserState, gave_up, make, owner_lost
from .travel import now

_log = logging.getLogger("fanwise.rpc")

_TICK_S = 1.0
_DELETE_S = 10.0


if TYPE_CHECKING:
    from ..agent import Agent


class References:
    """See the module.

    Args:
        agent: of this process; its references these become.
        tick_s: interval in seconds between attempts to send what could not be sent.
        clock: for the deadlines and ticks.
    """

    def __init__(self, agent: "Agent", *, tick_s: float = _TICK_S, clock: Clock | None = None) -> None:
        self.agent = agent
        self._keeper = Keeper(agent, tick_s=tick_s, clock=clock)
        self.new_id, self.new_actor_id = self._keeper.new_id, self._keeper.new_actor_id
        self.let_go = self._keeper.let_go

    # -- made, sent, received, ended -------------------------------------------------------------------------------

    def remote(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        *,
        timeout_s: float,
        address: Address | None = None,
    ) -> RRef[Any]:
        """Run a function on `to` and keep the value there. Raises what sending a call raises.

        `address`: the call is for an actor, or makes it.
        """
        rref_id = self.new_id() if address is None or not address.concurrency else address.actor
        if to.id == self._keeper.table.me.id:
            return self._remote_here(to, invocation, timeout_s, rref_id, address)
        fork = Fork(rref_id, self.new_id(), self._keeper.key_of(to.id), self._keeper.table.me)
        user = UserState(fork)
        self._keeper.users[fork.fork_id] = user
        rref = make(self, fork.rref_id, None, user)
        self._keeper.do(self._keeper.table.created, fork.rref_id, fork.fork_id, fork.owner)
        try:
            ids = fork.rref_id, fork.fork_id
            made = self.agent.call(to, invocation, timeout_s=timeout_s, remote=ids, address=address)
        except BaseException:
            user.confirm()
            self._keeper.do(partial(self._keeper.table.not_sent, timed_out=False), fork.fork_id)
            raise
        rref._creation = creation = Pending()
        made.add_done_callback(partial(self._created, user, creation))
        return rref

    def _remote_here(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        timeout_s: float,
        rref_id: GlobalId,
        address: Address | None,
    ) -> RRef[Any]:
        value = self._keeper.values[rref_id] = Pending()
        rref = make(self, rref_id, value, None)
        self._keeper.do(self._keeper.table.begun, rref_id, rref_id, self._keeper.table.me)
        try:
            ids = rref_id, rref_id
            made = self.agent.call(to, invocation, timeout_s=timeout_s, remote=ids, address=address)
        except BaseException:
            self._keeper.do(self._keeper.table.value_ready, rref_id, rref_id)
            raise
        rref._creation = creation = Pending()

        def created(future: "Future[Any]") -> None:
            error = error_of(future)
            if error is not None:
                rref._error = gave_up if isinstance(error, DeadlineExceeded) else partial(copy_exception, error)
                # A call that left is here, and brings the value in its time, to whoever still waits for that.
                if not (isinstance(error, DeadlineExceeded) and _has_left(future)):
                    value.settle(rref._error())
                    self._keeper.do(self._keeper.table.value_ready, rref_id, rref_id)
            creation.settle(error)

        made.add_done_callback(created)
        return rref

    def _created(self, user: UserState, creation: Pending, future: "Future[Any]") -> None:
        """The call that creates was answered, or not."""
        error, may_come = error_of(future), _has_left(future)
        try:
            self._note_created(user, error, may_come=may_come)
        finally:
            creation.settle(error)

    def _note_created(self, user: UserState, error: Exception | None, *, may_come: bool) -> None:
        """`may_come`: the call has left this worker."""
        fork_id, table = user.fork.fork_id, self._keeper.table
        if error is None:
            self._keeper.do(table.confirmed, fork_id)
            return
        is_late, is_lost = isinstance(error, DeadlineExceeded), isinstance(error, WorkerLostError)
        if is_late:
            user.fail(gave_up)
        elif is_lost:
            user.fail(partial(owner_lost, user.fork, self._keeper.name_of(user.fork.owner)))
        else:
            user.fail(partial(copy_exception, error))
        if is_late and may_come:
            self._keeper.do(table.gave_up, fork_id)
        elif not (is_lost and may_come):  # else it came there or not, and the table hears of the loss
            self._keeper.do(partial(table.not_sent, timed_out=is_late), fork_id)

    @contextmanager
    def receiving(self, forks: Sequence[Fork]) -> Iterator[None]:
        """Around the unpickling of a message that came with these forks. What it takes, stays."""
        outer, now.received = now.received, self.received(forks)
        try:
            yield
        finally:
            users = [rref._user for rref in now.received if rref._user is not None]
            now.unconfirmed = [user.confirmed for user in users if not user.confirmed.done()]
            now.received = outer

    def unsent(self, forks: Sequence[Fork]) -> None:
        """A message with these forks never left."""
        for fork in forks:
            self._keeper.do(self._keeper.table.unsent, fork)

    def share(self, rref: RRef[Any]) -> tuple[int]:
        """Put a new fork into the message that this thread pickles; returns its place there.

        Raises:
            RuntimeError: no message is pickled; the reference was deleted, or is of a group that was shut down.
            What its creation failed with.
        """
        user = rref._user  # looked at once: that of an actor may change
        if user is not None:
            user.check("call fork an UserRRef")
        if self._keeper.is_closed:
            raise RuntimeError(
                f"{rref} belongs to a group that was shut down: no worker can use it any more.\n"
                f"Make a reference in this group: rpc.RRef(rref.local_value())."
            )
        if rref._error is not None:
            raise rref._error()
        sender = pickling.encoding()
        if sender is None:
            raise RuntimeError(NOT_IN_A_CALL)
        if sender.forks is None:
            return (-1,)  # only tried, to find out what cannot be pickled
        table = self._keeper.table
        to = self._keeper.key_of(sender.to)
        owner, rref_id = (table.me, rref._rref_id) if user is None else (user.fork.owner, user.fork.rref_id)
        fork = Fork(rref_id, self.new_id(), owner, table.me)
        if table.is_lost(to):
            raise self._keeper.no_member(to.id)
        if user is None:
            self._keeper.do(self._lend, rref, fork, to)
        else:
            self._fork_for(user, fork, to)
        sender.forks.append(fork)
        return (len(sender.forks) - 1,)

    def keep_until_answered(self, rref: RRef[Any]) -> GlobalId | None:
        """A reference goes to its owner, who has counted it, in a call: the caller keeps it until that is answered.

        So nobody has to be told of it. Its number; None: it has to be shared.
        """
        user, sender = rref._user, pickling.encoding()
        if user is None or sender is None or sender.keep_alive is None or not user.is_counted:
            return None
        if rref._error is not None or user.fork.owner != self._keeper.key_of(sender.to):
            return None
        sender.keep_alive.append(rref)
        return user.fork.rref_id

    def at_home(self, rref_id: GlobalId) -> RRef[Any]:
        """A reference to a value of this worker. When that is not here any more, each use of it is OwnerLostError."""
        with self._keeper.changed:
            value = self._keeper.awaited(rref_id)
        rref = make(self, rref_id, value or Pending(), None)
        if value is None:
            rref._error = partial(self._not_here, rref_id)
        return rref

    def _fork_for(self, user: UserState, fork: Fork, to: WorkerKey) -> None:
        self._keeper.do(self._keeper.table.forked, user.fork.fork_id, fork, to)
        try:
            user.check("call fork an UserRRef")  # its creation may just have failed: whoever gets it now never hears
        except Exception:
            self.unsent([fork])
            raise

    def received(self, forks: Sequence[Fork]) -> list[RRef[Any]]:
        """Return references to the forks that arrived with a message."""
        with self._keeper.changed:
            came = [self._receive(fork) for fork in forks]
        for _, orders in came:
            self._keeper.carry_out(orders)
        return [rref for rref, _ in came]

    def _receive(self, fork: Fork) -> tuple[RRef[Any], list[Order]]:
        table = self._keeper.table
        if fork.owner != table.me:
            user = UserState(fork)
            self._keeper.users[fork.fork_id] = user
            rref = make(self, fork.rref_id, None, user)
            return rref, self._keeper.told(table.received, fork)
        rref = make(self, fork.rref_id, None, None)
        orders = self._keeper.told(self._came_home, rref, fork)
        refused = next((order for order in orders if type(order) is Refused), None)
        if refused is not None:
            rref._error = partial(owner_lost, fork, self._keeper.name_of(refused.lost))
        return rref, orders

    def _lend(self, rref: RRef[Any], fork: Fork, to: WorkerKey) -> list[Order]:
        assert rref._value is not None, "an owner has a value"
        self._keeper.values[fork.rref_id] = rref._value
        return self._keeper.table.shared(fork, to)

    def _came_home(self, rref: RRef[Any], fork: Fork) -> list[Order]:
        value = self._keeper.values.get(fork.rref_id)
        orders = self._keeper.table.received(fork)
        rref._value = value if value is not None else self._keeper.awaited(fork.rref_id) or Pending()
        return orders

    # -- for the server of calls -----------------------------------------------------------------------------------

    def expect(self, made: Created) -> Pending:
        """A call has come whose value stays here: whoever asks for it waits from now on. On a reading thread."""
        rref_id, fork_id = made
        with self._keeper.changed:
            value = self._keeper.values.setdefault(rref_id, Pending())
            orders = self._keeper.told(self._keeper.table.begun, rref_id, fork_id, rref_id.creator)
        if rref_id.is_actor:
            self.agent.queues.register(rref_id, value)
        self._keeper.carry_out_inline(orders)
        return value

    def keep(self, sender: WorkerInfo, made: Created, value: Pending, run: Callable[[], Any]) -> Any:
        """Run a call whose value stays on this worker. Return None, or a `DelayedReply` that is done with it."""
        rref_id, _ = made
        try:
            result = run()
        except Exception as error:
            # As text: who keeps log records must not keep frames, and the references in them.
            _log.error("a remote() of worker %s failed:\n%s", sender.name, "".join(traceback.format_exception(error)))
            self._settle(rref_id, value, error.with_traceback(None), None)
            return None
        if type(result) is not DelayedReply:
            self._settle(rref_id, value, None, result)
            return None
        answer: Future[None] = Future()

        def settle(future: "Future[Any]") -> None:
            error = error_of(future)
            self._settle(rref_id, value, error, None if error is not None else future.value())
            answer.set_result(None)

        result.future.add_done_callback(settle)
        return DelayedReply(answer)

    def _settle(self, rref_id: GlobalId, value: Pending, error: Exception | None, result: object) -> None:
        value.settle(error, result)
        if rref_id.creator == self._keeper.table.me:
            self._keeper.do(self._keeper.table.value_ready, rref_id, rref_id)

    def confirmed(self) -> "Future[Any] | None":
        """Done when all references that this thread has just opened are confirmed, or have failed; None: they are."""
        unconfirmed, now.unconfirmed = now.unconfirmed, ()
        return torch.futures.collect_all(list(unconfirmed)) if unconfirmed else None

    def value_of(self, rref_id: GlobalId) -> "Future[Any]":
        """The value that this worker has, perhaps in a while. OwnerLostError when it is not, or no longer, here."""
        with self._keeper.changed:
            value = self._keeper.awaited(rref_id)
        if value is None:
            raise self._not_here(rref_id)
        return value

    def _not_here(self, rref_id: GlobalId) -> OwnerLostError:
        return OwnerLostError(
            f"worker {self.agent.info.name} does not have the value of {rref_id}: it was freed, or never made.\n"
            f"That happens when the worker that passed the reference on, or created it, died or gave up waiting "
            f"meanwhile."
        )

    # -- asking owners ---------------------------------------------------------------------------------------------

    def owner_of(self, fork: Fork) -> WorkerInfo:
        """Who has the value, also when that worker is gone."""
        return self._keeper.info_of(fork.owner)

    def ask_owner(
        self,
        user: UserState,
        function: Callable[..., Any],
        args: tuple[object, ...],
        timeout_s: float,
    ) -> Any:
        """Run our own `function` on the owner and wait; again when the owner did not know the reference yet."""
        was_confirmed = user.confirmed.done()
        try:
            return self._ask_once(user, function, args, timeout_s)
        except OwnerLostError:
            if was_confirmed:
                raise
        with self.agent.waiting():
            wait_for(user.confirmed)
        user.check("use it")
        return self._ask_once(user, function, args, timeout_s)

    def _ask_once(
        self, user: UserState, function: Callable[..., Any], args: tuple[object, ...], timeout_s: float
    ) -> Any:
        try:
            return self.agent.call_sync(self.owner_of(user.fork), (function, args, {}), timeout_s=timeout_s)
        except OwnerLostError:
            raise
        except WorkerLostError as error:
            if hasattr(error, "__notes__"):  # the function itself lost a worker, over there
                raise
            raise owner_lost(user.fork, self._keeper.name_of(user.fork.owner)) from error

    def ask_later(
        self, user: UserState, function: Callable[..., Any], args: tuple[object, ...], timeout_s: float
    ) -> "Future[Any]":
        """As `ask_owner`, without waiting."""
        ask = partial(self.agent.call, self.owner_of(user.fork), (function, args, {}), timeout_s=timeout_s)
        if user.confirmed.done():
            return ask()
        result: Future[Any] = Future()

        def ask_again(_: object) -> None:
            try:
                user.check("use it")
                ask().add_done_callback(partial(copy_result, result))
            except Exception as error:
                result.set_exception(error.with_traceback(None))

        def answered(first: "Future[Any]") -> None:
            error = error_of(first)
            if isinstance(error, OwnerLostError):
                user.confirmed.add_done_callback(ask_again)
            else:
                copy_result(result, first)

        ask().add_done_callback(answered)
        return result

    # -- the end ---------------------------------------------------------------------------------------------------

    def debug_info(self) -> dict[str, str]:
        """Counts, under torch's names."""
        table = self._keeper.table
        with self._keeper.changed:
            counts = {
                "num_owner_rrefs": len(table.owned),
                "num_pending_users": table.num_unconfirmed,
                "num_pending_futures": table.num_unanswered,
                "num_forks": table.num_forks,
            }
        return {name: str(count) for name, count in counts.items()}

    def delete_all_user_and_unforked_owner_rrefs(self, timeout_s: float = _DELETE_S) -> None:
        """Release all references that this worker holds, used or not. All workers do so, when no call is open anywhere.

        Waits, at most `timeout_s` seconds, until the owners know, and until nobody refers to values of this worker.
        """
        if not self._keeper.is_used:
            return
        table = self._keeper.table
        with self.agent.waiting():
            self._keeper.wait_until(lambda: table.num_unconfirmed == 0, timeout_s)
            for user in list(self._keeper.users.values()):
                user.deleted = True
            self._keeper.do(lambda: table.dropped(*table.held.copy()))
            self._keeper.wait_until(
                lambda: not table.held and table.num_unanswered == 0 and table.num_forks == 0, timeout_s
            )

    def destroy(self, ignore_leak: bool = True) -> None:
        """End the thread; references that are left can be used no more.

        Raises:
            RuntimeError: values of this worker are still held, unless `ignore_leak`; then it is logged.
        """
        self._keeper.close()
        if not self._keeper.is_used:
            return
        for user in list(self._keeper.users.values()):
            user.deleted = True
        self._keeper.users.clear()
        owned = self._keeper.table.owned
        with self._keeper.changed:  # a message of another worker may just be read
            values = list(self._keeper.values.values())
            self._keeper.values.clear()
            leaks = [f"Leaking RRef {rref_id} with {_forks(of.forks)}" for rref_id, of in owned.items()]
            owned.clear()
        for value in values:
            value.settle(ClosedError("RPC was shut down in this process before the value was made."))
        if leaks:
            text = "\n".join(
                [*leaks, "Let references end before shutdown, or their values live until the process ends."]
            )
            if not ignore_leak:
                raise RuntimeError(text)
            _log.warning("%s", text)


def _has_left(future: "Future[Any]") -> bool:
    """Whether the call of this future was sent. One that failed before has a plain future."""
    return getattr(future, "was_sent", False)


def _forks(forks: dict[GlobalId, WorkerKey]) -> str:
    return ", ".join(f"fork Id {fork_id} on worker {holder.id}" for fork_id, holder in forks.items()) or "no fork"
