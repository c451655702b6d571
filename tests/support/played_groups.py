"""Groups of workers in one thread and virtual time: the real coordinators and member states, on played links.

    group = PlayedGroup(seed, size=None); group.start(0); group.start(1); group.sim.run(until_s=10.0); agree(group)

The links are like real ones: in order, each with its own delays, and with an end that comes after all that was sent; a
reset loses that. The entrance is held by one at a time, falls free with its holder, and is left to the group as long as
some of it live. Who is frozen for long is declared lost, and wakes at any later time: with all that was sent to it
still to be read, or with a dead link only. What is said over the links is counted, and how long it is as bytes.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from sim import Sim

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
from fanwise.rpc.membership.members import Event, Hello, Left, Lost, Member, MemberState, View
from fanwise.rpc.messages.records import control_codec

FROZEN_S, AWAY_S = 5.0, 30.0
# Of the incarnations of workers: each life has so many for all ranks.
LIFE = 10_000


class Link:
    """Two ways between a member and a coordinator; what is sent arrives in order, the end last."""

    def __init__(self, group: "PlayedGroup", member: "PlayedWorker", chief: "PlayedWorker") -> None:
        self.group, self.member, self.chief = group, member, chief
        self.open = True
        self.was_reset = False
        self._last_s = {"up": 0.0, "down": 0.0}

    def send(self, way: str, arrive: Callable[[], None], *message: object) -> None:
        """`message`: what is counted, the name first; nothing for the end of the link."""
        if self.open:
            if message:
                self.group.count(message)
            sim, reader = self.group.sim, self.chief if way == "up" else self.member
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
        sim = self.group.sim
        for end, reader in ((self.chief.member_away, self.chief), (self.member.chief_away, self.member)):
            sim.after(sim.chance.uniform(0.001, 0.05), lambda end=end, reader=reader: reader.awake(lambda: end(self)))  # type: ignore[misc]


class PlayedWorker:
    """One life of a worker: a state, perhaps the coordinator, and what `group.py` does with both."""

    def __init__(self, group: "PlayedGroup", rank: int, life: int) -> None:
        self.group = group
        self.me = Member(f"w{rank}", rank, LIFE * life + rank, "", "host", 1000 * life + rank)
        self.state = MemberState(self.me, group.size)
        self.machine: Coordinator | None = None
        self.guests: dict[int, Link] = {}
        self.orders: deque[Order] = deque()
        self.is_carrying_out = False
        self.link: Link | None = None
        self.alive, self.admitted, self.over, self.refused = True, False, False, False
        self.frozen, self.fenced = False, False
        self.inbox: list[Callable[[], object]] = []  # what happens to it when it wakes
        self.heard: list[Event] = []
        self.leaving, self.old, self.old_why, self.seeking_since_s = False, 0, "", group.sim.clock.now_s()
        self.seek()

    def awake(self, happens: Callable[[], object]) -> None:
        """It happens to this worker, once it is not frozen any more."""
        if self.frozen:
            self.inbox.append(happens)
        else:
            happens()

    def later(self, after_s: float, happens: Callable[[], object]) -> None:
        self.group.sim.after(after_s, lambda: self.awake(happens))

    # -- finding the coordinator -----------------------------------------------------------------------------------

    def seek(self) -> None:
        if not self.alive or self.link is not None or self.machine is not None or self.refused:
            return
        holder = self.group.holder
        if holder is not None:
            link = self.link = Link(self.group, self, holder)
            hello = self.state.hello()
            link.send("up", lambda: holder.welcome(link, hello), "join", hello)
        elif self.may_open():
            self.become_coordinator()
        else:
            self.later(0.02, self.seek)

    def may_open(self) -> bool:
        waited_s = self.group.sim.clock.now_s() - self.seeking_since_s
        if self.state.view is None:
            if any(worker.admitted for worker in self.group.living()):
                return False  # as the lock file says: some of the group live, and find a coordinator among themselves
            return self.me.id == 0 or (self.group.size is None and waited_s > 1.0)
        before_me = [m.incarnation for m in self.state.successors(self.old)]
        return waited_s >= 0.1 * (before_me.index(self.me.incarnation) if self.me.incarnation in before_me else 0)

    def become_coordinator(self) -> None:
        self.group.holder = self
        self.machine = machine = Coordinator(
            self.me.incarnation, world_size=self.group.size, known=self.state.view, reasons_kept=self.group.reasons_kept
        )
        if self.old:
            self.carry_out(machine.lose(self.old, self.old_why) if self.old_why else machine.gone(self.old))
        self.carry_out(machine.hello(self.state.hello()))
        self.look()

    def look(self) -> None:
        """Who never said hello here may be dead, or have left."""
        if self.alive and self.machine is not None:
            for member in list(self.machine.members.values()):
                worker = self.group.workers[member.incarnation]
                if member.incarnation not in self.guests and not worker.alive:
                    dead = worker in self.group.killed
                    machine = self.machine
                    self.carry_out(
                        machine.lose(member.incarnation, "dead") if dead else machine.gone(member.incarnation)
                    )
            self.later(1.0, self.look)

    # -- as the coordinator ----------------------------------------------------------------------------------------

    def welcome(self, link: Link, hello: Hello) -> None:
        if not self.alive or self.machine is None:
            link.end(self not in self.group.killed)
            return
        self.guests[link.member.me.incarnation] = link
        for other in list(self.machine.members.values()):  # whose place it asks for may just have died
            worker = self.group.workers[other.incarnation]
            if other.id == link.member.me.id and not worker.alive:
                is_dead, machine = worker in self.group.killed, self.machine
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
        """In order, also when one leads to others."""
        self.orders.extend(orders)
        if not self.is_carrying_out:
            self.is_carrying_out = True
            while self.orders:
                self.do(self.orders.popleft())
            self.is_carrying_out = False

    def do(self, order: Order) -> None:
        if isinstance(order, Rest):
            self.later(0.01, lambda: self.rested(order.round))
        elif order.to == self.me.incarnation:
            self.told(order)
        elif order.to in self.guests:
            link = self.guests[order.to]
            link.send("down", lambda: link.member.hear(link, order), *said(order))
            if isinstance(order, Fence):
                self.guests.pop(order.to).end(True)

    def rested(self, round: int) -> None:
        if self.alive and self.machine is not None:
            self.carry_out(self.machine.next_round(round))

    # -- as a member -----------------------------------------------------------------------------------------------

    def hear(self, link: Link, order: Order) -> None:
        if self.alive and link is self.link:
            self.told(order)

    def say(self, what: Callable[[Coordinator], list[Order]], *message: object) -> None:
        """To the coordinator: in this process, or through the link."""
        if self.machine is not None:
            self.carry_out(what(self.machine))
        elif self.link is not None:
            chief = self.link.chief
            self.link.send("up", lambda: chief.listen(what), *message)

    def listen(self, what: Callable[[Coordinator], list[Order]]) -> None:
        if self.alive and self.machine is not None:
            self.carry_out(what(self.machine))

    def told(self, order: Order) -> None:
        me = self.me.incarnation
        if isinstance(order, Show):
            self.heard += self.state.shown(order.view)
            self.say(lambda machine: machine.seen(me, order.view.version), "seen", order.view.version)
        elif isinstance(order, Count):
            self.state.prepared = self.state.prepared or order.last
            counts = 0, self.group.begun[self.me.id]
            self.say(lambda machine: machine.counted(me, order.round, counts), "counted", order.round, counts)
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
                self.seeking_since_s = self.group.sim.clock.now_s()
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
        self.seeking_since_s = self.group.sim.clock.now_s()
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
            self.group.sim.after(FROZEN_S, self.is_frozen)

    def is_frozen(self) -> None:
        if not (self.alive and self.frozen):
            return
        if self.group.holder is self:
            self.group.holder = None
            for link in self.guests.values():
                link.member.awake(lambda link=link: link.member.chief_gone(link, clean=False))  # type: ignore[misc]
        else:
            chief = self.group.holder
            if chief is not None:
                chief.awake(lambda: self.declared_lost_by(chief))

    def declared_lost_by(self, chief: "PlayedWorker") -> None:
        if chief.alive and chief.machine is not None and self.me.incarnation in chief.machine.alive:
            self.group.lost_frozen.append(self)
            chief.carry_out(chief.machine.lose(self.me.incarnation, "stopped"))

    def wake(self, *, reads_all: bool) -> None:
        """It goes on. `reads_all`: what was sent to it meanwhile was not lost with its link."""
        self.frozen = False
        inbox, self.inbox = self.inbox, []
        if self.machine is not None and self.group.holder is not self:
            self.fenced = True  # as `CoordinatorServer._look`: another has its place
            self.go(killed=False)
        elif not reads_all and self.link is not None:
            self.link.reset()
        for happens in inbox:
            happens()

    # -- the end ---------------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        self.state.arrived = True
        self.say(lambda machine: machine.arrive(self.me.incarnation), "arrive")

    def leave(self) -> None:
        self.leaving = True
        if self.machine is not None:
            self.machine.closing = True
        if self.machine is None and self.link is None:
            self.go(killed=False)
        else:
            self.say(lambda machine: machine.leave(self.me.incarnation), "leave")

    def go(self, *, killed: bool) -> None:
        if not self.alive:
            return
        self.alive = False
        if killed:
            self.group.killed.append(self)
        if self.group.holder is self:
            self.group.holder = None
        links = [*self.guests.values(), *([self.link] if self.link is not None else [])]
        for link in links:
            link.end(not killed)
        self.frozen, inbox, self.inbox = False, self.inbox, []
        for happens in inbox:  # whoever had connected learns that nobody is there
            happens()


def said(order: Show | Admit | Refuse | Dismiss | Fence | Count | Over) -> tuple[object, ...]:
    """What an order is on a link."""
    match order:
        case Show():
            return "view", order.view
        case Admit() | Dismiss():
            return "answer", ("done", "")
        case Refuse():
            return "answer", (order.kind, order.text)
        case Fence():
            return "fenced", order.why
        case Count():
            return "count", order.round, order.last
        case Over():
            return ("over",)


class PlayedGroup:
    """All workers there ever were, and who holds the entrance.

    Attributes:
        num_messages, num_bytes: of all that was said over links, by the name of the message.
    """

    def __init__(self, seed: int, size: int | None) -> None:
        self.sim = Sim(seed)
        self.size = size
        self.holder: PlayedWorker | None = None
        self.workers: dict[int, PlayedWorker] = {}
        self.killed: list[PlayedWorker] = []
        self.lost_frozen: list[PlayedWorker] = []
        self.reasons_kept = 0
        self.num_messages: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self._sizes: dict[object, int] = {}
        self.begun: Counter[int] = Counter()
        self._lives: Counter[int] = Counter()

    def start(self, rank: int) -> None:
        if not any(worker.alive and worker.me.id == rank for worker in self.workers.values()):
            self._lives[rank] += 1
            worker_of = PlayedWorker.__new__(PlayedWorker)
            incarnation = LIFE * self._lives[rank] + rank
            self.workers[incarnation] = worker_of
            worker_of.__init__(self, rank, self._lives[rank])  # type: ignore[misc]

    def count(self, message: tuple[object, ...]) -> None:
        """It is sent. One view goes to many: it is measured once."""
        name, *rest = message
        key = (name, rest[0].version, type(rest[0])) if rest and isinstance(rest[0], View) else message
        if key not in self._sizes:
            head, buffers = control_codec.dumps((name, tuple(rest)))
            self._sizes[key] = len(head) + sum(buffer.nbytes for buffer in buffers)
        self.num_messages[str(name)] += 1
        self.num_bytes[str(name)] += self._sizes[key]

    def living(self, rank: int | None = None) -> list[PlayedWorker]:
        alive = [worker for worker in self.workers.values() if worker.alive]
        return [worker for worker in alive if rank is None or worker.me.id == rank]


def agree(group: PlayedGroup) -> None:
    """All who are alive are in, and know the same."""
    living = group.living()
    everybody = sorted(worker.me.incarnation for worker in living)
    views = {worker.machine.view for worker in living if worker.machine is not None}
    assert {worker.state.view for worker in living} <= views and len(views) <= 1, "one view, that of the coordinator"
    for worker in living:
        assert worker.admitted and worker.state.fenced is None, worker.me
        assert sorted(m.incarnation for m in worker.state.members.values()) == everybody, worker.me
        fenced: set[int] = set()
        for event in worker.heard:
            assert event.member.incarnation not in fenced, f"{worker.me} heard of {event.member} after it was lost"
            if isinstance(event, Lost):
                fenced.add(event.member.incarnation)
        for event in {event.member.incarnation: event for event in worker.heard}.values():  # the last of each
            other = group.workers[event.member.incarnation]
            if isinstance(event, Lost):
                assert not other.alive, f"{worker.me} was told that {other.me} was lost"
            elif isinstance(event, Left):
                assert other.leaving or other not in group.killed, f"{worker.me} was told that {other.me} has left"
