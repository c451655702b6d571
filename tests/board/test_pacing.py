"""A board looks less often the more a look takes, and much less often where the machine has no time to spare."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.board.pacing import rest_s

SHARES = st.floats(0.0, 1.0)
TIMES = st.floats(0.0, 1e6)


@given(TIMES, SHARES)
def test_a_board_takes_at_most_a_tenth_of_a_core_unless_a_look_takes_seconds(spent_s: float, busy: float) -> None:
    rest = rest_s(spent_s, busy)
    assert 0.3 <= rest <= 60.0
    assert spent_s <= 0.1001 * rest or rest == 60.0


@given(TIMES, TIMES, SHARES, SHARES)
def test_who_takes_more_or_finds_less_room_rests_no_less(
    one_s: float, other_s: float, one: float, other: float
) -> None:
    assert rest_s(max(one_s, other_s), max(one, other)) >= rest_s(min(one_s, other_s), min(one, other))


def test_on_a_full_machine_it_takes_a_hundredth_of_a_core() -> None:
    assert rest_s(0.3, busy=1.0) == 30.0
    assert rest_s(0.0, busy=1.0) == 5.0


def test_where_reports_pour_in_it_looks_twice_a_minute() -> None:
    assert rest_s(0.0, busy=1.0, every=2) == 30.0
    assert rest_s(0.5, busy=1.0, every=2) == 50.0
