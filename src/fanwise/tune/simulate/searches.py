"""Whole searches on a virtual clock: `simulate` for one, `repeat` for the same with several seeds."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

from ...base.errors import SearchFailedError
from ..constraints import constraints_of
from ..decisions.orders import Finish
from ..decisions.tuning import Tuning
from ..schedulers.base import Scheduler, seed_of
from ..searchers.base import Ask
from ..stopping import StoppingCriterion
from ..values import at_least, check_switch, seconds
from ..warm_start import WarmStart, read_warm_start
from .faults import Faults
from .result import Keep, SimulatedSearch
from .tables import Table
from .workers import Note, Tally, Workers

_KEEPS = ("incumbent", "attempts", "reports")


def simulate(
    scheduler: Scheduler,
    table: Table,
    stop: StoppingCriterion,
    *,
    n_workers: int = 4,
    seed: int | None = None,
    checkpoints: bool = True,
    startup_s: float = 0.0,
    thinking_s: float | Callable[[Ask], float] = 0.0,
    faults: Faults | None = None,
    retries: int = 0,
    asynchronous: bool = True,
    trial_timeout_s: float | None = None,
    max_equal_failures: int | None = 3,
    warm_start: WarmStart | None = None,
    keep: Keep = "incumbent",
    note: Note | None = None,
) -> SimulatedSearch:
    """What a search would do, without the training: the scheduler itself on learning curves and a virtual clock.

    The same settings give the same result, to the last bit, on every machine. Blocks until the search is over; hours
    of a thousand workers take seconds. The scheduler given is not changed.

    Args:
        scheduler: as a Tuner takes it.
        table: the learning curves, and the space: `lcbench_curves`, `fcnet_final`, `from_frame`, a `FunctionTable`.
        stop: when the search ends; `max_wallclock_time` means virtual seconds.
        n_workers: simulated workers.
        seed: of the search and of the faults; None: the scheduler's, else 0. A seed here and another one in the
            scheduler are an error.
        checkpoints: whether a trial saves one with every report, so that a resumed or retried one goes on from there;
            without it trains again from the start.
        startup_s: virtual seconds from the start of a trial until its objective begins.
        thinking_s: virtual seconds that the searcher takes for a suggestion, or a function of the question.
        faults: crashes, lost workers and slow ones.
        retries: how often a trial that crashed starts again.
        asynchronous: False: the next batch starts when all trials of the last one have ended.
        trial_timeout_s: virtual seconds after which a trial is ended; None: never.
        max_equal_failures: the search fails when the first so many trials all failed alike; None: never.
        warm_start: what the searcher is told first, as the Tuner's: earlier experiments and data frames.
        keep: "attempts" keeps some numbers for each attempt of a trial, "reports" for each report too. With "incumbent"
            a finished trial leaves nothing, and a million of them need no more memory than a thousand.
        note: called with every fact and the orders that followed, in order; for tests and for replay.

    Raises:
        TypeError, ValueError: a setting of the wrong type or size, the scheduler does not fit the space, or nothing of
            a warm start does.
        ValueError: no trial reported the scheduler's metric, or a curve's seconds are negative or infinite.
        SearchFailedError: the search failed, for example because all trials crashed.
        Exception: what the scheduler, the table or a function of yours raised, in its own type.

    >>> from fanwise.tune import FIFO, StoppingCriterion, uniform
    >>> def train(config, epoch):
    ...     return {"loss": config["x"] ** 2 + 1 / epoch}, 60.0  # the report, and a minute for the epoch
    >>> table = FunctionTable(train, {"x": uniform(-1, 1), "max_epochs": 10})
    >>> stop = StoppingCriterion(max_wallclock_time=8 * 3600)
    >>> search = simulate(FIFO(metric="loss"), table, stop, n_workers=100)
    >>> search.num_trials_completed, search.utilisation
    (4800, 1.0)
    """
    if keep not in _KEEPS:
        raise ValueError(f"keep must be one of {', '.join(map(repr, _KEEPS))}, got {keep!r}")
    scheduler = copy.deepcopy(scheduler)
    scheduler.check(table.space)
    earlier, _ = read_warm_start(warm_start, table.space, scheduler, constraints_of(scheduler))
    seed = seed_of(scheduler, seed, 0)
    scheduler.begin(table.space, seed)
    tuning = Tuning(
        scheduler,
        table.space,
        stop,
        n_workers=at_least("n_workers", n_workers, 1),
        seed=seed,
        asynchronous=asynchronous,
        trial_timeout_s=trial_timeout_s,
        max_equal_failures=max_equal_failures,
        retries=retries,
    )
    objective = scheduler.objectives[0]
    tally = Tally(
        objective,
        n_workers=n_workers,
        constraints=constraints_of(scheduler),
        keep_attempts=keep != "incumbent",
        keep_reports=keep == "reports",
    )
    workers = Workers(
        tuning,
        scheduler.searcher,
        table,
        tally=tally,
        seed=seed,
        checkpoints=check_switch("checkpoints", checkpoints),
        startup_s=seconds("startup_s", startup_s),
        thinking_s=_thinking(thinking_s),
        faults=faults,
        note=note,
        earlier=earlier,
    )
    duration_s, finish = workers.run()
    _raise_failure(finish)
    counts = tuning.counts
    return SimulatedSearch(
        objective=objective,
        n_workers=n_workers,
        duration_s=duration_s,
        reason=finish.reason,
        best=tuning.best,
        incumbents=tally.incumbents,
        num_trials_started=counts.num_trials_started,
        num_trials_completed=counts.num_trials_completed,
        num_trials_stopped=counts.num_trials_stopped,
        num_trials_failed=counts.num_trials_failed,
        num_attempts=tally.num_attempts,
        num_reports=counts.num_evaluations,
        num_facts=tally.num_facts,
        decisions=tally.decisions,
        training_s=tally.training_s,
        utilisation=tally.utilisation.share(duration_s) or 0.0,
        _attempts=tally.attempts,
        _reports=tally.reports,
    )


def repeat(
    scheduler: Scheduler,
    table: Table,
    stop: StoppingCriterion,
    *,
    seeds: Iterable[int] = range(10),
    **settings: Any,  # Any: those of simulate
) -> list[SimulatedSearch]:
    """`simulate` once for each seed, with the same settings; `incumbent_spread` draws the results together.

    >>> from fanwise.tune import FIFO, StoppingCriterion, uniform
    >>> table = FunctionTable(lambda config, epoch: ({"loss": config["x"]}, 1.0), {"x": uniform(0, 1), "max_epochs": 1})
    >>> searches = repeat(FIFO(metric="loss"), table, StoppingCriterion(max_wallclock_time=100), seeds=range(3))
    >>> [search.num_trials_completed for search in searches]
    [400, 400, 400]
    """
    return [simulate(scheduler, table, stop, seed=seed, **settings) for seed in seeds]


def _thinking(given: float | Callable[[Ask], float]) -> Callable[[Ask], float]:
    if not callable(given):
        constant_s = seconds("thinking_s", given)
        return lambda ask: constant_s
    return lambda ask: seconds("what thinking_s returned", given(ask))


def _raise_failure(finish: Finish) -> None:
    if finish.cause is not None:
        raise finish.cause
    if finish.kind == "no-metric":
        raise ValueError(finish.error)
    if finish.error is not None:
        raise SearchFailedError(finish.error)
