"""Early stopping against simple models, which keep all reports and compute each answer from them.

A machine asks, reports, takes reports back and ends trials in any order that the tuner may, and compares each answer.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fanwise.tune.schedulers import (
    ASHA,
    Decision,
    Hyperband,
    MedianStopping,
    New,
    NextTrial,
    Resume,
    Scheduler,
    Status,
    Stop,
    SuccessiveHalving,
    Wait,
)
from fanwise.tune.searchers import Observation, SuggestContext
from fanwise.tune.space import Space

SPACE = Space({"depth": 3})
MAXIMUM = 9
LOSSES = st.sampled_from([0.1, 0.2, 0.2, 0.3, 0.5, 0.8, math.inf])


@dataclass(frozen=True)
class Report:
    """One report, as all models keep it."""

    number: int
    trial_id: int
    iter: int
    resource: int
    loss: float


class Model(Protocol):
    """The interface of a model, which is that of a scheduler."""

    def next(self, trial_id: int, exhausted: bool) -> NextTrial: ...
    def began(self, trial_id: int) -> None: ...
    def on_report(self, observed: Report) -> Decision: ...
    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...
    def on_end(self, trial_id: int) -> None: ...


class AshaModel:
    """ASHA with one bracket. An entry of a rung is (loss, number, trial, iter)."""

    def __init__(self, eta: int, type: str) -> None:
        self.eta, self.type = eta, type
        levels = [1, 2, 4, 8] if eta == 2 else [1, 3]
        self.rungs: dict[int, list[tuple[float, int, int, int]]] = {level: [] for level in levels}
        self.promoted: set[tuple[int, int]] = set()  # level, entry's number
        self.over: set[int] = set()
        self.gone_on: set[int] = set()  # numbers of entries, of "stopping"

    def began(self, trial_id: int) -> None: ...

    def next(self, trial_id: int, exhausted: bool) -> NextTrial:
        if self.type == "promotion":
            for level in sorted(self.rungs, reverse=True):
                entries = sorted(self.rungs[level])
                for _, number, trial, _ in entries[: len(entries) // self.eta]:
                    if (level, number) not in self.promoted and trial not in self.over:
                        self.promoted.add((level, number))
                        return Resume(trial)
        return New()

    def on_report(self, observed: Report) -> Decision:
        if observed.resource >= MAXIMUM:
            return Decision.STOP
        level = max(level for level in self.rungs if level <= observed.resource)
        at = [other_id for other_id, rung in self.rungs.items() for entry in rung if entry[2] == observed.trial_id]
        if at and level <= max(at):
            return Decision.CONTINUE
        entry = (observed.loss, observed.number, observed.trial_id, observed.iter)
        self.rungs[level].append(entry)
        if self.type == "promotion":
            return Decision.PAUSE
        entries = sorted(self.rungs[level])
        top = entries[: max(1, len(entries) // self.eta)]
        before = sum(number in self.gone_on for _, number, *_ in entries)
        goes_on = entry in top or (observed.loss == top[-1][0] and before < len(top))
        if goes_on:
            self.gone_on.add(observed.number)
        return Decision.CONTINUE if goes_on else Decision.STOP

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        for level, rung in self.rungs.items():
            self.rungs[level] = [entry for entry in rung if entry[2] != trial_id or entry[3] <= to_iter]

    def on_end(self, trial_id: int) -> None:
        self.over.add(trial_id)


@dataclass
class RoundModel:
    """A round. `members`: the trials of its rung, with the report that reached the rung, or None before that."""

    number: int
    levels: list[int]
    sizes: list[int]
    rung: int
    members: dict[int, Report | None]
    is_closed: bool = False  # no trial is added


class HalvingModel:
    """Every question goes through all rounds from the first one."""

    def __init__(self, shapes: list[tuple[list[int], list[int]]]) -> None:
        self.shapes = shapes
        self.rounds: list[RoundModel] = []
        self.waiting: list[tuple[int, int, int]] = []  # round, place, trial: promoted
        self.beaten: list[int] = []

    def next(self, trial_id: int, exhausted: bool) -> NextTrial:
        last = self.rounds[-1] if self.rounds else None
        if exhausted and last is not None and not last.is_closed and None not in last.members.values():
            last.is_closed = True
            self._work_out(last)
        if self.beaten:
            return Stop(self.beaten.pop(0))
        if self.waiting:
            self.waiting.sort()
            return Resume(self.waiting.pop(0)[2])
        return Wait() if exhausted else New()

    def began(self, trial_id: int) -> None:
        if not self.rounds or self.rounds[-1].is_closed:
            levels, sizes = self.shapes[len(self.rounds) % len(self.shapes)]
            self.rounds.append(RoundModel(len(self.rounds), levels, sizes, 0, {}))
            self.begun = 0
        self.begun += 1
        self.rounds[-1].members[trial_id] = None
        self.rounds[-1].is_closed = self.begun == self.rounds[-1].sizes[0]

    def on_report(self, observed: Report) -> Decision:
        own_rounds = [round_ for round_ in self.rounds if observed.trial_id in round_.members]
        if not own_rounds or observed.resource < own_rounds[0].levels[own_rounds[0].rung]:
            return Decision.CONTINUE
        if observed.resource >= MAXIMUM:
            self.on_end(observed.trial_id)
            return Decision.STOP
        own_rounds[0].members[observed.trial_id] = observed
        self._work_out(own_rounds[0])
        if observed.trial_id in self.beaten:
            self.beaten.remove(observed.trial_id)
            return Decision.STOP
        promoted = [entry for entry in self.waiting if entry[2] == observed.trial_id]
        for entry in promoted:
            self.waiting.remove(entry)
        return Decision.CONTINUE if promoted else Decision.PAUSE

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        for round_ in self.rounds:
            observed = round_.members.get(trial_id)
            if observed is not None and observed.iter > to_iter:
                round_.members[trial_id] = None

    def on_end(self, trial_id: int) -> None:
        self.waiting = [entry for entry in self.waiting if entry[2] != trial_id]
        self.beaten = [other_id for other_id in self.beaten if other_id != trial_id]
        for round_ in self.rounds:
            if trial_id in round_.members:
                del round_.members[trial_id]
                self._work_out(round_)

    def _work_out(self, round_: RoundModel) -> None:
        observed = [member_report for member_report in round_.members.values() if member_report is not None]
        if not round_.is_closed or len(observed) < len(round_.members):
            return
        ranked = [
            member_report.trial_id
            for member_report in sorted(observed, key=lambda member_report: (member_report.loss, member_report.number))
        ]
        share = (
            round_.sizes[round_.rung + 1] / round_.sizes[round_.rung] if round_.rung + 1 < len(round_.sizes) else 0.0
        )
        count = max(1, math.floor(len(ranked) * share + 1e-9)) if ranked and share else 0
        self.waiting += [(round_.number, place, trial_id) for place, trial_id in enumerate(ranked[:count])]
        self.beaten += ranked[count:]
        round_.rung += 1
        round_.members = dict.fromkeys(ranked[:count])


class MedianModel:
    """Keeps all reports that stand, in the order in which they came."""

    def __init__(self, grace_time: int, grace_population: int) -> None:
        self.grace_time, self.grace_population = grace_time, grace_population
        self.reports: list[Report] = []

    def next(self, trial_id: int, exhausted: bool) -> NextTrial:
        return New()

    def began(self, trial_id: int) -> None: ...

    def on_report(self, observed: Report) -> Decision:
        averages = []
        for trial_id in {member_report.trial_id for member_report in self.reports} - {observed.trial_id}:
            reports = [member_report for member_report in self.reports if member_report.trial_id == trial_id]
            until = [member_report.loss for member_report in reports if member_report.resource <= observed.resource]
            if until and max(member_report.resource for member_report in reports) >= observed.resource:
                averages.append(max(sum(until) / len(until), min(until)))
        self.reports.append(observed)
        best = min(member_report.loss for member_report in self.reports if member_report.trial_id == observed.trial_id)
        if observed.resource < self.grace_time or len(averages) < self.grace_population:
            return Decision.CONTINUE
        middle = sorted(averages)[(len(averages) - 1) // 2 : len(averages) // 2 + 1]
        median = middle[0] if middle[0] == middle[-1] else statistics.median(middle)
        return Decision.STOP if best > median else Decision.CONTINUE

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.reports = [
            member_report
            for member_report in self.reports
            if member_report.trial_id != trial_id or member_report.iter <= to_iter
        ]

    def on_end(self, trial_id: int) -> None: ...


Make = Callable[[], tuple[Scheduler, Model]]
OURS: dict[str, Make] = {
    "stopping": lambda: (ASHA(metric="loss", max_t=MAXIMUM), AshaModel(3, "stopping")),
    "stopping by 2": lambda: (ASHA(metric="loss", max_t=MAXIMUM, reduction_factor=2), AshaModel(2, "stopping")),
    "promotion": lambda: (ASHA(metric="loss", max_t=MAXIMUM, type="promotion"), AshaModel(3, "promotion")),
    "promotion by 2": lambda: (
        ASHA(metric="loss", max_t=MAXIMUM, type="promotion", reduction_factor=2),
        AshaModel(2, "promotion"),
    ),
    "halving": lambda: (
        SuccessiveHalving(metric="loss", max_t=MAXIMUM, reduction_factor=3),
        HalvingModel([([1, 3, 9], [9, 3, 1])]),
    ),
    "halving by 2": lambda: (
        SuccessiveHalving(metric="loss", max_t=MAXIMUM, grace_period=2, reduction_factor=2),
        HalvingModel([([2, 4, 8, 9], [8, 4, 2, 1])]),
    ),
    "Hyperband": lambda: (
        Hyperband(metric="loss", max_t=MAXIMUM),
        HalvingModel([([1, 3, 9], [9, 3, 1]), ([3, 9], [5, 1]), ([9], [3])]),
    ),
    "median rule": lambda: (
        MedianStopping(metric="loss", grace_time=2, grace_population=3),
        MedianModel(2, 3),
    ),
    "median rule from the first": lambda: (
        MedianStopping(metric="loss", grace_time=1, grace_population=1),
        MedianModel(1, 1),
    ),
}


def machine_of(make: Make) -> type[RuleBasedStateMachine]:
    """A machine over a scheduler and its model."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.scheduler, self.model = make()
            self.scheduler.begin(SPACE, 0)
            self.running: dict[int, tuple[int, int]] = {}  # trial -> iter, resource
            self.paths: dict[int, list[tuple[int, int]]] = {}  # of all that are not over
            self.next_id = 0
            self.number = 0

        @precondition(lambda self: len(self.running) < 10)
        @rule(exhausted=st.sampled_from([False, False, False, True]), comes=st.sampled_from([True, True, True, False]))
        def ask(self, exhausted: bool, comes: bool) -> None:
            """The searcher has nothing, or its suggestion does not come."""
            ask = SuggestContext(self.number, self.next_id, SPACE, purpose="next", no_new_configs=exhausted)
            answer = self.scheduler.next(ask)
            assert answer == self.model.next(self.next_id, exhausted)
            if isinstance(answer, Resume):
                self.running[answer.trial_id] = self.paths[answer.trial_id][-1]
            elif isinstance(answer, Stop):
                self._end(answer.trial_id, Status.STOPPED)
            elif isinstance(answer, New) and comes and not exhausted:
                self.model.began(self.next_id)
                self.running[self.next_id] = (0, 0)
                self.paths[self.next_id] = [(0, 0)]
                self.next_id += 1

        @precondition(lambda self: self.running)
        @rule(data=st.data(), stride=st.sampled_from([1, 1, 1, 2, 4]), loss=LOSSES)
        def report(self, data: st.DataObject, stride: int, loss: float) -> None:
            trial_id = data.draw(st.sampled_from(sorted(self.running)))
            iter, resource = self.running[trial_id][0] + 1, self.running[trial_id][1] + stride
            observation = Observation(trial_id, {"depth": 3}, iter, float(resource), (loss,), {"loss": loss})
            decision = self.scheduler.on_report(observation)
            self.number += 1
            assert decision is self.model.on_report(Report(self.number, trial_id, iter, resource, loss))
            self.paths[trial_id].append((iter, resource))
            if decision is Decision.STOP:
                self._end(trial_id, Status.COMPLETED)
            elif decision is Decision.PAUSE:
                del self.running[trial_id]
            else:
                self.running[trial_id] = iter, resource

        @precondition(lambda self: self.running)
        @rule(data=st.data())
        def rewind(self, data: st.DataObject) -> None:
            trial_id = data.draw(st.sampled_from(sorted(self.running)))
            to_iter = data.draw(st.integers(0, self.running[trial_id][0]))
            self.scheduler.on_rollback(trial_id, to_iter)
            self.model.on_rollback(trial_id, to_iter)
            self.paths[trial_id] = [step for step in self.paths[trial_id] if step[0] <= to_iter]
            self.running[trial_id] = self.paths[trial_id][-1]

        @precondition(lambda self: self.paths)
        @rule(data=st.data())
        def end(self, data: st.DataObject) -> None:
            """End a running or paused trial."""
            trial_id = data.draw(st.sampled_from(sorted(self.paths)))
            self._end(trial_id, data.draw(st.sampled_from([Status.COMPLETED, Status.STOPPED, Status.FAILED])))

        def _end(self, trial_id: int, status: Status) -> None:
            self.scheduler.on_end(trial_id, status)
            self.model.on_end(trial_id)
            self.running.pop(trial_id, None)
            del self.paths[trial_id]

        def teardown(self) -> None:
            """Check that only the rungs keep data of finished trials."""
            for trial_id in list(self.paths):
                self._end(trial_id, Status.COMPLETED)
            # A trial that was asked for and did not come is known until the next question.
            self.scheduler.next(SuggestContext(self.number, self.next_id, SPACE, purpose="next", no_new_configs=True))
            state: Any = self.scheduler  # Any: each scheduler has its own
            for name in ("_trials", "_rounds", "_promotions", "_eliminations"):
                assert not getattr(state, name, None), f"{name} is {getattr(state, name)}"

    return Machine


LONG = settings(stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("max_examples", [10, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", OURS)
def test_a_scheduler_answers_as_its_model_does(name: str, max_examples: int) -> None:
    run_state_machine_as_test(machine_of(OURS[name]), settings=settings(LONG, max_examples=max_examples))
