"""Groups of workers in one thread and virtual time: the real coordinator and member states, on simulated links.

    group = PlayedGroup(seed, size=None); group.start(0); group.start(1); group.sim.run(until_s=10.0); check(group)

Links deliver in order, each with its own delays, and their end comes after all that was sent. One process at a time
holds the address of the group: a worker of rank 0, which coordinates. A worker that is frozen for FROZEN_S is declared
lost; when it wakes it reads everything that was sent to it meanwhile. Messages are counted, and their size as bytes.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from sim import Sim

from fanwise.rpc.membership.coordinator import (
    Action,
    Confirm,
    Coordinator,
    Refuse,
    RequestCounts,
    SendUpdate,
    StartTimer,
)
from fanwise.rpc.membership.members import Event, Hello, Left, Lost, Member, MemberState
from fanwise.rpc.messages.records import control_codec

FROZEN_S = 5.0
RETRY_S = 0.05


class Link:
    """A link between a member and the coordinator."""

    def __init__(self, group: "PlayedGroup", member: "PlayedWorker", coordinator: "PlayedWorker") -> None:
        self.group, self.member, self.coordinator = group, member, coordinator
        self.is_open = True
        self._last_s = {"up": 0.0, "down": 0.0}

    def send(self, way: str, deliver: Callable[[], object], *message: object) -> None:
        """Deliver later. `message` is counted: its name, then its arguments."""
        if self.is_open:
            if message:
                self.group.count(message)
            sim, reader = self.group.sim, self.coordinator if way == "up" else self.member
            self._last_s[way] = max(self._last_s[way], sim.clock.now_s() + sim.chance.uniform(0.001, 0.05))
            sim.after(self._last_s[way] - sim.clock.now_s(), lambda: reader.when_awake(deliver))

    def end(self, *, clean: bool) -> None:
        """End the link. The side that ends it has forgotten it already."""
        self.send("up", lambda: self.coordinator.on_member_link_ended(self, clean))
        self.send("down", lambda: self.member.on_link_ended(self, clean))
        self.is_open = False


class PlayedWorker:
    """One process of a worker: a member state, in rank 0 the coordinator, and what `group.py` does with both.

    Attributes:
        is_member: admitted, and the group has not ended for it.
        ended: why the group has ended for it: "left" or "lost" for its coordinator, "evicted" for itself.
        events: all events of others so far.
    """

    def __init__(self, group: "PlayedGroup", rank: int, process: int) -> None:
        self.group = group
        self.rank, self.process = rank, process
        self.state = MemberState()
        self.machine: Coordinator | None = None
        self.links: dict[int, Link] = {}  # of the coordinator, by incarnation
        self.link: Link | None = None  # to the coordinator
        self.alive, self.frozen, self.is_member = True, False, False
        self.has_finished = self.is_refused = self.is_leaving = False
        self.ended = ""
        self.events: list[Event] = []
        self.inbox: list[Callable[[], object]] = []
        self._actions: deque[Action] = deque()
        self._is_executing = False
        self.join()

    def when_awake(self, job: Callable[[], object]) -> None:
        if self.frozen:
            self.inbox.append(job)
        else:
            job()

    def later(self, delay_s: float, job: Callable[[], object]) -> None:
        self.group.sim.after(delay_s, lambda: self.when_awake(job))

    # -- joining ---------------------------------------------------------------------------------------------------

    def join(self) -> None:
        if not self.alive or self.is_refused or self.link is not None or self.machine is not None:
            return
        incarnation = self.group.new_incarnation()
        self.me = Member(f"w{self.rank}", self.rank, incarnation, "", "host", self.process)
        self.group.workers[incarnation] = self
        hello, holder = Hello(self.me, self.group.size), self.group.holder
        if holder is not None:
            link = self.link = Link(self.group, self, holder)
            link.send("up", lambda: holder.on_hello(link, hello), "join", hello)
        elif self.rank == 0:
            self.group.holder = self
            self.machine = Coordinator(self.me, world_size=self.group.size)
            self.execute(self.machine.hello(hello))
        else:
            self.later(RETRY_S, self.join)

    # -- as the coordinator ----------------------------------------------------------------------------------------

    def on_hello(self, link: Link, hello: Hello) -> None:
        if not self.alive or self.machine is None:
            link.end(clean=True)
            return
        for other in list(self.machine.members.values()):
            if other.id == hello.member.id and (
                other.process == hello.member.process or not self.group.workers[other.incarnation].alive
            ):
                self.execute(self.machine.lose(other.incarnation, "dead"))
        self.links[hello.member.incarnation] = link
        self.execute(self.machine.hello(hello))

    def on_member_link_ended(self, link: Link, clean: bool) -> None:
        incarnation = next((known for known, other in self.links.items() if other is link), None)
        if self.alive and self.machine is not None and incarnation is not None:
            del self.links[incarnation]
            self.execute(self.machine.leave(incarnation) if clean else self.machine.lose(incarnation, "dead"))

    def execute(self, actions: list[Action]) -> None:
        self._actions.extend(actions)
        if not self._is_executing:
            self._is_executing = True
            while self._actions:
                self._execute(self._actions.popleft())
            self._is_executing = False

    def _execute(self, action: Action) -> None:
        if isinstance(action, StartTimer):
            self.later(0.01, partial(self._next_round, action.round))
        elif action.to == self.me.incarnation:
            self.on_action(action)
        elif action.to in self.links:
            link = self.links[action.to]
            link.send("down", lambda: link.member.on_message(link, action), "action", action)
            if isinstance(action, Refuse):
                self.links.pop(action.to).end(clean=True)

    def _next_round(self, round: int) -> None:
        if self.alive and self.machine is not None:
            self.execute(self.machine.next_round(round))

    # -- as a member -----------------------------------------------------------------------------------------------

    def tell(self, event: Callable[[Coordinator], list[Action]], *message: object) -> None:
        """Report an event to the coordinator, in this process or by a message."""
        if self.machine is not None:
            self.execute(event(self.machine))
        elif self.link is not None:
            coordinator = self.link.coordinator
            self.link.send("up", lambda: coordinator.on_event(event), *message)

    def on_event(self, event: Callable[[Coordinator], list[Action]]) -> None:
        if self.alive and self.machine is not None:
            self.execute(event(self.machine))

    def on_message(self, link: Link, action: Action) -> None:
        if self.alive and link is self.link:
            self.on_action(action)

    def on_action(self, action: Action) -> None:
        me = self.me.incarnation
        if isinstance(action, SendUpdate):
            number = action.update.number
            self.events += self.state.apply(action.update)
            self.tell(lambda machine: machine.confirm(me, number), "confirm", number)
        elif isinstance(action, RequestCounts):
            counts, round = (0, self.group.num_begun[self.rank]), action.round
            self.tell(lambda machine: machine.counted(me, round, counts), "counted", round, counts)
        elif isinstance(action, Confirm) and self.is_leaving:
            self.stop(killed=False)
        elif isinstance(action, Confirm) and self.is_member:
            self.has_finished = True
            if self.machine is None:
                self.stop(killed=False)
            else:
                self._stop_last()
        elif isinstance(action, Confirm):
            self.is_member = True
        elif isinstance(action, Refuse) and self.is_member:
            self.end("evicted")
        elif isinstance(action, Refuse):
            self.is_refused = action.kind == "refused"
            link, self.link = self.link, None
            if link is not None:
                link.end(clean=True)
            self.later(RETRY_S, self.join)

    def _stop_last(self) -> None:
        if self.links and self.alive:
            self.later(0.01, self._stop_last)
        elif self.alive:
            self.stop(killed=False)

    def on_link_ended(self, link: Link, clean: bool) -> None:
        if not self.alive or link is not self.link:
            return
        self.link = None
        if self.is_leaving:
            self.stop(killed=False)
        elif self.is_member:
            self.end("left" if clean else "lost")
        else:
            self.state = MemberState()
            self.later(RETRY_S, self.join)

    def end(self, why: str) -> None:
        """The group has ended for this member; its program stops."""
        self.ended = why
        self.stop(killed=False)

    # -- frozen ----------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop the process. After FROZEN_S the others declare it lost."""
        if not self.frozen and self.is_member:
            self.frozen = True
            self.group.sim.after(FROZEN_S, self._declare_lost)

    def _declare_lost(self) -> None:
        if not (self.alive and self.frozen):
            return
        if self.machine is not None:
            for link in list(self.links.values()):
                link.member.when_awake(partial(link.member.lose_coordinator, link))
        elif self.link is not None:
            coordinator, me = self.link.coordinator, self.me.incarnation
            coordinator.when_awake(lambda: coordinator.on_event(lambda machine: machine.lose(me, "stopped")))

    def lose_coordinator(self, link: Link) -> None:
        if self.alive and link is self.link and self.is_member:
            me = self.me.incarnation
            self.tell(lambda machine: machine.lose(me, "it considers this coordinator lost"), "lost_coordinator")
            self.end("lost")

    def wake(self) -> None:
        self.frozen = False
        inbox, self.inbox = self.inbox, []
        for job in inbox:
            job()

    # -- the end ---------------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        counts = (0, self.group.num_begun[self.rank])
        self.tell(lambda machine: machine.counted(self.me.incarnation, 0, counts), "counted", 0, counts)

    def leave(self) -> None:
        self.is_leaving = True
        if self.machine is not None or self.link is None:
            self.stop(killed=False)
        else:
            me = self.me.incarnation
            self.tell(lambda machine: machine.leave(me), "leave")

    def stop(self, *, killed: bool) -> None:
        if not self.alive:
            return
        self.alive = self.is_member = False
        if killed:
            self.group.killed.append(self)
        if self.group.holder is self:
            self.group.holder = None
        for link in [*self.links.values(), *([self.link] if self.link is not None else [])]:
            link.end(clean=not killed)
        self.frozen, inbox, self.inbox = False, self.inbox, []
        for job in inbox:
            job()


class PlayedGroup:
    """All workers there ever were, and the one that holds the address.

    Attributes:
        workers: by incarnation. A process that had to ask again has several.
        num_messages, num_bytes: of all messages over links, by name.
        num_begun: calls ever started by each rank.
    """

    def __init__(self, seed: int, size: int | None) -> None:
        self.sim = Sim(seed)
        self.size = size
        self.holder: PlayedWorker | None = None
        self.workers: dict[int, PlayedWorker] = {}
        self.killed: list[PlayedWorker] = []
        self.num_messages: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self.num_begun: Counter[int] = Counter()
        self._sizes: dict[object, int] = {}
        self._num_incarnations = self._num_processes = 0

    def new_incarnation(self) -> int:
        self._num_incarnations += 1
        return 10_000 + self._num_incarnations

    def start(self, rank: int) -> None:
        """Start a process of this rank, unless one is alive."""
        if not self.living(rank):
            self._num_processes += 1
            PlayedWorker(self, rank, self._num_processes)

    def count(self, message: tuple[object, ...]) -> None:
        """Count a message. An update that goes to many members is measured once."""
        name, *rest = message
        action = rest[0] if rest else None
        update = action.update if isinstance(action, SendUpdate) else None
        key = message if update is None else (name, update.number, len(update.changes), self.holder)
        if key not in self._sizes:
            head, buffers = control_codec.dumps((name, tuple(rest)))
            self._sizes[key] = len(head) + sum(buffer.nbytes for buffer in buffers)
        self.num_messages[str(name)] += 1
        self.num_bytes[str(name)] += self._sizes[key]

    def living(self, rank: int | None = None) -> list[PlayedWorker]:
        alive = dict.fromkeys(worker for worker in self.workers.values() if worker.alive)
        return [worker for worker in alive if rank is None or worker.rank == rank]


def check(group: PlayedGroup) -> None:
    """If rank 0 lives, all living workers are members and know the same. Otherwise none is a member."""
    living = group.living()
    incarnations = sorted(worker.me.incarnation for worker in living)
    for worker in living:
        if group.holder is None:
            assert not worker.is_member, worker.me
            continue
        machine = group.holder.machine
        assert machine is not None and worker.is_member, worker.me
        assert worker.state.number == machine.number, worker.me
        assert sorted(member.incarnation for member in worker.state.members.values()) == incarnations, worker.me
        gone: set[int] = set()
        for event in worker.events:
            assert event.member.incarnation not in gone, f"{worker.me} heard of {event.member} after its departure"
            if isinstance(event, (Left, Lost)):
                gone.add(event.member.incarnation)
