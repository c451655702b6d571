"""The ask-and-tell interface: a search for programs that run trials in their own loop.

    ask()    -> TrialRequested             -> Start   -> a trial
    report() -> Reported          -> Answer  -> CONTINUE, STOP or PAUSE; the latter two end this run of the trial
    tell()   -> Reported, Ended, Free
    fail()   -> Ended, Free

It uses the same state machine, searcher and record as `Tuner`, but no worker processes. Every call commits its effects
before it returns, so a killed program loses nothing and gets the trials in flight again. Ctrl-C during a call is
delayed until the call is done, so that the record always agrees with the decisions.
"""

import logging
import os
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
from ..base.home import experiments_folder
from ..base.uninterrupted import Uninterrupted
from ..pool.reporting import plain_metrics
from .callbacks.dispatcher import CallbackDispatcher, checked_callbacks
from .callbacks.search_events import SearchEnded, SearchStarted
from .core import events
from .core.actions import Action, Answer, Finish, Judged, Start
from .core.events import Event, Outcome
from .core.search_core import handle
from .core.validation import problem_with
from .experiment import Experiment
from .program import ASKED, Program, asked_and_told, load_program, save_program
from .record.log import Record
from .record.names import check_name, new_name
from .record.reading import read_meta
from .record.recorder import Recorder
from .record.restoring import restore
from .record.state import SearchState
from .runtime.commands import check_may_enqueue, completed
from .schedulers.scheduler import Decision, Scheduler, Status, checked_objectives
from .search_settings import SearchSettings, as_space
from .searchers.searcher import Mode, Objective, Searcher
from .space import Space, space_objects
from .stopping import StoppingCriterion
from .transfer import Taken
from .values import with_objects
from .warm_start import WarmStart, read_warm_start, summaries_to_json

_log = logging.getLogger("fanwise")

_NO_LIMIT = StoppingCriterion(max_wallclock_time=float("inf"))


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A trial to run now.

    Args:
        config: the configuration, including constants.
        attempt: 0, 1, ...: number of earlier attempts of this trial.
        from_iter: number of valid reports from earlier attempts. The next report has number `from_iter + 1`.
        checkpoint: the `checkpoint` passed to `report` at `from_iter`, by the source trial if this one is a clone.
            None: start from scratch.
    """

    trial_id: int
    config: Mapping[str, Any]  # Any: values of the space
    attempt: int = 0
    from_iter: int = 0
    checkpoint: str | None = None


@final
class OpenSearch:
    """An ask-and-tell search, returned by `open_search`.

    Methods can be called from any thread; concurrent calls run one at a time. They block for disk writes
    and for the searcher. As a context manager, the search is closed at the end of the block.
    """

    def __init__(
        self,
        path: Path,
        settings: SearchSettings,
        *,
        stop: StoppingCriterion | None,
        seed: int | None,
        warm_start: WarmStart | None,
        callbacks: Sequence[object],
    ) -> None:
        """`stop` and `seed` are the user's, which an existing experiment must agree with. None: not given."""
        self.path = path
        self._settings = settings
        self._objects = space_objects(settings.space)
        self._scheduler = settings.copy_scheduler()
        self._in_flight: dict[int, tuple[AskedTrial, float]] = {}
        self._reported: set[int] = set()  # ids of trials in flight that have reported
        self._lock = threading.RLock()
        self._is_closed = False
        self._finish: Finish | None = None
        is_resumed = path.exists()
        earlier, summaries = ([], []) if is_resumed else read_warm_start(warm_start, settings)
        with Uninterrupted():
            self._record = self._reopen(seed) if is_resumed else self._create(summaries)
            try:
                self._begin(earlier, stop, checked_callbacks(callbacks), is_resumed=is_resumed)
            except BaseException:
                self._record.close()
                raise
        _open_searches.add(self)

    def _begin(
        self,
        earlier: Sequence[Event],
        stop: StoppingCriterion | None,
        callbacks: Sequence[object],
        *,
        is_resumed: bool,
    ) -> None:
        for line in self._record.notices:
            _log.warning("%s: %s", self.name, line)
        meta, settings, scheduler = read_meta(self.path), self._settings, self._scheduler
        self.seed = settings.seed
        self._core = settings.new_core(scheduler)
        state = restore(self.path, self._core, scheduler.searcher) if is_resumed else SearchState(meta)
        self._zero_s = time.monotonic() - state.last_s
        self._dispatcher = CallbackDispatcher(callbacks, state)
        state.news.on_line = self._dispatcher.on_line
        self._recorder = Recorder(self._record, state, self._dispatcher.on_event)
        created_s = float(meta["created_s"])
        self._dispatcher.start(
            SearchStarted(
                self.name,
                self.path,
                settings.space,
                scheduler.objectives,
                self.seed,
                0,
                resumed=is_resumed,
                created_s=created_s,
            )
        )
        for event in earlier:
            self._apply(event)
        now_s = self._now_s()
        if is_resumed:
            new_stop = None if stop is None else stop.to_json()
            self._apply(events.Resumed(now_s, stop=new_stop, versions=settings.versions()))
        else:
            self._apply(events.Begin(now_s))
        self._record.commit()

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.path.name

    @property
    def experiment(self) -> Experiment:
        """The experiment, including the last call."""
        return Experiment(self.path)

    @property
    def finished(self) -> bool:
        """True if the search has ended and `ask` will only return None."""
        return self._finish is not None

    def ask(self) -> AskedTrial | None:
        """Return the next trial to run, new or resumed. Several trials may be in flight at a time.

        Return None if there is no trial to run now: the search is over or about to end, or the scheduler waits for a
        trial in flight. If no trial is in flight, None means that the search is over.

        Raises:
            ClosedError: the search is closed.
            Exception: an exception of the scheduler or its searcher, in its original type.
        """
        with self._lock, Uninterrupted():
            self._check_open()
            next_s = self._core.next_tick_s
            if next_s is not None and next_s <= self._now_s():
                self._apply(events.Tick(self._now_s()))
            actions = [] if self._finish is not None else self._apply(events.TrialRequested(self._now_s()))
            start = next((action for action in actions if isinstance(action, Start)), None)
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
            self._apply(events.Ready(now_s, trial.trial_id, trial.attempt, os.getpid(), 0.0, "asked"))
            self._record.commit()
            return trial

    def report(self, trial: AskedTrial | int, /, *, checkpoint: str | None = None, **metrics: Any) -> Decision:
        """Report values of a trial and return the decision. Stop running the trial after STOP or PAUSE.

        Args:
            trial: the trial returned by `ask`, or its id.
            checkpoint: a name or path of your choice to resume from. `ask` returns it when the trial is resumed.
            metrics: names and numbers, including the scheduler's metric. Strings are kept as notes.

        Raises:
            ValueError: the trial is not in flight, or the metric is missing or not a number.
            TypeError: a value is neither a number nor a string.
            ClosedError: the search is closed.
        """
        values = plain_metrics(metrics)
        with self._lock, Uninterrupted():
            current, began_s = self._check(trial, values)
            decision = self._report(current, values, began_s, checkpoint)
            if decision is not Decision.CONTINUE:
                self._end(current, Outcome("stopped"))
            self._record.commit()
            return decision

    def tell(self, trial: AskedTrial | int, value: float | Mapping[str, Any] | None = None) -> Status:  # Any: numbers
        """Finish a trial that ran to its end. Return its status: Completed, or the scheduler's decision.

        Args:
            trial: the trial returned by `ask`, or its id.
            value: a last report: the metric, or a dict that contains it. None: no further report.

        Raises:
            ValueError: as `report`, or there is no value and the trial has reported nothing.
            TypeError: a value is neither a number nor a string.
            ClosedError: the search is closed.
        """
        metric = self._scheduler.objectives[0].metric
        values = None if value is None else plain_metrics(value if isinstance(value, Mapping) else {metric: value})
        with self._lock, Uninterrupted():
            current, began_s = self._check(trial, values)
            if values is not None:
                self._report(current, values, began_s, None)
            elif not current.from_iter and current.trial_id not in self._reported:
                raise ValueError(
                    f"trial {current.trial_id} has reported nothing: tell(trial, value), "
                    f"or fail(trial, why) if it failed"
                )
            status = self._end(current, Outcome("returned"))
            self._record.commit()
            return status

    def fail(self, trial: AskedTrial | int, error: BaseException | str) -> None:
        """Finish a trial that failed.

        Raises:
            ValueError: the trial is not in flight.
            ClosedError: the search is closed.
        """
        with self._lock, Uninterrupted():
            current, _ = self._check(trial, None)
            if isinstance(error, str):
                outcome = Outcome("exception", error)
            else:
                text = "".join(traceback.format_exception(error))
                outcome = Outcome("exception", f"{type(error).__name__}: {error}", text)
            self._end(current, outcome)
            self._record.commit()

    def enqueue(self, config: Mapping[str, object]) -> None:
        """Use this configuration for the next new trial. Missing values are drawn at random.

        Raises:
            TypeError, ValueError: config is not a dict or not in the space, or the search starts no new trials.
            ClosedError: the search is closed.
        """
        with self._lock, Uninterrupted():
            self._check_open()
            check_may_enqueue(self._recorder.state)
            self._apply(events.Enqueued(self._now_s(), completed(config, self._settings.space, self.seed)))
            self._record.commit()

    def close(self) -> None:
        """Suspend the search and close its record. Reopening it returns the trials in flight again. Idempotent."""
        with self._lock, Uninterrupted():
            if self._is_closed:
                return
            try:
                if self._finish is None:
                    self._apply(events.Interrupt(self._now_s(), "closed"))
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
                    self._dispatcher.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- the record ------------------------------------------------------------------------------------------------

    def _create(self, summaries: Sequence[Taken]) -> Record:
        settings = self._settings
        meta = settings.new_metadata(self.name, ASKED)
        record = Record.create(self.path, {**meta, "warm_start": summaries_to_json(summaries)})
        try:
            save_program(self.path, Program(asked_and_told, settings.scheduler, settings.space))
        except BaseException:
            record.close()
            raise
        return record

    def _reopen(self, seed: int | None) -> Record:
        meta, settings = read_meta(self.path), self._settings
        settings.check_equal(meta, objective=ASKED, seed=seed)
        self._settings = SearchSettings.from_json(meta, settings.scheduler, settings.space)
        return Record.reopen(self.path)

    # -- events -----------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return time.monotonic() - self._zero_s

    def _apply(self, event: Event) -> list[Action]:
        """Apply the event and the resulting suggestions, record them, and return all their actions."""
        all_actions: list[Action] = []

        def note(event: Event, actions: list[Action]) -> None:
            self._recorder.write(event, actions)
            all_actions.extend(actions)

        handle(self._core, event, self._scheduler.searcher, note)
        self._finish = next((action for action in all_actions if isinstance(action, Finish)), self._finish)
        return all_actions

    def _report(
        self, trial: AskedTrial, values: Mapping[str, object], began_s: float, checkpoint: str | None
    ) -> Decision:
        now_s = self._now_s()
        self._reported.add(trial.trial_id)
        event = events.Reported(now_s, trial.trial_id, trial.attempt, values, now_s - began_s, checkpoint)
        answer = self._apply(event)[0]
        assert isinstance(answer, Answer), "the values were looked at"
        return answer.decision

    def _end(self, trial: AskedTrial, outcome: Outcome) -> Status:
        _, began_s = self._in_flight.pop(trial.trial_id)
        self._reported.discard(trial.trial_id)
        now_s = self._now_s()
        actions = self._apply(events.Ended(now_s, trial.trial_id, trial.attempt, outcome, now_s - began_s))
        self._apply(events.Free(now_s, trial.trial_id, trial.attempt))
        return next(action.status for action in actions if isinstance(action, Judged))

    def _check(self, trial: object, values: Mapping[str, object] | None) -> tuple[AskedTrial, float]:
        """Return the trial in flight and its start time, or raise if the trial or the values are invalid."""
        self._check_open()
        if isinstance(trial, bool) or not isinstance(trial, AskedTrial | int):
            raise TypeError(f"trial must be an AskedTrial or its id, got {trial!r}")
        trial_id = trial if isinstance(trial, int) else trial.trial_id
        current, began_s = self._in_flight.get(trial_id, (None, 0.0))
        if current is None or trial not in (current, trial_id):
            known = ", ".join(map(str, self._in_flight)) or "none"
            raise ValueError(
                f"trial {trial_id} is not in flight: it has ended or paused, or was returned by `ask` again. "
                f"In flight: {known}."
            )
        if values is not None:
            scheduler = self._scheduler
            problem = problem_with(values, scheduler.objectives, scheduler.resource_attr, self._settings.constraints)
            if problem is not None:
                raise ValueError(problem)
        return current, began_s

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(
                f"the search {self.name!r} is closed. Resume it with open_search(..., name={self.name!r})."
            )

    def _raise_failure(self) -> None:
        """Raise the error of the scheduler or the searcher, if any."""
        finish = self._finish
        if finish is not None and finish.cause is not None:
            raise finish.cause
        if finish is not None and finish.error is not None and finish.kind in ("scheduler", "searcher"):
            raise SearchFailedError(finish.error)


# Another thread may hold the locks of these searches during a fork.
_open_searches: "weakref.WeakSet[OpenSearch]" = weakref.WeakSet()


def _unlock_in_child() -> None:
    """Replace the locks after a fork, so that calls in the child raise an error instead of blocking."""
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
    """Open a search whose trials run in your own loop: ask for a trial, run it, tell its result.

    If an ask-and-tell experiment of this name exists, it is resumed; `ask` first returns the trials that were in
    flight.

    Args:
        space: dict of names to domains and constants, or a `Space`.
        scheduler: a scheduler such as `ASHA(...)`, or the name of the metric, or several names. With names, every
            trial runs to its end.
        mode: "min" or "max", one for all metrics or one per metric. Only used if `scheduler` is given as names.
        searcher: a searcher, or its name ("random", "forest", ...). None: one is chosen and recorded; a resumed
            experiment keeps it. Only used if `scheduler` is given as names.
        constraints: constraints on every report, such as ["latency_ms <= 20"], if the scheduler has none.
        points_to_evaluate: configurations to try first. Only used if `scheduler` is given as names.
        name: name of the experiment. None: derived from the time.
        stop: the stopping criterion. None: no limit.
        random_seed: random seed of the search. None: the scheduler's, else a random one. A resumed experiment keeps
            its seed.
        warm_start, callbacks: as for `Tuner`. A resumed experiment ignores `warm_start`.

    Raises:
        TypeError, ValueError: invalid arguments, or a space, scheduler or seed that differs from the experiment's.
        RecordError: another process has the experiment open, or its record cannot be read or written.

    >>> with open_search({"x": uniform(0, 1)}, "loss", name="by-hand") as search:
    ...     for _ in range(20):
    ...         trial = search.ask()
    ...         search.tell(trial, (trial.config["x"] - 0.3) ** 2)
    ...     print(search.experiment.best.config)
    """
    space = as_space(space)
    folder_name = new_name("asked", time.time(), os.urandom(8)) if name is None else check_name(name)
    path = experiments_folder() / folder_name
    metric = scheduler if isinstance(scheduler, str | list | tuple) else None
    if metric is not None and searcher is None and points_to_evaluate is None and path.exists():
        scheduler, metric, mode = _recorded_scheduler(path, checked_objectives(metric, mode)), None, "min"
    settings = SearchSettings.create(
        space,
        scheduler if metric is None else None,  # type: ignore[arg-type]  # checked there
        _NO_LIMIT if stop is None else stop,
        metric=metric,
        mode=mode,
        searcher=searcher,
        points_to_evaluate=points_to_evaluate,
        constraints=constraints,
        random_seed=random_seed,
        n_workers=0,
        max_equal_failures=None,  # the program decides what to do about failures
        keep_checkpoints=True,  # they belong to the program
    )
    return OpenSearch(path, settings, stop=stop, seed=random_seed, warm_start=warm_start, callbacks=callbacks)


def _recorded_scheduler(path: Path, objectives: Sequence[Objective]) -> Scheduler:
    """Load the scheduler of an existing experiment. Raise ValueError if its objectives differ."""
    scheduler = load_program(path).scheduler
    if scheduler.objectives != tuple(objectives):
        old, new = (
            " and ".join(f"{objective.metric!r} ({objective.mode})" for objective in group)
            for group in (scheduler.objectives, objectives)
        )
        raise ValueError(f"the experiment {path.name!r} optimizes {old}, so it cannot be resumed with {new}")
    return scheduler
