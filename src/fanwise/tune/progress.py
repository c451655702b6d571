"""What is known of a running search, for people who watch it: bounded, whatever the number of trials.

    Search --scheduled, ready, reported, ended, stopped--> Progress --look()--> news (lines), SearchSnapshot

Keeps the trials that run, the latest that ended, the best one, sums, and the lines that nobody has taken yet; of these
only the first few, the others are counted, because nobody can read more. Text of users and trials is made printable
here. Knows neither jobs nor the record nor a terminal; lives on the hub's thread, like the search that tells it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..base.text import counted, printable
from .orders import Best, Reason
from .schedulers import Status
from .stopping import Counts
from .table import MAX_ROWS, SearchSnapshot, TrialRow

# What is told between two looks.
_MOST_NEWS = 20


@dataclass(slots=True)
class Running:
    """An attempt that has a slot. Times are seconds since the search began."""

    trial_id: int
    attempt: int
    config: Mapping[str, object]
    slot: int
    iter: int = 0
    values: Mapping[str, object] | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    objective_s: float | None = None
    worker_time_s: float | None = None


class Progress:
    """See the module.

    Args:
        name, metric, config_names, limit_s: go into each snapshot as they are.
        n_workers: slots, for the utilisation.
    """

    def __init__(
        self, name: str, metric: str, config_names: tuple[str, ...], *, n_workers: int, limit_s: float | None
    ) -> None:
        self._name = name
        self._metric = metric
        self._config_names = config_names
        self._n_workers = n_workers
        self._limit_s = limit_s
        self._rows: deque[TrialRow] = deque(maxlen=MAX_ROWS)
        self._best_row: TrialRow | None = None
        self._value_names: dict[str, None] = {}
        self._objective_s = 0.0
        self._first_ready_s: float | None = None
        self._stop_s: float | None = None
        self._failed = 0
        self._news: list[str] = []
        self._news_left_out = 0

    # -- what happened ---------------------------------------------------------------------------------------------

    def scheduled(self, trial: Running) -> None:
        again = f" again, attempt {trial.attempt + 1}" if trial.attempt else ""
        settings = ", ".join(f"{name}={_short(value)}" for name, value in trial.config.items())
        self._tell(f"trial {trial.trial_id} scheduled{again}: {settings}")

    def ready(self, trial: Running, now_s: float) -> None:
        """The first of these is where the utilisation begins."""
        trial.ready_s = now_s
        if self._first_ready_s is None:
            self._first_ready_s = now_s

    def reported(self, trial: Running, values: Mapping[str, object], worker_time_s: float) -> None:
        trial.iter += 1
        trial.values = values
        trial.worker_time_s = worker_time_s
        for name in values:
            self._value_names.setdefault(name)

    def ended(
        self, trial: Running, status: Status, reason: Reason | None, *, will_retry: bool, now_s: float, is_best: bool
    ) -> None:
        self._objective_s += self._counted_s(trial)
        trial.ended_s = now_s
        row = _row(trial, status)
        self._rows.append(row)
        self._failed += status == Status.FAILED and not will_retry
        if is_best:
            self._best_row = row
        self._tell(_ending_line(row, self._metric, reason, will_retry))

    def stopped(self, reason: str, now_s: float) -> None:
        """No trial is started from now on; time in the objective counts no more."""
        self._stop_s = now_s
        self._tell(f"no more trials are started: {reason}")

    def _counted_s(self, trial: Running) -> float:
        seconds = trial.objective_s or 0.0
        if self._stop_s is not None and trial.ready_s is not None:
            seconds = min(seconds, max(0.0, self._stop_s - trial.ready_s))
        return seconds

    def _tell(self, line: str) -> None:
        if len(self._news) < _MOST_NEWS:
            self._news.append(printable(line))
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

    def snapshot(
        self, running: Iterable[Running], counts: Counts, best: Best | None, *, now_s: float
    ) -> SearchSnapshot:
        """The state of the search. `running`: all attempts that have a slot."""
        at_work = [trial for trial in running if trial.ended_s is None]
        rows = {row.trial_id: row for row in self._rows}
        rows |= {trial.trial_id: _row(trial, Status.IN_PROGRESS) for trial in at_work}
        if self._best_row is not None:
            rows.setdefault(self._best_row.trial_id, self._best_row)
        return SearchSnapshot(
            name=self._name,
            metric=self._metric,
            rows=[rows[trial_id] for trial_id in sorted(rows)],
            config_names=self._config_names,
            value_names=tuple(self._value_names),
            running=len(at_work),
            finished=counts.num_trials_finished,
            completed=counts.num_trials_completed,
            failed=self._failed,
            best=None if best is None else (best.value, best.trial_id),
            elapsed_s=now_s,
            limit_s=self._limit_s,
            utilisation=self._utilisation(at_work, now_s),
        )

    def _utilisation(self, at_work: Iterable[Running], now_s: float) -> float | None:
        if self._first_ready_s is None:
            return None
        until_s = now_s if self._stop_s is None else self._stop_s
        inside_s = self._objective_s
        for trial in at_work:
            if trial.ready_s is not None:
                inside_s += max(0.0, until_s - trial.ready_s)
        whole_s = self._n_workers * (until_s - self._first_ready_s)
        return min(1.0, inside_s / whole_s) if whole_s > 0 else None


def _row(trial: Running, status: Status) -> TrialRow:
    seconds = trial.objective_s if trial.ended_s is not None else trial.worker_time_s
    return TrialRow(trial.trial_id, str(status), trial.iter or None, trial.config, trial.values or {}, seconds)


def _ending_line(row: TrialRow, metric: str, reason: Reason | None, will_retry: bool) -> str:
    worker_time = "" if row.worker_time_s is None else f", {row.worker_time_s:.1f} s"
    line = f"trial {row.trial_id} {row.status.lower()}"
    if metric in row.values:
        line += f": {metric}={_short(row.values[metric])} after {counted(row.iter or 0, 'report')}{worker_time}"
    if reason is not None:
        line += f" ({reason.kind}): {reason.text.partition(chr(10))[0]}"
    return line + (", it is tried again" if will_retry else "")


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value).replace("\n", "\\n")
