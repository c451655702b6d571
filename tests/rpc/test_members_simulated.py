"""Many members, one thread, virtual time: joins, leaves, deaths, resets, freezes, successions in any order; all agree.

The links here are like real ones: in order, each with its own delays, and with an end that comes after all that was
sent; a reset loses that. The entrance is held by one at a time, falls free with its holder, and is left to the group
as long as some of it live. Who is frozen for long
is declared lost, and wakes at any later time: with all that was sent to it still to be read, or with a dead link only.
No reason is remembered for longer than the protocol needs.
"""

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.rpc.membership.coordinator import (
    Admit,
    Coordinator,
    Count,
    Dismiss,
    Fence,
    Order,
    Over,
    Refuse,
    Rest,
    Show,
)
from fanwise.rpc.membership.members import Event, Hello, Left, Lost, Member, MemberState
from fanwise.testing.sim import Sim

RANKS = 5
LONG_S = 100.0
FROZEN_S, AWAY_S = 5.0, 30.0


class Link:
    """Two ways between a member and a coordinator; what is sent arrives in order, the end last."""

    def __init__(self, world: "World", member: "Worker", chief: "Worker") -> None:
        self.world, self.member, self.chief = world, member, chief
        self.open = True
        self.was_reset = False
        self._last_s = {"up": 0.0, "down": 0.0}

    def send(self, way: str, arrive: Callable[[], None]) -> None:
        if self.open:
            sim, reader = self.world.sim, self.chief if way == "up" else self.member
            self._last_s[way] = max(self._last_s[way], sim.clock.now_s() + sim.chance.uniform(0.001, 0.05))
            come = partial(self._come, arrive)
            sim.after(self._last_s[way] - sim.clock.now_s(), lambda: reader.awake(come))

    def _come(self, arrive: Callable[[], None]) -> None:
        if not self.was_reset:
            arrive()

    def end(self, clean: bool) -> None:
        """Both sides hear of it, after what is on its way; who ended it has forgotten the link already."""
        self.send("up", lambda: self.chief.member_gone(self, clean))
        self.send("down", lambda: self.member.chief_gone(self, clean))
        self.open = False

    def reset(self) -> None:
        """Something between the two ends it: what is on its way is lost, and both live."""
        self.was_reset, self.open = True, False
        sim = self.world.sim
        for end, reader in ((self.chief.member_away, self.chief), (self.member.chief_away, self.member)):
            sim.after(sim.chance.uniform(0.001, 0.05), lambda end=end, reader=reader: reader.awake(lambda: end(self)))  # type: ignore[misc]


class Worker:
    """One life of a worker: a state, perhaps the coordinator, and what `group.py` does with both."""

    def __init__(self, world: "World", rank: int, life: int) -> None:
        self.world = world
        self.me = Member(f"w{rank}", rank, 100 * life + rank, "", "host", 1000 * life + rank)
        self.state = MemberState(self.me, world.size)
        self.machine: Coordinator | None = None
        self.guests: dict[int, Link] = {}
        self.link: Link | None = None
        self.alive, self.admitted, self.over, self.refused = True, False, False, False
        self.frozen, self.fenced = False, False
        self.inbox: list[Callable[[], object]] = []  # what happens to it when it wakes
        self.heard: list[Event] = []
        self.leaving, self.old, self.old_why, self.seeking_since_s = False, 0, "", world.sim.clock.now_s()
        self.seek()

    def awake(self, happens: Callable[[], object]) -> None:
        """It happens to this worker, once it is not frozen any more."""
        if self.frozen:
            self.inbox.append(happens)
        else:
            happens()

    def later(self, after_s: float, happens: Callable[[], object]) -> None:
        self.world.sim.after(after_s, lambda: self.awake(happens))

    # -- finding the coordinator -----------------------------------------------------------------------------------

    def seek(self) -> None:
        if not self.alive or self.link is not None or self.machine is not None or self.refused:
            return
        holder = self.world.holder
        if holder is not None:
            link = self.link = Link(self.world, self, holder)
            hello = self.state.hello()
            link.send("up", lambda: holder.welcome(link, hello))
        elif self.may_open():
            self.become_coordinator()
        else:
            self.later(0.02, self.seek)

    def may_open(self) -> bool:
        waited_s = self.world.sim.clock.now_s() - self.seeking_since_s
        if self.state.view is None:
            if any(worker.admitted for worker in self.world.living()):
                return False  # as the lock file says: some of the group live, and find a coordinator among themselves
            return self.me.id == 0 or (self.world.size is None and waited_s > 1.0)
        before_me = [m.incarnation for m in self.state.successors(self.old)]
        return waited_s >= 0.1 * (before_me.index(self.me.incarnation) if self.me.incarnation in before_me else 0)

    def become_coordinator(self) -> None:
        self.world.holder = self
        self.machine = machine = Coordinator(
            self.me.incarnation, world_size=self.world.size, known=self.state.view, reasons_kept=self.world.reasons_kept
        )
        if self.old:
            self.carry_out(machine.lose(self.old, self.old_why) if self.old_why else machine.gone(self.old))
        self.carry_out(machine.hello(self.state.hello()))
        self.look()

    def look(self) -> None:
        """Who never said hello here may be dead, or have left."""
        if self.alive and self.machine is not None:
            for member in list(self.machine.members.values()):
                worker = self.world.workers[member.incarnation]
                if member.incarnation not in self.guests and not worker.alive:
                    dead = worker in self.world.killed
                    machine = self.machine
                    self.carry_out(
                        machine.lose(member.incarnation, "dead") if dead else machine.gone(member.incarnation)
                    )
            self.later(1.0, self.look)

    # -- as the coordinator ----------------------------------------------------------------------------------------

    def welcome(self, link: Link, hello: Hello) -> None:
        if not self.alive or self.machine is None:
            link.end(self not in self.world.killed)
            return
        self.guests[link.member.me.incarnation] = link
        for other in list(self.machine.members.values()):  # whose place it asks for may just have died
            worker = self.world.workers[other.incarnation]
            if other.id == link.member.me.id and not worker.alive:
                is_dead, machine = worker in self.world.killed, self.machine
                self.carry_out(machine.lose(other.incarnation, "dead") if is_dead else machine.gone(other.incarnation))
        self.carry_out(self.machine.hello(hello))

    def member_gone(self, link: Link, clean: bool) -> None:
        member = link.member.me.incarnation
        if self.alive and self.machine is not None and self.guests.get(member) is link:
            del self.guests[member]
            self.carry_out(self.machine.gone(member) if clean else self.machine.lose(member, "dead"))

    def member_away(self, link: Link) -> None:
        """Its link was reset. It is given as long as on one host."""
        if self.alive and self.machine is not None and self.guests.get(link.member.me.incarnation) is link:
            del self.guests[link.member.me.incarnation]
            self.later(AWAY_S, lambda: self.still_away(link.member.me.incarnation))

    def still_away(self, member: int) -> None:
        if self.alive and self.machine is not None and member not in self.guests:
            self.carry_out(self.machine.lose(member, "away"))

    def carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Rest):
                self.later(0.01, lambda round=order.round: self.rested(round))  # type: ignore[misc]
            elif order.to == self.me.incarnation:
                self.told(order)
            elif order.to in self.guests:
                link = self.guests[order.to]
                link.send("down", lambda link=link, order=order: link.member.hear(link, order))  # type: ignore[misc]
                if isinstance(order, Fence):
                    self.guests.pop(order.to).end(True)

    def rested(self, round: int) -> None:
        if self.alive and self.machine is not None:
            self.carry_out(self.machine.next_round(round))

    # -- as a member -----------------------------------------------------------------------------------------------

    def hear(self, link: Link, order: Order) -> None:
        if self.alive and link is self.link:
            self.told(order)

    def say(self, what: Callable[[Coordinator], list[Order]]) -> None:
        """To the coordinator: in this process, or through the link."""
        if self.machine is not None:
            self.carry_out(what(self.machine))
        elif self.link is not None:
            chief = self.link.chief
            self.link.send("up", lambda: chief.listen(what))

    def listen(self, what: Callable[[Coordinator], list[Order]]) -> None:
        if self.alive and self.machine is not None:
            self.carry_out(what(self.machine))

    def told(self, order: Order) -> None:
        me = self.me.incarnation
        if isinstance(order, Show):
            self.heard += self.state.shown(order.view)
            self.say(lambda machine: machine.seen(me, order.view.version))
        elif isinstance(order, Count):
            self.state.prepared = self.state.prepared or order.last
            self.say(lambda machine: machine.counted(me, order.round, (0, self.world.begun[self.me.id])))
        elif isinstance(order, Admit):
            self.admitted = True
        elif isinstance(order, Over):
            self.over = True
            if self.machine is None:
                self.go(killed=False)
            else:
                self.wait_for_guests()
        elif isinstance(order, Dismiss):
            self.go(killed=False)
        elif isinstance(order, Fence):
            self.fenced = True
            self.go(killed=False)
        elif isinstance(order, Refuse):
            self.refused = order.kind != "again"
            self.fenced = order.kind == "fenced"
            if self.fenced:
                self.go(killed=False)
            elif self.link is not None:
                link, self.link = self.link, None
                link.end(True)
                self.seeking_since_s = self.world.sim.clock.now_s()
                self.later(0.05, self.seek)

    def wait_for_guests(self) -> None:
        if self.guests and self.alive:
            self.later(0.01, self.wait_for_guests)
        elif self.alive:
            self.go(killed=False)

    def chief_gone(self, link: Link, clean: bool) -> None:
        if not self.alive or link is not self.link:
            return
        self.link = None
        if self.leaving:
            self.go(killed=False)
            return
        if self.admitted and self.state.view is not None and self.old != self.state.view.coordinator:
            self.old, self.old_why = self.state.view.coordinator, "" if clean else "dead"
        self.seeking_since_s = self.world.sim.clock.now_s()
        self.later(0.02, self.seek)

    def chief_away(self, link: Link) -> None:
        self.chief_gone(link, clean=False)

    # -- frozen ----------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """It is stopped. In a while the others declare it lost, and take the entrance from it.

        Not before it has seen a view: until then it is told from a newcomer by the newest reasons only.
        """
        if not self.frozen and self.state.view is not None:
            self.frozen = True
            self.world.sim.after(FROZEN_S, self.is_frozen)

    def is_frozen(self) -> None:
        if not (self.alive and self.frozen):
            return
        if self.world.holder is self:
            self.world.holder = None
            for link in self.guests.values():
                link.member.awake(lambda link=link: link.member.chief_gone(link, clean=False))  # type: ignore[misc]
        else:
            chief = self.world.holder
            if chief is not None:
                chief.awake(lambda: self.declared_lost_by(chief))

    def declared_lost_by(self, chief: "Worker") -> None:
        if chief.alive and chief.machine is not None and self.me.incarnation in chief.machine.alive:
            self.world.lost_frozen.append(self)
            chief.carry_out(chief.machine.lose(self.me.incarnation, "stopped"))

    def wake(self, *, reads_all: bool) -> None:
        """It goes on. `reads_all`: what was sent to it meanwhile was not lost with its link."""
        self.frozen = False
        inbox, self.inbox = self.inbox, []
        if self.machine is not None and self.world.holder is not self:
            self.fenced = True  # as `CoordinatorServer._look`: another has its place
            self.go(killed=False)
        elif not reads_all and self.link is not None:
            self.link.reset()
        for happens in inbox:
            happens()

    # -- the end ---------------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        self.state.arrived = True
        self.say(lambda machine: machine.arrive(self.me.incarnation))

    def leave(self) -> None:
        self.leaving = True
        if self.machine is not None:
            self.machine.closing = True
        if self.machine is None and self.link is None:
            self.go(killed=False)
        else:
            self.say(lambda machine: machine.leave(self.me.incarnation))

    def go(self, *, killed: bool) -> None:
        if not self.alive:
            return
        self.alive = False
        if killed:
            self.world.killed.append(self)
        if self.world.holder is self:
            self.world.holder = None
        links = [*self.guests.values(), *([self.link] if self.link is not None else [])]
        for link in links:
            link.end(not killed)
        self.frozen, inbox, self.inbox = False, self.inbox, []
        for happens in inbox:  # whoever had connected learns that nobody is there
            happens()


class World:
    """All workers there ever were, and who holds the entrance."""

    def __init__(self, seed: int, size: int | None) -> None:
        self.sim = Sim(seed)
        self.size = size
        self.holder: Worker | None = None
        self.workers: dict[int, Worker] = {}
        self.killed: list[Worker] = []
        self.lost_frozen: list[Worker] = []
        self.reasons_kept = 0
        self.begun = [0] * RANKS
        self._lives = [0] * RANKS

    def start(self, rank: int) -> None:
        if not any(worker.alive and worker.me.id == rank for worker in self.workers.values()):
            self._lives[rank] += 1
            worker_of = Worker.__new__(Worker)
            incarnation = 100 * self._lives[rank] + rank
            self.workers[incarnation] = worker_of
            worker_of.__init__(self, rank, self._lives[rank])  # type: ignore[misc]

    def living(self, rank: int | None = None) -> list[Worker]:
        alive = [worker for worker in self.workers.values() if worker.alive]
        return [worker for worker in alive if rank is None or worker.me.id == rank]


def agree(world: World) -> None:
    """All who are alive are in, and know the same."""
    living = world.living()
    everybody = sorted(worker.me.incarnation for worker in living)
    for worker in living:
        assert worker.admitted and worker.state.fenced is None, worker.me
        assert sorted(m.incarnation for m in worker.state.members.values()) == everybody, worker.me
        fenced: set[int] = set()
        for event in worker.heard:
            assert event.member.incarnation not in fenced, f"{worker.me} heard of {event.member} after it was lost"
            if isinstance(event, Lost):
                fenced.add(event.member.incarnation)
        for event in {event.member.incarnation: event for event in worker.heard}.values():  # the last of each
            other = world.workers[event.member.incarnation]
            if isinstance(event, Lost):
                assert not other.alive, f"{worker.me} was told that {other.me} was lost"
            elif isinstance(event, Left):
                assert other.leaving or other not in world.killed, f"{worker.me} was told that {other.me} has left"


KINDS = ["start", "start", "kill", "leave", "reset", "reset", "freeze", "wake", "wake", "wait", "short"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, RANKS - 1)), max_size=40)


@given(STEPS, st.integers(0, 2**20))
def test_a_dynamic_group_agrees_in_the_end_whatever_happened(steps: list[tuple[str, int]], seed: int) -> None:
    end_well(seed, steps)


def end_well(seed: int, steps: list[tuple[str, int]]) -> World:
    world = World(seed, None)
    play(world, steps)
    world.sim.run(until_s=world.sim.clock.now_s() + LONG_S)
    agree(world)
    return world


def drawn(seed: int, number: int = 60) -> list[tuple[str, int]]:
    chance = random.Random(seed)
    return [(chance.choice(KINDS), chance.randrange(RANKS)) for _ in range(number)]


def test_what_is_remembered_of_the_lost_does_not_grow() -> None:
    worlds = [end_well(seed, drawn(seed, 300)) for seed in range(10)]
    assert min(len(world.killed) + len(world.lost_frozen) for world in worlds) > 10
    for world in worlds:
        for worker in world.living():
            assert worker.state.view is not None and len(worker.state.view.lost) <= 2 * RANKS


def all_end_well(number: int) -> None:
    for seed in range(number):
        end_well(seed, drawn(seed))


def _remembers_nothing(self: Coordinator) -> None:
    self.lost.clear()
    self._lost_in.clear()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_has_gone_on", lambda self, view, incarnation: False),
        ("_forget_the_lost", _remembers_nothing),
    ],
    ids=["who is forgotten comes back", "reasons are forgotten before they were read"],
)
def test_a_broken_rule_is_found(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., object]) -> None:
    monkeypatch.setattr(Coordinator, name, wrong)
    with pytest.raises(AssertionError):
        all_end_well(300)


def play(world: World, steps: list[tuple[str, int]]) -> None:
    for what, rank in steps:
        if what == "start":
            world.start(rank)
        elif what in ("wait", "short"):
            world.sim.run(until_s=world.sim.clock.now_s() + (2.0 if what == "wait" else 0.01 * (rank + 1)))
        for worker in world.living(rank):
            if what == "kill":
                worker.go(killed=True)
            elif what == "leave" and not worker.frozen:
                worker.leave()
            elif what == "reset" and worker.link is not None:
                worker.link.reset()
            elif what == "freeze":
                worker.freeze()
            elif what == "wake" and worker.frozen:
                worker.wake(reads_all=world.sim.chance.random() < 0.5)
    for worker in world.living():
        if worker.frozen:
            worker.wake(reads_all=world.sim.chance.random() < 0.5)


@given(STEPS, st.integers(0, 2**20))
def test_a_static_group_agrees_in_the_end_when_all_were_started_again(steps: list[tuple[str, int]], seed: int) -> None:
    world = World(seed, RANKS)
    for rank in range(RANKS):
        world.start(rank)
    play(world, steps)
    for _ in range(3):  # who was just leaving has gone by the second time
        for rank in range(RANKS):
            world.start(rank)
        world.sim.run(until_s=world.sim.clock.now_s() + LONG_S)
    agree(world)
    assert len(world.living()) == RANKS


@given(
    st.lists(st.tuples(st.integers(0, RANKS - 1), st.floats(0.0, 0.5)), max_size=RANKS - 1),
    st.lists(st.floats(0.0, 0.5), min_size=RANKS, max_size=RANKS),
    st.integers(0, 2**20),
)
def test_the_shutdown_of_a_static_group_ends_whoever_dies_in_it(
    deaths: list[tuple[int, float]], arrivals: list[float], seed: int
) -> None:
    world = World(seed, RANKS)
    for rank in range(RANKS):
        world.start(rank)
    world.sim.run(until_s=10.0)
    agree(world)
    for rank, after_s in enumerate(arrivals):
        worker = world.living(rank)[0]
        world.sim.after(after_s, lambda worker=worker: worker.alive and worker.arrive())  # type: ignore[misc]
    for rank, after_s in deaths:
        worker = world.living(rank)[0]
        world.sim.after(after_s, lambda worker=worker: worker.go(killed=True))  # type: ignore[misc]
    world.sim.run(until_s=10.0 + LONG_S)
    assert world.living() == []
    assert all(worker.over or worker in world.killed for worker in world.workers.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_coordinator_may_die_at_any_moment_of_the_shutdown(seed: int) -> None:
    world = World(seed, RANKS)
    for rank in range(RANKS):
        world.start(rank)
    world.sim.run(until_s=10.0)
    for worker in world.living():
        worker.arrive()
    for victim in range(3):
        coordinator = world.holder
        world.sim.run(until_s=10.0 + (seed + 1) * 0.02 * (victim + 1))
        if coordinator is not None and coordinator.alive:
            coordinator.go(killed=True)
    world.sim.run(until_s=10.0 + LONG_S)
    assert world.living() == []
