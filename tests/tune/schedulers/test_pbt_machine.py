"""PBT against an obvious model, which keeps every report and works each answer out from all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fanwise.tune.schedulers import Clone, Decision, Done, New, Resume, Status, Wait
from fanwise.tune.schedulers.pbt import PBT
from fanwise.tune.searchers import Observation, SuggestContext
from fanwise.tune.space import Space, uniform

SPACE = Space({"x": uniform(0, 1000)})
INTERVAL, MAXIMUM, MEMBERS = 2.0, 7.0, 4
LOSSES = st.sampled_from([0.1, 0.2, 0.2, 0.4, 0.5, 0.8, math.inf])


def pbt() -> PBT:
    return PBT(
        metric="loss",
        resource_attr="epoch",
        max_t=MAXIMUM,
        perturbation_interval=INTERVAL,
        population_size=MEMBERS,
        quantile_fraction=0.5,
        resample_probability=0.0,
    )


@dataclass
class Trial:
    x: float
    began: int = 0  # epochs in the checkpoint that it started from
    is_clone: bool = False
    reports: list[tuple[int, float]] = field(default_factory=list)  # epoch, loss
    state: str = "running"  # paused, replaced, over

    @property
    def epoch(self) -> int:
        return self.began + len(self.reports)

    def ready(self) -> list[tuple[int, float]]:
        """The reports at which it was looked at."""
        last, interval_ends = self.began, []
        for epoch, loss in self.reports:
            if epoch - last >= INTERVAL and epoch < MAXIMUM:
                interval_ends.append((epoch, loss))
                last = epoch
        return interval_ends


class PBTMachine(RuleBasedStateMachine):
    make: ClassVar[Callable[[], PBT]] = pbt

    @initialize(n_workers=st.integers(1, 5))
    def begin(self, n_workers: int) -> None:
        self.scheduler = type(self).make()
        self.scheduler.begin(SPACE, 0)
        self.n_workers = n_workers
        self.trials: dict[int, Trial] = {}
        self.waiting: list[int | Clone] = []  # paused trials, and clones to come
        self.to_start = MEMBERS
        self.most_running = 0

    # Facts derived from the history.

    def members(self) -> list[int]:
        return [i for i, trial in self.trials.items() if trial.state in ("running", "paused")]

    def running(self) -> list[int]:
        return [i for i, trial in self.trials.items() if trial.state == "running"]

    def ranked(self) -> list[tuple[float, int]]:
        return sorted((ready[-1][1], i) for i in self.members() if (ready := self.trials[i].ready()))

    def is_crowded(self) -> bool:
        clones = sum(isinstance(one, Clone) for one in self.waiting)
        too_many = self.most_running < len(self.members()) + clones + self.to_start
        return bool(self.waiting or self.to_start) and too_many and not self.from_scratch()

    def from_scratch(self) -> bool:
        """Return True if a clone has started without a checkpoint."""
        return any(t.is_clone and t.began == 0 and t.reports for t in self.trials.values())

    def best(self) -> list[int]:
        ranked = self.ranked()
        return [i for loss, i in ranked[: math.ceil(len(ranked) / 2)] if loss < math.inf]

    def check_queued_clone(self, allowed: list[int]) -> None:
        """The scheduler has a clone of one of the allowed in its queue, at the end."""
        self.waiting.append(self.checked_clone(self.scheduler._queue[-1], allowed))

    def checked_clone(self, clone: object, allowed: list[int]) -> Clone:
        assert isinstance(clone, Clone) and clone.trial_id in allowed, f"{clone} of {allowed}"
        x = self.trials[clone.trial_id].x
        assert clone.config["x"] in (min(0.8 * x, 1000.0), min(1.2 * x, 1000.0)), f"{clone} explores from {x}"
        return clone

    def next_waiting(self, answer: object) -> int | Clone | None:
        """Return the member that has waited longest. Replace the source of a clone if it is at the maximum."""
        while self.waiting:
            first = self.waiting.pop(0)
            if not isinstance(first, Clone) or self.trials[first.trial_id].epoch < MAXIMUM or self.from_scratch():
                return first
            if best := self.best():
                return self.checked_clone(answer, best)
        return None

    # Events.

    @precondition(lambda self: len(self.running()) < self.n_workers)
    @rule(x=st.floats(1, 1000), is_started=st.booleans(), saved=st.booleans())
    def a_worker_is_free(self, x: float, is_started: bool, saved: bool) -> None:
        trial_id = len(self.trials)
        answer = self.scheduler.next(SuggestContext(0, trial_id, SPACE))
        if self.to_start:
            assert answer == New()
            self.most_running = max(self.most_running, len(self.running()) + 1)
            if is_started:
                self.to_start -= 1
                self.trials[trial_id] = Trial(x)
        elif (first := self.next_waiting(answer)) is not None:
            if isinstance(first, Clone):
                assert answer == first
                source = self.trials[first.trial_id]
                self.trials[trial_id] = Trial(float(str(first.config["x"])), source.epoch if saved else 0, True)
            else:
                assert answer == Resume(first)
                self.trials[first].state = "running"
        else:
            assert answer == (Wait() if self.members() else Done())
        self.most_running = max(self.most_running, len(self.running()))

    @precondition(lambda self: self.running())
    @rule(place=st.integers(0, 9), losses=st.lists(LOSSES, min_size=1, max_size=4))
    def trains(self, place: int, losses: list[float]) -> None:
        trial_id = self.running()[place % len(self.running())]
        for loss in losses:
            if self.trials[trial_id].state == "running":
                self.report(trial_id, loss)

    def report(self, trial_id: int, loss: float) -> None:
        trial = self.trials[trial_id]
        num_looks = len(trial.ready())
        trial.reports.append((trial.epoch + 1, loss))
        epoch = trial.epoch
        observation = Observation(trial_id, {"x": trial.x}, epoch, float(epoch), (loss,), {})
        got = self.scheduler.on_report(observation)
        if epoch >= MAXIMUM:
            assert got is Decision.STOP
            self.over(trial_id, Status.COMPLETED)
            return
        if len(trial.ready()) == num_looks:
            assert got is Decision.CONTINUE
            return
        ranked = self.ranked()
        half = len(ranked) // 2
        own = trial.ready()[-1][1]
        better = [i for good, i in ranked[:half] if good < own]
        if trial_id in [i for _, i in ranked[len(ranked) - half :]] and better:
            assert got is Decision.STOP
            trial.state = "replaced"
            self.check_queued_clone(better)
        elif self.is_crowded():
            assert got is Decision.PAUSE
            trial.state = "paused"
            self.waiting.append(trial_id)
        else:
            assert got is Decision.CONTINUE

    def over(self, trial_id: int, status: Status) -> None:
        self.trials[trial_id].state = "over"
        if trial_id in self.waiting:
            self.waiting.remove(trial_id)
        self.scheduler.on_end(trial_id, status)
        if status is Status.FAILED:
            if best := self.best():
                self.check_queued_clone(best)
            else:
                self.to_start += 1

    @precondition(lambda self: self.members())
    @rule(place=st.integers(0, 9), status=st.sampled_from([Status.FAILED, Status.STOPPED, Status.COMPLETED]))
    def ends(self, place: int, status: Status) -> None:
        self.over(self.members()[place % len(self.members())], status)

    @rule(place=st.integers(0, 9))
    def a_replaced_trial_ends(self, place: int) -> None:
        replaced = [i for i, trial in self.trials.items() if trial.state == "replaced"]
        if replaced:
            self.scheduler.on_end(replaced[place % len(replaced)], Status.STOPPED)

    @precondition(lambda self: self.running())
    @rule(place=st.integers(0, 9), num_void=st.integers(1, 3))
    def crashes(self, place: int, num_void: int) -> None:
        trial_id = self.running()[place % len(self.running())]
        trial = self.trials[trial_id]
        if trial.reports:
            del trial.reports[-num_void:]
            self.scheduler.on_rollback(trial_id, trial.epoch)

    @invariant()
    def nothing_else_is_kept(self) -> None:
        if not hasattr(self, "trials"):
            return
        known = set(self.scheduler._members)
        known.discard(len(self.trials))  # the New() has not started a trial yet
        assert known == set(self.members())
        assert [one.trial_id if isinstance(one, Resume) else one for one in self.scheduler._queue] == self.waiting


def run(machine: type[PBTMachine], max_examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("max_examples", [40, pytest.param(1000, marks=pytest.mark.soak)])
def test_pbt_does_what_its_history_says(max_examples: int) -> None:
    run(PBTMachine, max_examples)
