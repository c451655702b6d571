"""Rungs beside an obvious model, which sorts all entries again for each question."""

import math
from typing import TypeAlias

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.schedulers.rungs import Key, PromotionRung, QuantileRung, StoppingRung
from fanwise.tune.schedulers.scheduler import CONTINUE, PAUSE, STOP

LOSSES = st.sampled_from([0.0, 0.5, 0.5, 1.0, math.inf, -math.inf]) | st.floats(allow_nan=False)
# Each step enters a loss or, of the entries that are there, forgets one, or says that its trial is over.
RANKS = st.tuples(st.sampled_from([0.0, 0.0, 0.0, 0.25, 2.0, math.inf]), LOSSES)
STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "enter", "enter", "forget", "withdraw", "promote"]), RANKS), max_size=80
)
Step: TypeAlias = tuple[str, tuple[float, float]]


@given(STEPS, st.sampled_from([1.5, 2.0, 3.0, 4]))
def test_best_waiting_trial_in_the_top_fraction_is_promoted(steps: list[Step], eta: float) -> None:
    rung = PromotionRung(eta)
    entries: list[Key] = []
    waiting: set[Key] = set()
    for number, (operation, rank) in enumerate(steps):
        some = entries[number * 7 % len(entries)] if entries else None
        top = sorted(entries)[: int(len(entries) // eta)]
        expected = next((key for key in top if key in waiting), None)
        assert rung.promotable == (None if expected is None else expected[3])
        if operation == "enter":
            key = (*rank, number, number + 1000)
            entries.append(key)
            waiting.add(key)
            assert rung.enter(key) is PAUSE
        elif operation == "promote" and expected is not None:
            waiting.remove(expected)
            assert rung.promote() == expected[3]
        elif operation == "withdraw" and some is not None:
            waiting.discard(some)
            rung.withdraw(some)
        elif operation == "forget" and some is not None:
            entries.remove(some)
            waiting.discard(some)
            rung.remove(some, has_continued=False)


@given(STEPS, st.sampled_from([1.5, 2.0, 3.0, 4]))
def test_trial_continues_in_the_top_fraction_or_as_an_equal_with_room(steps: list[Step], eta: float) -> None:
    rung = StoppingRung(eta)
    entries: dict[Key, bool] = {}
    for number, (operation, rank) in enumerate(steps):
        if operation == "enter":
            key = (*rank, number, 0)
            top = sorted([*entries, key])[: max(1, int((len(entries) + 1) // eta))]
            expected = key in top or (key[:2] == top[-1][:2] and sum(entries.values()) < len(top))
            entries[key] = rung.enter(key) is CONTINUE
            assert entries[key] == expected
        elif entries:
            some = list(entries)[number * 7 % len(entries)]
            rung.remove(some, has_continued=entries.pop(some))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.sampled_from([1.5, 2.0, 3.0, 4]))
def test_a_trial_continues_if_it_is_within_the_quantile_of_numpy(losses: list[int], eta: float) -> None:
    rung = QuantileRung(eta)
    for number, loss in enumerate(losses):
        cutoff = np.quantile(losses[: number + 1], 1 / eta)
        if not math.isclose(loss, cutoff) or loss == cutoff:
            assert (rung.enter((0.0, float(loss), number, 0)) is CONTINUE) == (loss <= cutoff)
        else:
            rung.enter((0.0, float(loss), number, 0))


def test_a_removed_entry_no_longer_counts_in_the_quantile() -> None:
    rung = QuantileRung(2.0)
    assert rung.enter((0.0, 0.1, 0, 0)) is CONTINUE
    assert rung.enter((0.0, 0.5, 1, 1)) is STOP
    rung.remove((0.0, 0.1, 0, 0), has_continued=True)
    assert rung.enter((0.0, 0.5, 2, 2)) is CONTINUE
