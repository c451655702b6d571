"""Glances before sleep: as many as pay, and few where they do not."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.links.transports.spinning import WAITS_SKIPPED_MAX, Glances


def glances_of(waits: int, glances: Glances, *, seen: bool) -> int:
    count = 0
    for _ in range(waits):
        if glances.is_due():
            glances.ended(seen=seen)
            count += 1
    return count


def test_who_sees_the_answer_glances_every_time() -> None:
    assert glances_of(1000, Glances(), seen=True) == 1000


def test_glances_in_vain_become_rare() -> None:
    glances = Glances()
    assert glances_of(WAITS_SKIPPED_MAX, glances, seen=False) == 8  # after 1, 3, 7, ... 255 waits without
    assert glances_of(100 * (WAITS_SKIPPED_MAX + 1), glances, seen=False) == 100


@given(st.lists(st.booleans(), max_size=2000))
def test_one_glance_that_pays_brings_them_back(outcomes: list[bool]) -> None:
    glances = Glances()
    for seen in outcomes:
        glances_of(1, glances, seen=seen)
    waits = 0
    while not glances.is_due():
        waits += 1
        assert waits <= WAITS_SKIPPED_MAX
    glances.ended(seen=True)
    assert glances_of(50, glances, seen=True) == 50
