"""Simulated searches whose times were computed by hand, with crashes, pauses, limits and invalid settings."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from simulated_attempts import SimulatedAttempts

from fanwise.errors import SearchFailedError
from fanwise.tune import (
    FIFO,
    Decision,
    New,
    NextTrial,
    Observation,
    Resume,
    Scheduler,
    Searcher,
    Space,
    StoppingCriterion,
    SuggestContext,
    Wait,
    randint,
    uniform,
)
from fanwise.tune.simulate import Curve, Faults, FunctionTable, simulate

FOREVER = StoppingCriterion(max_wallclock_time=math.inf)


def trials(number: int) -> StoppingCriterion:
    return StoppingCriterion(max_num_trials_started=number)


def train(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
    """Report x + 1/epoch after x seconds of training."""
    x = config["x"]
    assert isinstance(x, int)
    return {"loss": x + 1 / epoch}, float(x)


def points(*xs: int) -> list[dict[str, object]]:
    return [{"x": x} for x in xs]


TABLE = FunctionTable(train, {"x": randint(1, 9), "max_epochs": 2})


class Numbers(Searcher):
    """Suggests x = 1, 2, ..., `last`."""

    def __init__(self, last: int = 9, *, suggest_timeout_s: float | None = None) -> None:
        self.last = last
        self.num_suggestions = 0
        self.suggest_timeout_s = suggest_timeout_s  # type: ignore[misc]  # a class attribute elsewhere

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        if self.num_suggestions == self.last:
            return None
        self.num_suggestions += 1
        return {"x": self.num_suggestions}

    def observe(self, observation: Observation) -> None: ...


class PausesAtOne(Scheduler):
    """Starts `number` trials, pauses each at its first report, and then resumes them in this order."""

    resource_attr = None
    max_resource = None

    def __init__(self, number: int) -> None:
        super().__init__(metric="loss")
        self.searcher = Numbers(number)
        self.num_new = number
        self.paused: list[int] = []
        self.resumed: set[int] = set()

    def next(self, ask: SuggestContext) -> NextTrial:
        if self.num_new:
            self.num_new -= 1
            return New()
        if self.paused:
            trial_id = self.paused.pop(0)
            self.resumed.add(trial_id)
            return Resume(trial_id)
        return Wait()

    def on_report(self, observation: Observation) -> Decision:
        if observation.trial_id in self.resumed:
            return Decision.CONTINUE
        self.paused.append(observation.trial_id)
        return Decision.PAUSE


def spans(scheduler: Scheduler, stop: StoppingCriterion, **settings: Any) -> list[tuple[int, int, float, float, float]]:
    """Return trial, worker, start, ready and end of each attempt, in order of their ends."""
    attempts = SimulatedAttempts()
    simulate(scheduler, TABLE, stop, on_event=attempts.add, **settings)
    return [(row.trial_id, row.worker, row.start_s, row.ready_s, row.end_s) for row in attempts.ended]


def test_three_trials_on_two_workers_run_as_computed_by_hand() -> None:
    # Trials 0, 1, 2 take 1 + 2*2, 1 + 2*5 and 1 + 2*3 seconds. At 5, trial 2 starts on worker 0.
    scheduler = FIFO(metric="loss", points_to_evaluate=points(2, 5, 3))
    settings: dict[str, Any] = {"n_workers": 2, "startup_s": 1.0}
    assert spans(scheduler, trials(3), **settings) == [
        (0, 0, 0.0, 1.0, 5.0),
        (1, 1, 0.0, 1.0, 11.0),
        (2, 0, 5.0, 6.0, 12.0),
    ]
    attempts = SimulatedAttempts()
    search = simulate(scheduler, TABLE, trials(3), on_event=attempts.add, **settings)
    assert attempts.reports == [
        (3.0, 0, 1, 3.0),
        (5.0, 0, 2, 2.5),
        (6.0, 1, 1, 6.0),
        (9.0, 2, 1, 4.0),
        (11.0, 1, 2, 5.5),
        (12.0, 2, 2, 3.5),
    ]
    assert search.duration_s == 12.0
    assert search.training_s == 4.0 + 10.0 + 6.0
    assert search.utilization == 1.0  # from 1 to 5, when the last trial started
    assert [(best.time_s, best.value, best.trial_id, best.iter) for best in search.incumbents] == [
        (3.0, 3.0, 0, 1),
        (5.0, 2.5, 0, 2),
    ]
    assert search.best is not None
    assert (search.best.value, search.best.config) == (2.5, {"x": 2, "max_epochs": 2})
    assert (search.best_value_at(2.9), search.best_value_at(3.0), search.best_value_at(99.0)) == (None, 3.0, 2.5)


def test_synchronous_batch_waits_for_its_slowest_trial() -> None:
    scheduler = FIFO(metric="loss", points_to_evaluate=points(2, 5, 3))
    assert spans(scheduler, trials(3), n_workers=2, asynchronous=False) == [
        (0, 0, 0.0, 0.0, 4.0),
        (1, 1, 0.0, 0.0, 10.0),
        (2, 0, 10.0, 10.0, 16.0),
    ]


def test_time_limit_ends_running_trials_at_that_moment() -> None:
    scheduler = FIFO(metric="loss", points_to_evaluate=points(2, 5))
    search = simulate(scheduler, TABLE, StoppingCriterion(max_wallclock_time=4.5), n_workers=2)
    assert search.duration_s == 4.5
    assert search.utilization == 1.0
    assert search.reason == "max_wallclock_time=4.5 s is over"
    assert search.num_reports == 2  # both of trial 0; trial 1 would have reported at 5


def test_trial_timeout_ends_a_trial_in_virtual_time() -> None:
    stop = StoppingCriterion(max_num_trials_started=2)
    scheduler = FIFO(metric="loss", points_to_evaluate=points(5, 2))
    settings: dict[str, Any] = {"n_workers": 1, "startup_s": 1.0, "trial_timeout_s": 6.0}
    assert spans(scheduler, stop, **settings) == [(0, 0, 0.0, 1.0, 7.0), (1, 0, 7.0, 8.0, 12.0)]
    search = simulate(scheduler, TABLE, stop, **settings)
    assert (search.num_trials_failed, search.num_trials_completed) == (1, 1)


@pytest.mark.parametrize(("checkpoints", "end_s", "num_repeated"), [(True, 6.0, 0), (False, 9.0, 2)])
def test_paused_trial_resumes_from_its_checkpoint_or_from_scratch(
    checkpoints: bool, end_s: float, num_repeated: int
) -> None:
    # Trials 0 and 1 take 1 s and 2 s an epoch. On one worker, 0 pauses at 1 s and 1 at 3 s. Then 0 and 1 resume.
    events = 0

    def note(event: Any, actions: Any) -> None:
        nonlocal events
        events += type(event).__name__ == "Reported"

    search = simulate(PausesAtOne(2), TABLE, FOREVER, n_workers=1, checkpoints=checkpoints, on_event=note)
    assert search.duration_s == end_s
    assert search.num_reports == 4  # repeated reports do not count
    assert events == 4 + num_repeated
    assert (search.num_attempts, search.num_trials_completed) == (4, 2)
    assert search.decisions == {Decision.CONTINUE: 2, Decision.STOP: 0, Decision.PAUSE: 2}


def test_suggestions_take_virtual_time_one_after_another() -> None:
    scheduler = FIFO(Numbers(2), metric="loss")
    settings: dict[str, Any] = {"n_workers": 2, "suggest_s": 10.0}
    assert spans(scheduler, FOREVER, **settings) == [(0, 0, 10.0, 10.0, 12.0), (1, 0, 20.0, 20.0, 24.0)]
    # The third request at 20 is answered by None at 30, when no trial runs.
    assert simulate(scheduler, TABLE, FOREVER, **settings).duration_s == 30.0


def test_slow_searcher_computes_one_suggestion_at_a_time_and_random_configurations_replace_it() -> None:
    fallbacks: list[bool] = []
    suggested_s: list[float] = []

    def note(event: Any, actions: Any) -> None:
        fallbacks.extend(action.fallback for action in actions if hasattr(action, "fallback"))
        if type(event).__name__ == "Suggested":
            suggested_s.append(event.now_s)

    scheduler = FIFO(Numbers(suggest_timeout_s=1.0), metric="loss")
    stop = StoppingCriterion(max_wallclock_time=350)
    simulate(scheduler, TABLE, stop, n_workers=1, suggest_s=100.0, on_event=note)
    assert suggested_s == [100.0, 200.0, 300.0]
    assert len(fallbacks) > 3
    assert fallbacks[:3] == [True, True, True]


def test_slowdown_multiplies_the_duration() -> None:
    faults = Faults(slowdown=lambda rng: 3.0)
    search = simulate(FIFO(metric="loss", points_to_evaluate=points(2)), TABLE, trials(1), faults=faults)
    assert search.duration_s == 12.0


def test_crashed_trial_is_retried_and_lost_worker_is_repaired_first() -> None:
    rate = 3600.0 * 10**6  # high enough for a fault in the first step
    scheduler = FIFO(metric="loss", points_to_evaluate=points(2))
    crashes = failures_of(scheduler, Faults(crashes_per_hour=rate))
    losses = failures_of(scheduler, Faults(losses_per_hour=rate, repair_s=100.0))
    assert [kind for kind, _ in crashes] == ["exception", "exception", "exception"]
    assert [kind for kind, _ in losses] == ["lost", "lost", "lost"]
    assert all(0.0 < after_s < 2.0 for _, after_s in [*crashes, *losses])


def failures_of(scheduler: Scheduler, faults: Faults) -> list[tuple[str, float]]:
    """Simulate a trial whose three attempts fail. Return the kind of each failure and its seconds after Ready."""
    ends: list[tuple[str, float]] = []
    frees: list[tuple[float, float]] = []
    ready_s = [0.0]

    def note(event: Any, actions: Any) -> None:
        kind = type(event).__name__
        if kind == "Ready":
            ready_s[0] = event.now_s
        elif kind == "Ended":
            ends.append((event.outcome.kind, event.now_s - ready_s[0]))
            frees.append((event.now_s, 0.0))
        elif kind == "Free":
            frees[-1] = (frees[-1][0], event.now_s)

    with pytest.raises(SearchFailedError, match="the only trial failed"):
        simulate(scheduler, TABLE, trials(1), n_workers=1, retries=2, faults=faults, on_event=note)
    assert [free - end for end, free in frees] == pytest.approx([faults.repair_s] * 3)
    return ends


def test_reports_of_a_crashed_attempt_are_repeated_only_without_checkpoints() -> None:
    faults = Faults(crashes_per_hour=3600.0 / 12)  # one in 12 s on average
    settings: dict[str, Any] = {"n_workers": 1, "seed": 3, "faults": faults, "retries": 10**6}
    table = FunctionTable(train, {"x": randint(1, 9), "max_epochs": 30})
    scheduler = FIFO(metric="loss", points_to_evaluate=points(2))
    complete, lost = SimulatedAttempts(), SimulatedAttempts()
    with_checkpoints = simulate(scheduler, table, trials(1), on_event=complete.add, **settings)
    without = simulate(scheduler, table, trials(1), checkpoints=False, on_event=lost.add, **settings)
    assert with_checkpoints.num_attempts == len(complete.ended) > 3
    assert any(attempt.from_iter > 0 for attempt in complete.ended[1:])
    assert with_checkpoints.num_reports == 30
    assert all(attempt.from_iter == 0 for attempt in lost.ended)
    assert without.training_s > with_checkpoints.training_s


def test_exception_of_a_table_is_raised_unchanged() -> None:
    def broken(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
        raise ZeroDivisionError("epoch 0")

    with pytest.raises(ZeroDivisionError, match="epoch 0"):
        simulate(FIFO(metric="loss"), FunctionTable(broken, {"x": uniform(0, 1), "max_epochs": 1}), trials(1))


def test_invalid_seconds_of_a_table_are_refused() -> None:
    table = FunctionTable(lambda config, epoch: ({"loss": 1.0}, -1.0), {"x": uniform(0, 1), "max_epochs": 1})
    with pytest.raises(ValueError, match=r"report 1 of trial 0 takes -1.0 seconds in the table"):
        simulate(FIFO(metric="loss"), table, trials(1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoints": "no"}, "checkpoints must be True or False, got 'no'"),
        ({"startup_s": -1.0}, "startup_s must be finite and at least 0, got -1.0"),
        ({"suggest_s": math.inf}, "suggest_s must be finite and at least 0, got inf"),
        ({"n_workers": 0}, "n_workers must be at least 1, got 0"),
    ],
)
def test_invalid_settings_of_simulate_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        simulate(FIFO(metric="loss"), TABLE, trials(1), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"crashes_per_hour": -1.0}, "crashes_per_hour must be finite and at least 0, got -1.0"),
        ({"losses_per_hour": "often"}, "losses_per_hour must be a number, got 'often' of type str"),
        ({"repair_s": math.inf}, "repair_s must be finite"),
    ],
)
def test_invalid_faults_are_refused(faults: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Faults(**faults)  # type: ignore[arg-type]


def test_slowdown_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slowdown must return a finite number above 0, got 0\.0"):
        simulate(FIFO(metric="loss"), TABLE, trials(1), faults=Faults(slowdown=lambda rng: 0.0))


def test_custom_table_needs_only_a_space_and_curves() -> None:
    class Steady:
        space = Space({"x": uniform(0, 1)})

        def curve(self, config: Mapping[str, object]) -> Curve:
            return lambda iter: ({"loss": 1.0 / iter}, 2.0) if iter <= 3 else None

    search = simulate(FIFO(metric="loss"), Steady(), trials(1))
    assert (search.duration_s, search.num_reports) == (6.0, 3)


def test_utilization_is_computed_as_for_an_experiment() -> None:
    # Trial 0 is ready at 1 and ends at 5, trial 2 is ready at 6; trial 1 is ready at 1. No trial starts after 8.
    scheduler = FIFO(metric="loss", points_to_evaluate=points(2, 5, 3))
    stop = StoppingCriterion(max_wallclock_time=8.0)
    search = simulate(scheduler, TABLE, stop, n_workers=2, startup_s=1.0)
    assert search.utilization == (4.0 + 2.0 + 7.0) / (2 * 7.0)
