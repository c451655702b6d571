"""Reference counting on a slow network, with workers that crash and come back: 200 seeded runs."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from played_refs import PlayedWorker, World
from sim import Sim

from fanwise.rpc.messages.ids import Fork, GlobalId, WorkerKey
from fanwise.rpc.references.protocol import Batch, FlushReply, FlushRequest, FreeValue, Send
from fanwise.rpc.references.table import RefTable

SIZE = 4
STEPS = 60


def play(seed: int, *, table: Callable[[WorkerKey], RefTable] = RefTable) -> World:
    """Programs do as they like for a while, then keep still until everything has settled."""
    chance = random.Random(f"{seed}/programs")
    sim = Sim(seed)
    world = World(sim, SIZE, table=table)
    for _ in range(STEPS):
        act(chance, world)
        sim.run(sim.clock.now_s() + chance.choice([0.0, 0.01, 0.1]))
    settle(world)
    world.check_exactly()
    return world


def act(chance: random.Random, world: World) -> None:
    keys = sorted(world.workers)
    worker = world.workers[chance.choice(keys)]
    other = chance.choice(keys)
    fork_id = chance.choice(sorted(worker.forks)) if worker.forks else None
    sent = chance.random() < 0.9
    match chance.choice([*"remote remote queue share share share lend drop hasty crash cut".split(), "give up"]):
        case "remote" if other != worker.key:
            if not worker.table.is_lost(other):
                worker.remote(other, sent=sent)
        case "queue" if other != worker.key and not worker.table.is_lost(other):
            if worker.queued:
                worker.end_of_queue(sent=sent and chance.random() < 0.5)
            worker.queue(other)
        case "lend":
            worker.lend(other, sent=sent)
        case "share" if fork_id is not None:
            worker.share(fork_id, other, sent=sent)
            if chance.random() < 0.5:
                worker.drop(fork_id)
        case "drop" if fork_id is not None:
            worker.drop(fork_id)
        case "hasty" if other != worker.key and not worker.table.is_lost(other):
            made = worker.remote(other)
            worker.give_up(made)
            worker.drop(made)
        case "give up" if fork_id is not None and chance.random() < 0.3:
            worker.give_up(fork_id)
        case "crash" if chance.random() < 0.4 and len(keys) > 2:
            world.crash(worker.key)
            world.sim.after(chance.uniform(0.0, 1.0), lambda: world.join(worker.key.id) and None)
        case "cut" if chance.random() < 0.3:
            world.sim.cut(worker.key, other)
            world.sim.after(1.0, lambda: world.sim.mend(worker.key, other))


def settle(world: World) -> None:
    """Until nothing is on its way."""
    for worker in world.workers.values():
        while worker.queued:
            worker.end_of_queue(sent=len(worker.queued) % 2 == 0)
    for _ in range(200):
        world.sim.run(world.sim.clock.now_s() + 5.0)
        if not any(worker.table.num_undelivered for worker in world.workers.values()):
            break
    world.sim.run(world.sim.clock.now_s() + 5.0)


def drop_all(worker: PlayedWorker) -> None:
    for fork_id in list(worker.forks):
        worker.drop(fork_id)


# A seed takes less than what pytest does around a test, so a test has fifty.
@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 200, 50)], ids=str)
def test_every_value_is_freed_once_and_never_while_it_is_held(seeds: range) -> None:
    for seed in seeds:
        with saying(seed):
            all_is_freed_once(play(seed))


@contextlib.contextmanager
def saying(seed: int) -> Iterator[None]:
    """An error has a note of the seed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def all_is_freed_once(world: World) -> None:
    for worker in list(world.workers.values()):
        drop_all(worker)
    settle(world)
    world.check_exactly()
    for worker in world.workers.values():
        assert (worker.table.user_forks, worker.table.owned) == ({}, {})
        assert set(worker.freed.values()) <= {1} and set(worker.freed) == worker.begun


def test_the_simulated_faults_do_happen() -> None:
    happened = sum((play(seed).sim.happened for seed in range(20)), start=Sim(0).happened)
    for what in ("crash", "cut", "cut off", "to nobody", "arrived"):
        assert happened[what] > 5, f"{what} hardly ever happens: {happened}"


def test_the_same_seed_gives_the_same_run() -> None:
    assert play(7).sim.happened == play(7).sim.happened
    assert play(7).sim.happened != play(8).sim.happened


def grandchild_of_a_dead_child(table: Callable[[WorkerKey], RefTable] = RefTable) -> World:
    """A parent hands on to a child, which hands on and dies; nobody but the grandchild knows of the grandchild."""
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


def test_a_parent_keeps_a_value_for_the_grandchildren_of_its_dead_child() -> None:
    world = grandchild_of_a_dead_child()
    owner, _, grandchild = sorted(world.workers)
    assert {holder for owned in world.workers[owner].table.owned.values() for holder in owned.forks.values()} == {
        grandchild
    }
    drop_all(world.workers[grandchild])
    settle(world)
    assert world.workers[owner].freed.total() == 1


def test_nothing_is_left_of_20000_references() -> None:
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
        sizes = {name: len(held) for name, held in vars(table).items() if hasattr(held, "__len__")}
        assert {name for name, size in sizes.items() if size} <= {"me"}
        assert table.num_undelivered == table.num_unconfirmed == table.num_forks == 0


def test_a_flush_does_not_name_lost_workers_that_all_have_flushed() -> None:
    owner, other = RefTable(WorkerKey(0, 1)), WorkerKey(1, 2)
    told = []
    for incarnation in range(10, 60):
        holder, rref_id = WorkerKey(2, incarnation), GlobalId(0, 1, incarnation)
        owner.share(Fork(rref_id, GlobalId(0, 1, 1000 + incarnation), owner.me, owner.me), holder)
        (action,) = owner.on_lost(holder, [other])
        assert isinstance(action, Send)
        (request,) = action.batch.messages
        assert isinstance(request, FlushRequest)
        told.append(len(request.lost_before))
        assert FreeValue(rref_id) in owner.on_batch(Batch(other, owner.me, (FlushReply(holder),)))
        owner.on_delivered(action.batch)
    assert told == [1] * 50


# Broken versions, each with one method replaced. Any: they reach into what is private.


def lets_parents_go_at_once(self: Any, fork_id: GlobalId) -> None:
    fork = self.user_forks.get(fork_id)
    if fork is not None:
        for child in fork.children:
            self._parent_of.pop(child)
        fork.children.clear()
    RefTable._release_unused(self, fork_id)


def drops_the_forks_of_the_dead_at_once(self: Any, lost: WorkerKey, alive: Any) -> None:
    RefTable._begin_flush(self, lost, ())


def keeps_the_forks_of_the_dead(self: Any, lost: WorkerKey, alive: Any) -> None:
    return None


def replies_to_a_flush_at_once(self: Any) -> None:
    for lost, requesters in self._requesters.items():
        for requester in sorted(requesters):
            self._post(requester, FlushReply(lost))
    self._requesters.clear()


def forgets_only_what_it_knows(self: Any, rref_id: GlobalId, fork_id: GlobalId) -> bool:
    RefTable._drop_fork(self, rref_id, fork_id)
    return True


def releases_what_is_unconfirmed(self: Any, fork_id: GlobalId) -> None:
    fork = self.user_forks.get(fork_id)
    if fork is not None and fork.is_released:
        fork.is_confirmed = True
    RefTable._release_unused(self, fork_id)


BROKEN: dict[str, Callable[..., Any]] = {
    "_release_unused": lets_parents_go_at_once,
    "_begin_flush": drops_the_forks_of_the_dead_at_once,
    "_begin_flush ": keeps_the_forks_of_the_dead,
    "_reply_to_flushes": replies_to_a_flush_at_once,
    "_drop_fork": forgets_only_what_it_knows,
    "_release_unused ": releases_what_is_unconfirmed,
}


@pytest.mark.parametrize("method", BROKEN, ids=lambda method: BROKEN[method].__name__)
def test_the_simulation_catches_a_table_that(method: str) -> None:
    broken = type("Broken", (RefTable,), {method.strip(): BROKEN[method]})
    with pytest.raises((AssertionError, KeyError)):
        play_many(broken)


def play_many(broken: type[RefTable]) -> None:
    grandchild_of_a_dead_child(broken)
    for seed in range(400):
        play(seed, table=broken)
