"""Views and turns of a run over hosts, played: every process with its own `Turns`, messages late, kills and cuts."""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from fanwise.parallel.hosts.turns import (
    Arrived,
    Decided,
    Hung,
    Known,
    Message,
    Out,
    Released,
    Send,
    Survived,
    Turns,
    Unreachable,
)
from fanwise.parallel.shards import assign

SHARDS, TRANSACTIONS = 6, 5
MOST_STEPS = 20_000


@dataclass
class Process:
    """One process: what its hub hears, and the transactions that its training makes."""

    turns: Turns
    exchanges: list[int]
    attempt: Known
    number: int = 0
    exchange: int = 0
    waits_for: int | None = None
    is_dead: bool = False
    is_stopped: bool = False
    seen: dict[int, list[tuple[bytes, ...]]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.number == len(self.exchanges)

    def train(self) -> list[Send]:
        """What the thread that trains does next; nothing while it waits."""
        known = self.turns.known
        if self.waits_for is not None:
            if known.turn >= self.waits_for:
                self.waits_for = None
                return self._is_released(known.contents)
            elif known.view != self.attempt.view:
                self._begins_again()
            return []
        if known.view != self.attempt.view:
            self._begins_again()
        self.waits_for = known.turn + 1
        return self.turns.arrive(self._content())

    def _content(self) -> bytes:
        members = self.attempt.members
        shards = assign(SHARDS, len(members))[members.index(self.turns.rank)]
        return bytes([self.number, self.exchange, *shards])

    def _is_released(self, contents: tuple[bytes, ...]) -> list[Send]:
        assert all(content[:2] == bytes([self.number, self.exchange]) for content in contents), contents
        assert b"".join(content[2:] for content in contents) == bytes(range(SHARDS)), contents
        self.seen.setdefault(self.number, [])[self.exchange :] = [contents]
        self.exchange += 1
        if self.exchange == self.exchanges[self.number]:
            self.number, self.exchange, self.attempt = self.number + 1, 0, self.turns.known
        return []

    def _begins_again(self) -> None:
        self.exchange, self.waits_for, self.attempt = 0, None, self.turns.known


class Played:
    """A run of so many processes, all of whose links are queues; who goes on is drawn from one seed."""

    def __init__(
        self, seed: int, size: int, kills: int, cuts: int, make: type[Turns] = Turns, *, stops: int = 0
    ) -> None:
        self.chance = random.Random(seed)
        first = Known(1, tuple(range(size)))
        exchanges = [self.chance.randint(1, 3) for _ in range(TRANSACTIONS)]
        self.processes = [Process(make(rank, first), exchanges, first) for rank in range(size)]
        self.queues: dict[tuple[int, int], deque[Message | None]] = {
            (one, other): deque() for one in range(size) for other in range(size) if one != other
        }
        self.ended: set[frozenset[int]] = set()
        self.watched: list[tuple[int, int, int]] = []  # a coordinator, and two that cannot reach each other
        self.moments = sorted(
            (int(self.chance.expovariate(1 / 60)), kind) for kind in "k" * kills + "c" * cuts + "s" * stops
        )
        self.killed = self.cut = self.stopped = 0

    def play(self) -> None:
        for step in range(MOST_STEPS):
            while self.moments and self.moments[0][0] <= step:
                self._harm(self.moments.pop(0)[1])
            living = [process for process in self.processes if not process.is_dead and not process.turns.is_out]
            living = [process for process in living if not process.is_stopped]
            if all(process.is_done for process in living):
                break
            self._go_on(living)
        else:
            raise AssertionError([(process.turns, process.number, process.waits_for) for process in living])
        self._check(living)

    def _check(self, living: list[Process]) -> None:
        """All that are left have seen the same, but those that a cut has left on another side."""
        views = [(process.turns.known.view, process.turns.known.members) for process in living]
        seen = dict(zip(views, (process.seen for process in living), strict=True))
        for view, process in zip(views, living, strict=True):
            assert process.seen == seen[view]
        assert living or self.killed
        if not self.cut:
            assert len(living) == len(self.processes) - self.killed - self.stopped, "nobody is out who lives"
        if not self.cut:
            assert all(process.seen == living[0].seen for process in living)

    def _harm(self, kind: str) -> None:
        living = [process.turns.rank for process in self.processes if not process.is_dead and not process.is_stopped]
        if len(living) < 2:
            return
        one, other = self.chance.sample(living, 2)
        if kind == "k":
            self.killed += 1
            self.processes[one].is_dead = True
            for rank in range(len(self.processes)):
                if rank != one:
                    self._end_link(one, rank)
        elif kind == "s":
            self.stopped += 1
            self.processes[one].is_stopped = True
        elif frozenset((one, other)) not in self.ended:
            self.cut += 1
            self._end_link(one, other)

    def _end_link(self, one: int, other: int) -> None:
        """What was under way comes as far as it has come; then each side sees the end."""
        self.ended.add(frozenset((one, other)))
        for way in ((one, other), (other, one)):
            queue = self.queues[way]
            for _ in range(self.chance.randint(0, len(queue))):
                queue.pop()
            queue.append(None)

    def _go_on(self, living: list[Process]) -> None:
        ways = [way for way, queue in self.queues.items() if queue and self._hears(way[1])]
        if self.chance.random() < 0.02:
            self._waits_too_long(self.chance.choice(living))
        if self.watched and self.chance.random() < 0.02:
            coordinator, one, other = self.watched.pop(0)
            # The grace is longer than an end takes to be seen by all.
            is_seen = all(None not in self.queues[rank, coordinator] for rank in (one, other))
            if not is_seen:
                self.watched.append((coordinator, one, other))
            elif self._hears(coordinator):
                self._carry_out(coordinator, self.processes[coordinator].turns.cut_off(one, other))
        elif ways and self.chance.random() < 0.7:
            sender, receiver = self.chance.choice(ways)
            self._deliver(sender, receiver, self.queues[sender, receiver].popleft())
        else:
            process = self.chance.choice(living)
            if not process.is_done:
                self._carry_out(process.turns.rank, process.train())

    def _hears(self, rank: int) -> bool:
        return not self.processes[rank].is_dead and not self.processes[rank].is_stopped

    def _waits_too_long(self, process: Process) -> None:
        """Whoever waits hears from all but the stopped that they live."""
        stopped = {each.turns.rank for each in self.processes if each.is_stopped and not each.is_dead}
        if stopped and process.waits_for is not None:
            self._carry_out(process.turns.rank, process.turns.give_up(stopped))

    def _deliver(self, sender: int, receiver: int, message: Message | None) -> None:
        turns = self.processes[receiver].turns
        if message is None:
            self._carry_out(receiver, turns.lose(sender))
            return
        self._carry_out(receiver, turns.heard(sender, message))
        if isinstance(message, Unreachable):
            self.watched.append((receiver, sender, message.rank))

    def _carry_out(self, rank: int, orders: list[Send]) -> None:
        for order in orders:
            assert order.rank != rank
            if frozenset((rank, order.rank)) not in self.ended:
                self.queues[rank, order.rank].append(order.message)
        # Who is out ends: its links do, too.
        if self.processes[rank].turns.is_out and not self.processes[rank].is_dead:
            self.processes[rank].is_dead = True
            for other in range(len(self.processes)):
                if other != rank and frozenset((rank, other)) not in self.ended:
                    self._end_link(rank, other)


def played(seed: int, make: type[Turns] = Turns, *, cuts: bool = False, stops: bool = False) -> Played:
    run = Played(
        seed, 2 + seed % 4, kills=seed // 4 % 4, cuts=seed % 3 if cuts else 0, make=make, stops=seed % 3 if stops else 0
    )
    run.play()
    return run


@pytest.mark.parametrize("part", range(4))
def test_those_that_are_left_do_every_transaction_once_whoever_dies(part: int) -> None:
    runs = [played(seed) for seed in range(50 * part, 50 * part + 50)]
    assert sum(run.killed for run in runs) > 30


def test_cut_links_end_in_sides_that_agree_among_themselves() -> None:
    runs = [played(seed, cuts=True) for seed in range(200)]
    assert sum(run.cut for run in runs) > 100


def test_those_that_are_stopped_are_gone_on_without() -> None:
    runs = [played(seed, stops=True) for seed in range(200)]
    assert sum(run.stopped for run in runs) > 100


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_twenty_thousand_played_runs(part: int) -> None:
    for seed in range(2000 * part, 2000 * part + 2000):
        played(seed, cuts=seed % 2 == 1, stops=seed % 4 > 1)


class AsksNobody(Turns):
    """Becomes the coordinator with what it knows itself."""

    def _decide_if_all_survived(self) -> list[Send]:
        self._survived = dict.fromkeys(self.known.members, self.known)
        return Turns._decide_if_all_survived(self)


class Impatient(Turns):
    """Releases a turn when all but one have come."""

    def _arrived(self, rank: int, message: Arrived) -> list[Send]:
        if len(self.known.members) > 1 and len(self._came) + 2 == len(self.known.members):
            self._came.setdefault(max(set(self.known.members) - {rank}), message.content)
        return Turns._arrived(self, rank, message)


class Forgetful(Turns):
    """Does not tell what was released before a view."""

    def _go_on_without(self, gone: set[int]) -> list[Send]:
        known = self.known
        self.known = Known(known.view, known.members, known.turn - 1, ())
        return Turns._go_on_without(self, gone)


class HearsTheLost(Turns):
    """Takes messages of an old view."""

    def _arrived(self, rank: int, message: Arrived) -> list[Send]:
        return Turns._arrived(self, rank, Arrived(self.known.view, message.turn, message.content))


@pytest.mark.parametrize("broken", [AsksNobody, Impatient, Forgetful, HearsTheLost])
def test_broken_turns_are_caught(broken: type[Turns]) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        all(played(seed, broken) for seed in range(2000))


def test_a_turn_is_released_when_all_have_come() -> None:
    turns = Turns(0, Known(1, (0, 1, 2)))
    assert turns.arrive(b"a") == [] and turns.heard(2, Arrived(1, 1, b"c")) == []
    released = Released(1, 1, (b"a", b"b", b"c"))
    assert turns.heard(1, Arrived(1, 1, b"b")) == [Send(1, released), Send(2, released)]


def test_what_the_dead_coordinator_had_released_to_one_is_released_to_all() -> None:
    turns = Turns(1, Known(1, (0, 1, 2), 4, (b"old",)))
    assert turns.lose(0) == []
    newer = Known(1, (0, 1, 2), 5, (b"new",))
    decided = Known(2, (1, 2), 5, (b"new",))
    assert turns.heard(2, Survived(newer)) == [Send(2, Decided(decided))] and turns.known == decided


def test_who_was_out_of_reach_of_the_coordinator_is_told_that_it_is_out() -> None:
    turns = Turns(1, Known(1, (0, 1, 2)))
    assert turns.heard(2, Survived(Known(1, (0, 1, 2)))) == []
    assert turns.heard(0, Decided(Known(2, (0, 1)))) == [Send(2, Out())]


def test_of_two_that_cannot_reach_each_other_the_later_one_goes() -> None:
    turns = Turns(0, Known(1, (0, 1, 2)))
    assert turns.heard(1, Unreachable(2)) == []
    assert turns.cut_off(1, 2) == [Send(1, Decided(Known(2, (0, 1)))), Send(2, Out())]
    assert turns.cut_off(1, 2) == [], "it has gone"


def test_those_that_hang_are_gone_on_without() -> None:
    member, turns = Turns(1, Known(1, (0, 1, 2), 3)), Turns(0, Known(1, (0, 1, 2), 3))
    assert member.give_up({2}) == [Send(0, Hung(1, 3, (2,)))]
    assert turns.heard(1, Hung(1, 3, (2,))) == [Send(1, Decided(Known(2, (0, 1), 3))), Send(2, Out())]
    assert turns.heard(1, Hung(1, 3, (2,))) == [], "of an old view"


def test_a_coordinator_that_hangs_is_gone_on_without_by_all_that_wait() -> None:
    turns = Turns(1, Known(1, (0, 1, 2)))
    assert turns.give_up({0}) == [Send(0, Out())]
    assert turns.heard(2, Survived(Known(1, (0, 1, 2)))) == [Send(2, Decided(Known(2, (1, 2))))]
    assert turns.heard(0, Decided(Known(2, (0, 1)))) == [] and turns.known.members == (1, 2), "it is not heard any more"
