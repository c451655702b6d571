"""Rungs beside an obvious model, which sorts all entries again for each question."""

import math
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.schedulers.rungs import Key, PromotionRung, Rung

LOSSES = st.sampled_from([0.0, 0.5, 0.5, 1.0, math.inf, -math.inf]) | st.floats(allow_nan=False)
# Each step enters a loss or, of the entries that are there, forgets one, or says that its trial is over.
RANKS = st.tuples(st.sampled_from([0.0, 0.0, 0.0, 0.25, 2.0, math.inf]), LOSSES)
STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "enter", "enter", "forget", "withdraw", "promote"]), RANKS), max_size=80
)
Step: TypeAlias = tuple[str, tuple[float, float]]


@given(STEPS, st.sampled_from([1.5, 2.0, 3.0, 4]), st.integers(0, 2))
def test_the_top_share_is_what_sorting_says(steps: list[Step], eta: float, at_least: int) -> None:
    rung = Rung(eta, at_least)
    entries: list[Key] = []
    for number, (what, rank) in enumerate(steps):
        if what == "enter":
            entries.append((*rank, number))
            rung.enter((*rank, number))
        elif entries:
            rung.forget(entries.pop(number * 7 % len(entries)))
        ranked = sorted(entries)
        size = min(len(ranked), max(at_least, int(len(ranked) // eta)))
        assert [rung.is_top(key) for key in ranked] == [place < size for place in range(len(ranked))]
        assert len(rung) == len(ranked)
        assert rung.last_inside == (ranked[size - 1] if size else None)
        assert rung.first_outside == (ranked[size] if size < len(ranked) else None)


@given(STEPS, st.sampled_from([1.5, 2.0, 3.0, 4]))
def test_the_best_trial_that_waits_is_promoted_when_it_is_in_the_top_share(steps: list[Step], eta: float) -> None:
    rung = PromotionRung(eta)
    entries: list[Key] = []
    waiting: set[Key] = set()
    for number, (what, rank) in enumerate(steps):
        some = entries[number * 7 % len(entries)] if entries else None
        top = sorted(entries)[: int(len(entries) // eta)]
        expected = next((key for key in top if key in waiting), None)
        assert rung.promotable == (None if expected is None else expected[2] + 1000)
        if what == "enter":
            entries.append((*rank, number))
            waiting.add((*rank, number))
            rung.enter((*rank, number), trial_id=number + 1000)
        elif what == "promote" and expected is not None:
            waiting.remove(expected)
            assert rung.promote() == expected[2] + 1000
        elif what == "withdraw" and some is not None:
            waiting.discard(some)
            rung.withdraw(some)
        elif what == "forget" and some is not None:
            entries.remove(some)
            waiting.discard(some)
            rung.forget(some)


def test_of_equal_losses_the_earlier_one_is_better() -> None:
    rung = Rung(2.0)
    for number in range(4):
        rung.enter((0.0, 0.5, number))
    assert [rung.is_top((0.0, 0.5, number)) for number in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("loss", [0.0, 1.0])
def test_what_is_forgotten_takes_no_memory(loss: float) -> None:
    """Neither entries that come up in their heap nor those that stay deep in it."""
    rung = Rung(2.0)
    for number in range(4):
        rung.enter((0.0, 0.5, number - 4))
    for number in range(10_000):
        rung.enter((0.0, loss, number))
        rung.forget((0.0, loss, number))
    assert len(rung) == 4
    assert len(rung._top) + len(rung._rest) + len(rung._forgotten) < 300
