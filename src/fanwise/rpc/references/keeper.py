"""Keeps the reference table of this worker: one lock, one thread, the values and the users' states it decides about.

    facts: do (threads that may block), do_inline (a reading thread), let_go (any thread, in a garbage collection too)
      -> RefTable -> orders: batches by `request`, values let go of, states confirmed or failed

What happens on a reading thread only posts; the thread sends, because sending may connect, and it repeats what could
not be sent. Values are let go of under the lock and die outside of it. Knows no RRef and no call.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from ...base.clocks import Clock, SystemClock
from ...base.errors import DeadlineExceeded, WorkerLostError
from ..calling.futures import error_of
from ..membership.members import Event, Left, lives, no_member
from ..messages.ids import GlobalId, WorkerKey
from ..worker_info import WorkerInfo
from .orders import Batch, Confirmed, FailRefs, FailValue, FreeValue, Order, Refused, Send
from .rref import TIMED_OUT, Pending, UserState, owner_lost
from .table import RefTable

if TYPE_CHECKING:
    from ..agent import Agent

_log = logging.getLogger("fanwise.rpc")

_ABSENT_TICKS = 3  # so long a peer may be no member before it counts as gone: the news of a newcomer may be late
_STOP = object()


class Keeper:
    """See the module. `tick_s`: seconds after which what could not be sent is sent again."""

    def __init__(self, agent: "Agent", *, tick_s: float, clock: Clock | None = None) -> None:
        self.agent = agent
        self.values: dict[GlobalId, Pending] = {}
        self.users: dict[GlobalId, UserState] = {}
        self.changed = threading.Condition()  # a thread may hold it more than once
        self._tick_s = tick_s
        self._clock = clock or SystemClock()
        self.now_s = self._clock.now_s
        self._numbers = itertools.count()
        self._made: RefTable | None = None
        self._closed = False
        self._undelivered: dict[WorkerKey, list[Batch]] = {}  # could not be sent, in their order
        self._absent: dict[WorkerKey, int] = {}  # number of ticks
        self._ended: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        agent.on("refs", self._on_batch)
        agent.on_lost.append(self._on_lost)

    @property
    def is_used(self) -> bool:
        """Whether there ever was a reference."""
        return self._made is not None

    @property
    def is_closed(self) -> bool:
        """Whether this worker has left the group whose references these are."""
        return self._closed

    @property
    def table(self) -> RefTable:
        """Made when it is first needed: only then this worker has an incarnation."""
        made = self._made
        return made if made is not None else self._make()

    def _make(self) -> RefTable:
        """By a message of another worker, too, while this one ends: then there is a table and no thread."""
        on_event, me = self.agent.group.on_event, WorkerKey(self.agent.info.id, self.agent.incarnation)
        with self.changed:
            if self._made is None:
                if not self._closed:
                    thread = threading.Thread(target=self._run, name="fanwise-references", daemon=True)
                    thread.start()
                    self._thread = thread
                on_event.append(self._heard)
                self._made = RefTable(me)
            return self._made

    def new_id(self) -> GlobalId:
        """An id that nothing else has."""
        me = self.table.me
        return GlobalId(me.id, me.incarnation, next(self._numbers))

    def new_actor_id(self) -> GlobalId:
        """As `new_id`, of a value whose methods are called in turns (`actors`)."""
        id = self.new_id()
        return id._replace(local_id=-1 - id.local_id)

    def let_go(self, user: UserState) -> None:
        """The program has no reference to this fork any more. By any thread, at any time."""
        self._ended.put(user)

    def wait_until(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Block until a fact about the table holds; False when it does not in time."""
        until_s = self._clock.now_s() + within_s
        with self.changed:
            while not holds():
                left_s = until_s - self._clock.now_s()
                if left_s <= 0:
                    return False
                self.changed.wait(left_s)
        return True

    def close(self) -> None:
        """End the thread; what it had to do is done before. None is begun from now on."""
        with self.changed:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.put(_STOP)
            thread.join()

    # -- facts and orders ------------------------------------------------------------------------------------------

    def do(self, fact: Callable[..., list[Order]], *args: object) -> None:
        """Tell the table a fact and carry out what it says. Not on a reading thread."""
        self.carry_out(self.told(fact, *args))

    def do_inline(self, fact: Callable[..., list[Order]], *args: object) -> list[Order]:
        """As `do`, on a reading thread."""
        orders = self.told(fact, *args)
        self.carry_out_inline(orders)
        return orders

    def carry_out_inline(self, orders: Sequence[Order]) -> None:
        """As `carry_out`, on a reading thread: what is to be sent is left to our own."""
        for order in orders:
            if type(order) is Send:
                self._ended.put(order.batch)
        self.carry_out([order for order in orders if type(order) is not Send])

    def told(self, fact: Callable[..., list[Order]], *args: object) -> list[Order]:
        """Values that are freed go under the lock, or a new fork would lose them; they die when it is free again."""
        freed = []
        with self.changed:
            orders = fact(*args)
            for order in orders:
                if type(order) is FreeValue:
                    freed.append(self.values.pop(order.rref_id, None))
            self.changed.notify_all()
        return orders

    def awaited(self, rref_id: GlobalId) -> Pending | None:
        """With the lock: the value, which may be yet to come; None: it is not ours any more, or never was."""
        if rref_id not in self.table.owned:
            return self.values.get(rref_id)
        return self.values.setdefault(rref_id, Pending())

    def carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case Send(batch):
                    self._send(batch)
                case Confirmed(fork_id):
                    self._confirm(fork_id)
                case FailRefs(fork_ids, owner):
                    for fork_id in fork_ids:
                        self._fail(fork_id, owner)
                case Refused(fork_id, lost):
                    self._fail(fork_id, lost)
                case FailValue(rref_id, creator, why):
                    self._fail_value(rref_id, creator, why)
                case FreeValue():
                    pass

    def _confirm(self, fork_id: GlobalId) -> None:
        user = self.users.get(fork_id)
        if user is not None:
            user.confirm()
            if user.ended:
                self.users.pop(fork_id, None)

    def _fail(self, fork_id: GlobalId, lost: WorkerKey) -> None:
        user = self.users.get(fork_id)
        if user is not None:
            user.fail(partial(owner_lost, user.fork, self.name_of(lost)))

    def _fail_value(self, rref_id: GlobalId, creator: WorkerKey, why: str) -> None:
        with self.changed:
            value = self.awaited(rref_id)
        name = self.name_of(creator)
        if value is None:
            return
        if why == "timed out":
            value.settle(
                DeadlineExceeded(f"{TIMED_OUT} The call of {name} waited for its link until its time ran out.")
            )
        elif why == "died":
            value.settle(WorkerLostError(f"{name} died before its call made the value of {rref_id}."))
        else:
            value.settle(WorkerLostError(f"{name} could not send the call that was to make the value of {rref_id}."))

    def _send(self, batch: Batch) -> None:
        with self.changed:
            waiting = self._undelivered.get(batch.to)
            if waiting is not None:
                waiting.append(batch)
                return
        self.agent.request(batch.to.id, "refs", batch).add_done_callback(partial(self._answered, batch))

    def _answered(self, batch: Batch, future: "Future[Any]") -> None:
        error = error_of(future)
        if error is None:
            if future.value():
                self.do_inline(self.table.delivered, batch)
        elif self.agent.group.ending.is_set:
            self.do_inline(self.table.left, batch.to)
        else:
            with self.changed:
                self._undelivered.setdefault(batch.to, []).append(batch)

    def _on_batch(self, sender: WorkerInfo, batch: Batch) -> bool:
        """Handle messages of another worker. Return False if they were for a former life of this one."""
        self.do_inline(self.table.on_batch, batch)
        return batch.to == self.table.me

    def _on_lost(self, worker: WorkerInfo, incarnation: int) -> None:
        key = WorkerKey(worker.id, incarnation)
        with self.changed:
            self._undelivered.pop(key, None)
        self.do_inline(self.table.lost, key, self._alive())

    def _heard(self, event: Event) -> None:
        if isinstance(event, Left):
            self._on_lost(event.member.info, event.member.incarnation)

    # -- members ---------------------------------------------------------------------------------------------------

    def _alive(self) -> list[WorkerKey]:
        return [member.key for member in self.agent.group.members().values()]

    def is_member(self, key: WorkerKey) -> bool:
        return lives(key, self.agent.group.members())

    def key_of(self, id: int) -> WorkerKey:
        member = self.agent.group.members().get(id)
        if member is None:
            raise self.no_member(id)
        return member.key

    def no_member(self, id: int) -> WorkerLostError:
        return no_member(id, self.agent.group.members(), self.agent.group.former, self.agent.group.fenced)

    def name_of(self, key: WorkerKey) -> str:
        return f"worker {self.info_of(key).name}"

    def info_of(self, key: WorkerKey) -> WorkerInfo:
        """Who that is, or was."""
        member = self.agent.group.members().get(key.id)
        if member is None or member.key != key:
            member = self.agent.group.former.get(key.id)
        return WorkerInfo(f"rank-{key.id}", key.id) if member is None else member.info

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        tick_s = self._clock.now_s() + self._tick_s
        while True:
            items = self._gather(max(0.0, tick_s - self._clock.now_s()))
            try:
                self._work(items)
                if self._clock.now_s() >= tick_s:
                    tick_s = self._clock.now_s() + self._tick_s
                    self._tick()
            except Exception:
                _log.exception("the book-keeping of references failed; it goes on. Please report this.")
            if _STOP in items:
                return
            del items

    def _gather(self, within_s: float) -> list[object]:
        """All that is in the queue; waits for the first."""
        items: list[object] = []
        try:
            items.append(self._ended.get(timeout=within_s))
            while True:
                items.append(self._ended.get_nowait())
        except queue.Empty:
            return items

    def _work(self, items: list[object]) -> None:
        ended = [item for item in items if type(item) is UserState]
        if ended:
            self.do(self.table.dropped, *(user.fork.fork_id for user in ended))
            for user in ended:
                user.ended = True
                if user.confirmed.done():
                    self.users.pop(user.fork.fork_id, None)
        for item in items:
            if type(item) is Batch:
                self._send(item)

    def _tick(self) -> None:
        """Send again what could not be sent: to newcomers that this worker does not know yet, and to those that left.

        A worker that is no member for some ticks was gone before this one came.
        """
        for peer in list(self._undelivered):
            if self.is_member(peer):
                with self.changed:
                    batches = self._undelivered.pop(peer, [])
                for batch in batches:
                    self._send(batch)
                self._absent.pop(peer, None)
                continue
            self._absent[peer] = self._absent.get(peer, 0) + 1
            if self._absent[peer] >= _ABSENT_TICKS:
                del self._absent[peer]
                with self.changed:
                    self._undelivered.pop(peer, None)
                self.do(self.table.lost, peer, self._alive())
