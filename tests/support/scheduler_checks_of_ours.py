"""Further checks of fanwise's own schedulers: memory, infinite values, and attempts that are rolled back."""

import gc
import math
import random
import sys
import types
from collections.abc import Sequence

from fanwise.testing.scheduler_checks import Check, Make, ask_next, observation, started
from fanwise.testing.scheduler_simulation import MAX_EPOCHS, SPACE, SchedulerSimulation
from fanwise.tune.schedulers.scheduler import Decision, Scheduler, Status

_MAX_BYTES_PER_TRIAL = 4_000  # of a trial with 9 reports


class FlippedInfinities(SchedulerSimulation):
    """Reports infinite values with the opposite sign."""

    def values(self, trial_id: int, number: int, iter: int) -> dict[str, float]:
        values = super().values(trial_id, number, iter)
        return {name: -value if math.isinf(value) else value for name, value in values.items()}


def rolled_back_attempts_have_no_effect(make: Make) -> None:
    """Roll back a trial that has gone far with very good losses, twice."""
    for seed in range(12):
        scheduler, other = started(make, seed), started(make, seed)
        for trial_id in range(4):
            assert ask_next(scheduler, trial_id) == ask_next(other, trial_id)
        for iter in range(1, MAX_EPOCHS + 1):
            if scheduler.on_report(observation(scheduler, 3, iter, -1000.0 - iter)) is not Decision.CONTINUE:
                break  # a stopped or paused trial is not repeated
            scheduler.on_rollback(3, 0)
            for repeated in range(1, iter):
                scheduler.on_report(observation(scheduler, 3, repeated, -1000.0 - repeated))
        scheduler.on_rollback(3, 0)
        scheduler.on_end(3, Status.FAILED)
        other.on_end(3, Status.FAILED)
        for trial_id in range(3):
            loss = random.Random(f"{seed}/{trial_id}").random()
            answers = [each.on_report(observation(each, trial_id, 1, loss)) for each in (scheduler, other)]
            assert answers[0] == answers[1], "losses had an effect after on_rollback"


def infinite_values_are_the_worst_of_both_signs(make: Make) -> None:
    """Use `Observation.losses`, where the tuner ensures this, instead of the reported values."""
    for seed in range(4):
        flipped = FlippedInfinities(started(make, seed), seed, 1 + seed % 4)
        expected = SchedulerSimulation(started(make, seed), seed, 1 + seed % 4).run()
        assert flipped.run() == expected, "the sign of infinity had an effect"


def finished_trials_take_little_memory(make: Make) -> None:
    search = SchedulerSimulation(started(make), n_workers=4, undisturbed=True, checkpoint_probability=1.0)
    sizes = []
    for num_trials in (100, 200):
        while search.core.counts.num_trials_started < num_trials and search.finish is None:
            search.run(50)
            search.log.clear()
        sizes.append((search.core.counts.num_trials_started, _size_bytes(search.scheduler)))
    (fewer, small), (more, large) = sizes
    if more > fewer:
        assert large - small <= _MAX_BYTES_PER_TRIAL * (more - fewer), (
            f"a trial takes {(large - small) / (more - fewer):.0f} bytes; the limit is {_MAX_BYTES_PER_TRIAL}"
        )


CHECKS_OF_OURS: Sequence[Check] = (
    rolled_back_attempts_have_no_effect,
    infinite_values_are_the_worst_of_both_signs,
    finished_trials_take_little_memory,
)


def _size_bytes(scheduler: Scheduler) -> int:
    """Return the size of the scheduler, without its searcher and shared objects."""
    seen = {id(scheduler.searcher), id(SPACE)}
    pending: list[object] = [scheduler]
    size = 0
    while pending:
        value = pending.pop()
        if id(value) not in seen and not isinstance(value, type | types.ModuleType | types.FunctionType):
            seen.add(id(value))
            size += sys.getsizeof(value)
            pending.extend(gc.get_referents(value))
    return size
