"""The state of a search, computed from the events of its record.

    events --add_events()--> SearchState --> snapshot(), summary(), news: used by tables and `fanwise tune ls`
                                         --> trials, reports: used by data frames, figures, the board and callbacks

Displays take the counts, the best report, statuses and utilization from here. By default, a state keeps the trials that
may still run, the latest ended trials, the best report, and counts, so that memory does not depend on the number of
ended trials. For analysis, `full=True` also keeps all trials with their attempts, and all reports as columns.

A report counts unless it is late (the trial had ended or been asked to stop), repeats an earlier report after a pause,
or is void. When a trial restarts after a crash or an interruption, its reports after its last checkpoint become void.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, final

from ...base.errors import RecordError
from ...base.text import counted
from ..constraints import checked_constraints, infeasibility_of, violated_constraints, violations_of
from ..core.trials import RankedReport
from ..schedulers.scheduler import Status
from ..searchers.searcher import Objective
from . import news
from .event_codec import RecordedEvent
from .news import News
from .trials import MAX_ROWS, Attempt, Failure, Reports, SearchSnapshot, Trial, TrialRow
from .utilization import Utilization


@final
class SearchState:
    """The state of a search.

    Args:
        meta: metadata of the record: name, metric, mode, constraints, space, n_workers, stop.
        full: keep all trials and reports.

    Attributes:
        trials: the trials that may still run, or all trials if `full`, by id.
        reports: all reports as columns, without late ones; empty unless `full`.
        n_workers, stop: the current number of workers and stopping criterion (as JSON).
        num_trials: number of trials that have started.
        num_ended: number of ended trials by final status.
        stop_reason: why the search starts no more trials, or why it ended. None until then.
        last_s: time of the last event in seconds since the search began.
        last_seq: sequence number of the last event that was added by `add_events`.
        news: lines of text about the events.
    """

    def __init__(self, meta: Mapping[str, Any], *, full: bool = False) -> None:
        self.meta = meta
        self.name = str(meta["name"])
        self.metric, self.mode = str(meta["metric"]), str(meta["mode"])
        self.constraints = checked_constraints(meta.get("constraints", []))
        self._sign = 1.0 if self.mode == "min" else -1.0
        self.n_workers, self.stop = int(meta["n_workers"]), meta.get("stop") or {}
        self.utilization = Utilization(self.n_workers)
        self._full = full
        self.trials: dict[int, Trial] = {}
        # Trials that may still run; the same dict as `trials` unless `full`.
        self._unfinished: dict[int, Trial] = {} if full else self.trials
        self._ended_rows: deque[TrialRow] = deque(maxlen=MAX_ROWS)
        self.reports = Reports()
        self._value_names: dict[str, None] = {}
        self._num_counted = 0  # number of reports that count
        self._best: RankedReport | None = None  # of ended trials
        self._best_row: TrialRow | None = None
        self.num_trials = 0
        self.num_ended = dict.fromkeys(("Completed", "Stopped", "Failed"), 0)
        self.stop_reason: str | None = None
        self.finished = False
        self.last_s = 0.0
        self.last_seq = 0
        self.news = News()
        self._has_warned_of_clones = False

    def add_events(self, events: Iterable[RecordedEvent]) -> None:
        """Add the next events. Raises RecordError if an event does not fit the events before it."""
        for event in events:
            try:
                self.add(event.t_s, event.kind, event.trial_id, event.body)
            except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
                raise RecordError(
                    f"The record is damaged: event {event.seq} ({event.kind!r} of trial {event.trial_id}) does not fit "
                    f"the events before it, or lacks a field ({type(error).__name__}: {error})."
                ) from error
            self.last_seq = event.seq

    def add(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> None:
        """Add the next event. Unlike `add_events`, this does not convert errors to RecordError or update `last_seq`."""
        trial_id = -1 if trial_id is None else trial_id
        if kind == "report":
            if "decision" in body and "late" not in body:
                self._add_report(t_s, trial_id, body)
        elif kind == "ready":
            self.utilization.on_ready(trial_id, body["attempt"], t_s)
            if attempt := self._find_attempt(trial_id, body["attempt"]):
                attempt.ready_s, attempt.host = t_s, body.get("host")
        elif kind == "ended":
            self._end_attempt(t_s, trial_id, body)
        elif kind == "free":
            if attempt := self._find_attempt(trial_id, body["attempt"]):
                attempt.free_s = t_s
        elif kind == "resumed":
            self._resume(t_s, body)
        elif kind == "workers":
            self._set_workers(t_s, body["n_workers"])
            self.news.add(lambda: f"{counted(body['n_workers'], 'trial')} at a time from now on")
        for action in body.get("actions", ()):
            self._add_action(action, t_s, body)
        self.last_s = t_s

    def _find_attempt(self, trial_id: int, number: int) -> Attempt | None:
        """Return the attempt, or None if it is not kept. If `full`, all are kept, so an unknown one raises KeyError."""
        if self._full:
            return self.trials[trial_id].attempt(number)
        trial = self.trials.get(trial_id)
        return trial.last if trial is not None and trial.last.number == number else None

    def _add_report(self, t_s: float, trial_id: int, body: Mapping[str, Any]) -> None:
        trial, values = self.trials.get(trial_id), body["values"]
        if trial is None:
            if self._full:
                raise KeyError(trial_id)
            return
        if self._full:
            attempt = trial.attempt(body["attempt"])
            attempt.last_report_index = len(self.reports)
            attempt.num_reports += 1
            self.reports.add(trial.trial_id, t_s, body)
        trial.last_iter, trial.values = body["iter"], values
        trial.worker_time_s = trial.ended_attempts_s + body["worker_time"]
        for name in values:
            self._value_names.setdefault(name)
        if "repeated" not in body:
            self._num_counted += 1
            self._update_best(trial, values)
        if "checkpoint" in body:
            trial.checkpoint = body["checkpoint"]
            # While a trial repeats reports after a pause, `trial.best` may be later than this checkpoint. A crash would
            # make it void, so it is not the best report at the checkpoint.
            if trial.best is None or trial.best.iter <= trial.last_iter:
                trial.best_at_checkpoint = trial.best

    def _update_best(self, trial: Trial, values: Mapping[str, Any]) -> None:
        value, constraints = values.get(self.metric), self.constraints
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        loss = self._sign * value
        infeasibility = infeasibility_of(constraints, violations_of(constraints, values)) if constraints else 0.0
        if math.isfinite(infeasibility) and (trial.best is None or (infeasibility, loss) < trial.best[:2]):
            violations = violated_constraints(constraints, values) if infeasibility else {}
            number, trial_id, iter = self._num_counted, trial.trial_id, trial.last_iter
            trial.best = RankedReport(infeasibility, loss, number, value, trial_id, iter, trial.config, violations)

    def _end_attempt(self, t_s: float, trial_id: int, body: Mapping[str, Any]) -> None:
        threads = tuple(body.get("outcome", {}).get("threads", ()))
        duration_s = self.utilization.on_end(trial_id, body["attempt"], t_s, body["objective_s"])
        if attempt := self._find_attempt(trial_id, body["attempt"]):
            trial = self.trials[trial_id]
            attempt.ended_s, attempt.objective_s, attempt.threads = t_s, body["objective_s"], threads
            trial.ended_attempts_s += duration_s
            if attempt is trial.last:
                trial.worker_time_s = trial.ended_attempts_s
        for thread in threads:
            self.news.add(partial(news.thread_line, trial_id, thread))

    def _resume(self, t_s: float, body: Mapping[str, Any]) -> None:
        """Mark the running attempts as lost, because they ended with the previous tuner."""
        for trial_id, duration_s in self.utilization.on_resume(self.last_s).items():
            if trial_id in self.trials:
                self.trials[trial_id].ended_attempts_s += duration_s
        for trial in self.trials.values():
            attempt = trial.last
            if attempt.ended_s is None:
                attempt.ended_s, attempt.will_retry, attempt.status = self.last_s, True, "Lost"
            if attempt.free_s is None:
                attempt.free_s = attempt.ended_s
        self.finished, self.stop_reason = False, None
        self.news.add(lambda: "the search is resumed")
        if body["n_workers"] is not None:
            self._set_workers(t_s, body["n_workers"])
        if body["stop"] is not None:
            self.stop = body["stop"]

    def _set_workers(self, t_s: float, n_workers: int) -> None:
        self.n_workers = n_workers
        self.utilization.on_workers(n_workers, t_s)

    def _add_action(self, action: Mapping[str, Any], t_s: float, body: Mapping[str, Any]) -> None:
        kind = action["action"]
        if kind == "start":
            self._start(action, t_s)
        elif kind == "judged":  # SetStatus in the record format
            self._set_outcome(action, body)
        elif kind == "stop":
            self.stop_reason = action["reason"]
            self.utilization.on_stop(t_s)
            self.news.add(lambda: f"no more trials are started: {action['reason']}")
        elif kind == "finish":
            self.finished, self.stop_reason = True, action["reason"]

    def _start(self, action: Mapping[str, Any], t_s: float) -> None:
        trial_id, from_iter, checkpoint = action["trial"], action.get("from_iter", 0), action.get("checkpoint")
        attempt = Attempt(action["attempt"], action["slot"], t_s, from_iter, checkpoint)
        trial = self._unfinished.get(trial_id)
        if trial is None:
            if action["attempt"]:
                raise KeyError(f"attempt {action['attempt']} of trial {trial_id}, which never started")
            source, fallback = action.get("source"), action.get("fallback", False)
            trial = Trial(trial_id, action["config"], [attempt], source, fallback, checkpoint)
            self.trials[trial_id] = self._unfinished[trial_id] = trial
            self.num_trials += 1
        else:
            if trial.status is Status.STOPPED:  # the trial was stopped with the search, which was then resumed
                self.num_ended[Status.STOPPED] -= 1
            if trial.status is not Status.PAUSED:  # the reports after the checkpoint become void
                trial.best = trial.best_at_checkpoint
                for earlier in trial.attempts:
                    earlier.valid_to = from_iter if earlier.valid_to is None else min(earlier.valid_to, from_iter)
            if self._full:
                trial.attempts.append(attempt)
            else:
                trial.attempts[0] = attempt
        trial.status = Status.IN_PROGRESS
        trial.last_iter = from_iter
        self.news.add(lambda: news.start_line(trial, action))
        if "source" in action and "checkpoint" not in action and not self._has_warned_of_clones:
            self._has_warned_of_clones = True
            self.news.add(lambda: news.clone_line(trial_id, action["source"]))

    def _set_outcome(self, action: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        trial = self._unfinished.get(action["trial"])
        if trial is None:
            if self._full:
                raise KeyError(action["trial"])
            return
        attempt = trial.attempt(action["attempt"])
        attempt.status, attempt.will_retry = action["status"], action.get("will_retry", False)
        failure_reason = action.get("reason")
        if failure_reason is not None:
            outcome = body.get("outcome", {})
            kind, text = failure_reason
            attempt.failure = Failure(kind, text, outcome.get("traceback"), outcome.get("last_output"))
        trial.status = Status(action["status"])
        row = _table_row(trial, str(trial.status))
        self.news.add(
            lambda: news.end_line(row, self.metric, failure_reason, will_retry=attempt.will_retry),
            is_failure=trial.status is Status.FAILED,
        )
        if attempt.will_retry or trial.status is Status.PAUSED:
            return
        self.num_ended[trial.status] += 1
        self._ended_rows.append(row)
        if trial.status is Status.STOPPED and self.stop_reason is not None:
            return  # the trial was stopped with the search, and may run again after a resume
        del self._unfinished[trial.trial_id]
        if trial.best is not None and (self._best is None or trial.best < self._best):
            self._best, self._best_row = trial.best, row

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return tuple(Objective(str(metric), mode) for metric, mode in self.meta["objectives"])

    def best(self) -> RankedReport | None:
        """Return the best feasible report. If none is feasible, return the least infeasible one, or None."""
        bests = [trial.best for trial in self._unfinished.values() if trial.best is not None]
        return min(bests if self._best is None else [self._best, *bests], default=None)

    def unfinished_status(self, trial_id: int) -> Status | None:
        """Return the status of a trial that may still run, or None if the trial has ended or has not started."""
        trial = self._unfinished.get(trial_id)
        return None if trial is None else self._current_status(trial)

    def _current_status(self, trial: Trial) -> Status:
        waits_for_retry = trial.status is Status.FAILED and self.stop_reason is None
        return Status.IN_PROGRESS if waits_for_retry else trial.status

    def status_of(self, trial: Trial, *, is_tuner_killed: bool = False) -> str:
        """Return the value of a `Status`, or "Lost" for trials that were running if `is_tuner_killed`.

        A trial that waits for a retry is in progress until the search stops starting trials.
        """
        attempt = trial.last
        if attempt.status == Status.IN_PROGRESS or (attempt.will_retry and self.stop_reason is None):
            return "Lost" if is_tuner_killed else Status.IN_PROGRESS.value
        return attempt.status

    def summary(self, *, now_s: float | None = None) -> dict[str, Any]:
        """Return the content of `summary.json`. Listing experiments reads this file instead of the events."""
        running, paused = self._running_and_paused()
        best = self.best()
        return {
            "num_trials": self.num_trials,
            "num_running": len(running),
            "num_paused": len(paused),
            "num_over": dict(self.num_ended),
            "best": None if best is None else [best.value, best.trial_id],
            "violated": "" if best is None else best.violated,
            "reason": self.stop_reason,
            "finished": self.finished,
            "last_s": self.last_s if now_s is None else now_s,
        }

    def _running_and_paused(self) -> tuple[list[Trial], list[Trial]]:
        """Return (trials that run or wait for their next attempt, paused trials), both in the order of first starts."""
        running, paused = list[Trial](), list[Trial]()
        for trial in self._unfinished.values():
            status = self._current_status(trial)
            if status is Status.IN_PROGRESS:
                running.append(trial)
            elif status is Status.PAUSED:
                paused.append(trial)
        return running, paused

    def snapshot(self, *, now_s: float | None = None, is_tuner_killed: bool = False) -> SearchSnapshot:
        """Return the data that progress tables show: counts, and rows of the best and the latest trials.

        `is_tuner_killed`: running trials are lost.
        """
        at_s, limit_s = self.last_s if now_s is None else now_s, self.stop.get("max_wallclock_time")
        running, paused = self._running_and_paused()
        rows = {row.trial_id: row for row in self._ended_rows}
        running_status = "Lost" if is_tuner_killed else "InProgress"
        rows |= {trial.trial_id: _table_row(trial, running_status) for trial in running[-MAX_ROWS:]}
        rows |= {trial.trial_id: _table_row(trial, "Paused") for trial in paused[-MAX_ROWS:]}
        best = self.best()
        if best is not None and best.trial_id not in rows:
            trial = self._unfinished.get(best.trial_id)
            best_row = self._best_row if trial is None else _table_row(trial, str(trial.status))
            if best_row is not None:
                rows[best.trial_id] = best_row
        return SearchSnapshot(
            name=self.name,
            metric=self.metric,
            rows=[rows[trial_id] for trial_id in sorted(rows)],
            config_names=tuple(self.meta["space"]),
            value_names=tuple(self._value_names),
            running=0 if is_tuner_killed else len(running),
            finished=sum(self.num_ended.values()),
            completed=self.num_ended[Status.COMPLETED],
            failed=self.num_ended[Status.FAILED],
            paused=len(paused),
            lost=len(running) if is_tuner_killed else 0,
            total=self.num_trials,
            best=None if best is None else (best.value, best.trial_id),
            violated="" if best is None else best.violated,
            constraints=list(map(str, self.constraints)),
            elapsed_s=at_s,
            limit_s=limit_s if limit_s is not None and math.isfinite(limit_s) else None,
            utilization=self.utilization.share(at_s),
        )

    def counted_mask(self) -> list[bool]:
        """Return for each report whether it counts."""
        last_valid_iters = {
            (trial.trial_id, attempt.number): attempt.valid_to
            for trial, attempt in self.attempts()
            if attempt.valid_to is not None
        }
        reports = self.reports
        mask = [True] * len(reports)
        for index in reports.repeated:
            mask[index] = False
        if last_valid_iters:
            for index, key in enumerate(zip(reports.trial_ids, reports.attempts, strict=True)):
                valid_to = last_valid_iters.get(key)
                if valid_to is not None and reports.iters[index] > valid_to:
                    mask[index] = False
        return mask

    def counted_indices(self) -> dict[int, list[int]]:
        """Return the indices of the reports that count, by trial id. Trials without such a report are left out."""
        indices: dict[int, list[int]] = {}
        for index, trial_id in compress(enumerate(self.reports.trial_ids), self.counted_mask()):
            indices.setdefault(trial_id, []).append(index)
        return indices

    def infeasibilities(self) -> list[float]:
        """Return the infeasibility of each report, 0 if it is feasible."""
        if not self.constraints:
            return [0.0] * len(self.reports)
        columns = {constraint.metric: self.column(constraint.metric) for constraint in self.constraints}
        all_values = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return [infeasibility_of(self.constraints, violations_of(self.constraints, values)) for values in all_values]

    def counted_reports(self, *names: str) -> Iterator[tuple[int, float, tuple[Any, ...]]]:
        """Yield (index, infeasibility, values of these names) for each report that counts."""
        values = zip(*map(self.column, names), strict=True)
        reports = zip(range(len(self.reports)), self.infeasibilities(), values, strict=True)
        return compress(reports, self.counted_mask())

    def column(self, name: str) -> Sequence[Any]:
        """Return this value of each report, or None where a report has no such value."""
        return self.reports.values.get(name) or [None] * len(self.reports)

    def attempts(self) -> Iterator[tuple[Trial, Attempt]]:
        """Yield all attempts with their trials, in order of trials."""
        for trial in self.trials.values():
            for attempt in trial.attempts:
                yield trial, attempt


def _table_row(trial: Trial, status: str) -> TrialRow:
    iter, values = trial.last_iter or None, trial.values or {}
    return TrialRow(trial.trial_id, status, iter, trial.config, values, trial.worker_time_s)
