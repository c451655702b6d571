"""What the rows of a record add up to for people who watch a search: bounded, whatever the number of trials.

    rows --fold--> Progress --news()--> lines            what happened since the last look
                            --snapshot()--> SearchSnapshot

The same fold serves the live table, `fanwise tune ls | show | watch` and the summary in the record. It keeps the trials
that run, the latest that ended, the best one, and sums. Text of users and trials is made printable here. A look costs
the same with ten trials and with a million that run or are paused: a tuner looks four times a second.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, final

from ...base.text import counted, printable
from ..constraints import checked_constraints, format_violations, infeasibility, violated, violations_of
from ..schedulers.base import Status
from .snapshot import MAX_ROWS, SearchSnapshot, TrialRow
from .utilisation import Utilisation

# What is told between two looks.
_MOST_NEWS = 20
_OVER = (Status.COMPLETED, Status.STOPPED, Status.FAILED)
# What a trial may be that runs or may run again. Failed: it waits for its next attempt.
_ALIVE = (Status.IN_PROGRESS, Status.PAUSED, Status.FAILED)


class Ranked(NamedTuple):
    """A report and where it stands: the smallest is the best, of equals the first. `violated`: in words, "" if none."""

    infeasibility: float
    loss: float
    number: int
    value: float
    trial_id: int
    config: Mapping[str, Any]  # Any: JSON
    violated: str

    def is_before(self, other: "Ranked | None") -> bool:
        return other is None or self[:3] < other[:3]


@dataclass(slots=True)
class _Trial:
    """A trial that runs, or may run again."""

    trial_id: int
    config: Mapping[str, Any]  # Any: JSON
    attempt: int = 0
    iter: int = 0
    values: Mapping[str, Any] | None = None  # Any: JSON
    worker_time_s: float | None = None
    before_s: float = 0.0  # inside the objective, in earlier attempts
    status: Status = Status.IN_PROGRESS
    best: Ranked | None = None
    best_iter: int = 0
    best_at_checkpoint: Ranked | None = None


@final
class Progress:
    """See the module. `meta` is the record's: name, metric, mode, constraints, space, n_workers, stop.

    Attributes:
        on_line: is called with every line of the news at once, and whether it tells of a failure.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:  # Any: JSON
        self._name = str(meta["name"])
        self._metric = str(meta["metric"])
        self._sign = 1.0 if meta["mode"] == "min" else -1.0
        self._constraints = checked_constraints(meta.get("constraints", []))
        self._config_names = tuple(meta["space"])
        self._limit_s = _limit(meta.get("stop") or {})
        self._utilisation = Utilisation(int(meta["n_workers"]))
        self._rows: deque[TrialRow] = deque(maxlen=MAX_ROWS)
        self._trials: dict[int, _Trial] = {}
        # Of these, by what they are; who came to it last is the last.
        self._by_status: dict[Status, dict[int, _Trial]] = {status: {} for status in _ALIVE}
        self._best_alive: Ranked | None = None  # the best of all that trials have now, and maybe of some that are over
        self._value_names: dict[str, None] = {}
        self._best: Ranked | None = None  # of trials that are over
        self._best_row: TrialRow | None = None
        self._num_reports = 0
        self.num_trials = 0
        self.num_over = dict.fromkeys(map(str, _OVER), 0)
        self.reason: str | None = None
        self.finished = False
        self.last_s = 0.0
        self._news: list[str] = []
        self._news_left_out = 0
        self._told_of_scratch = False
        self.on_line: Callable[[str, bool], None] | None = None

    # -- rows ------------------------------------------------------------------------------------------------------

    def fold(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> None:  # Any: JSON
        """Take in one row, which must follow those taken in before."""
        if kind == "report":
            self._report(trial_id, body)
        elif kind == "ready" and trial_id is not None:
            self._utilisation.ready(trial_id, body["attempt"], t_s)
        elif kind == "ended" and trial_id is not None:
            self._ended(trial_id, t_s, body)
        elif kind == "resumed":
            self._resumed()
            self._settings(t_s, body)
        for order in body.get("orders", ()):
            self._order(order, t_s)
        self.last_s = t_s

    def _report(self, trial_id: int | None, body: Mapping[str, Any]) -> None:  # Any: JSON
        trial = None if trial_id is None else self._trials.get(trial_id)
        if trial is None or "rejected" in body or "late" in body:
            return
        values = body["values"]
        trial.iter, trial.values = body["iter"], values
        trial.worker_time_s = trial.before_s + body["worker_time"]
        for name in values:
            if name not in self._value_names:
                self._value_names[name] = None
        if "repeated" not in body:
            self._num_reports += 1
            self._rank(trial, values)
        # On the way there again a better report beyond is void after a crash.
        if "checkpoint" in body and trial.best_iter <= trial.iter:
            trial.best_at_checkpoint = trial.best

    def _rank(self, trial: _Trial, values: Mapping[str, Any]) -> None:  # Any: JSON
        value, bounds = values.get(self._metric), self._constraints
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        loss, beyond = self._sign * value, 0.0
        if bounds:
            beyond = infeasibility(bounds, violations_of(bounds, values))
        if math.isfinite(beyond) and (trial.best is None or (beyond, loss) < trial.best[:2]):
            words = format_violations(violated(bounds, values)) if beyond else ""
            trial.best = Ranked(beyond, loss, self._num_reports, value, trial.trial_id, trial.config, words)
            trial.best_iter = trial.iter
            if trial.best.is_before(self._best_alive):
                self._best_alive = trial.best

    def _ended(self, trial_id: int, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        took_s = self._utilisation.ended(trial_id, body["attempt"], t_s, body["objective_s"])
        trial = self._trials.get(trial_id)
        if trial is not None and trial.attempt == body["attempt"]:
            trial.before_s += took_s
            trial.worker_time_s = trial.before_s
        for thread in body.get("outcome", {}).get("threads", ()):
            self._tell(partial(_thread_line, trial_id, thread))

    def _settings(self, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        if body["n_workers"] is not None:
            self._utilisation.workers(body["n_workers"], t_s)
        if body["stop"] is not None:
            self._limit_s = _limit(body["stop"])

    def _resumed(self) -> None:
        for trial_id, took_s in self._utilisation.resumed(self.last_s).items():
            if trial_id in self._trials:
                self._trials[trial_id].before_s += took_s
        self.finished, self.reason = False, None
        self._tell(lambda: "the search goes on")

    def _order(self, order: Mapping[str, Any], t_s: float) -> None:  # Any: JSON
        what = order["order"]
        if what == "start":
            self._start(order)
        elif what == "judged":
            self._judged(order)
        elif what == "stop":
            self.reason = order["reason"]
            self._utilisation.stopped(t_s)
            self._tell(lambda: f"no more trials are started: {order['reason']}")
        elif what == "finish":
            self.finished, self.reason = True, order["reason"]

    def _start(self, order: Mapping[str, Any]) -> None:  # Any: JSON
        trial_id = order["trial"]
        trial = self._trials.get(trial_id)
        if trial is None:
            if order["attempt"]:
                raise KeyError(f"attempt {order['attempt']} of trial {trial_id}, which never started")
            trial = self._trials[trial_id] = _Trial(trial_id, order["config"])
            self.num_trials += 1
        else:
            if trial.status is Status.STOPPED:  # with the search, which goes on
                self.num_over[Status.STOPPED] -= 1
            if trial.status is not Status.PAUSED:
                self._take_back(trial)
            trial.attempt = order["attempt"]
        self._move(trial, Status.IN_PROGRESS)
        trial.iter = order.get("from_iter", 0)
        self._tell(lambda: _start_line(trial, order))
        if "source" in order and "checkpoint" not in order and not self._told_of_scratch:
            self._told_of_scratch = True
            self._tell(
                lambda: (
                    f"trial {order['source']} has saved no checkpoint, so its clone, trial {trial_id}, starts from "
                    f"scratch; save one with report(..., checkpoint=save). This is said once."
                )
            )

    def _judged(self, order: Mapping[str, Any]) -> None:  # Any: JSON
        trial = self._trials.get(order["trial"])
        if trial is None:
            return
        self._move(trial, Status(order["status"]))
        will_retry = order.get("will_retry", False)
        row = _row(trial, trial.status)
        self._tell(
            lambda: _ending_line(row, self._metric, order.get("reason"), will_retry=will_retry),
            is_failure=trial.status is Status.FAILED,
        )
        if will_retry or trial.status is Status.PAUSED:
            return
        self.num_over[trial.status] += 1
        # A trial that was stopped with the search may go on with it: it is kept until its attempt begins, or for good.
        if trial.status is not Status.STOPPED or self.reason is None:
            del self._trials[trial.trial_id]
            self._by_status.get(trial.status, {}).pop(trial.trial_id, None)
        self._rows.append(row)
        if trial.best is not None and trial.best.is_before(self._best):
            self._best, self._best_row = trial.best, row

    def _move(self, trial: _Trial, status: Status) -> None:
        if trial.status in self._by_status:
            self._by_status[trial.status].pop(trial.trial_id, None)
        trial.status = status
        if status in self._by_status:
            self._by_status[status][trial.trial_id] = trial

    def _take_back(self, trial: _Trial) -> None:
        """What it has reported since its last checkpoint is void."""
        before, trial.best = trial.best, trial.best_at_checkpoint
        if before is not None and before is self._best_alive and trial.best is not before:
            self._best_alive = None
            for one in self._trials.values():
                if one.best is not None and one.best.is_before(self._best_alive):
                    self._best_alive = one.best

    def _tell(self, line: Callable[[], str], *, is_failure: bool = False) -> None:
        """The line is made only where somebody reads it: a fold of a long record spends half its time on text else."""
        if self.on_line is None and len(self._news) >= _MOST_NEWS:
            self._news_left_out += 1
            return
        shown = printable(line())
        if self.on_line is not None:
            self.on_line(shown, is_failure)
        if len(self._news) < _MOST_NEWS:
            self._news.append(shown)
        else:
            self._news_left_out += 1

    # -- what is shown ---------------------------------------------------------------------------------------------

    def news(self) -> list[str]:
        """The lines since the last call, and how many more there were."""
        news, self._news = self._news, []
        if self._news_left_out:
            news.append(f"(and {self._news_left_out} more events)")
            self._news_left_out = 0
        return news

    def best(self) -> Ranked | None:
        """The best report so far: a feasible one if there is any, else the nearest to that."""
        alive = self._best_alive
        return alive if alive is not None and alive.is_before(self._best) else self._best

    def alive(self) -> dict[int, tuple[Mapping[str, Any], bool]]:  # Any: JSON
        """Of each trial that runs or may run again: its configuration, and whether it is paused."""
        return {i: (trial.config, trial.status is Status.PAUSED) for i, trial in self._trials.items()}

    def summary(self, *, now_s: float | None = None) -> dict[str, Any]:  # Any: JSON
        """What a list of experiments shows, so that it need not open the rows. `now_s`: None: of the last row."""
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

    def state_of(self, trial_id: int) -> Status | None:
        """The status of a trial that may still run; None: it is over, or has not begun."""
        trial = self._trials.get(trial_id)
        return None if trial is None else Status.IN_PROGRESS if self._is_running(trial) else trial.status

    def _is_running(self, trial: _Trial) -> bool:
        """Whether it runs, or waits for its next attempt."""
        return trial.status is Status.IN_PROGRESS or (trial.status is Status.FAILED and not self.reason)

    def _num_running(self) -> int:
        return len(self._by_status[Status.IN_PROGRESS]) + (0 if self.reason else len(self._by_status[Status.FAILED]))

    def utilisation(self, now_s: float | None = None) -> float | None:
        """See `Utilisation.share`; None takes the time of the last row."""
        return self._utilisation.share(self.last_s if now_s is None else now_s)

    def counted_windows(self) -> list[tuple[float, float, int]]:
        """The time that the utilisation counts, up to the last row; see `Utilisation.windows`."""
        return self._utilisation.windows(self.last_s)

    @property
    def first_ready_s(self) -> float | None:
        """When the first objective began."""
        return self._utilisation.first_ready_s

    def snapshot(self, *, now_s: float | None = None, dead: bool = False) -> SearchSnapshot:
        """The state of the search. `dead`: its tuner is gone, and what ran runs no more.

        Of the trials that run, of those that are paused and of those that are over, the latest are in its rows.
        """
        at_s = self.last_s if now_s is None else now_s
        rows = {row.trial_id: row for row in self._rows}
        running = self._num_running()
        for status in _ALIVE if not self.reason else (Status.IN_PROGRESS, Status.PAUSED):
            for trial in islice(reversed(self._by_status[status].values()), MAX_ROWS):
                row = _row(trial, Status.PAUSED if status is Status.PAUSED else Status.IN_PROGRESS)
                rows[trial.trial_id] = replace(row, status="Lost") if dead and status is not Status.PAUSED else row
        best = self.best()
        if best is not None and best.trial_id not in rows:
            if best.trial_id in self._trials:
                rows[best.trial_id] = _row(self._trials[best.trial_id], self._trials[best.trial_id].status)
            elif self._best_row is not None:
                rows[best.trial_id] = self._best_row
        return SearchSnapshot(
            name=self._name,
            metric=self._metric,
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
            constraints=list(map(str, self._constraints)),
            elapsed_s=at_s,
            limit_s=self._limit_s,
            utilisation=self.utilisation(at_s),
        )


def _limit(stop: Mapping[str, Any]) -> float | None:  # Any: JSON
    limit_s = stop.get("max_wallclock_time")
    return limit_s if limit_s is not None and math.isfinite(limit_s) else None


def _row(trial: _Trial, status: Status) -> TrialRow:
    return TrialRow(
        trial.trial_id, str(status), trial.iter or None, trial.config, trial.values or {}, trial.worker_time_s
    )


def _thread_line(trial_id: int, thread: str) -> str:
    return (
        f"trial {trial_id} left a thread running: {thread}; its worker is free when that ends. Join it before the "
        f"objective returns, or make it a daemon."
    )


def _start_line(trial: _Trial, order: Mapping[str, Any]) -> str:  # Any: JSON
    settings = ", ".join(f"{name}={_short(value)}" for name, value in trial.config.items())
    again = f" again, attempt {trial.attempt}" if trial.attempt else ""
    if trial.iter:
        again += f", from its checkpoint of report {trial.iter}" if trial.attempt else ""
    if "source" in order:
        again += f", a clone of trial {order['source']}"
    if order.get("fallback"):
        again += ", drawn at random as the searcher took too long"
    return f"trial {trial.trial_id} scheduled{again}: {settings}"


def _ending_line(row: TrialRow, metric: str, reason: list[str] | None, *, will_retry: bool) -> str:
    worker_time = "" if row.worker_time_s is None else f", {row.worker_time_s:.1f} s"
    line = f"trial {row.trial_id} {row.status.lower()}"
    if metric in row.values:
        line += f": {metric}={_short(row.values[metric])} after {counted(row.iter or 0, 'report')}{worker_time}"
    if reason is not None:
        line += f" ({reason[0]}): {reason[1].partition(chr(10))[0]}"
    return line + (", it is tried again" if will_retry else "")


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value).replace("\n", "\\n")
