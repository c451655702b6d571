"""The state of a search, computed from the events of its record.

    events --add--> SearchState --> snapshot(), summary(), news      tables, `fanwise tune ls`
                                --> trials, reports                  data frames, figures, the board

It is the only place that computes counts, the best report, statuses and utilization. There are two modes. A live search
and lists of experiments keep only trials that may still run, the latest that ended, the best report, and sums: memory
and the time of a look do not depend on the number of trials. Analysis (`full=True`) also keeps all trials with their
attempts and all reports, as columns.

A report counts unless it came late, was repeated after a pause, or became void: a trial that resumes from a checkpoint,
other than after a pause, rolls back to the report of that checkpoint.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, islice
from typing import Any, Final, final

from ...base.errors import RecordError
from ...base.text import counted
from ..constraints import checked_constraints, infeasibility, violated, violations_of
from ..schedulers.scheduler import Status
from ..searchers.searcher import Objective
from . import news
from .lines import RecordedEvent
from .news import News
from .snapshot import MAX_ROWS, SearchSnapshot, TrialRow
from .trials import Attempt, Failure, RankedReport, Reports, Trial, worker_time_s
from .utilization import Utilization

_OVER: Final = (Status.COMPLETED, Status.STOPPED, Status.FAILED)
# Statuses of trials that run or may run again. Failed: it waits for its next attempt.
_ALIVE: Final = (Status.IN_PROGRESS, Status.PAUSED, Status.FAILED)


@final
class SearchState:
    """See the module.

    Args:
        meta: the record's: name, metric, mode, constraints, space, n_workers, stop.
        full: keep all trials and reports.

    Attributes:
        trials: by id; those that may still run, or all of them if `full`.
        reports: all reports as columns; empty unless `full`.
        num_trials: the number of trials that have started. num_over: by status, the number of those that are over.
        reason: why no more trials are started, or why the search ended; None: they are.
        finished: whether the search came to its end.
        stop_s: when trials were no longer started. last_s, last_seq: of the last event.
        news: what happened, in lines.
    """

    def __init__(self, meta: Mapping[str, Any], *, full: bool = False) -> None:  # Any: JSON
        self.name = str(meta["name"])
        self.metric, self.mode = str(meta["metric"]), str(meta["mode"])
        self.constraints = checked_constraints(meta.get("constraints", []))
        self._sign = 1.0 if self.mode == "min" else -1.0
        self._config_names = tuple(meta["space"])
        self._limit_s = _limit(meta.get("stop") or {})
        self._utilization = Utilization(int(meta["n_workers"]))
        self._full = full
        self.trials: dict[int, Trial] = {}
        self._alive: dict[int, Trial] = {} if full else self.trials
        self._by_status: dict[Status, dict[int, Trial]] = {status: {} for status in _ALIVE}  # the latest is the last
        self._ended_rows: deque[TrialRow] = deque(maxlen=MAX_ROWS)
        self.reports = Reports()
        self._value_names: dict[str, None] = {}
        self._num_counted = 0  # reports
        self._best: RankedReport | None = None  # of trials that are over
        self._best_row: TrialRow | None = None
        self._best_alive: RankedReport | None = None  # of trials that may still run, or of some that are over
        self.num_trials = 0
        self.num_over = dict.fromkeys(map(str, _OVER), 0)
        self.reason: str | None = None
        self.finished = False
        self.stop_s: float | None = None
        self.last_s = 0.0
        self.last_seq = 0
        self.news = News()
        self._warned_of_clones = False

    # -- events ----------------------------------------------------------------------------------------------------

    def fold(self, events: Iterable[RecordedEvent]) -> None:
        """Take in events, which must follow those taken in before.

        Raises:
            RecordError: an event lacks something or belongs to a trial that never started: the record is damaged.
        """
        for event in events:
            try:
                self.add(event.t_s, event.kind, event.trial_id, event.body)
            except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
                raise RecordError(
                    f"The record is damaged: event {event.seq} ({event.kind!r} of trial {event.trial_id}) does not fit "
                    f"the events before it, or lacks a field ({type(error).__name__}: {error})."
                ) from error
            self.last_seq = event.seq

    def add(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> None:  # Any: JSON
        """Take in one event, which must follow those taken in before."""
        if kind == "report":
            if "decision" in body and "late" not in body:
                self._add_report(t_s, trial_id, body)
        elif kind == "ready":
            self._utilization.ready(_known(trial_id), body["attempt"], t_s)
            if attempt := self._attempt(trial_id, body["attempt"]):
                attempt.ready_s = t_s
        elif kind == "ended":
            self._end(t_s, _known(trial_id), body)
        elif kind == "free":
            if attempt := self._attempt(trial_id, body["attempt"]):
                attempt.free_s = t_s
        elif kind == "resumed":
            self._resume(t_s, body)
        elif kind == "workers":
            self._utilization.workers(body["n_workers"], t_s)
            self.news.add(lambda: f"{counted(body['n_workers'], 'trial')} at a time from now on")
        for action in body.get("actions", ()):
            self._action(action, t_s, body)
        self.last_s = t_s

    def _attempt(self, trial_id: int | None, number: int) -> Attempt | None:
        """Return an attempt; None: it is no longer kept. Raises KeyError."""
        if self._full:
            return self.trials[_known(trial_id)].attempt(number)
        trial = self.trials.get(_known(trial_id))
        return trial.last if trial is not None and trial.last.number == number else None

    def _add_report(self, t_s: float, trial_id: int | None, body: Mapping[str, Any]) -> None:  # Any: JSON
        trial, values = self.trials.get(_known(trial_id)), body["values"]
        if trial is None:
            if self._full:
                raise KeyError(trial_id)
            return
        if self._full:
            attempt = trial.attempt(body["attempt"])
            attempt.last_row = len(self.reports)
            attempt.num_reports += 1
            self.reports.add(trial.trial_id, t_s, body)
        trial.num_reports, trial.values = body["iter"], values
        trial.worker_time_s = trial.earlier_s + body["worker_time"]
        for name in values:
            if name not in self._value_names:
                self._value_names[name] = None
        if "repeated" not in body:
            self._num_counted += 1
            self._rank(trial, values)
        if "checkpoint" in body:
            trial.checkpoint = body["checkpoint"]
            # While the trial repeats reports after a pause, a better report after this one is void after a crash.
            if trial.best_iter <= trial.num_reports:
                trial.best_at_checkpoint = trial.best

    def _rank(self, trial: Trial, values: Mapping[str, Any]) -> None:  # Any: JSON
        value, constraints = values.get(self.metric), self.constraints
        # NaN and infinities say that something went wrong.
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        loss, distance = self._sign * value, 0.0
        if constraints:
            distance = infeasibility(constraints, violations_of(constraints, values))
        if math.isfinite(distance) and (trial.best is None or (distance, loss) < trial.best[:2]):
            violations = violated(constraints, values) if distance else {}
            trial.best_iter = trial.num_reports
            trial.best = RankedReport(
                distance, loss, self._num_counted, value, trial.trial_id, trial.best_iter, trial.config, violations
            )
            if trial.best.is_before(self._best_alive):
                self._best_alive = trial.best

    def _end(self, t_s: float, trial_id: int, body: Mapping[str, Any]) -> None:  # Any: JSON
        threads = tuple(body.get("outcome", {}).get("threads", ()))
        took_s = self._utilization.ended(trial_id, body["attempt"], t_s, body["objective_s"])
        if attempt := self._attempt(trial_id, body["attempt"]):
            trial = self.trials[trial_id]
            attempt.ended_s, attempt.objective_s, attempt.threads = t_s, body["objective_s"], threads
            trial.earlier_s += took_s
            if attempt is trial.last:
                trial.worker_time_s = trial.earlier_s
        for thread in threads:
            self.news.add(partial(news.thread_line, trial_id, thread))

    def _resume(self, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        """A new tuner resumes the search: trials that were running were lost with the previous one."""
        for trial_id, took_s in self._utilization.resumed(self.last_s).items():
            if trial_id in self.trials:
                self.trials[trial_id].earlier_s += took_s
        for trial in self.trials.values():
            attempt = trial.last
            if attempt.ended_s is None:
                attempt.ended_s, attempt.will_retry, attempt.status = self.last_s, True, "Lost"
            if attempt.free_s is None:
                attempt.free_s = attempt.ended_s
        self.finished, self.reason, self.stop_s = False, None, None
        self.news.add(lambda: "the search is resumed")
        if body["n_workers"] is not None:
            self._utilization.workers(body["n_workers"], t_s)
        if body["stop"] is not None:
            self._limit_s = _limit(body["stop"])

    def _action(self, action: Mapping[str, Any], t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        kind = action["action"]
        if kind == "start":
            self._start(action, t_s)
        elif kind == "judged":
            self._judge(action, body)
        elif kind == "stop":
            self.reason = action["reason"]
            self.stop_s = t_s if self.stop_s is None else self.stop_s
            self._utilization.stopped(t_s)
            self.news.add(lambda: f"no more trials are started: {action['reason']}")
        elif kind == "finish":
            self.finished, self.reason = True, action["reason"]

    def _start(self, action: Mapping[str, Any], t_s: float) -> None:  # Any: JSON
        trial_id, from_iter, checkpoint = action["trial"], action.get("from_iter", 0), action.get("checkpoint")
        attempt = Attempt(action["attempt"], action["slot"], t_s, from_iter, checkpoint)
        trial = self._alive.get(trial_id)
        if trial is None:
            if action["attempt"]:
                raise KeyError(f"attempt {action['attempt']} of trial {trial_id}, which never started")
            source, fallback = action.get("source"), action.get("fallback", False)
            trial = Trial(trial_id, action["config"], [attempt], source, fallback, checkpoint)
            self.trials[trial_id] = self._alive[trial_id] = trial
            self.num_trials += 1
        else:
            if trial.status is Status.STOPPED:  # with the search, which was resumed
                self.num_over[Status.STOPPED] -= 1
            if trial.status is not Status.PAUSED:
                self._roll_back(trial, from_iter)
            if self._full:
                trial.attempts.append(attempt)
            else:
                trial.attempts[0] = attempt
        self._set_status(trial, Status.IN_PROGRESS)
        trial.num_reports = from_iter
        self.news.add(lambda: news.start_line(trial, action))
        if "source" in action and "checkpoint" not in action and not self._warned_of_clones:
            self._warned_of_clones = True
            self.news.add(lambda: news.clone_line(trial_id, action["source"]))

    def _roll_back(self, trial: Trial, to_iter: int) -> None:
        """Reports of a trial since its last checkpoint become void."""
        for attempt in trial.attempts:
            attempt.valid_to = to_iter if attempt.valid_to is None else min(attempt.valid_to, to_iter)
        before, trial.best = trial.best, trial.best_at_checkpoint
        if before is not None and before is self._best_alive and trial.best is not before:
            self._best_alive = None
            for one in self._alive.values():
                if one.best is not None and one.best.is_before(self._best_alive):
                    self._best_alive = one.best

    def _judge(self, action: Mapping[str, Any], body: Mapping[str, Any]) -> None:  # Any: JSON
        """An attempt has ended, with a status."""
        trial = self._alive.get(action["trial"])
        if trial is None:
            if self._full:
                raise KeyError(action["trial"])
            return
        attempt = trial.attempt(action["attempt"])
        attempt.status, attempt.will_retry = action["status"], action.get("will_retry", False)
        reason = action.get("reason")
        if reason is not None:
            outcome = body.get("outcome", {})
            attempt.failure = Failure(reason[0], reason[1], outcome.get("traceback"), outcome.get("last_output"))
        self._set_status(trial, Status(action["status"]))
        row = _row(trial, trial.status)
        self.news.add(
            lambda: news.end_line(row, self.metric, reason, will_retry=attempt.will_retry),
            is_failure=trial.status is Status.FAILED,
        )
        if attempt.will_retry or trial.status is Status.PAUSED:
            return
        self.num_over[trial.status] += 1
        # A trial that was stopped with the search may run again after a resume.
        if trial.status is not Status.STOPPED or self.reason is None:
            del self._alive[trial.trial_id]
            self._by_status.get(trial.status, {}).pop(trial.trial_id, None)
        self._ended_rows.append(row)
        if trial.best is not None and trial.best.is_before(self._best):
            self._best, self._best_row = trial.best, row

    def _set_status(self, trial: Trial, status: Status) -> None:
        if trial.status in self._by_status:
            self._by_status[trial.status].pop(trial.trial_id, None)
        trial.status = status
        if status in self._by_status:
            self._by_status[status][trial.trial_id] = trial

    # -- queries ---------------------------------------------------------------------------------------------------

    def best(self) -> RankedReport | None:
        """The best report so far: a feasible one if there is any, else the nearest to that. None: none is finite."""
        alive = self._best_alive
        return alive if alive is not None and alive.is_before(self._best) else self._best

    def alive(self) -> dict[int, tuple[Mapping[str, Any], bool]]:  # Any: JSON
        """The trials that may still run: configuration, and whether it is paused, by id."""
        return {i: (trial.config, trial.status is Status.PAUSED) for i, trial in self._alive.items()}

    def living_status(self, trial_id: int) -> Status | None:
        """The status of a trial that may still run; None: it is over, or has not started."""
        trial = self._alive.get(trial_id)
        if trial is None:
            return None
        is_retried = trial.status is Status.FAILED and self.reason is None
        return Status.IN_PROGRESS if is_retried else trial.status

    def status_of(self, trial: Trial, *, dead: bool = False) -> str:
        """The trial's status; one that waits for its next attempt is in progress as long as trials are started.

        `dead`: the tuner was killed, so that running trials are lost.
        """
        attempt = trial.last
        if attempt.status == Status.IN_PROGRESS or (attempt.will_retry and self.stop_s is None and not self.finished):
            return "Lost" if dead else Status.IN_PROGRESS.value
        return attempt.status

    def utilization(self, now_s: float | None = None) -> float | None:
        """See `Utilization.share`; None takes the time of the last event."""
        return self._utilization.share(self.last_s if now_s is None else now_s)

    def utilization_windows(self) -> list[tuple[float, float, int]]:
        """The time that the utilization counts, up to the last event; see `Utilization.windows`."""
        return self._utilization.windows(self.last_s)

    @property
    def first_ready_s(self) -> float | None:
        """The time at which the first objective began."""
        return self._utilization.first_ready_s

    def worker_time_s(self, trial: Trial, until_s: float = math.inf) -> float:
        """Seconds that the trial spent inside its objective up to `until_s`, all attempts together."""
        return worker_time_s(trial, self.last_s, until_s)

    def summary(self, *, now_s: float | None = None) -> dict[str, Any]:  # Any: JSON
        """Values for lists of experiments, which need not read the events then. `now_s` None: of the last event."""
        best = self.best()
        return {
            "num_trials": self.num_trials,
            "num_running": self._num_running(),
            "num_paused": len(self._by_status[Status.PAUSED]),
            "num_over": dict(self.num_over),
            "best": None if best is None else [best.value, best.trial_id],
            "violated": "" if best is None else best.violated,
            "reason": self.reason,
            "finished": self.finished,
            "last_s": self.last_s if now_s is None else now_s,
        }

    def _num_running(self) -> int:
        return len(self._by_status[Status.IN_PROGRESS]) + (0 if self.reason else len(self._by_status[Status.FAILED]))

    def snapshot(self, *, now_s: float | None = None, dead: bool = False) -> SearchSnapshot:
        """The values of a table, with rows for the latest running, paused and ended trials.

        `dead`: the tuner was killed, so that running trials are lost.
        """
        at_s = self.last_s if now_s is None else now_s
        rows = {row.trial_id: row for row in self._ended_rows}
        running = self._num_running()
        for status in _ALIVE if not self.reason else (Status.IN_PROGRESS, Status.PAUSED):
            for trial in islice(reversed(self._by_status[status].values()), MAX_ROWS):
                row = _row(trial, Status.PAUSED if status is Status.PAUSED else Status.IN_PROGRESS)
                rows[trial.trial_id] = replace(row, status="Lost") if dead and status is not Status.PAUSED else row
        best = self.best()
        if best is not None and best.trial_id not in rows:
            if best.trial_id in self._alive:
                rows[best.trial_id] = _row(self._alive[best.trial_id], self._alive[best.trial_id].status)
            elif self._best_row is not None:
                rows[best.trial_id] = self._best_row
        return SearchSnapshot(
            name=self.name,
            metric=self.metric,
            rows=[rows[trial_id] for trial_id in sorted(rows)],
            config_names=self._config_names,
            value_names=tuple(self._value_names),
            running=0 if dead else running,
            finished=sum(self.num_over.values()),
            completed=self.num_over[Status.COMPLETED],
            failed=self.num_over[Status.FAILED],
            paused=len(self._by_status[Status.PAUSED]),
            lost=running if dead else 0,
            total=self.num_trials,
            best=None if best is None else (best.value, best.trial_id),
            violated="" if best is None else best.violated,
            constraints=list(map(str, self.constraints)),
            elapsed_s=at_s,
            limit_s=self._limit_s,
            utilization=self.utilization(at_s),
        )

    # -- all reports -----------------------------------------------------------------------------------------------

    def counts(self) -> list[bool]:
        """Return True for each report that counts; see the module."""
        void = {
            (trial.trial_id, attempt.number): attempt.valid_to
            for trial, attempt in self.attempts()
            if attempt.valid_to is not None
        }
        reports = self.reports
        counts = [True] * len(reports)
        for row in reports.repeated:
            counts[row] = False
        if void:
            for row, key in enumerate(zip(reports.trial_ids, reports.attempts, strict=True)):
                valid_to = void.get(key)
                if valid_to is not None and reports.iters[row] > valid_to:
                    counts[row] = False
        return counts

    def infeasibilities(self) -> list[float]:
        """The distance of each report from meeting all constraints; 0 if it does."""
        if not self.constraints:
            return [0.0] * len(self.reports)
        names = dict.fromkeys(constraint.metric for constraint in self.constraints)
        rows = self.reports.rows(*names)
        return [infeasibility(self.constraints, violations_of(self.constraints, row)) for row in rows]

    def violated(self, row: int) -> dict[str, float]:
        """The constraints that a report violates, as they are written, and by how much."""
        return violated(self.constraints, {name: column[row] for name, column in self.reports.values.items()})

    def best_rows(self, objective: Objective | None = None) -> dict[int, int]:
        """The row of the best report of each trial with a finite value, by trial id; the first of equal ones.

        Reports that meet all constraints are better than all others; of these the one nearest to that is the best.
        `objective` None: the first.
        """
        objective = objective or Objective(self.metric, "min" if self.mode == "min" else "max")
        column: Sequence[object] = self.reports.values.get(objective.metric) or [None] * len(self.reports)
        best: dict[int, tuple[float, float, int]] = {}
        rows = zip(range(len(column)), self.reports.trial_ids, column, self.infeasibilities(), strict=True)
        for row, trial_id, value, distance in compress(rows, self.counts()):
            if isinstance(value, (int, float)) and math.isfinite(value) and math.isfinite(distance):
                known = best.get(trial_id)
                loss = objective.loss(value)
                if known is None or (distance, loss) < known[:2]:
                    best[trial_id] = (distance, loss, row)
        return {trial_id: row for trial_id, (_, _, row) in best.items()}

    def attempts(self) -> Iterator[tuple[Trial, Attempt]]:
        """Yield all attempts, in order of trials."""
        for trial in self.trials.values():
            for attempt in trial.attempts:
                yield trial, attempt


def _limit(stop: Mapping[str, Any]) -> float | None:  # Any: JSON
    limit_s = stop.get("max_wallclock_time")
    return limit_s if limit_s is not None and math.isfinite(limit_s) else None


def _row(trial: Trial, status: Status) -> TrialRow:
    return TrialRow(
        trial.trial_id, str(status), trial.num_reports or None, trial.config, trial.values or {}, trial.worker_time_s
    )


def _known(trial_id: int | None) -> int:
    if trial_id is None:
        raise KeyError("trial")
    return trial_id
