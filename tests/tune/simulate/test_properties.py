"""Properties of all simulated searches. Hypothesis draws the scheduler, the faults and the times.

Equal settings give equal events. Equal events give equal actions. A worker runs one trial at a time. The seconds of
training are the sum over all attempts. Finished trials take no memory.
"""

import itertools
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_curves import curves
from simulated_attempts import SimulatedAttempt, SimulatedAttempts

from fanwise.errors import SearchFailedError
from fanwise.tune import FIFO, Scheduler, StoppingCriterion
from fanwise.tune.core.actions import Action
from fanwise.tune.core.events import Event
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.schedulers import ASHA
from fanwise.tune.simulate import Faults, FunctionTable, SimulatedSearch, simulate

HISTORY = list[tuple[Event, list[Action]]]
MAX_EPOCHS = 9


def asha(kind: str) -> Scheduler:
    return ASHA(
        metric="loss",
        resource_attr="epoch",
        max_resource_attr="max_epochs",
        grace_period=1,
        reduction_factor=3,
        type=kind,  # type: ignore[arg-type]  # one of the two literals
    )


SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {
    "random": lambda: FIFO(metric="loss"),
    "stopping": lambda: asha("stopping"),
    "promotion": lambda: asha("promotion"),
}
FAULTS = st.builds(
    Faults,
    crashes_per_hour=st.sampled_from([0.0, 200.0]),
    losses_per_hour=st.sampled_from([0.0, 200.0]),
    repair_s=st.sampled_from([0.0, 7.5]),
    slowdown=st.sampled_from([None, lambda rng: 1.0 + rng.random()]),
)
SETTINGS = st.fixed_dictionaries(
    {
        "n_workers": st.integers(1, 6),
        "seed": st.integers(0, 2**31),
        "checkpoints": st.booleans(),
        "startup_s": st.sampled_from([0.0, 0.25]),
        "suggest_s": st.sampled_from([0.0, 0.5]),
        "faults": st.none() | FAULTS,
        "retries": st.integers(0, 2),
        "asynchronous": st.booleans(),
        "trial_timeout_s": st.sampled_from([None, 6.5]),
    }
)
STOPS = st.builds(StoppingCriterion, max_num_trials_started=st.integers(1, 25)) | st.builds(
    StoppingCriterion, max_wallclock_time=st.floats(1.0, 60.0)
)


def run(name: str, stop: StoppingCriterion, options: Mapping[str, Any]) -> tuple[SimulatedSearch | None, HISTORY]:
    """Return the search, or None if all trials failed, and the events with their actions."""
    history: HISTORY = []

    def note(event: Event, actions: list[Action]) -> None:
        history.append((event, list(actions)))

    try:
        table = curves(MAX_EPOCHS)
        search = simulate(SCHEDULERS[name](), table, stop, max_equal_failures=None, on_event=note, **options)
    except SearchFailedError:
        return None, history
    return search, history


@given(st.sampled_from(sorted(SCHEDULERS)), STOPS, SETTINGS)
@settings(max_examples=60, deadline=None)
def test_equal_settings_give_equal_events_and_equal_events_equal_actions(
    name: str, stop: StoppingCriterion, options: Mapping[str, Any]
) -> None:
    first, second = run(name, stop, options), run(name, stop, options)
    assert as_text(first[1]) == as_text(second[1])
    if first[0] is not None and second[0] is not None:
        assert first[0].incumbents == second[0].incumbents
    scheduler, table = SCHEDULERS[name](), curves(MAX_EPOCHS)
    scheduler.begin(table.space, options["seed"])
    restored_core = SearchCore(
        scheduler,
        table.space,
        stop,
        max_equal_failures=None,
        **{key: options[key] for key in ("n_workers", "seed", "retries", "asynchronous", "trial_timeout_s")},
    )
    assert as_text([(event, restored_core.handle(event)) for event, _ in first[1]]) == as_text(first[1])


def as_text(history: HISTORY) -> list[str]:
    """Return the history as text, in which NaN equals NaN, without `Suggest`, whose context has no useful text."""
    return [
        f"{event} {[action for action in actions if type(action).__name__ != 'Suggest']}" for event, actions in history
    ]


@given(st.sampled_from(sorted(SCHEDULERS)), STOPS, SETTINGS)
@settings(max_examples=60, deadline=None)
def test_worker_runs_one_trial_at_a_time_and_times_add_up(
    name: str, stop: StoppingCriterion, options: Mapping[str, Any]
) -> None:
    search, history = run(name, stop, options)
    times_s = [event.now_s for event, _ in history]
    assert times_s == sorted(times_s)
    if search is None:
        return
    attempts = SimulatedAttempts()
    for event, actions in history:
        attempts.add(event, actions)
    num_starts = sum(type(action).__name__ == "Start" for _, actions in history for action in actions)
    assert len(attempts.ended) == search.num_attempts == num_starts
    for worker, rows in itertools.groupby(sorted(attempts.ended, key=by_worker), lambda attempt: attempt.worker):
        assert worker in range(options["n_workers"])
        assert all(previous.end_s <= following.start_s for previous, following in itertools.pairwise(rows))
    assert len({(attempt.trial_id, attempt.attempt) for attempt in attempts.ended}) == num_starts
    training_s = [attempt.end_s - attempt.ready_s for attempt in attempts.ended if attempt.ready_s == attempt.ready_s]
    assert search.training_s == pytest.approx(sum(training_s))
    assert all(time_s >= 0.0 for time_s in training_s)
    assert search.utilization <= 1.0 + 1e-9
    assert search.duration_s == times_s[-1]
    assert search.num_events == len(history)
    assert sum(search.decisions.values()) == search.num_reports == len(attempts.reports)
    losses = [loss for *_, loss in attempts.reports]
    minima = [1e9, *itertools.accumulate(losses, min)]
    improved = [loss for loss, minimum in zip(losses, minima, strict=False) if loss < minimum]
    assert [incumbent.value for incumbent in search.incumbents] == improved


def by_worker(attempt: SimulatedAttempt) -> tuple[int, float, float]:
    return attempt.worker, attempt.start_s, attempt.end_s


def test_finished_trials_take_no_memory() -> None:
    table = FunctionTable(lambda config, epoch: ({"loss": 1.0}, 1.0), {"x": 1, "max_epochs": 1})

    def allocated_bytes(number: int) -> int:
        """Return the bytes that a search has allocated and not freed at its end."""
        tracemalloc.start()
        bytes_at = []

        def note(event: Event, actions: list[Action]) -> None:
            if type(event).__name__ == "Begin" or any(type(action).__name__ == "Finish" for action in actions):
                bytes_at.append(tracemalloc.get_traced_memory()[0])

        simulate(FIFO(metric="loss"), table, StoppingCriterion(max_num_trials_started=number), on_event=note)
        tracemalloc.stop()
        return bytes_at[-1] - bytes_at[0]

    allocated_bytes(100)  # fills the caches
    assert allocated_bytes(2000) - allocated_bytes(200) < 20_000  # 11 bytes for each of 1800 trials
