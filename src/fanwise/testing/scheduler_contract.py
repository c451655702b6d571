"""What every scheduler promises, as checks that any implementation can run. Loads no pytest.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_scheduler_keeps_the_contract(check: Check) -> None:
        check(lambda: MyScheduler(metric="loss", max_t=9))

A check makes schedulers and plays searches with them (`scheduler_play`), of up to 9 epochs a trial, in the space
`SPACE`, which has "max_epochs" for `max_resource_attr`. A report has all metrics that the scheduler names, and the
epoch as its `resource_attr`. The checks say nothing of how good a scheduler is.
"""

import copy
import gc
import json
import math
import random
import sys
import types
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from ..tune.core import events
from ..tune.schedulers.scheduler import Decision, Done, NextTrial, Scheduler, Status
from ..tune.searchers.searcher import Observation, SuggestContext
from ..tune.space import Space
from .scheduler_play import MAX_EPOCHS, SPACE, Play

Make: TypeAlias = Callable[[], Scheduler]
Check: TypeAlias = Callable[[Make], None]

MOST_BYTES_A_TRIAL = 4_000  # what a scheduler may remember of a trial of 9 reports
_SEEDS = range(12)  # each kind of world with each number of workers
_FEW_SEEDS = range(4)  # where a fault shows in nearly every world
_NUM_STEPS = 200
_STATUSES: tuple[Status, ...] = (Status.COMPLETED, Status.STOPPED, Status.FAILED)


def begun(make: Make, seed: int = 0) -> Scheduler:
    scheduler = make()
    scheduler.check(SPACE)
    scheduler.begin(SPACE, seed)
    return scheduler


def _world(scheduler: Scheduler, seed: int) -> Play:
    """1 to 4 workers, and each kind of world in turn."""
    checkpoints = (0.5, 1.0, 0.0)[seed % 3]
    return Play(scheduler, seed, 1 + seed % 4, moody=seed % 3 == 1, checkpoints=checkpoints, calm=seed % 4 == 3)


def _worlds(make: Make, seeds: Sequence[int] = _SEEDS, *, stutters: bool = False) -> list[Play]:
    """A play for each seed."""
    schedulers = [begun(make, seed) for seed in seeds]
    return [
        _world(_Watched(each, stutters) if stutters else each, seed)
        for seed, each in zip(seeds, schedulers, strict=True)
    ]


def what_it_answers_is_always_allowed(make: Make) -> None:
    for play in _worlds(make):
        play.go_on()


def a_hundred_workers_may_ask_before_the_first_report(make: Make) -> None:
    play = Play(begun(make), n_workers=100)
    assert play.running, "100 workers are free, and nothing has started"
    play.go_on(500)


def it_never_waits_while_configurations_are_left(make: Make) -> None:
    """All workers are free, and the searcher has more: then something starts, or it is done."""
    for seed in _SEEDS:
        watched = _Watched(begun(make, seed))
        play = Play(watched, seed, n_workers=1 + seed % 4, calm=True)
        play.go_on()
        if not watched.is_done:
            assert play.finish is None, f"the search ended, with configurations left: {play.finish}"


def a_search_without_more_configurations_ends(make: Make) -> None:
    """Whatever can go on goes on, and then it is over: nothing is asked for ever."""
    for num_configs in (0, 1, 2, 7, 40):
        for seed in range(4):  # and as many workers, from 1
            play = Play(begun(make, seed), seed, 1 + seed % 4, num_configs=num_configs, calm=True)
            for _ in range(40):
                if play.finish is None:
                    play.go_on(50)
                    play.run_out()
                    play.send(events.Tick(play.now_s))
            assert play.finish is not None, f"with {num_configs} configurations the search does not end"


def the_same_history_gives_the_same_answers(make: Make) -> None:
    for one, other in zip(_worlds(make, _FEW_SEEDS), _worlds(make, _FEW_SEEDS), strict=True):
        assert one.go_on() == other.go_on(), "the same events led to other answers"


def a_copy_goes_on_as_the_original_does(make: Make) -> None:
    for whole, play in zip(_worlds(make, _FEW_SEEDS), _worlds(make, _FEW_SEEDS), strict=True):
        play.go_on(_NUM_STEPS // 2)
        copied = copy.deepcopy(play)
        play.go_on(7)
        assert copied.go_on(_NUM_STEPS - _NUM_STEPS // 2) == whole.go_on(), "the copy went another way"


def begin_begins_afresh(make: Make) -> None:
    for seed in _FEW_SEEDS:
        scheduler = begun(make, seed + 100)
        _world(scheduler, seed + 100).go_on()
        scheduler.begin(SPACE, seed)
        whole = _world(begun(make, seed), seed)
        assert _world(scheduler, seed).go_on() == whole.go_on(), "something was left of the search before"


def check_changes_nothing(make: Make) -> None:
    for whole, play in zip(_worlds(make, _FEW_SEEDS), _worlds(make, _FEW_SEEDS), strict=True):
        play.go_on(_NUM_STEPS // 2)
        play.scheduler.check(SPACE)
        assert play.go_on(_NUM_STEPS - _NUM_STEPS // 2) == whole.go_on(), "check() changed what came after"


def a_description_is_json_and_stays_the_same(make: Make) -> None:
    described = make().describe()
    assert isinstance(described.get("name"), str), f"there is no name in {described!r}"
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    play = Play(begun(make))
    play.go_on()
    assert play.scheduler.describe() == described, "it describes the search instead of the settings"


def void_reports_are_forgotten(make: Make) -> None:
    """Each report that a trial went on after is taken back and comes again at once: that changes nothing."""
    for whole, stuttering in zip(_worlds(make), _worlds(make, stutters=True), strict=True):
        assert stuttering.go_on() == whole.go_on(), "a report that on_rollback made void had an effect"


def void_paths_are_forgotten(make: Make) -> None:
    """A trial is far ahead with very good losses, and all of it is void: its second attempt counts alone."""
    for seed in _SEEDS:
        told, untold = begun(make, seed), begun(make, seed)
        for trial_id in range(4):
            assert _ask(told, trial_id) == _ask(untold, trial_id)
        for iter in range(1, MAX_EPOCHS + 1):
            if told.on_report(_observed(told, 3, iter, -1000.0 - iter)) is not Decision.CONTINUE:
                break  # what is told to stop or to pause is not run again
            told.on_rollback(3, 0)
            for repeated in range(1, iter):
                told.on_report(_observed(told, 3, repeated, -1000.0 - repeated))
        told.on_rollback(3, 0)
        told.on_end(3, Status.FAILED)
        untold.on_end(3, Status.FAILED)
        for trial_id in range(3):
            loss = random.Random(f"{seed}/{trial_id}").random()
            answers = [each.on_report(_observed(each, trial_id, 1, loss)) for each in (told, untold)]
            assert answers[0] == answers[1], "losses that on_rollback made void had an effect"


def ends_of_trials_that_never_reported_are_no_trouble(make: Make) -> None:
    for status in _STATUSES:
        scheduler = begun(make)
        for trial_id in range(5):
            _ask(scheduler, trial_id)
            scheduler.on_rollback(trial_id, 0)
            scheduler.on_end(trial_id, status)
        scheduler.on_rollback(99, 0)
        scheduler.on_end(99, status)
        _ask(scheduler, 5)


def losses_may_all_be_infinite(make: Make) -> None:
    scheduler = begun(make)
    for trial_id in range(20):
        _ask(scheduler, trial_id)
        for iter in range(1, MAX_EPOCHS + 1):
            if scheduler.on_report(_observed(scheduler, trial_id, iter, math.inf)) is not Decision.CONTINUE:
                break


def an_infinite_value_is_the_worst_whatever_its_sign(make: Make) -> None:
    """The tuner sees to it; who looks at the reported values themselves goes astray."""
    for seed in _FEW_SEEDS:
        flipped = Play(begun(make, seed), seed, 1 + seed % 4, flips=True)
        assert flipped.go_on() == Play(begun(make, seed), seed, 1 + seed % 4).go_on(), "the sign of infinity counts"


def finished_trials_take_little_memory(make: Make) -> None:
    """From one size of a search to the next it grows by a few numbers a report, not by what is reported."""
    play = Play(begun(make), n_workers=4, calm=True, checkpoints=1.0)
    sizes = []
    for num_trials in (100, 200):
        while play.core.counts.num_trials_started < num_trials and play.finish is None:
            play.go_on(50)
            play.log.clear()
        sizes.append((play.core.counts.num_trials_started, _size_bytes(play.scheduler)))
    (fewer, small), (more, large) = sizes
    if more > fewer:
        assert large - small <= MOST_BYTES_A_TRIAL * (more - fewer), (
            f"{(large - small) / (more - fewer):.0f} bytes a trial are kept; at most {MOST_BYTES_A_TRIAL} may be"
        )


def it_draws_no_global_chance(make: Make) -> None:
    before = random.getstate()
    for play in _worlds(make, _FEW_SEEDS):
        play.go_on(100)
    assert random.getstate() == before, "random numbers come from the SuggestContext, or from a generator of one's own"


CHECKS: Sequence[Check] = (
    what_it_answers_is_always_allowed,
    a_hundred_workers_may_ask_before_the_first_report,
    it_never_waits_while_configurations_are_left,
    a_search_without_more_configurations_ends,
    the_same_history_gives_the_same_answers,
    a_copy_goes_on_as_the_original_does,
    begin_begins_afresh,
    check_changes_nothing,
    a_description_is_json_and_stays_the_same,
    void_reports_are_forgotten,
    void_paths_are_forgotten,
    ends_of_trials_that_never_reported_are_no_trouble,
    losses_may_all_be_infinite,
    an_infinite_value_is_the_worst_whatever_its_sign,
    finished_trials_take_little_memory,
    it_draws_no_global_chance,
)


def _ask(scheduler: Scheduler, number: int) -> NextTrial:
    return scheduler.next(SuggestContext(number, number, SPACE, purpose="next"))


def _observed(scheduler: Scheduler, trial_id: int, iter: int, loss: float) -> Observation:
    """A report of the same loss for all objectives."""
    values: dict[str, object] = {objective.metric: objective.loss(loss) for objective in scheduler.objectives}
    if scheduler.resource_attr is not None:
        values[scheduler.resource_attr] = iter
    config = SPACE.sample(random.Random(trial_id))
    return Observation(trial_id, config, iter, float(iter), (loss,) * len(scheduler.objectives), values)


def _size_bytes(scheduler: Scheduler) -> int:
    """What the scheduler holds, without its searcher and without what all objects share."""
    seen = {id(scheduler.searcher), id(SPACE)}
    left: list[object] = [scheduler]
    size = 0
    while left:
        found = left.pop()
        if id(found) not in seen and not isinstance(found, type | types.ModuleType | types.FunctionType):
            seen.add(id(found))
            size += sys.getsizeof(found)
            left.extend(gc.get_referents(found))
    return size


@final
class _Watched(Scheduler):
    """Passes everything on to a scheduler, and notes whether it is done. `stutters`: reports are repeated once."""

    def __init__(self, scheduler: Scheduler, stutters: bool = False) -> None:
        self.scheduler = scheduler
        self.stutters = stutters
        self.is_done = False
        self.objectives, self.constraints = scheduler.objectives, scheduler.constraints
        self.resource_attr, self.max_resource = scheduler.resource_attr, scheduler.max_resource
        self.searcher, self.random_seed = scheduler.searcher, scheduler.random_seed
        self.clones = scheduler.clones  # type: ignore[misc]  # of this object

    def check(self, space: Space) -> None:
        self.scheduler.check(space)

    def begin(self, space: Space, seed: int) -> None:
        self.scheduler.begin(space, seed)
        self.max_resource = self.scheduler.max_resource

    def next(self, ask: SuggestContext) -> NextTrial:
        answer = self.scheduler.next(ask)
        self.is_done = self.is_done or isinstance(answer, Done)
        return answer

    def on_report(self, observation: Observation) -> Decision:
        decision = self.scheduler.on_report(observation)
        if self.stutters and decision is Decision.CONTINUE:
            self.scheduler.on_rollback(observation.trial_id, observation.iter - 1)
            decision = self.scheduler.on_report(observation)
        return decision

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.scheduler.on_rollback(trial_id, to_iter)

    def on_end(self, trial_id: int, status: Status) -> None:
        self.scheduler.on_end(trial_id, status)

    def describe(self) -> dict[str, object]:
        return self.scheduler.describe()
