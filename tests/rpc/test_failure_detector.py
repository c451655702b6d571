"""When a member without a link counts as lost, and how a coordinator learns that one of another host lives."""

import socket

import pytest

from fanwise.links.transports.port_probe import PortProbe
from fanwise.rpc.membership.failure_detector import RETURN_S, FailureDetector, Gone
from fanwise.testing import within

BEATS_S = 30.0
LIMIT_S = 10.0


@pytest.fixture
def detector() -> FailureDetector:
    return FailureDetector(BEATS_S, 100.0)


def test_who_was_reset_is_waited_for_from_then_on_however_old_the_group_is(detector: FailureDetector) -> None:
    detector.reset(7, 5000.0, "cut")
    assert detector.is_awaited(7) and detector.for_s(7, 5000.5) == 0.5
    assert detector.decide(7, 5000.0 + 0.9 * RETURN_S, "unknown") is None
    assert detector.decide(7, 5000.0 + RETURN_S, "unknown") == Gone("cut", dead=True)


def test_who_is_seen_to_live_has_a_heartbeat_and_is_not_dead_for_certain(detector: FailureDetector) -> None:
    detector.reset(7, 5000.0, "cut")
    assert detector.decide(7, 5029.0, "lives") is None
    assert detector.decide(7, 5030.0, "lives") == Gone("it did not come back in 30 s (cut)", dead=False)


def test_whose_process_has_ended_is_lost_at_once(detector: FailureDetector) -> None:
    detector.reset(7, 5000.0, "cut")
    assert detector.decide(7, 5000.0, "ended") == Gone("cut", dead=True)
    assert detector.decide(8, 100.0, "ended") == Gone("its process has ended", dead=True)


def test_who_never_came_has_a_heartbeat_from_the_beginning_of_the_coordinator(detector: FailureDetector) -> None:
    assert detector.decide(8, 129.0, "unknown") is None
    assert detector.decide(8, 130.0, "unknown") == Gone("it did not come back in 30 s", dead=False)
    assert detector.decide(8, 999.0, "lives") is None, "its process is seen, and may be busy"


def test_who_has_come_back_and_is_reset_again_is_waited_for_anew(detector: FailureDetector) -> None:
    detector.reset(7, 5000.0, "cut")
    detector.over(7)
    detector.over(7)
    assert not detector.is_awaited(7)
    detector.reset(7, 5000.9, "cut again")
    assert detector.decide(7, 5001.0, "unknown") is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_lets_in_who_connects_while_its_process_lives_though_it_accepts_nobody(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        probe = PortProbe(host, listener.getsockname()[1])
        within(LIMIT_S, lambda: probe.is_open(0.0), "it is let in")
        assert probe.is_open(0.1), "it was let in a moment ago"
    within(LIMIT_S, lambda: not probe.is_open(1.0), "it is refused")
    probe.close()
    probe.close()


@pytest.mark.parametrize("host", ["nowhere at all", "256.1.1.1"])
def test_what_is_no_address_lets_nobody_in(host: str) -> None:
    assert not PortProbe(host, 1).is_open(0.0)


def test_a_host_that_says_nothing_any_more_is_no_sign_of_life() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        probe = PortProbe("127.0.0.1", listener.getsockname()[1])
        within(LIMIT_S, lambda: probe.is_open(0.0), "it is let in")
        probe._address = ("192.0.2.1", 9)  # of the addresses that lead nowhere
        probe.is_open(1.0)
        assert not probe.is_open(10.0)
    probe.close()
