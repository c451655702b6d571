"""A search that is asked and told: for programs with a loop of their own, on the record of any other search.

    ask()    -> Asked             -> Start   -> a trial
    report() -> Reported          -> Answer  -> CONTINUE, STOP or PAUSE; the latter two end this run of the trial
    tell()   -> Reported, Ended, Free
    fail()   -> Ended, Free

The decisions, the searcher and the rows are those of `Tuner`; only the processes are missing. Every call commits what
it leads to before it returns: a killed program loses nothing, and the trials that were in flight are asked for again.
Ctrl-C during a call comes when the call is done: what is decided and what is written never part.
"""

import logging
import os
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from ..base.errors import ClosedError, SearchFailedError
from ..base.uninterrupted import Uninterrupted
from ..pool.reporting import plain_metrics
from .callbacks.dispatcher import CallbackDispatcher, checked_callbacks
from .callbacks.events import SearchEnded, SearchStarted
from .constraints import Constraint, constraints_of
from .decisions import facts
from .decisions.checking import problem_with
from .decisions.driving import handle
from .decisions.facts import Fact, Outcome
from .decisions.orders import Answer, Finish, Judged, Order, Start
from .decisions.transfer import Taken
from .default_searcher import SearcherChoice
from .experiment import Experiment
from .opening import check_same, checked_stop, copied, described, scheduler_for, space_of, versions_of
from .program import ASKED, Program, asked_and_told, load_program, save_program
from .record.log import Record
from .record.names import check_name, experiments_folder, new_name
from .record.reading import read_meta
from .record.recorder import Recorder
from .record.restoring import fresh_tuning, restore
from .record.state import SearchState
from .remote.commands import check_may_enqueue, completed
from .schedulers.base import Decision, Scheduler, Status, checked_objectives, checked_seed, seed_of
from .searchers.base import Mode, Objective, Searcher
from .space import Space
from .stopping import StoppingCriterion
from .values import with_objects
from .warm_start import WarmStart, read_warm_start, summaries_to_json

_log = logging.getLogger("fanwise")

# For who asks there is no worker that takes too long, crashes or is tried again.
_TIMING: Mapping[str, Any] = {  # Any: settings of `Tuning`
    "trial_timeout_s": None,
    "stop_grace_s": 5.0,
    "max_equal_failures": None,
    "retries": 0,
    "keep_checkpoints": True,
}


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A trial to run now.

    Args:
        config: its configuration, constants included.
        attempt: 0, 1, ...: how often it was asked for before.
        from_iter: its reports up to this one stand; the next is one more.
        checkpoint: what was handed to `report(..., checkpoint=)` with that one, or, for a clone, with its source's.
    """

    trial_id: int
    config: Mapping[str, Any]  # Any: what the space holds
    attempt: int = 0
    from_iter: int = 0
    checkpoint: str | None = None


@final
class OpenSearch:
    """Made by `open_search`. All methods may be called by any thread, one at a time; they block for the disk only."""

    def __init__(
        self,
        path: Path,
        space: Space,
        scheduler: Scheduler,
        stop: StoppingCriterion | None,
        *,
        chosen: SearcherChoice | None,
        constraints: Sequence[Constraint],
        seed: int | None,
        warm_start: WarmStart | None,
        callbacks: Sequence[object],
    ) -> None:
        self.path = path
        self._space = space
        self._objects = space.objects
        self._scheduler = copied(scheduler)
        self._chosen = chosen
        self._constraints = constraints
        self._in_flight: dict[int, tuple[AskedTrial, float]] = {}
        self._reported: set[int] = set()  # of those in flight
        self._lock = threading.RLock()
        self._is_closed = False
        self._finish: Finish | None = None
        restored = path.exists()
        earlier, taken = ([], []) if restored else read_warm_start(warm_start, space, self._scheduler, constraints)
        with Uninterrupted():
            self._record = self._reopen(scheduler, seed) if restored else self._create(scheduler, stop, seed, taken)
            try:
                self._begin(stop, earlier, callbacks, restored=restored)
            except BaseException:
                self._record.close()
                raise
        _open_searches.add(self)

    def _begin(
        self, stop: StoppingCriterion | None, earlier: Sequence[Fact], callbacks: Sequence[object], *, restored: bool
    ) -> None:
        for line in self._record.notices:
            _log.warning("%s: %s", self.name, line)
        meta = read_meta(self.path)
        self.seed = int(meta["seed"])
        self._tuning = fresh_tuning(meta, self._scheduler)
        state = restore(self.path, self._tuning, self._scheduler.searcher) if restored else SearchState(meta)
        self._zero_s = time.monotonic() - state.last_s
        self._listening = CallbackDispatcher(checked_callbacks(callbacks), state.alive())
        state.news.on_line = self._listening.on_line
        self._recorder = Recorder(self._record, state, self._listening.on_event)
        objectives = self._scheduler.objectives
        self._listening.start(
            SearchStarted(
                self.name,
                self.path,
                self._space,
                objectives,
                self.seed,
                0,
                resumed=restored,
                created_s=float(meta["created_s"]),
            )
        )
        for fact in earlier:
            self._hand_in(fact)
        self._hand_in(
            facts.Resumed(
                self._now_s(), stop=None if stop is None else stop.to_json(), versions=versions_of(self._scheduler)
            )
            if restored
            else facts.Begin(self._now_s())
        )
        self._record.commit()

    @property
    def name(self) -> str:
        """Of the experiment."""
        return self.path.name

    @property
    def experiment(self) -> Experiment:
        """The experiment, up to the last call."""
        return Experiment(self.path)

    @property
    def finished(self) -> bool:
        """Whether the search has come to its end: `ask` returns None from now on."""
        return self._finish is not None

    def ask(self) -> AskedTrial | None:
        """A trial to run: a new one, or one that goes on; several may be in flight.

        None: there is none now. The search is over (`finished`, or it stops when those in flight were told), or its
        scheduler waits for a trial that is in flight. With none in flight the search is over.

        Raises:
            ClosedError: the search is closed.
            Exception: what the scheduler or its searcher raised, in its own type.
        """
        with self._lock, Uninterrupted():
            self._check_open()
            next_s = self._tuning.next_tick_s
            if next_s is not None and next_s <= self._now_s():
                self._hand_in(facts.Tick(self._now_s()))
            orders = [] if self._finish is not None else self._hand_in(facts.Asked(self._now_s()))
            start = next((order for order in orders if isinstance(order, Start)), None)
            if start is None:
                self._record.commit()
                self._raise_failure()
                return None
            trial = AskedTrial(
                start.trial_id,
                with_objects(start.config, self._objects),
                start.attempt,
                start.from_iter,
                start.checkpoint,
            )
            now_s = self._now_s()
            self._in_flight[trial.trial_id] = trial, now_s
            self._hand_in(facts.Ready(now_s, trial.trial_id, trial.attempt, os.getpid(), 0.0, "asked"))
            self._record.commit()
            return trial

    def report(self, trial: AskedTrial | int, /, *, checkpoint: str | None = None, **metrics: Any) -> Decision:
        """Report values of a trial. After STOP and PAUSE it is no longer in flight: run no more of it.

        Args:
            trial: what `ask` returned, or its id.
            checkpoint: a name or path of yours with which it can go on from here; `ask` hands it out again.
            metrics: names and numbers; the scheduler's metric must be among them. Strings are kept as notes.

        Raises:
            ValueError: the trial is not in flight, or the values lack the metric, or it is not a number.
            TypeError: a value is neither a number nor a string.
        """
        values = plain_metrics(metrics)
        with self._lock, Uninterrupted():
            asked, began_s = self._check(trial, values)
            decision = self._report(asked, values, began_s, checkpoint)
            if decision is not Decision.CONTINUE:
                self._end(asked, Outcome("stopped"))
            self._record.commit()
            return decision

    def tell(self, trial: AskedTrial | int, value: float | Mapping[str, Any] | None = None) -> Status:  # Any: numbers
        """The trial has come to its end. Returns what it is now: Completed, or what the scheduler made of it.

        Args:
            trial: what `ask` returned, or its id.
            value: a last report: the metric, or a dict with it. None: it has reported everything.

        Raises:
            As `report`; and ValueError without a value, of a trial that has reported nothing.
        """
        metric = self._scheduler.objectives[0].metric
        values = None if value is None else plain_metrics(value if isinstance(value, Mapping) else {metric: value})
        with self._lock, Uninterrupted():
            asked, began_s = self._check(trial, values)
            if values is not None:
                self._report(asked, values, began_s, None)
            elif not asked.from_iter and asked.trial_id not in self._reported:
                raise ValueError(
                    f"trial {asked.trial_id} has reported nothing: tell(trial, value), or fail(trial, why) if it failed"
                )
            status = self._end(asked, Outcome("returned"))
            self._record.commit()
            return status

    def fail(self, trial: AskedTrial | int, error: BaseException | str) -> None:
        """The trial has failed, and is over. ValueError: it is not in flight."""
        with self._lock, Uninterrupted():
            asked, _ = self._check(trial, None)
            if isinstance(error, str):
                outcome = Outcome("exception", error)
            else:
                text = "".join(traceback.format_exception(error))
                outcome = Outcome("exception", f"{type(error).__name__}: {error}", text)
            self._end(asked, outcome)
            self._record.commit()

    def enqueue(self, config: Mapping[str, object]) -> None:
        """Give the next new trial this configuration. Values that it leaves out are drawn at random.

        Raises:
            TypeError, ValueError: it is no dict, or not of the space; or the search starts no new trials any more.
            ClosedError: the search is closed.
        """
        with self._lock, Uninterrupted():
            self._check_open()
            check_may_enqueue(self._recorder.state)
            self._hand_in(facts.Enqueued(self._now_s(), completed(config, self._space, self.seed)))
            self._record.commit()

    def close(self) -> None:
        """End the search for now: trials in flight are asked for again when it is opened next. Twice is fine."""
        with self._lock, Uninterrupted():
            if self._is_closed:
                return
            try:
                if self._finish is None:
                    self._hand_in(facts.Interrupt(self._now_s(), "closed"))
                for trial, _ in list(self._in_flight.values()):
                    self._end(trial, Outcome("stopped"))
                self._record.set_summary(self._recorder.state.summary())
            finally:
                self._is_closed = True
                try:
                    self._record.close()
                finally:
                    reason = "closed" if self._finish is None else self._finish.reason
                    error = None if self._finish is None else self._finish.error
                    end = SearchEnded(self._recorder.state.last_s, self.name, self.path, reason, error)
                    self._listening.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- before ----------------------------------------------------------------------------------------------------

    def _create(
        self, scheduler: Scheduler, stop: StoppingCriterion | None, seed: int | None, taken: Sequence[Taken]
    ) -> Record:
        meta = described(
            name=self.name,
            objective=ASKED,
            space=self._space,
            scheduler=scheduler,
            constraints=self._constraints,
            seed=seed_of(scheduler, seed, secrets.randbits(31)),
            n_workers=0,
            stop=StoppingCriterion(max_wallclock_time=float("inf")) if stop is None else stop,
            chosen=self._chosen,
        )
        more = {"warm_start": summaries_to_json(taken), "asynchronous": True}
        record = Record.create(self.path, {**meta, **more, "settings": {"asynchronous": True, **_TIMING}})
        try:
            save_program(self.path, Program(asked_and_told, scheduler, self._space))
        except BaseException:
            record.close()
            raise
        return record

    def _reopen(self, scheduler: Scheduler, seed: int | None) -> Record:
        check_same(read_meta(self.path), ASKED, self._space, scheduler, self._constraints, seed)
        return Record.reopen(self.path)

    # -- facts -----------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return time.monotonic() - self._zero_s

    def _hand_in(self, fact: Fact) -> list[Order]:
        """Decide and write down, also what the searcher answers; the orders of all of it."""
        all_orders: list[Order] = []

        def note(fact: Fact, orders: list[Order]) -> None:
            self._recorder.write(fact, orders)
            all_orders.extend(orders)

        handle(self._tuning, fact, self._scheduler.searcher, note)
        self._finish = next((order for order in all_orders if isinstance(order, Finish)), self._finish)
        return all_orders

    def _report(
        self, trial: AskedTrial, values: Mapping[str, object], began_s: float, checkpoint: str | None
    ) -> Decision:
        now_s = self._now_s()
        self._reported.add(trial.trial_id)
        fact = facts.Reported(now_s, trial.trial_id, trial.attempt, values, now_s - began_s, checkpoint)
        answer = self._hand_in(fact)[0]
        assert isinstance(answer, Answer), "the values were looked at"
        return answer.decision

    def _end(self, trial: AskedTrial, outcome: Outcome) -> Status:
        _, began_s = self._in_flight.pop(trial.trial_id)
        self._reported.discard(trial.trial_id)
        now_s = self._now_s()
        orders = self._hand_in(facts.Ended(now_s, trial.trial_id, trial.attempt, outcome, now_s - began_s))
        self._hand_in(facts.Free(now_s, trial.trial_id, trial.attempt))
        return next(order.status for order in orders if isinstance(order, Judged))

    def _check(self, trial: object, values: Mapping[str, object] | None) -> tuple[AskedTrial, float]:
        """The trial and when it began, or the error in what was handed in."""
        self._check_open()
        if isinstance(trial, bool) or not isinstance(trial, AskedTrial | int):
            raise TypeError(f"a trial is what ask() returned, or its id, got {trial!r}")
        trial_id = trial if isinstance(trial, int) else trial.trial_id
        asked, began_s = self._in_flight.get(trial_id, (None, 0.0))
        if asked is None or trial not in (asked, trial_id):
            known = ", ".join(map(str, self._in_flight)) or "none"
            raise ValueError(
                f"trial {trial_id} is not in flight: it was told, stopped, paused or asked for anew. "
                f"In flight: {known}."
            )
        if values is not None:
            scheduler = self._scheduler
            problem = problem_with(values, scheduler.objectives, scheduler.resource_attr, self._constraints)
            if problem is not None:
                raise ValueError(problem)
        return asked, began_s

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the search {self.name!r} is closed; open_search(..., name={self.name!r}) goes on.")

    def _raise_failure(self) -> None:
        """What the scheduler or the searcher raised."""
        finish = self._finish
        if finish is not None and finish.cause is not None:
            raise finish.cause
        if finish is not None and finish.error is not None and finish.kind in ("scheduler", "searcher"):
            raise SearchFailedError(finish.error)


# The one process-wide fact: the searches whose locks another thread may hold at a fork.
_open_searches: "weakref.WeakSet[OpenSearch]" = weakref.WeakSet()


def _unlock_in_child() -> None:
    """So that the child of a fork is told that the record is not its own, and waits for nobody."""
    for search in list(_open_searches):
        search._lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_in_child)


def open_search(
    space: Space | Mapping[str, Any],  # Any: domains and constants
    scheduler: Scheduler | str | Sequence[str],
    *,
    mode: Mode | Sequence[Mode] = "min",
    searcher: Searcher | str | None = None,
    constraints: Sequence[str] = (),
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    name: str | None = None,
    stop: StoppingCriterion | None = None,
    random_seed: int | None = None,
    warm_start: WarmStart | None = None,
    callbacks: Sequence[object] = (),
) -> OpenSearch:
    """A search whose trials run in a loop of your own: ask for a trial, run it as you like, tell its result.

    With the name of an experiment that was asked and told before, it goes on: what was in flight when that ended, or
    was killed, is asked for again first.

    Args:
        space: names to domains and constants, or a `Space`.
        scheduler: such as `ASHA(...)`; or the name of a metric, or several: then every trial runs to its end.
        mode: "min" or "max", for the name of a metric; of several for all or for each.
        searcher: for the name of a metric: what chooses configurations, an object or a name ("random", "forest", ...);
            None: one is chosen and recorded; an experiment that goes on keeps it.
        constraints: what every report must meet, such as ["latency_ms <= 20"], where the scheduler has none.
        points_to_evaluate: for the name of a metric: configurations to try first.
        name: of the experiment; None: made from the time.
        stop: when there are no more trials; None: when you stop asking.
        random_seed: of the search, as the Tuner's. None: the scheduler's, else drawn; an experiment that goes on
            keeps its own.
        warm_start, callbacks: as the Tuner's; a search that goes on knows what it was told when it began.

    Raises:
        TypeError, ValueError: arguments that make no sense; another space, scheduler or seed than the experiment's.
        RecordError: another process has the experiment open, or it cannot be written.

    >>> with open_search({"x": uniform(0, 1)}, "loss", name="by-hand") as search:
    ...     for _ in range(20):
    ...         trial = search.ask()
    ...         search.tell(trial, (trial.config["x"] - 0.3) ** 2)
    ...     print(search.experiment.best.config)
    """
    whole = space_of(space)
    if stop is not None:
        checked_stop(stop)
    folder_name = new_name("asked", time.time(), os.urandom(8)) if name is None else check_name(name)
    path = experiments_folder() / folder_name
    metric = scheduler if isinstance(scheduler, str | list | tuple) else None
    goes_on = metric is not None and searcher is None and points_to_evaluate is None and path.exists()
    before = _kept(path, checked_objectives(metric, mode)) if goes_on and metric is not None else None
    if before is not None:
        asked, chosen = before, None
    else:
        asked, chosen = scheduler_for(
            None if isinstance(scheduler, str | list | tuple) else scheduler,  # type: ignore[arg-type]  # checked there
            metric=metric,
            mode=mode,
            searcher=searcher,
            points_to_evaluate=points_to_evaluate,
            space=whole,
            stop=stop,
            n_workers=1,
        )
    if stop is not None:
        stop.reference_losses(asked.objectives)
    asked.check(whole)
    checked_callbacks(callbacks)
    return OpenSearch(
        path,
        whole,
        asked,
        stop,
        chosen=chosen,
        constraints=constraints_of(asked, constraints),
        seed=checked_seed(random_seed),
        warm_start=warm_start,
        callbacks=callbacks,
    )


def _kept(path: Path, objectives: Sequence[Objective]) -> Scheduler:
    """What was chosen when the experiment began. ValueError: it was for other objectives."""
    scheduler = load_program(path).scheduler
    if scheduler.objectives != tuple(objectives):
        both = (scheduler.objectives, objectives)
        was, asked = (" and ".join(f"{each.metric!r} ({each.mode})" for each in them) for them in both)
        raise ValueError(
            f"the experiment {path.name!r} cannot go on with something else: it optimises {was}, and not {asked}"
        )
    return scheduler
