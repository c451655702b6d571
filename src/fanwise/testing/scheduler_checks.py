"""The contract of schedulers, as checks of any implementation. Loads no pytest.

    def test_my_scheduler() -> None:
        check_scheduler(lambda: MyScheduler(metric="loss", max_t=9))

Each check simulates searches (`scheduler_simulation`) with trials of up to 9 epochs in the space `SPACE`, which has
"max_epochs" for `max_resource_attr`. A report has all metrics of the scheduler, and the epoch as its `resource_attr`.
No check measures how good a scheduler is. `CHECKS` has the checks, for tests that run them one at a time.
"""

import copy
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..tune.core import events
from ..tune.schedulers.scheduler import Decision, Done, NextTrial, Scheduler, Status
from ..tune.searchers.searcher import Observation, SuggestContext
from .scheduler_simulation import MAX_EPOCHS, SPACE, SchedulerSimulation

Make: TypeAlias = Callable[[], Scheduler]
Check: TypeAlias = Callable[[Make], None]

_SEEDS = range(12)  # covers each kind of search with each number of workers
_FEW_SEEDS = range(4)  # for errors that show in nearly every search
_NUM_STEPS = 200


def check_scheduler(make: Make, checks: Sequence[Check] | None = None) -> None:
    """Check that a scheduler keeps the contract.

    Args:
        make: creates a scheduler. It is called many times.
        checks: a part of `CHECKS`. Default: all of them.

    Raises:
        AssertionError: the scheduler violates the contract. Errors of the scheduler are raised in their own type. Both
            have a note with the check.

    >>> from fanwise.tune import FIFO
    >>> check_scheduler(lambda: FIFO(metric="loss"), [answers_are_always_allowed])
    """
    for check in CHECKS if checks is None else checks:
        try:
            check(make)
        except Exception as error:
            error.add_note(f"check {check.__name__}")
            raise


def started(make: Make, seed: int = 0) -> Scheduler:
    """Return a new scheduler after `check` and `begin`."""
    scheduler = make()
    scheduler.check(SPACE)
    scheduler.begin(SPACE, seed)
    return scheduler


def _simulation(scheduler: Scheduler, seed: int) -> SchedulerSimulation:
    """Return a search with 1 to 4 workers, of another kind for each seed."""
    return SchedulerSimulation(
        scheduler,
        seed,
        1 + seed % 4,
        pausing_searcher=seed % 3 == 1,
        checkpoint_probability=(0.5, 1.0, 0.0)[seed % 3],
        undisturbed=seed % 4 == 3,
    )


def _simulations(make: Make, seeds: Sequence[int] = _SEEDS) -> list[SchedulerSimulation]:
    return [_simulation(started(make, seed), seed) for seed in seeds]


def answers_are_always_allowed(make: Make) -> None:
    for search in _simulations(make):
        search.run()


def many_workers_can_ask_before_the_first_report(make: Make) -> None:
    search = SchedulerSimulation(started(make), n_workers=100)
    assert search.running, "100 workers are free, and no trial has started"
    search.run(500)


def search_does_not_end_while_configurations_are_left(make: Make) -> None:
    """Unless the scheduler is done: if all workers are free, it starts a trial."""
    for seed in _SEEDS:
        scheduler = started(make, seed)
        answers = _record_answers(scheduler)
        search = SchedulerSimulation(scheduler, seed, n_workers=1 + seed % 4, undisturbed=True)
        search.run()
        if not any(isinstance(answer, Done) for answer in answers):
            assert search.finish is None, f"the search ended, with configurations left: {search.finish}"


def search_without_further_configurations_ends(make: Make) -> None:
    for num_configs in (0, 1, 2, 7, 40):
        for seed in range(4):
            search = SchedulerSimulation(
                started(make, seed), seed, 1 + seed % 4, num_configs=num_configs, undisturbed=True
            )
            for _ in range(40):
                if search.finish is None:
                    search.run(50)
                    search.finish_running()
                    search.send(events.Tick(search.now_s))
            assert search.finish is not None, f"with {num_configs} configurations the search does not end"


def same_history_gives_the_same_answers(make: Make) -> None:
    for one, other in zip(_simulations(make, _FEW_SEEDS), _simulations(make, _FEW_SEEDS), strict=True):
        assert one.run() == other.run(), "equal events led to other answers"


def copy_continues_like_the_original(make: Make) -> None:
    for expected, search in zip(_simulations(make, _FEW_SEEDS), _simulations(make, _FEW_SEEDS), strict=True):
        search.run(_NUM_STEPS // 2)
        copied = copy.deepcopy(search)
        search.run(7)
        assert copied.run(_NUM_STEPS - _NUM_STEPS // 2) == expected.run(), "the copy gave other answers"


def begin_resets_the_scheduler(make: Make) -> None:
    for seed in _FEW_SEEDS:
        scheduler = started(make, seed + 100)
        _simulation(scheduler, seed + 100).run()
        scheduler.begin(SPACE, seed)
        expected = _simulation(started(make, seed), seed).run()
        assert _simulation(scheduler, seed).run() == expected, "begin() kept state of the search before"


def check_has_no_side_effects(make: Make) -> None:
    for expected, search in zip(_simulations(make, _FEW_SEEDS), _simulations(make, _FEW_SEEDS), strict=True):
        search.run(_NUM_STEPS // 2)
        search.scheduler.check(SPACE)
        assert search.run(_NUM_STEPS - _NUM_STEPS // 2) == expected.run(), "check() changed later answers"


def description_is_constant_json(make: Make) -> None:
    description = make().describe()
    assert isinstance(description.get("name"), str), f"there is no name in {description!r}"
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    search = SchedulerSimulation(started(make))
    search.run()
    assert search.scheduler.describe() == description, "describe() describes the search instead of the settings"


def rolled_back_reports_have_no_effect(make: Make) -> None:
    """Roll back and repeat each report after which the trial continues."""
    for seed in _SEEDS:
        scheduler = started(make, seed)
        _repeat_reports(scheduler)
        expected = _simulation(started(make, seed), seed).run()
        assert _simulation(scheduler, seed).run() == expected, "a report had an effect after on_rollback"


def trials_can_end_without_reports(make: Make) -> None:
    for status in (Status.COMPLETED, Status.STOPPED, Status.FAILED):
        scheduler = started(make)
        for trial_id in range(5):
            ask_next(scheduler, trial_id)
            scheduler.on_rollback(trial_id, 0)
            scheduler.on_end(trial_id, status)
        scheduler.on_rollback(99, 0)
        scheduler.on_end(99, status)
        ask_next(scheduler, 5)


def losses_can_all_be_infinite(make: Make) -> None:
    scheduler = started(make)
    for trial_id in range(20):
        ask_next(scheduler, trial_id)
        for iter in range(1, MAX_EPOCHS + 1):
            if scheduler.on_report(observation(scheduler, trial_id, iter, math.inf)) is not Decision.CONTINUE:
                break


def global_random_state_is_not_used(make: Make) -> None:
    before = random.getstate()
    for search in _simulations(make, _FEW_SEEDS):
        search.run(100)
    assert random.getstate() == before, "use the random generator of the SuggestContext, or one of your own"


CHECKS: Sequence[Check] = (
    answers_are_always_allowed,
    many_workers_can_ask_before_the_first_report,
    search_does_not_end_while_configurations_are_left,
    search_without_further_configurations_ends,
    same_history_gives_the_same_answers,
    copy_continues_like_the_original,
    begin_resets_the_scheduler,
    check_has_no_side_effects,
    description_is_constant_json,
    rolled_back_reports_have_no_effect,
    trials_can_end_without_reports,
    losses_can_all_be_infinite,
    global_random_state_is_not_used,
)


def observation(scheduler: Scheduler, trial_id: int, iter: int, loss: float) -> Observation:
    """Return a report of the same loss for all objectives."""
    values: dict[str, object] = {objective.metric: objective.loss(loss) for objective in scheduler.objectives}
    if scheduler.resource_attr is not None:
        values[scheduler.resource_attr] = iter
    config = SPACE.sample(random.Random(trial_id))
    return Observation(trial_id, config, iter, float(iter), (loss,) * len(scheduler.objectives), values)


def ask_next(scheduler: Scheduler, number: int) -> NextTrial:
    return scheduler.next(SuggestContext(number, number, SPACE, purpose="next"))


def _record_answers(scheduler: Scheduler) -> list[NextTrial]:
    answers: list[NextTrial] = []
    next_trial = scheduler.next

    def record(context: SuggestContext) -> NextTrial:
        answers.append(next_trial(context))
        return answers[-1]

    scheduler.next = record  # type: ignore[method-assign]
    return answers


def _repeat_reports(scheduler: Scheduler) -> None:
    """Roll back and repeat each report of this scheduler that is answered with CONTINUE."""
    on_report = scheduler.on_report

    def report_twice(observation: Observation) -> Decision:
        decision = on_report(observation)
        if decision is Decision.CONTINUE:
            scheduler.on_rollback(observation.trial_id, observation.iter - 1)
            decision = on_report(observation)
        return decision

    scheduler.on_report = report_twice  # type: ignore[method-assign]
