"""Reference counting on a slow network, with workers that crash and return: real tables against a global model.

The model is the set of references that programs hold. It knows all workers at once and no messages. Whenever no message
is on its way, each table must hold exactly that. A value that a program holds or is being sent must never be freed.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim import Sim
from simulated_refs import SimulatedWorker, World

from fanwise.rpc.messages.ids import Fork, GlobalId, WorkerKey
from fanwise.rpc.references.protocol import Batch, FlushReply, FlushRequest, FreeValue, Send
from fanwise.rpc.references.table import RefTable

SIZE = 4
STEPS = 60


def play(seed: int, *, table: Callable[[WorkerKey], RefTable] = RefTable) -> World:
    """Let programs act at random, then stop until no message is on its way, drop everything and check."""
    chance = random.Random(f"{seed}/programs")
    sim = Sim(seed)
    world = World(sim, SIZE, table=table)
    for _ in range(STEPS):
        act(chance, world)
        sim.run(sim.clock.now_s() + chance.choice([0.0, 0.01, 0.1]))
    settle(world)
    world.check_exactly()
    for worker in list(world.workers.values()):
        drop_all(worker)
    settle(world)
    world.check_exactly()
    for worker in world.workers.values():
        assert (worker.table.user_forks, worker.table.owned) == ({}, {})
        assert set(worker.freed.values()) <= {1} and set(worker.freed) == worker.begun
    return world


def act(chance: random.Random, world: World) -> None:
    keys = sorted(world.workers)
    worker = world.workers[chance.choice(keys)]
    peer = chance.choice(keys)
    fork_id = chance.choice(sorted(worker.forks)) if worker.forks else None
    sent = chance.random() < 0.9
    match chance.choice([*"remote remote queue share share share lend drop hasty crash cut".split(), "give up"]):
        case "remote" if peer != worker.key:
            if not worker.table.is_lost(peer):
                worker.remote(peer, sent=sent)
        case "queue" if peer != worker.key and not worker.table.is_lost(peer):
            if worker.queued:
                worker.end_of_queue(sent=sent and chance.random() < 0.5)
            worker.queue(peer)
        case "lend":
            worker.lend(peer, sent=sent)
        case "share" if fork_id is not None:
            worker.share(fork_id, peer, sent=sent)
            if chance.random() < 0.5:
                worker.drop(fork_id)
        case "drop" if fork_id is not None:
            worker.drop(fork_id)
        case "hasty" if peer != worker.key and not worker.table.is_lost(peer):
            fork = worker.remote(peer)
            worker.give_up(fork)
            worker.drop(fork)
        case "give up" if fork_id is not None and chance.random() < 0.3:
            worker.give_up(fork_id)
        case "crash" if chance.random() < 0.4 and len(keys) > 2:
            world.crash(worker.key)
            world.sim.after(chance.uniform(0.0, 1.0), lambda: world.join(worker.key.id) and None)
        case "cut" if chance.random() < 0.3:
            world.sim.cut(worker.key, peer)
            world.sim.after(1.0, lambda: world.sim.mend(worker.key, peer))


def settle(world: World) -> None:
    """Run until no message is on its way."""
    for worker in world.workers.values():
        while worker.queued:
            worker.end_of_queue(sent=len(worker.queued) % 2 == 0)
    for _ in range(200):
        world.sim.run(world.sim.clock.now_s() + 5.0)
        if not any(worker.table.num_undelivered for worker in world.workers.values()):
            break
    world.sim.run(world.sim.clock.now_s() + 5.0)


def drop_all(worker: SimulatedWorker) -> None:
    for fork_id in list(worker.forks):
        worker.drop(fork_id)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_every_value_is_freed_once_and_never_while_it_is_held(seed: int) -> None:
    play(seed)


def test_simulated_faults_occur() -> None:
    happened = sum((play(seed).sim.happened for seed in range(20)), start=Sim(0).happened)
    for event in ("crash", "cut", "cut off", "to nobody", "arrived"):
        assert happened[event] > 5, f"{event} is rare: {happened}"


def test_same_seed_gives_the_same_run() -> None:
    assert play(7).sim.happened == play(7).sim.happened
    assert play(7).sim.happened != play(8).sim.happened


def grandchild_of_a_dead_child(table: Callable[[WorkerKey], RefTable] = RefTable) -> World:
    """A parent sends a reference to a child, which sends it on and dies. Only the grandchild knows of its fork."""
    sim = Sim(1)
    world = World(sim, SIZE, table=table)
    owner, parent, child, grandchild = sorted(world.workers)
    fork_id = world.workers[parent].remote(owner)
    sim.run(sim.clock.now_s() + 5.0)
    sim.cut(owner, child)
    sim.cut(owner, grandchild)
    world.workers[parent].share(fork_id, child)
    world.workers[parent].drop(fork_id)
    sim.run(sim.clock.now_s() + 0.5)
    (passed_on,) = world.workers[child].forks
    world.workers[child].share(passed_on, grandchild)
    sim.run(sim.clock.now_s() + 0.5)
    world.crash(child)
    sim.run(sim.clock.now_s() + 5.0)
    assert len(world.workers[grandchild].forks) == 1 and not world.workers[grandchild].refused
    sim.mend(owner, grandchild)
    settle(world)
    world.check_exactly()
    return world


def test_parent_keeps_a_value_for_the_grandchildren_of_its_dead_child() -> None:
    world = grandchild_of_a_dead_child()
    owner, _, grandchild = sorted(world.workers)
    assert {holder for owned in world.workers[owner].table.owned.values() for holder in owned.forks.values()} == {
        grandchild
    }
    drop_all(world.workers[grandchild])
    settle(world)
    assert world.workers[owner].freed.total() == 1


def test_tables_are_empty_after_20000_references() -> None:
    owner, user = RefTable(WorkerKey(0, 1)), RefTable(WorkerKey(1, 2))
    freed = 0
    for number in range(20_000):
        rref_id, fork_id = GlobalId(1, 2, 2 * number), GlobalId(1, 2, 2 * number + 1)
        user.create(rref_id, fork_id, owner.me)
        owner.on_creation_received(rref_id, fork_id, user.me)
        user.on_created(fork_id)
        for action in user.release(fork_id):
            assert isinstance(action, Send)
            freed += owner.on_batch(action.batch) == [FreeValue(rref_id)]
            user.on_delivered(action.batch)
    assert freed == 20_000
    for table in (owner, user):
        sizes = {name: len(value) for name, value in vars(table).items() if hasattr(value, "__len__")}
        assert {name for name, size in sizes.items() if size} <= {"me"}
        assert table.num_undelivered == table.num_unconfirmed == table.num_forks == 0


def test_flush_omits_lost_workers_that_all_have_flushed() -> None:
    owner, peer = RefTable(WorkerKey(0, 1)), WorkerKey(1, 2)
    lengths = []
    for incarnation in range(10, 60):
        holder, rref_id = WorkerKey(2, incarnation), GlobalId(0, 1, incarnation)
        owner.share(Fork(rref_id, GlobalId(0, 1, 1000 + incarnation), owner.me, owner.me), holder)
        (action,) = owner.on_lost(holder, [peer])
        assert isinstance(action, Send)
        (request,) = action.batch.messages
        assert isinstance(request, FlushRequest)
        lengths.append(len(request.lost_before))
        assert FreeValue(rref_id) in owner.on_batch(Batch(peer, owner.me, (FlushReply(holder),)))
        owner.on_delivered(action.batch)
    assert lengths == [1] * 50


# Broken versions of one method each. Any: they use private attributes.


def _releases_parents_at_once(self: Any, fork_id: GlobalId) -> None:
    fork = self.user_forks.get(fork_id)
    if fork is not None:
        for child in fork.children:
            self._parent_of.pop(child)
        fork.children.clear()
    RefTable._release_unused(self, fork_id)


def _drops_forks_of_lost_workers_at_once(self: Any, lost: WorkerKey, alive: Any) -> None:
    RefTable._begin_flush(self, lost, ())


def _keeps_forks_of_lost_workers(self: Any, lost: WorkerKey, alive: Any) -> None:
    return None


def _replies_to_a_flush_at_once(self: Any) -> None:
    for lost, requesters in self._requesters.items():
        for requester in sorted(requesters):
            self._post(requester, FlushReply(lost))
    self._requesters.clear()


def _forgets_releases_of_unknown_forks(self: Any, rref_id: GlobalId, fork_id: GlobalId) -> bool:
    RefTable._drop_fork(self, rref_id, fork_id)
    return True


def _frees_with_the_first_fork(self: Any, rref_id: GlobalId, fork_id: GlobalId) -> None:
    if self.owned.pop(rref_id, None) is not None:
        self._actions.append(FreeValue(rref_id))


def _releases_unconfirmed_forks(self: Any, fork_id: GlobalId) -> None:
    fork = self.user_forks.get(fork_id)
    if fork is not None and fork.is_released:
        fork.is_confirmed = True
    RefTable._release_unused(self, fork_id)


def _ignores_lost_workers_that_hold_forks(self: Any, lost: WorkerKey) -> bool:
    return False


def _does_not_report_unsent_calls(self: Any, fork_id: GlobalId, reason: str) -> list[Any]:
    return RefTable.on_creation_timeout(self, fork_id)


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("_release_unused", _releases_parents_at_once),
        ("_begin_flush", _drops_forks_of_lost_workers_at_once),
        ("_begin_flush", _keeps_forks_of_lost_workers),
        ("_reply_to_flushes", _replies_to_a_flush_at_once),
        ("_drop_fork", _forgets_releases_of_unknown_forks),
        ("_drop_fork", _frees_with_the_first_fork),
        ("_release_unused", _releases_unconfirmed_forks),
        ("_holds_something", _ignores_lost_workers_that_hold_forks),
        ("on_creation_unsent", _does_not_report_unsent_calls),
    ],
)
def test_simulation_detects_a_broken_table(method: str, broken: Callable[..., Any]) -> None:
    table = type("Broken", (RefTable,), {method: broken})
    with pytest.raises((AssertionError, KeyError)):
        play_many(table)


def play_many(table: type[RefTable]) -> None:
    grandchild_of_a_dead_child(table)
    for seed in range(400):
        play(seed, table=table)
