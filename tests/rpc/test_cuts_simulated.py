"""Members on many hosts, one thread, no time: cuts, deaths, newcomers and searches in any order. No two sides go on.

    every step is drawn from a seed: cut, mend, reset, kill, start, seek, stand, give up, notice, look, deliver; and how
    much time passes
    then all that is silent is noticed, all that was sent arrives: at most one coordinator rules, and all of its members
    know it

A cut is silence: what was sent across it is gone, and each side notices on its own, at any later time. A link that was
cut stays so. A death is heard at once, by whoever is not cut off.

A reset looks like a death to both sides, and both live: the member seeks, and finds the coordinator that it had; that
waits for it, at any age of the group, for as long as `failure_detector` says. Whoever lives comes back in that time: in
a second, or, where its port can be seen to be open, in less than the heartbeat. A link that was reset is no cut before
it is mended: who cannot reach the coordinator after a reset takes it for dead, and the other way round, which is a
limit that `docs/design/rpc-decisions.md` names.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanwise.rpc.membership.coordinator import Admit, Coordinator, Fence, Order, Refuse, Rest, Show
from fanwise.rpc.membership.failure_detector import RETURN_S, FailureDetector, Gone
from fanwise.rpc.membership.members import Hello, Member, MemberState, View
from fanwise.rpc.membership.quorum import Quorum

SIZE = 5
STEPS = 120
HEARTBEAT_S = 30.0


class Link:
    """Between a member and a coordinator; in order."""

    def __init__(self, member: "Worker", chief: "Worker", machine: Coordinator) -> None:
        self.member, self.chief, self.machine = member, chief, machine
        self.up: deque[Callable[[], None]] = deque()
        self.down: deque[Callable[[], None]] = deque()
        self.cut = self.ended = False

    def reset(self) -> None:
        """Both sides hear its end, and nothing of what is on its way."""
        if not (self.cut or self.ended):
            self.silence()
            self.cut, self.ended = False, True
            self.up.append(lambda: self.chief.guest_away(self))
            self.down.append(lambda: self.member.chief_reset(self))

    @property
    def is_unmended(self) -> bool:
        """It was reset, and one of the two does not know yet, or has not met the other again."""
        if not (self.ended and self.member.alive and self.chief.alive):
            return False
        return self.chief.awaits(self.member) or self.member.link is self or self.member.was_reset_by is self.chief

    def silence(self) -> None:
        self.cut = True
        self.up.clear()
        self.down.clear()

    def send(self, way: deque[Callable[[], None]], what: Callable[[], None]) -> None:
        if not (self.cut or self.ended):
            way.append(what)


class Worker:
    def __init__(self, world: "World", rank: int, life: int) -> None:
        self.world = world
        self.me = Member(f"w{rank}", rank, 100 * life + rank, "", f"host{rank}", 0)
        self.state = MemberState(self.me, None)
        self.machine: Coordinator | None = None
        self.guests: dict[int, Link] = {}
        self.link: Link | None = None
        self.alive = True
        self.admitted = self.is_fenced = False
        self.gone: tuple[int, bool] | None = None  # the coordinator that was lost, and whether it is dead for certain
        self.was_reset_by: Worker | None = None
        self.detector = FailureDetector(HEARTBEAT_S, world.now_s)  # as a coordinator
        self.shows_that_it_lives = world.chance.random() < 0.5  # its port can be reached

    # -- as a coordinator ------------------------------------------------------------------------------------------

    def become_coordinator(self) -> None:
        self.machine = Coordinator(self.me.incarnation, world_size=None, known=self.state.view, exclusive=False)
        self.detector = FailureDetector(HEARTBEAT_S, self.world.now_s)
        if self.gone is not None:
            self.carry_out(self.machine.lose(self.gone[0], "gone", dead=self.gone[1]))
        if self.machine is not None:
            self.carry_out(self.machine.hello(self.state.hello()))

    def give_up(self) -> None:
        if self.machine is not None and not self.machine.ruling:
            self.machine = None
            for link in list(self.guests.values()):
                self.end(link, clean=True)
            self.guests.clear()

    def carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            if self.machine is None or isinstance(order, Rest):
                return
            if order.to == self.me.incarnation:
                self.told(order)
            elif order.to in self.guests:
                link = self.guests[order.to]
                link.send(link.down, lambda link=link, order=order: link.member.hear(link, order))  # type: ignore[misc]
                if isinstance(order, (Fence, Refuse)):
                    del self.guests[order.to]

    def guest_lost(self, link: Link, *, dead: bool) -> None:
        if self.machine is not None and self.guests.get(link.member.me.incarnation) is link:
            del self.guests[link.member.me.incarnation]
            self.carry_out(self.machine.lose(link.member.me.incarnation, "lost", dead=dead))

    def guest_left(self, link: Link) -> None:
        if self.machine is not None and self.guests.get(link.member.me.incarnation) is link:
            del self.guests[link.member.me.incarnation]
            self.carry_out(self.machine.gone(link.member.me.incarnation))

    def guest_away(self, link: Link) -> None:
        if self.machine is not None and self.guests.get(link.member.me.incarnation) is link:
            del self.guests[link.member.me.incarnation]
            self.detector.reset(link.member.me.incarnation, self.world.now_s, "reset")

    def awaits(self, member: "Worker") -> bool:
        """Whether it is the coordinator of a member whose link was reset."""
        return self.machine is not None and self.detector.is_awaited(member.me.incarnation)

    def look_for_the_absent(self) -> None:
        """As the coordinator does twice a second."""
        for worker in list(self.world.workers):
            incarnation, machine = worker.me.incarnation, self.machine
            if machine is None or incarnation not in machine.alive or incarnation in self.guests or worker is self:
                continue
            was_reset = self.detector.is_awaited(incarnation)
            lives = was_reset and worker.alive and worker.shows_that_it_lives
            gone = self.detector.decide(incarnation, self.world.now_s, "lives" if lives else "unknown")
            if gone is not None and (was_reset or machine.ruling):
                self.detector.over(incarnation)
                self.carry_out(machine.lose(incarnation, gone.why, dead=gone.dead))

    def say(self, link: Link | None, what: Callable[[Coordinator], list[Order]]) -> None:
        if self.machine is not None:
            self.carry_out(what(self.machine))
        elif link is not None:
            chief, machine = link.chief, link.machine
            link.send(link.up, lambda: chief.carry_out(what(machine)) if chief.machine is machine else None)

    # -- as a member -----------------------------------------------------------------------------------------------

    def hear(self, link: Link, order: Order) -> None:
        if self.alive and link is self.link:
            self.told(order)

    def told(self, order: Order) -> None:
        if isinstance(order, Show):
            self.state.shown(order.view)
            if self.state.fenced is not None:
                self.die(clean=True)
            else:
                version, me = order.view.version, self.me.incarnation
                self.say(self.link, lambda machine: machine.seen(me, version))
        elif isinstance(order, Admit):
            self.admitted, self.gone, self.was_reset_by = True, None, None
        elif isinstance(order, Fence):
            self.is_fenced = True
            self.die(clean=True)
        elif isinstance(order, Refuse):
            self.link, self.is_fenced = None, order.kind == "fenced"
            if order.kind != "again":
                self.die(clean=True)

    def chief_lost(self, link: Link, *, dead: bool) -> None:
        if self.link is link:
            self.link = None
            if self.admitted and self.state.view is not None and self.gone is None:
                self.gone = (self.state.view.coordinator, dead)

    def chief_reset(self, link: Link) -> None:
        if self.link is link and link.chief.alive:
            self.was_reset_by = link.chief
        self.chief_lost(link, dead=True)

    def seeks(self) -> bool:
        return self.alive and self.link is None and self.machine is None

    def may_stand(self) -> bool:
        finds_another = self.was_reset_by is not None and self.was_reset_by.alive
        return self.seeks() and self.gone is not None and not finds_another

    def say_hello(self, chief: "Worker") -> None:
        if chief.machine is None or not chief.alive or not self.world.reach(self, chief):
            return
        is_old = self.state.view is not None and self.gone is not None and chief.me.incarnation == self.gone[0]
        if is_old and self.was_reset_by is not chief:
            return
        if self.was_reset_by is not None and self.was_reset_by.alive and self.was_reset_by is not chief:
            return  # it finds that one first
        machine = chief.machine
        link = self.link = Link(self, chief, machine)
        self.world.links.append(link)
        hello = self.state.hello()

        def arrive() -> None:
            if chief.machine is machine and chief.alive:
                self.world.times_back += is_old
                chief.detector.over(self.me.incarnation)
                chief.guests[self.me.incarnation] = link
                chief.carry_out(machine.hello(hello))
            elif self.link is link:
                self.link = None

        link.send(link.up, arrive)

    def end(self, link: Link, *, clean: bool) -> None:
        """This side ends the link."""
        member, chief = link.member, link.chief
        if self is chief:
            link.send(link.down, lambda: member.chief_lost(link, dead=True))
        elif clean:
            link.send(link.up, lambda: chief.guest_left(link))
        else:
            link.send(link.up, lambda: chief.guest_lost(link, dead=True))

    def turn_away(self) -> None:
        """Wait no longer to be let in."""
        if self.link is not None and (self.gone is not None or not self.admitted):
            link, self.link = self.link, None
            self.end(link, clean=True)

    def die(self, *, clean: bool) -> None:
        self.alive = False
        links = [*self.guests.values(), *([self.link] if self.link is not None else [])]
        self.machine, self.link, self.guests = None, None, {}
        for link in links:
            self.end(link, clean=clean)


LOSSES = ["cut", "turn away", "kill"]
WEIGHTS = {
    "deliver": 40,
    "notice": 12,
    "seek": 12,
    "stand": 6,
    "give up": 2,
    "turn away": 2,
    "cut": 2,
    "mend": 2,
    "reset": 4,
    "look": 6,
    "wait": 4,
    "kill": 1,
    "start": 1,
}


class World:
    def __init__(self, seed: int, weights: dict[str, int] = WEIGHTS) -> None:
        self.weights = weights
        self.chance = random.Random(seed)
        self.workers: list[Worker] = []
        self.links: list[Link] = []
        self.side: dict[int, int] = {}  # by rank
        self.lives = self.times_back = 0
        self.now_s = 0.0
        for rank in range(SIZE):
            self.start(rank)
        self.workers[0].become_coordinator()
        for worker in self.workers[1:]:
            worker.say_hello(self.workers[0])
            self.deliver_all()

    def start(self, rank: int) -> Worker:
        self.lives += 1
        self.workers.append(Worker(self, rank, self.lives))
        return self.workers[-1]

    def reach(self, one: Worker, other: Worker) -> bool:
        return self.side.get(one.me.id, 0) == self.side.get(other.me.id, 0)

    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    def rulers(self) -> list[Worker]:
        return [worker for worker in self.living() if worker.machine is not None and worker.machine.ruling]

    def cut(self) -> None:
        self.side = {rank: self.chance.randrange(2) for rank in range(2 * SIZE)}
        for link in self.links:
            if link.is_unmended:
                self.side[link.member.me.id] = self.side[link.chief.me.id]
        for link in self.links:
            if not self.reach(link.member, link.chief):
                link.silence()

    def deliver(self) -> None:
        waiting = [way for link in self.links for way in (link.up, link.down) if way]
        if waiting:
            self.chance.choice(waiting).popleft()()

    def deliver_all(self) -> None:
        while any(link.up or link.down for link in self.links):
            self.deliver()

    def notice(self, link: Link) -> None:
        """One side finds that the link is silent."""
        if link.cut and self.chance.random() < 0.5:
            link.member.chief_lost(link, dead=False)
        elif link.cut:
            link.chief.guest_lost(link, dead=False)

    def notice_all(self) -> None:
        for link in self.links:
            if link.cut:
                link.member.chief_lost(link, dead=False)
                link.chief.guest_lost(link, dead=False)

    def step(self) -> None:
        worker = self.chance.choice(self.workers)
        what = self.chance.choices(list(self.weights), list(self.weights.values()))[0]
        if what == "deliver":
            self.deliver()
        elif what == "notice" and self.links:
            self.notice(self.chance.choice(self.links))
        elif what == "seek" and worker.seeks():
            worker.say_hello(self.chance.choice(self.workers))
        elif what == "stand" and worker.may_stand():
            worker.become_coordinator()
        elif what == "give up":
            worker.give_up()
        elif what == "turn away":
            worker.turn_away()
        elif what == "cut":
            self.cut()
        elif what == "mend":
            self.side = {}
        elif what == "reset" and self.links:
            self.chance.choice(self.links).reset()
        elif what == "look":
            worker.look_for_the_absent()
        elif what == "wait":
            self.wait(self.chance.choice([0.01, 0.3, 5.0, 2 * HEARTBEAT_S]))
        elif what == "kill" and worker.alive and len(self.living()) > 2:
            worker.die(clean=False)
        elif what == "start" and len(self.workers) < 2 * SIZE:
            self.start(len(self.workers))

    def wait(self, pause_s: float) -> None:
        """Time passes. Who was reset and lives comes back before the coordinator would give it up."""
        until_s = self.now_s + pause_s
        for chief in self.living():
            for worker in self.living():
                if chief.awaits(worker):
                    patience_s = HEARTBEAT_S if worker.shows_that_it_lives else RETURN_S
                    if chief.detector.for_s(worker.me.incarnation, until_s) >= patience_s:
                        self.come_back()
        self.now_s = until_s

    def come_back(self) -> None:
        self.deliver_all()
        for worker in self.living():
            if worker.was_reset_by is not None and worker.seeks():
                worker.say_hello(worker.was_reset_by)
        self.deliver_all()

    def settle(self) -> None:
        for _ in range(3):
            self.notice_all()
            self.come_back()
            for worker in self.living():
                worker.look_for_the_absent()


def play(seed: int, weights: dict[str, int] = WEIGHTS) -> World:
    world = World(seed, weights)
    for _ in range(STEPS):
        world.step()
        if world.chance.random() < 0.05:
            world.settle()
            assert len(world.rulers()) <= 1, [worker.me for worker in world.rulers()]
    world.settle()
    return world


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_no_two_sides_of_a_cut_go_on(seed: int) -> None:
    world = play(seed)
    rulers = world.rulers()
    assert len(rulers) <= 1, [worker.me for worker in rulers]
    for ruler in rulers:
        assert ruler.machine is not None
        for link in ruler.guests.values():
            if link.member.admitted and link.member.gone is None:
                assert link.member.state.view == ruler.machine.view


def test_some_side_goes_on_often() -> None:
    assert sum(len(play(seed).rulers()) for seed in range(100)) > 20


def resets_do_no_harm(number: int) -> int:
    """How often somebody came back to the coordinator that it had."""
    times = 0
    for seed in range(number):
        world = play(seed, {what: weight for what, weight in WEIGHTS.items() if what not in LOSSES})
        times += world.times_back
        fenced = [worker.me for worker in world.workers if worker.state.fenced is not None or worker.is_fenced]
        assert not fenced, f"nobody has died or was cut off, and these were declared lost: {fenced}"
        for worker in world.living():
            if worker.admitted:
                assert worker.state.view == world.rulers()[0].state.view, worker.me
    return times


def test_a_thousand_links_that_are_reset_make_nobody_lost_who_lives() -> None:
    assert resets_do_no_harm(300) > 1000


def test_a_coordinator_that_takes_a_reset_for_a_death_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "guest_away", lambda self, link: self.guest_lost(link, dead=True))
    with pytest.raises(AssertionError, match="nobody has died"):
        resets_do_no_harm(100)


def _since_it_began(self: FailureDetector, incarnation: int, now_s: float, sign: str) -> Gone | None:
    return Gone("it did not come back", dead=False) if now_s - self.opened_s > self.heartbeat_s else None


def _for_a_second(self: FailureDetector, incarnation: int, now_s: float, sign: str) -> Gone | None:
    return Gone("reset", dead=True) if self.for_s(incarnation, now_s) >= RETURN_S else None


@pytest.mark.parametrize("wrong", [_since_it_began, _for_a_second])
def test_a_coordinator_that_waits_too_short_for_who_was_reset_is_found(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., object]
) -> None:
    monkeypatch.setattr(FailureDetector, "decide", wrong)
    with pytest.raises(AssertionError, match="nobody has died"):
        resets_do_no_harm(100)


def all_are_well(number: int) -> None:
    for seed in range(number):
        assert len(play(seed).rulers()) <= 1


def _counts_at_once(self: Quorum, number: int, members: Iterable[Member]) -> None:
    self._open = [(number, frozenset((member.id, member.incarnation) for member in members))]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("may_go_on", lambda self, present: True), ("shown", _counts_at_once)],
    ids=["any side may go on", "a view counts before it was seen"],
)
def test_a_broken_rule_is_found(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., object]) -> None:
    monkeypatch.setattr(Quorum, name, wrong)
    with pytest.raises(AssertionError):
        all_are_well(1000)


# -- what a coordinator that takes over decides, one by one ------------------------------------------------------------


def member(rank: int) -> Member:
    return Member(f"w{rank}", rank, 100 + rank, "", f"host{rank}", 0)


def candidate(size: int, *, dead: bool) -> tuple[Coordinator, list[Order]]:
    """Worker 1 of a group takes over from worker 0, which is dead or out of reach."""
    view = View((1, 9), tuple(member(rank) for rank in range(size)), coordinator=100)
    machine = Coordinator(101, world_size=None, known=view, exclusive=False)
    return machine, [*machine.lose(100, "gone", dead=dead), *machine.hello(Hello(member(1), None, view))]


def comes(machine: Coordinator, rank: int) -> list[Order]:
    return machine.hello(Hello(member(rank), None, View((1, 9), ())))


def ranks_shown(orders: list[Order]) -> list[list[int]]:
    views = [order.view for order in orders if isinstance(order, Show)]
    return [[m.id for m in view.members] for view in views if isinstance(view, View)]


def test_who_takes_over_decides_nothing_before_most_have_come() -> None:
    machine, orders = candidate(5, dead=False)
    assert orders == [] and not machine.ruling
    assert comes(machine, 3) == [] and not machine.ruling
    assert ranks_shown(comes(machine, 4)) == [[1, 2, 3, 4]] * 3 and machine.ruling


def test_the_dead_are_not_missed() -> None:
    machine, _ = candidate(5, dead=True)
    assert ranks_shown(comes(machine, 3)) == [[1, 2, 3, 4]] * 2, "the half with the lowest rank that lives"


def test_half_of_a_group_without_its_lowest_rank_does_not_go_on() -> None:
    machine, _ = candidate(4, dead=False)
    assert comes(machine, 2) == [] and not machine.ruling


def test_who_comes_and_does_not_wait_counts_neither_as_here_nor_as_gone() -> None:
    machine, _ = candidate(5, dead=False)
    comes(machine, 3)
    assert machine.gone(103) == []
    assert comes(machine, 4) == [] and not machine.ruling
    assert ranks_shown(comes(machine, 3)) == [[1, 2, 3, 4]] * 3


def test_a_newcomer_waits_until_the_group_has_a_coordinator() -> None:
    machine, _ = candidate(5, dead=False)
    (refused,) = machine.hello(Hello(member(7), None))
    assert isinstance(refused, Refuse) and refused.kind == "again" and "has no other yet" in refused.text


def test_a_coordinator_that_loses_most_to_a_cut_ends_all_of_its_side_itself_last() -> None:
    machine = Coordinator(100, world_size=None, exclusive=False)
    for rank in range(5):
        for order in machine.hello(Hello(member(rank), None)):
            if isinstance(order, Show):
                machine.seen(order.to, order.view.version)
    for rank in range(5):
        machine.seen(100 + rank, machine.view.version)
    for rank in (4, 3):
        assert machine.ruling and [o.to for o in machine.lose(100 + rank, "cut", dead=False) if isinstance(o, Fence)]
    orders = machine.lose(102, "cut", dead=False)
    fenced = [order for order in orders if isinstance(order, Fence)]
    assert [order.to for order in fenced] == [102, 101, 100]
    assert "2 of 5 workers" in fenced[-1].why and ranks_shown(orders) == []


def test_workers_that_die_one_after_another_do_not_end_the_last_one() -> None:
    machine = Coordinator(100, world_size=None, exclusive=False)
    for rank in range(3):
        machine.hello(Hello(member(rank), None))
    for rank in (1, 2):
        assert not [order for order in machine.lose(100 + rank, "dead") if isinstance(order, Fence) and order.to == 100]
    assert machine.ruling
