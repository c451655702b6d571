"""When a member without a link counts as lost."""

import pytest

from fanwise.rpc.membership.failure_detector import RETURN_S, FailureDetector, Gone

BEATS_S = 30.0


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
