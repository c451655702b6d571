"""In which order the members that are left are asked for the coordinator, with listeners that do what the test says."""

from dataclasses import dataclass, field

import pytest

from fanwise.base.errors import DeadlineExceeded, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.transports.unix import memory_links
from fanwise.rpc.membership.members import Member, MemberState, View
from fanwise.rpc.membership.peer_probing import ENTRANCE, PeerProber


class Clock:
    now = 0.0

    def now_s(self) -> float:
        return self.now


def member(rank: int, host: str) -> Member:
    return Member(f"w{rank}", rank, 100 + rank, "", host, 0)


@dataclass
class Street:
    """Worker 2 of five asks the others: 0 was the coordinator, 1 and 2 are on one host, 3 and 4 on another."""

    hub: Hub
    clock: Clock
    asked: list[int] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    refusing: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        members = tuple(member(rank, host) for rank, host in enumerate("abbcc"))
        state = MemberState(members[2], None, View((1, 1), members, coordinator=100))
        self.prober = PeerProber(self.hub, state, self.dial)

    def dial(self, to: Member, within_s: float) -> Link:
        self.asked.append(to.id)
        if to.id in self.silent:
            self.clock.now += within_s
        if to.id in self.busy:
            raise DeadlineExceeded("it says nothing")
        if to.id in self.silent | self.refusing:
            raise WorkerLostError("nobody is there")
        link, _ = memory_links(self.hub, self.hub)
        return link

    def round(self, *, my_turn: bool = False) -> list[int]:
        """Who is asked until nobody is left for now."""
        self.asked.clear()
        while self.prober.next(100, my_turn=my_turn) is not None:
            pass
        return list(self.asked)


@pytest.fixture
def street() -> Street:
    clock = Clock()
    return Street(Hub(clock=clock), clock)  # type: ignore[arg-type]  # nothing here waits


def test_all_others_are_asked_the_lowest_first_and_again_after_a_moment(street: Street) -> None:
    assert street.round() == [1, 3, 4]
    assert street.round() == []
    street.clock.now += 0.3
    assert street.round() == [1, 3, 4]
    street.hub.close()


def test_whose_turn_it_is_asks_the_lower_ranks_only(street: Street) -> None:
    assert street.round(my_turn=True) == [1]
    assert street.prober.any_below(100)
    street.hub.close()


def test_a_host_that_is_silent_is_left_alone_with_all_who_are_on_it(street: Street) -> None:
    street.silent = {3, 4}
    assert street.round() == [1, 3], "not 4: it would take as long"
    street.clock.now += 1.0
    assert street.round() == [1]
    street.clock.now += 5.0
    assert street.round() == [1, 3]
    street.hub.close()


def test_one_that_has_ended_does_not_speak_for_its_host(street: Street) -> None:
    street.refusing = {1, 3}
    assert street.round() == [1, 3, 4]
    assert not street.prober.any_below(100)
    street.hub.close()


def test_a_coordinator_whose_link_was_reset_is_asked_itself_and_again_after_a_moment(street: Street) -> None:
    assert street.prober.back(100) is not None and street.prober.back(100) is None
    street.clock.now += 0.3
    assert street.prober.back(100) is not None and street.asked == [0, 0]
    assert not street.prober.is_busy
    street.hub.close()


def test_a_coordinator_that_takes_the_connection_and_says_nothing_is_busy_until_it_refuses(street: Street) -> None:
    street.busy = {0}
    assert street.prober.back(100) is None and street.prober.is_busy
    assert street.prober.back(100) is None and street.prober.is_busy, "it was asked a moment ago"
    street.clock.now += 0.3
    street.busy, street.refusing = set(), {0}
    assert street.prober.back(100) is None and not street.prober.is_busy
    street.hub.close()


def test_a_silent_entrance_is_left_alone_and_one_that_refuses_is_not(street: Street) -> None:
    street.prober.tried(ENTRANCE, street.clock.now)
    assert street.prober.is_worth_a_try(ENTRANCE)
    street.clock.now += 2.0
    street.prober.tried(ENTRANCE, street.clock.now - 2.0)
    assert not street.prober.is_worth_a_try(ENTRANCE)
    street.hub.close()
