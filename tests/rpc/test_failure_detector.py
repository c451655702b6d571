"""When a member without a link counts as lost, and how a coordinator learns that one of another host lives."""

import socket

import pytest

from fanwise.rpc.membership.failure_detector import RETURN_S, Absences, Gone
from fanwise.rpc.rendezvous.port_probe import Knocking
from fanwise.testing import within

BEATS_S = 30.0
LIMIT_S = 10.0


@pytest.fixture
def absences() -> Absences:
    return Absences(BEATS_S, 100.0)


def test_who_was_reset_is_waited_for_from_then_on_however_old_the_group_is(absences: Absences) -> None:
    absences.reset(7, 5000.0, "cut")
    assert absences.is_awaited(7) and absences.for_s(7, 5000.5) == 0.5
    assert absences.verdict(7, 5000.0 + 0.9 * RETURN_S, "unknown") is None
    assert absences.verdict(7, 5000.0 + RETURN_S, "unknown") == Gone("cut", dead=True)


def test_who_is_seen_to_live_may_take_as_long_as_a_heartbeat_and_is_not_dead_for_certain(absences: Absences) -> None:
    absences.reset(7, 5000.0, "cut")
    assert absences.verdict(7, 5029.0, "lives") is None
    assert absences.verdict(7, 5030.0, "lives") == Gone("it did not come back in 30 s (cut)", dead=False)


def test_whose_process_has_ended_is_lost_at_once(absences: Absences) -> None:
    absences.reset(7, 5000.0, "cut")
    assert absences.verdict(7, 5000.0, "ended") == Gone("cut", dead=True)
    assert absences.verdict(8, 100.0, "ended") == Gone("its process has ended", dead=True)


def test_who_never_came_has_a_heartbeat_from_the_beginning_of_the_coordinator(absences: Absences) -> None:
    assert absences.verdict(8, 129.0, "unknown") is None
    assert absences.verdict(8, 130.0, "unknown") == Gone("it did not come back in 30 s", dead=False)
    assert absences.verdict(8, 999.0, "lives") is None, "its process is seen, and may be busy"


def test_who_has_come_back_and_is_reset_again_is_waited_for_anew(absences: Absences) -> None:
    absences.reset(7, 5000.0, "cut")
    absences.over(7)
    absences.over(7)
    assert not absences.is_awaited(7)
    absences.reset(7, 5000.9, "cut again")
    assert absences.verdict(7, 5001.0, "unknown") is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_lets_in_who_knocks_while_its_process_lives_though_it_accepts_nobody(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        knocking = Knocking(host, listener.getsockname()[1])
        within(LIMIT_S, lambda: knocking.look(0.0), "it is let in")
        assert knocking.look(0.1), "it was let in a moment ago"
    within(LIMIT_S, lambda: not knocking.look(1.0), "it is refused")
    knocking.close()
    knocking.close()


@pytest.mark.parametrize("host", ["nowhere at all", "256.1.1.1"])
def test_what_is_no_address_lets_nobody_in(host: str) -> None:
    assert not Knocking(host, 1).look(0.0)


def test_a_host_that_says_nothing_any_more_is_no_sign_of_life() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        knocking = Knocking("127.0.0.1", listener.getsockname()[1])
        within(LIMIT_S, lambda: knocking.look(0.0), "it is let in")
        knocking._address = ("192.0.2.1", 9)  # of the addresses that lead nowhere
        knocking.look(1.0)
        assert not knocking.look(10.0)
    knocking.close()
