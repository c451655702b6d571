"""Spinning before sleep: as many as pay, and few where they do not."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.links.hub import WAITS_SKIPPED_MAX, Spinning


def spins_of(waits: int, spinning: Spinning, *, seen: bool) -> int:
    count = 0
    for _ in range(waits):
        if spinning.is_due():
            spinning.ended(seen=seen)
            count += 1
    return count


def test_who_sees_the_answer_spins_every_time() -> None:
    assert spins_of(1000, Spinning(), seen=True) == 1000


def test_spins_in_vain_become_rare() -> None:
    spinning = Spinning()
    assert spins_of(WAITS_SKIPPED_MAX, spinning, seen=False) == 8  # after 1, 3, 7, ... 255 waits without
    assert spins_of(100 * (WAITS_SKIPPED_MAX + 1), spinning, seen=False) == 100


@given(st.lists(st.booleans(), max_size=2000))
def test_one_spin_that_pays_brings_them_back(outcomes: list[bool]) -> None:
    spinning = Spinning()
    for seen in outcomes:
        spins_of(1, spinning, seen=seen)
    waits = 0
    while not spinning.is_due():
        waits += 1
        assert waits <= WAITS_SKIPPED_MAX
    spinning.ended(seen=True)
    assert spins_of(50, spinning, seen=True) == 50
