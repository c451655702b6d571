"""A port accepts connections while its process lives, whatever that does."""

import socket

import pytest

from fanwise.links.transports.port_probe import PortProbe
from fanwise.testing import within

LIMIT_S = 30.0


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
