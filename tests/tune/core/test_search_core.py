"""Examples of `SearchCore` that the model test does not cover or seldom reaches, and messages of rejected reports."""

import math
from collections.abc import Mapping

import pytest
from search_core_driver import (
    STOPPED,
    CountingSearcher,
    PlannedScheduler,
    new_search,
    start,
)

from fanwise.tune.constraints import checked_constraints
from fanwise.tune.core import events
from fanwise.tune.core.actions import (
    Finish,
    SetStatus,
    StopStarting,
)
from fanwise.tune.core.validation import problem_with, required_values
from fanwise.tune.schedulers import Status
from fanwise.tune.searchers import Objective, Observation, SuggestContext
from fanwise.tune.stopping import StoppingCriterion


class FailingSearcher(CountingSearcher):
    """Raises in the named method after two suggestions."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def fail(self, method: str) -> None:
        if method == self.method and self.num_suggested == 2:
            raise KeyError("oops")

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        self.fail("suggest")
        return super().suggest(ask)

    def observe(self, observation: Observation) -> None:
        self.fail("observe")

    def on_end(self, trial_id: int, status: str) -> None:
        self.fail("on_end")


@pytest.mark.parametrize("method", ["suggest", "observe", "on_end"])
def test_exception_of_the_searcher_ends_the_search(method: str) -> None:
    search = new_search(FailingSearcher(method))
    search.begin()
    reason = "the searcher failed"
    assert StopStarting(reason) in search.report(0, 0, 1.0) + search.ended(0, 0) + search.free(0, 0)
    finish = search.run(1, outcome=STOPPED)[-1]
    assert isinstance(finish, Finish)
    assert (finish.kind, finish.error) == ("searcher", "the searcher FailingSearcher raised KeyError: 'oops'")


def test_first_error_of_a_search_is_the_one_reported() -> None:
    class FailingScheduler(PlannedScheduler):
        def on_end(self, trial_id: int, status: Status) -> None:
            raise OSError(f"end of trial {trial_id}")

    search = new_search(scheduler=FailingScheduler())
    search.begin()
    search.run(1, 1.0)
    finish = search.run(0, 1.0)[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.error) == ("the scheduler failed", "the scheduler raised OSError: end of trial 1")


HINT = "report it under this name, or pass another name to the scheduler"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"loss": 0.5, "cost": 1, "epoch": 3.0}, None),
        (
            {"epoch": 1, "losss": 2, "cost": 1},
            "the objective reported 'epoch', 'losss', 'cost', but not the scheduler's metric 'loss'; "
            "did you mean 'losss'?",
        ),
        ({"epoch": 2}, f"the objective reported 'epoch', but not the scheduler's metric 'loss'; {HINT}"),
        ({}, f"the objective reported nothing, but not the scheduler's metric 'loss'; {HINT}"),
        (
            {"loss": 0.5, "epoch": 1, "costs": 3.0},
            "the objective reported 'loss', 'epoch', 'costs', but not 'cost' of the constraint 'cost <= 2'; "
            "did you mean 'costs'?",
        ),
        (
            {"loss": 0.5, "cost": 1},
            f"the objective reported 'loss', 'cost', but not the scheduler's resource_attr 'epoch'; {HINT}",
        ),
        ({"loss": 0.5, "cost": 1, "epoch": math.nan}, "the resource 'epoch' must not be NaN"),
        ({"loss": "0.5"}, "the metric 'loss' must be a number, got '0.5' of type str"),
        ({"loss": None}, "the metric 'loss' must be a number, got None of type NoneType"),
        ({"loss": True}, "the metric 'loss' must be a number, got True of type bool"),
        (
            {"loss": 0.5, "cost": "low", "epoch": 1},
            "the constraint's value 'cost' must be a number, got 'low' of type str",
        ),
    ],
)
def test_problem_with_a_report_names_the_value(values: dict[str, object], problem: str | None) -> None:
    required = required_values([Objective("loss", "min")], checked_constraints(["cost <= 2"]), "epoch")
    assert problem_with(values, required) == problem


def test_interrupt_before_begin_finishes_the_search() -> None:
    search = new_search()
    assert search.interrupt(0) == [StopStarting("interrupted"), Finish("interrupted")]
    assert search.begin(1) == []


def test_without_workers_a_trial_starts_only_on_request() -> None:
    search = new_search(n_workers=0)
    assert search.begin() == []
    assert search.send(events.TrialRequested(0)) == [start(0, 0)]
    assert search.run(0, 1.0) == [SetStatus(0, 0, Status.COMPLETED)]
    assert search.send(events.TrialRequested(0)) == [start(1, 0)]


def test_search_killed_before_begin_starts_when_it_is_resumed() -> None:
    assert new_search(n_workers=1).send(events.Resumed(0)) == [start(0, 0)]


def test_resumed_search_may_have_another_number_of_workers() -> None:
    search = new_search(n_workers=2)
    search.begin()
    assert search.send(events.Resumed(9, n_workers=1)) == [start(0, 0, attempt=1)]
    assert search.run(0, 1.0, attempt=1)[-1] == start(1, 0, attempt=1)
    assert search.send(events.Resumed(9, n_workers=2)) == [start(1, 0, attempt=2), start(2, 1)]


def test_finished_search_continues_with_another_limit() -> None:
    search = new_search(criterion=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    search.begin()
    search.run(0, 1.0)
    assert search.core.is_finished
    stop = {"max_num_trials_started": 2}
    expected = [start(1, 0), StopStarting("max_num_trials_started=2 reached")]
    assert search.send(events.Resumed(1, stop=stop)) == expected
