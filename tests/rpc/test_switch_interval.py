"""The switch interval is shortened and put back, and a setting of the user's stays."""

import sys
from collections.abc import Iterator

import pytest

from fanwise.rpc.switch_interval import SWITCH_INTERVAL_S, ShortSwitchInterval


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    previous_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(previous_s)


def test_it_is_shorter_meanwhile_and_then_as_before() -> None:
    sys.setswitchinterval(0.005)
    switches = ShortSwitchInterval()
    switches.begin()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    switches.end()
    switches.end()
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_a_shorter_one_is_left_alone() -> None:
    sys.setswitchinterval(0.0001)
    switches = ShortSwitchInterval()
    switches.begin()
    assert sys.getswitchinterval() == pytest.approx(0.0001)
    switches.end()
    assert sys.getswitchinterval() == pytest.approx(0.0001)


def test_what_the_user_sets_meanwhile_stays() -> None:
    sys.setswitchinterval(0.005)
    switches = ShortSwitchInterval()
    switches.begin()
    sys.setswitchinterval(0.02)
    switches.end()
    assert sys.getswitchinterval() == pytest.approx(0.02)
