"""The ask-and-tell interface: a search for programs that run trials in their own loop.

    method     events for the state machine                        result
    ask()      TrialRequested, Ready                               AskedTrial, or None
    report()   Reported; after STOP or PAUSE also Ended, Free      Decision
    tell()     Reported (if there is a value), Ended, Free         Status
    fail()     Ended, Free

An ask-and-tell search uses the same state machine, searchers and record as `Tuner`, but no worker processes. Every call
commits its effects to disk before it returns. If the program is killed and reopens the search, `ask` returns the trials
in flight again. Ctrl-C is delayed until the end of a call, so that the record always agrees with the decisions.
"""

import logging
import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ..base.errors import ClosedError
from ..base.home import experiments_folder
from ..base.uninterrupted import Uninterrupted
from ..pool.reporting import plain_metrics
from .callbacks.dispatcher import CallbackDispatcher, checked_callbacks
from .callbacks.search_events import SearchEnded
from .core import events
from .core.actions import Action, Answer, Finish, SetStatus, Start, Suggest
from .core.events import Event, Outcome
from .core.suggestions import call_searcher
from .experiment import Experiment
from .program import ASK_AND_TELL, load_program, save_program
from .record.event_file import read_meta
from .record.log import Record, Recorder
from .record.names import check_name, new_name
from .record.replay import restore
from .record.state import SearchState
from .runtime.commands import complete_enqueued
from .schedulers.scheduler import Decision, Scheduler, Status, checked_objectives
from .search_settings import SearchSettings, as_space
from .searchers.searcher import Mode, Objective, Searcher
from .space import Space, object_categories
from .stopping import StoppingCriterion, limits_of
from .values import with_objects
from .warm_start import WarmStart, read_warm_start

_log = logging.getLogger("fanwise")

_NO_LIMIT = StoppingCriterion(max_wallclock_time=float("inf"))


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A trial to run now.

    Args:
        config: the configuration, including constants.
        attempt: number of earlier attempts of this trial.
        from_iter: number of the report after which this attempt continues. The next report has number from_iter + 1.
        checkpoint: the `checkpoint` argument of report number `from_iter` of this trial, or of the trial that this one
            was cloned from. None: start from scratch.
    """

    trial_id: int
    config: Mapping[str, Any]
    attempt: int = 0
    from_iter: int = 0
    checkpoint: str | None = None


@dataclass(slots=True)
class _TrialInFlight:
    """A trial from `ask` that has not ended. `began_s`: time of the search when `ask` returned the trial."""

    trial: AskedTrial
    began_s: float
    has_reported: bool = False


@final
class OpenSearch(AbstractContextManager["OpenSearch"]):
    """An ask-and-tell search, returned by `open_search`.

    Methods can be called from any thread; concurrent calls run one at a time. All methods block until the record is on
    disk, and `ask` until the searcher has answered. Methods other than `close` raise ClosedError after the search was
    closed. A `with` block closes the search at its end.

    Attributes:
        name: name of the experiment.
        path: the experiment's folder.
        seed: the random seed in use.
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
        """Create the experiment, or resume it if `path` exists. `seed` must then equal the recorded one, or be None."""
        self.path = path
        self.name = path.name
        self._settings = settings
        self._objects = object_categories(settings.space)
        self._scheduler = settings.copy_scheduler()
        self._in_flight: dict[int, _TrialInFlight] = {}  # by trial id
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._is_closed = False
        self._finish: Finish | None = None
        checked_callbacks(callbacks)
        is_resumed = path.exists()
        earlier_trials, summaries = ([], []) if is_resumed else read_warm_start(warm_start, settings)
        with Uninterrupted():
            if is_resumed:
                meta = read_meta(path)
                settings.check_equal(meta, objective=ASK_AND_TELL, seed=seed)
                self._settings = SearchSettings.from_json(meta, settings.scheduler, settings.space)
                self._record = Record.reopen(path)
            else:
                meta = {**settings.new_metadata(self.name, ASK_AND_TELL), "warm_start": summaries}
                self._record = Record.create(path, meta)
            try:
                if not is_resumed:
                    save_program(path, None, settings.scheduler, settings.space)
                self._begin(SearchState(meta), callbacks, is_resumed=is_resumed)
                for event in earlier_trials:
                    self._apply(event)
                if is_resumed:
                    new_stop = None if stop is None else limits_of(stop)
                    self._apply(events.Resumed(self._now_s(), stop=new_stop, versions=self._settings.versions()))
                else:
                    self._apply(events.Begin(self._now_s()))
                self._record.commit()
            except BaseException:
                self._record.close()
                raise

    def _begin(self, state: SearchState, callbacks: Sequence[object], *, is_resumed: bool) -> None:
        """Create or restore the state machine, and start the callbacks. `state`: the empty state of a new search."""
        for line in self._record.notices:
            _log.warning("%s: %s", self.name, line)
        settings, scheduler = self._settings, self._scheduler
        self.seed = settings.seed
        self._core = settings.new_core(scheduler)
        if is_resumed:
            state = restore(self.path, self._core, scheduler.searcher)
        self._zero_s = time.monotonic() - state.last_s  # monotonic time at time 0 of the search
        self._dispatcher = CallbackDispatcher(callbacks, state)
        state.news.on_line = self._dispatcher.on_line
        self._recorder = Recorder(self._record, state, self._dispatcher.on_event)
        self._dispatcher.start(settings.start_event(self.name, self.path, is_resumed=is_resumed))

    @property
    def experiment(self) -> Experiment:
        """The experiment with the results of all calls so far."""
        return Experiment(self.path)

    @property
    def finished(self) -> bool:
        """True if the search has ended. `ask` then returns None or raises."""
        return self._finish is not None

    def ask(self) -> AskedTrial | None:
        """Return the next trial to run, new or resumed. Several trials may be in flight at a time.

        Return None if the search is over or starts no more trials, or if the scheduler waits for the result of a trial
        in flight. If no trial is in flight, None means that the search is over.

        Raises:
            Exception: an exception of the scheduler or its searcher, in its original type.
        """
        self._check_open()
        with self._lock, Uninterrupted():
            trial = self._next_trial()
            self._record.commit()
        finish = self._finish
        if trial is None and finish is not None and finish.kind in ("scheduler", "searcher"):
            finish.raise_error()
        return trial

    def report(self, trial: AskedTrial | int, /, *, checkpoint: str | None = None, **metrics: Any) -> Decision:
        """Report values of a trial and return the decision. Stop running the trial after STOP or PAUSE.

        Args:
            trial: the trial returned by `ask`, or its id.
            checkpoint: any name or path from which you can resume. When the trial is resumed, `ask` returns it in
                `AskedTrial.checkpoint`.
            metrics: reported values by name, including the scheduler's metric. Strings are kept as notes.

        Raises:
            ValueError: the trial is not in flight, or the metric is missing or not a number.
            TypeError: a value is neither a number nor a string.
        """
        values = plain_metrics(metrics)
        self._check_open()
        with self._lock, Uninterrupted():
            in_flight = self._find_in_flight(trial, values)
            decision = self._report(in_flight, values, checkpoint)
            if decision is not Decision.CONTINUE:
                self._end(in_flight, Outcome("stopped"))
            self._record.commit()
            return decision

    def tell(self, trial: AskedTrial | int, value: float | Mapping[str, Any] | None = None) -> Status:
        """Finish a trial that ran to its end, and return its status.

        The status is COMPLETED, unless the scheduler decided to stop or pause the trial at its last report.

        Args:
            trial: the trial returned by `ask`, or its id.
            value: a last report: the metric, or a dict that contains it. None: no further report.

        Raises:
            ValueError: as `report`, or `value` is None and the trial has reported nothing.
            TypeError: a value is neither a number nor a string.
        """
        metric = self._scheduler.objectives[0].metric
        values = None if value is None else plain_metrics(value if isinstance(value, Mapping) else {metric: value})
        self._check_open()
        with self._lock, Uninterrupted():
            in_flight = self._find_in_flight(trial, values)
            if values is not None:
                self._report(in_flight, values)
            elif not in_flight.trial.from_iter and not in_flight.has_reported:
                raise ValueError(
                    f"trial {in_flight.trial.trial_id} has reported nothing: pass its result with "
                    f"tell(trial, value), or call fail(trial, error) if it failed"
                )
            status = self._end(in_flight, Outcome("returned"))
            self._record.commit()
            return status

    def fail(self, trial: AskedTrial | int, error: BaseException | str) -> None:
        """Finish a trial that failed. Raise ValueError if the trial is not in flight."""
        if isinstance(error, str):
            outcome = Outcome("exception", error)
        else:
            text = "".join(traceback.format_exception(error))
            outcome = Outcome("exception", f"{type(error).__name__}: {error}", text)
        self._check_open()
        with self._lock, Uninterrupted():
            self._end(self._find_in_flight(trial, None), outcome)
            self._record.commit()

    def enqueue(self, config: Mapping[str, object]) -> None:
        """Use this configuration for the next new trial. Missing values are drawn at random.

        Raises:
            TypeError, ValueError: config is not a dict or not in the space, or the search starts no new trials.
        """
        self._check_open()
        with self._lock, Uninterrupted():
            complete_config = complete_enqueued(config, self._recorder.state, self._settings.space, self.seed)
            self._apply(events.Enqueued(self._now_s(), complete_config))
            self._record.commit()

    def close(self) -> None:
        """Suspend the search and close its record. Idempotent. A reopened search starts with the trials in flight."""
        if self._is_closed:
            return
        self._check_open()
        with self._lock, Uninterrupted():
            if self._is_closed:
                return
            try:
                if self._finish is None:
                    self._apply(events.Interrupt(self._now_s(), "closed"))
                for in_flight in list(self._in_flight.values()):
                    self._end(in_flight, Outcome("stopped"))
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

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        """Raise ClosedError if the search is closed. Must be called before the lock is acquired."""
        if os.getpid() != self._pid:  # another thread may have held the lock during the fork
            raise ClosedError(
                f"the search {self.name!r} belongs to the process that this one was forked from. "
                f"Call its methods in that process only."
            )
        if self._is_closed:
            raise ClosedError(
                f"the search {self.name!r} is closed. Resume it with open_search(..., name={self.name!r})."
            )

    def _now_s(self) -> float:
        return time.monotonic() - self._zero_s

    def _apply(self, event: Event) -> list[Action]:
        all_actions, queue = list[Action](), [event]
        for event in queue:
            actions = self._core.handle(event)
            self._recorder.write(event, actions)
            all_actions += actions
            requests = [action for action in actions if isinstance(action, Suggest)]
            queue += [call_searcher(self._scheduler.searcher, request, event.now_s) for request in requests]
        self._finish = next((action for action in all_actions if isinstance(action, Finish)), self._finish)
        return all_actions

    def _next_trial(self) -> AskedTrial | None:
        now_s = self._now_s()
        tick_s = self._core.next_tick_s
        if tick_s is not None and tick_s <= now_s:
            self._apply(events.Tick(now_s))
        if self._finish is not None:
            return None
        actions = self._apply(events.TrialRequested(self._now_s()))
        start = next((action for action in actions if isinstance(action, Start)), None)
        if start is None:
            return None
        config = with_objects(start.config, self._objects)
        trial = AskedTrial(start.trial_id, config, start.attempt, start.from_iter, start.checkpoint)
        now_s = self._now_s()
        self._in_flight[trial.trial_id] = _TrialInFlight(trial, now_s)
        self._apply(events.Ready(now_s, trial.trial_id, trial.attempt, os.getpid(), 0.0, "asked"))
        return trial

    def _report(
        self, in_flight: _TrialInFlight, values: Mapping[str, object], checkpoint: str | None = None
    ) -> Decision:
        now_s, trial = self._now_s(), in_flight.trial
        in_flight.has_reported = True
        objective_s = now_s - in_flight.began_s
        event = events.Reported(now_s, trial.trial_id, trial.attempt, values, objective_s, checkpoint)
        answer = self._apply(event)[0]
        assert isinstance(answer, Answer), "the values are valid"
        return answer.decision

    def _end(self, in_flight: _TrialInFlight, outcome: Outcome) -> Status:
        now_s, trial = self._now_s(), in_flight.trial
        del self._in_flight[trial.trial_id]
        objective_s = now_s - in_flight.began_s
        actions = self._apply(events.Ended(now_s, trial.trial_id, trial.attempt, outcome, objective_s))
        self._apply(events.Free(now_s, trial.trial_id, trial.attempt))
        return next(action.status for action in actions if isinstance(action, SetStatus))

    def _find_in_flight(self, trial: object, values: Mapping[str, object] | None) -> _TrialInFlight:
        """Return the trial in flight. Raise TypeError or ValueError if the trial or the values are invalid."""
        if isinstance(trial, bool) or not isinstance(trial, AskedTrial | int):
            raise TypeError(f"trial must be an AskedTrial or its id, got {trial!r}")
        trial_id = trial if isinstance(trial, int) else trial.trial_id
        in_flight = self._in_flight.get(trial_id)
        if in_flight is None or trial not in (in_flight.trial, trial_id):
            trial_ids = ", ".join(map(str, self._in_flight)) or "none"
            raise ValueError(
                f"trial {trial_id} is not in flight: it has ended or paused, or the argument is an earlier attempt of "
                f"a trial that `ask` has returned again. Trials in flight: {trial_ids}."
            )
        if values is not None and (problem := self._core.problem_with(values)) is not None:
            raise ValueError(problem)
        return in_flight


def open_search(
    space: Space | Mapping[str, Any],
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
    """Open a search whose trials run in your own loop. Ask for a trial, run it, and tell its result.

    If an ask-and-tell experiment of this name exists, it is resumed. `ask` then first returns the trials that were in
    flight. A resumed experiment keeps its searcher and seed, and ignores `warm_start`. The arguments not listed here
    are those of `Tuner`.

    Args:
        scheduler: a scheduler such as `ASHA(...)`, or the name of the metric, or several names. With names, every
            trial runs to its end, and mode, searcher and points_to_evaluate apply.
        name: name of the experiment. None: derived from the time.
        stop: the stopping criterion. None: no limit or, for a resumed experiment, the last criterion.

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
        scheduler if metric is None else None,  # type: ignore[arg-type]  # `create` raises TypeError for other types
        _NO_LIMIT if stop is None else stop,
        metric=metric,
        mode=mode,
        searcher=searcher,
        points_to_evaluate=points_to_evaluate,
        constraints=constraints,
        random_seed=random_seed,
        n_workers=0,
        max_equal_failures=None,  # the program decides what to do about failures
        keep_checkpoints=True,  # the program deletes its own checkpoints
    )
    return OpenSearch(path, settings, stop=stop, seed=random_seed, warm_start=warm_start, callbacks=callbacks)


def _recorded_scheduler(path: Path, objectives: Sequence[Objective]) -> Scheduler:
    """Load the scheduler of an existing experiment. Raise ValueError if its objectives differ."""
    _, scheduler, _ = load_program(path)
    if scheduler.objectives != tuple(objectives):
        old, new = (
            " and ".join(f"{objective.metric!r} ({objective.mode})" for objective in group)
            for group in (scheduler.objectives, objectives)
        )
        raise ValueError(f"the experiment {path.name!r} optimizes {old}, so it cannot be resumed with {new}")
    return scheduler
