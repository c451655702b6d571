"""Simulated workers for tests of reference counting: real tables, a simulated network, programs without code.

Each program creates values on peer workers, sends references on, drops them, crashes and returns. The world knows
everything, so it can check at each FreeValue that no living worker holds the value or is being sent it.

Messages arrive once, late and in any order, or never, because a worker has died.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sim import Address, Sim

from fanwise.rpc.messages.ids import Fork, GlobalId, WorkerKey
from fanwise.rpc.references.protocol import Action, Batch, FailFork, FailValue, FreeValue, Send
from fanwise.rpc.references.table import RefTable


@dataclass(frozen=True, slots=True)
class Call:
    """A call that carries a fork, or with `creates` creates a value on its receiver."""

    fork: Fork
    creates: bool = False


@dataclass(frozen=True, slots=True)
class Created:
    """The reply to a call that creates."""

    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class Delivered:
    """The reply to a batch."""

    batch: Batch


class SimulatedWorker:
    """One incarnation of a worker. `forks`: the forks that its program holds."""

    def __init__(self, world: "World", key: WorkerKey, table: RefTable) -> None:
        self.world = world
        self.key = key
        self.table = table
        self.forks: dict[GlobalId, Fork] = {}
        self.queued: list[Fork] = []
        self.own: set[GlobalId] = set()
        self.begun: set[GlobalId] = set()
        self.freed: Counter[GlobalId] = Counter()
        self.refused: set[GlobalId] = set()
        self.others: set[WorkerKey] = set()
        self.failed: Counter[GlobalId] = Counter()  # values that became errors
        self._numbers = itertools.count()

    def new_id(self) -> GlobalId:
        return GlobalId(self.key.id, self.key.incarnation, next(self._numbers))

    # -- operations of the program ----------------------------------------------------------------------------------

    def remote(self, owner: WorkerKey, *, sent: bool = True) -> GlobalId:
        """Create a value there; returns the fork. Not `sent`: the call fails before it leaves."""
        fork = Fork(self.new_id(), self.new_id(), owner, self.key)
        self.act(self.table.create(fork.rref_id, fork.fork_id, owner))
        self.forks[fork.fork_id] = fork
        if sent:
            self.world.call(self.key, owner, Call(fork, creates=True))
        else:
            self.act(self.table.on_creation_unsent(fork.fork_id, "not sent"))
            self.refused.add(fork.fork_id)
        return fork.fork_id

    def queue(self, owner: WorkerKey) -> GlobalId:
        """Create a value there by a call that waits for its link, until `end_of_queue`; returns the fork."""
        fork = Fork(self.new_id(), self.new_id(), owner, self.key)
        self.act(self.table.create(fork.rref_id, fork.fork_id, owner))
        self.forks[fork.fork_id] = fork
        self.queued.append(fork)
        return fork.fork_id

    def end_of_queue(self, *, sent: bool) -> None:
        """Send the oldest queued call, or drop it."""
        fork = self.queued.pop(0)
        if sent:
            if not self.table.is_lost(fork.owner):
                self.world.call(self.key, fork.owner, Call(fork, creates=True))
            return
        is_known = fork.fork_id in self.table.user_forks
        self.act(self.table.on_creation_unsent(fork.fork_id, "timed out"))
        if is_known and fork.fork_id not in self.table.user_forks:  # no peer worker has it
            self.refused.add(fork.fork_id)

    def give_up(self, fork_id: GlobalId) -> None:
        """Let the call that created this time out. No effect if another worker sent it."""
        if not any(fork.fork_id == fork_id for fork in self.queued):
            self.act(self.table.on_creation_timeout(fork_id))

    def share(self, fork_id: GlobalId, to: WorkerKey, *, sent: bool = True) -> None:
        """Send a reference on. Not `sent`: the call fails before it leaves."""
        own = self.forks[fork_id]
        if fork_id not in self.table.user_forks or self.table.is_lost(to):
            return
        fork = Fork(own.rref_id, self.new_id(), own.owner, self.key)
        self.act(self.table.fork(fork_id, fork, to))
        self._send(fork, to, sent)

    def lend(self, to: WorkerKey, *, sent: bool = True) -> None:
        """Send a reference to a new value of this worker."""
        if self.table.is_lost(to):
            return
        fork = Fork(self.new_id(), self.new_id(), self.key, self.key)
        self.own.add(fork.rref_id)
        self.begun.add(fork.rref_id)
        self.act(self.table.share(fork, to))
        self._send(fork, to, sent)

    def drop(self, fork_id: GlobalId) -> None:
        del self.forks[fork_id]
        self.act(self.table.release(fork_id))

    def _send(self, fork: Fork, to: WorkerKey, sent: bool) -> None:
        if sent:
            self.world.call(self.key, to, Call(fork))
        else:
            self.act(self.table.on_fork_unsent(fork))

    # -- events ----------------------------------------------------------------------------------------------------

    def receive(self, sender: Address, message: object) -> None:
        assert isinstance(sender, WorkerKey)
        match message:
            case Batch() as batch:
                self.act(self.table.on_batch(batch))
                self.world.sim.send(self.key, sender, Delivered(batch), reliably=True)
            case Delivered(batch):
                self.act(self.table.on_delivered(batch))
            case Call(fork, creates=True):
                self.world.arrived(self.key, message)
                assert not self.failed[fork.rref_id] or self.table.is_lost(sender), f"{fork.rref_id} had failed"
                if not self.table.is_lost(sender):  # otherwise its value is released at once
                    self.begun.add(fork.rref_id)
                self.act(self.table.on_creation_received(fork.rref_id, fork.fork_id, sender))
                self.world.sim.send(self.key, sender, Created(fork.fork_id), reliably=True)
            case Call(fork):
                self.world.arrived(self.key, message)
                if fork.owner != self.key:
                    self.forks[fork.fork_id] = fork
                self.act(self.table.on_fork_received(fork))
            case Created(fork_id):
                self.act(self.table.on_created(fork_id))

    def learn_of_death(self, worker: WorkerKey) -> None:
        self.others.discard(worker)
        self.act(self.table.on_lost(worker, self.others))

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(batch):
                    self.world.sim.send(self.key, batch.to, batch, reliably=True)
                case FreeValue(rref_id) if rref_id in self.begun:
                    self.freed[rref_id] += 1
                    self.world.check_freed(self.key, rref_id)
                case FailFork(fork_id):
                    self.refused.add(fork_id)
                case FailValue(rref_id, reason=reason):
                    self.world.sim.happened[f"value failed: {reason}"] += 1
                    assert rref_id not in self.begun, f"{self.key} has {rref_id}, and replaced it by an error"
                    self.failed[rref_id] += 1
                    if reason != "died":  # the error replaces the value
                        self.begun.add(rref_id)


class World:
    """Workers 0 to `size - 1`, and all calls that are on their way.

    Args:
        sim: the network.
        table: creates the tables.
        death_s: each of the others learns of a death within this time.
    """

    def __init__(
        self,
        sim: Sim,
        size: int,
        *,
        table: Callable[[WorkerKey], RefTable] = RefTable,
        death_s: float = 0.5,
    ) -> None:
        self.sim = sim
        self.workers: dict[WorkerKey, SimulatedWorker] = {}
        self.flying: Counter[tuple[WorkerKey, Call]] = Counter()
        self._table = table
        self._death_s = death_s
        self._incarnations = itertools.count(1)
        self._dead: list[WorkerKey] = []
        for number in range(size):
            self.join(number)

    def join(self, number: int) -> WorkerKey:
        """Start an incarnation of worker `number`, which knows all earlier deaths."""
        key = WorkerKey(number, next(self._incarnations))
        worker = SimulatedWorker(self, key, self._table(key))
        for peer in self.workers.values():
            peer.others.add(key)
            worker.others.add(peer.key)
        for dead in self._dead:
            worker.learn_of_death(dead)
        self.workers[key] = worker
        self.sim.join(key, worker.receive)
        return key

    def crash(self, key: WorkerKey) -> None:
        """Kill a worker. The others learn it one after another."""
        del self.workers[key]
        self._dead.append(key)
        self.sim.crash(key)
        for peer in list(self.workers):
            self.sim.after(self.sim.chance.uniform(0.0, self._death_s), partial(self._report_death, peer, key))

    def _report_death(self, to: WorkerKey, dead: WorkerKey) -> None:
        if to in self.workers:
            self.workers[to].learn_of_death(dead)

    def call(self, sender: WorkerKey, to: WorkerKey, call: Call) -> None:
        self.flying[to, call] += 1
        self.sim.send(sender, to, call, reliably=True)

    def arrived(self, to: WorkerKey, call: Call) -> None:
        self.flying[to, call] -= 1
        if not self.flying[to, call]:
            del self.flying[to, call]

    # -- checks ----------------------------------------------------------------------------------------------------

    def check_freed(self, owner: WorkerKey, rref_id: GlobalId) -> None:
        """Check that no living worker holds the value, or will accept a call that carries it."""
        for worker in self.workers.values():
            for fork in worker.forks.values():
                assert fork.rref_id != rref_id or fork.fork_id in worker.refused, (
                    f"{owner} freed {rref_id}, which {worker.key} holds as {fork.fork_id}"
                )
        for to, call in self.flying:
            if call.fork.rref_id == rref_id and to in self.workers and not call.creates:
                assert self.workers[to].table.is_lost(call.fork.parent), f"{owner} freed {rref_id} on its way to {to}"

    def check_exactly(self) -> None:
        """Check that tables hold exactly what programs hold, when no message is on its way."""
        for worker in self.workers.values():
            table = worker.table
            assert set(table.user_forks) == set(worker.forks) - worker.refused and not worker.queued
            assert not any(fork.children or fork.is_released for fork in table.user_forks.values())
            assert (table._parent_of, table._requesters, table._flushes, table._canceled) == ({}, {}, {}, {})
            assert table.num_undelivered == 0
            assert self._forks_at(worker) == self._forks_of(worker)
            assert all(owned.is_created and owned.forks for owned in table.owned.values())
            assert set(worker.failed.values()) <= {1}
            assert worker.freed == Counter(worker.begun - set(table.owned))

    def _forks_at(self, owner: SimulatedWorker) -> set[tuple[GlobalId, GlobalId, WorkerKey]]:
        owned = owner.table.owned
        return {(r, f, holder) for r in set(owned) & owner.begun for f, holder in owned[r].forks.items()}

    def _forks_of(self, owner: SimulatedWorker) -> set[tuple[GlobalId, GlobalId, WorkerKey]]:
        return {
            (fork.rref_id, fork_id, worker.key)
            for worker in self.workers.values()
            for fork_id, fork in worker.forks.items()
            if fork.rref_id in owner.begun and fork_id not in worker.refused
        }
