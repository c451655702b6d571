"""One search at work: facts from the pool go into `Tuning`, its orders are carried out. Runs on the pool's hub thread.

    pool --ready, report, outcome, finished--> Tuning --orders--> pool (start, stop, kill)
                                                  |------> record (every event)
                                                  |------> held answers
    end of the hub's turn: record.commit(), then all held answers leave

So no answer leaves before what it answers is committed, and one transaction serves all reports that came together.
Decides nothing itself; `tuning` does. Knows no terminal: what is to be shown is put into `news` and `snapshot()`.
"""

import pickle
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import FanwiseError, RecordError
from ..links import Hub, Timer
from ..pool import Outcome as JobOutcome
from ..pool.engine import Engine, Job, Report
from ..pool.functions import Packed
from ..pool.leases import Need
from ..pool.seeds import job_seed
from ..pool.specs import How
from . import orders
from .orders import Answer, Ended, Finish, Kill, Order, Reject, Start, StopStarting, Terminate
from .record import Record
from .schedulers import Status
from .table import MAX_ROWS, SearchSnapshot, TrialRow
from .tuning import Tuning


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search runs: the packed objective, what each trial needs, and where things are kept."""

    name: str
    packed: Packed
    need: Need
    seed: int
    n_workers: int
    reuse: bool
    folder: Path
    metric: str
    config_names: tuple[str, ...]
    limit_s: float | None


@dataclass(slots=True)
class _Trial:
    """An attempt that has a slot."""

    trial_id: int
    attempt: int
    config: Mapping[str, object]
    slot: int
    job: Job | None = None
    iter: int = 0
    values: Mapping[str, object] | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    objective_s: float | None = None
    worker_time_s: float | None = None


class Search:
    """See the module. `finished` is set when the search is over, `failure` then says whether it went wrong."""

    def __init__(self, engine: Engine, hub: Hub, record: Record, tuning: Tuning, plan: Plan) -> None:
        self.finished = threading.Event()
        self.finish: Finish | None = None
        self.failure: Exception | None = None
        self.news: deque[str] = deque(maxlen=1000)
        self.news_dropped = 0
        self._engine = engine
        self._hub = hub
        self._record = record
        self._tuning = tuning
        self._plan = plan
        self._began_s = hub.clock.now_s()
        self._by_job: dict[int, _Trial] = {}
        self._rows: deque[TrialRow] = deque(maxlen=MAX_ROWS)
        self._best_row: TrialRow | None = None
        self._value_names: dict[str, None] = {}
        self._answers: list[tuple[Report, Answer | Reject]] = []
        self._report: Report | None = None
        self._objective_s = 0.0
        self._first_ready_s: float | None = None
        self._stop_s: float | None = None
        self._timer: Timer | None = None
        self._timer_s: float | None = None
        self._failed = 0

    def begin(self) -> None:
        """Start the first trials."""
        self._hub.at_turn_end(self._turn_end)
        self._engine.crew.warm_up(self._plan.packed)
        self._obey(self._tuning.start(now_s=self._now_s()))

    def interrupt(self) -> None:
        """Ctrl-C: the first time gently, then hard."""
        self._obey(self._tuning.interrupt(now_s=self._now_s()))

    def give_up(self, error: Exception) -> None:
        """Something that the search cannot go on without broke: kill what runs and finish with `error`."""
        if self.failure is None:
            self.failure = error
            self._obey(self._tuning.interrupt(now_s=self._now_s()))
            self._obey(self._tuning.interrupt(now_s=self._now_s()))

    def _now_s(self) -> float:
        return self._hub.clock.now_s() - self._began_s

    # -- facts: what the pool tells --------------------------------------------------------------------------------

    def on_ready(self, job: Job, pid: int, started_s: float, how: How) -> None:
        trial = self._by_job.get(job.id)
        if trial is None:
            return
        now_s = self._now_s()
        trial.ready_s = now_s
        if self._first_ready_s is None:
            self._first_ready_s = now_s
        body = {"attempt": trial.attempt, "pid": pid, "process_started_s": started_s, "how": how}
        self._append(now_s, "ready", trial.trial_id, body)
        self._obey(self._tuning.on_ready(trial.trial_id, trial.attempt, now_s=now_s))

    def on_report(self, report: Report) -> None:
        trial = self._by_job.get(report.job.id)
        if trial is None:
            report.answer("STOP")
            return
        self._report = report
        self._obey(self._tuning.on_report(trial.trial_id, trial.attempt, report.values, now_s=self._now_s()))

    def on_outcome(self, job: Job, outcome: JobOutcome) -> None:
        trial = self._by_job.get(job.id)
        if trial is None:
            return
        now_s = self._now_s()
        trial.ended_s = now_s
        trial.objective_s = outcome.objective_s
        if outcome.objective_s is None and trial.ready_s is not None:
            trial.objective_s = now_s - trial.ready_s
        told = orders.Outcome(outcome.kind, outcome.text, outcome.traceback, outcome.last_output)
        self._obey(self._tuning.on_ended(trial.trial_id, trial.attempt, told, now_s=now_s))

    def on_finished(self, job: Job) -> None:
        trial = self._by_job.pop(job.id, None)
        if trial is None:
            return
        now_s = self._now_s()
        self._append(now_s, "free", trial.trial_id, {"slot": trial.slot})
        self._obey(self._tuning.on_free(trial.trial_id, trial.attempt, now_s=now_s))

    def _tick(self) -> None:
        self._timer_s = None
        self._obey(self._tuning.on_tick(now_s=self._now_s()))

    # -- orders ----------------------------------------------------------------------------------------------------

    def _obey(self, todo: list[Order]) -> None:
        for order in todo:
            match order:
                case Answer() | Reject():
                    self._hold(order)
                case Start():
                    self._start(order)
                case Terminate():
                    self._end_job(order.trial_id, gently=True)
                case Kill():
                    self._end_job(order.trial_id, gently=False)
                case Ended():
                    self._ended(order)
                case StopStarting():
                    self._stop_s = self._now_s()
                    self._append(self._stop_s, "stop", None, {"reason": order.reason})
                    self._tell(f"no more trials are started: {order.reason}")
                case Finish():
                    self._append(self._now_s(), "finish", None, {"reason": order.reason})
                    self.finish = order
        self._arm()

    def _hold(self, order: Answer | Reject) -> None:
        """The answer to the report that was just handed in; it leaves after the commit at the end of the turn."""
        report, self._report = self._report, None
        assert report is not None, "orders answer the report that was handed in last"
        trial = self._by_job[report.job.id]
        if isinstance(order, Answer) and not order.late:
            trial.iter += 1
            trial.values = report.values
            trial.worker_time_s = report.worker_time_s
            for name in report.values:
                self._value_names.setdefault(name)
            body = {
                "attempt": trial.attempt,
                "values": report.values,
                "decision": order.decision,
                "worker_time": report.worker_time_s,
                "iter": trial.iter,
            }
            self._append(self._now_s(), "report", trial.trial_id, body)
        self._answers.append((report, order))

    def _start(self, order: Start) -> None:
        plan = self._plan
        trial = _Trial(order.trial_id, order.attempt, order.config, order.slot)
        seed = job_seed(plan.seed, order.trial_id, order.attempt)
        body = {"config": order.config, "attempt": order.attempt, "slot": order.slot, "seed": seed}
        self._append(self._now_s(), "start", order.trial_id, body)
        again = f" again, attempt {order.attempt + 1}" if order.attempt else ""
        settings = ", ".join(f"{name}={_short(value)}" for name, value in order.config.items())
        self._tell(f"trial {order.trial_id} scheduled{again}: {settings}")
        suffix = f"-{order.attempt}" if order.attempt else ""
        trial.job = self._engine.submit(
            plan.packed,
            pickle.dumps(((), dict(order.config)), protocol=5),
            plan.need,
            self,
            number=order.trial_id,
            attempt=order.attempt,
            seed=plan.seed,
            output=str(plan.folder / "output" / f"{order.trial_id}{suffix}"),
            reuse=plan.reuse,
        )
        self._by_job[trial.job.id] = trial

    def _end_job(self, trial_id: int, *, gently: bool) -> None:
        for trial in list(self._by_job.values()):
            if trial.trial_id == trial_id and trial.job is not None:
                if gently:
                    self._engine.terminate(trial.job)
                else:
                    self._engine.kill(trial.job)

    def _ended(self, order: Ended) -> None:
        trial = next(t for t in self._by_job.values() if t.trial_id == order.trial_id and t.attempt == order.attempt)
        now_s = self._now_s()
        reason = order.reason
        body = {
            "attempt": order.attempt,
            "status": order.status,
            "reason": None
            if reason is None
            else {
                "kind": reason.kind,
                "text": reason.text,
                "traceback": reason.traceback,
                "last_output": reason.last_output,
            },
            "objective_s": trial.objective_s or 0.0,
            "will_retry": order.will_retry,
        }
        self._append(now_s, "end", order.trial_id, body)
        self._objective_s += self._counted_s(trial)
        trial.ended_s = now_s
        row = self._row(trial, order.status)
        self._rows.append(row)
        self._failed += order.status == Status.FAILED and not order.will_retry
        best = self._tuning.best
        if best is not None and best.trial_id == order.trial_id:
            self._best_row = row
        self._tell(_ending_line(row, self._plan.metric, reason, order.will_retry))

    def _counted_s(self, trial: _Trial) -> float:
        """Seconds inside the objective that count for the utilisation: those before the search stopped."""
        seconds = trial.objective_s or 0.0
        if self._stop_s is not None and trial.ready_s is not None:
            seconds = min(seconds, max(0.0, self._stop_s - trial.ready_s))
        return seconds

    # -- the record and the clock ----------------------------------------------------------------------------------

    def _append(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, object]) -> None:
        if self.failure is None:
            self._record.append(t_s, kind, trial_id, body)

    def _turn_end(self) -> None:
        """Commit what this turn brought, then let the answers go."""
        if self.failure is None:
            try:
                self._record.commit()
            except FanwiseError as error:
                self.give_up(error)
        answers, self._answers = self._answers, []
        for report, order in answers:
            if self.failure is not None:
                report.refuse(RecordError(f"this report was not kept: {self.failure}"))
            elif isinstance(order, Answer):
                report.answer(str(order.decision))
            else:
                report.refuse(ValueError(order.message))
        if self.finish is not None and not self.finished.is_set():
            self._hub.call_soon(lambda: self._hub.not_at_turn_end(self._turn_end))
            self.finished.set()

    def _arm(self) -> None:
        """Keep one timer at the moment when `Tuning` next wants to look at the clock."""
        next_s = self._tuning.next_tick_s
        if next_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = next_s
        if next_s is not None:
            self._timer = self._hub.call_at(self._began_s + next_s, self._tick)

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _tell(self, line: str) -> None:
        if len(self.news) == self.news.maxlen:
            self.news_dropped += 1
        self.news.append(line)

    def _row(self, trial: _Trial, status: str) -> TrialRow:
        seconds = trial.objective_s if trial.ended_s is not None else trial.worker_time_s
        return TrialRow(trial.trial_id, str(status), trial.iter or None, trial.config, trial.values or {}, seconds)

    def snapshot(self) -> SearchSnapshot:
        """What the terminal shows. On the hub's thread."""
        now_s = self._now_s()
        running = [self._row(trial, Status.IN_PROGRESS) for trial in self._by_job.values() if trial.ended_s is None]
        counts, best = self._tuning.counts, self._tuning.best
        rows = {row.trial_id: row for row in (*self._rows, *running)}
        if self._best_row is not None:
            rows.setdefault(self._best_row.trial_id, self._best_row)
        return SearchSnapshot(
            name=self._plan.name,
            metric=self._plan.metric,
            rows=[rows[trial_id] for trial_id in sorted(rows)],
            config_names=self._plan.config_names,
            value_names=tuple(self._value_names),
            running=len(running),
            finished=counts.num_trials_finished,
            completed=counts.num_trials_completed,
            failed=self._failed,
            best=None if best is None else (best.value, best.trial_id),
            elapsed_s=now_s,
            limit_s=self._plan.limit_s,
            utilisation=self._utilisation(now_s),
        )

    def _utilisation(self, now_s: float) -> float | None:
        if self._first_ready_s is None:
            return None
        until_s = now_s if self._stop_s is None else self._stop_s
        inside_s = self._objective_s
        for trial in self._by_job.values():
            if trial.ready_s is not None and trial.ended_s is None:
                inside_s += max(0.0, until_s - trial.ready_s)
        whole_s = self._plan.n_workers * (until_s - self._first_ready_s)
        return min(1.0, inside_s / whole_s) if whole_s > 0 else None


def _ending_line(row: TrialRow, metric: str, reason: orders.Reason | None, will_retry: bool) -> str:
    worker_time = "" if row.worker_time_s is None else f", {row.worker_time_s:.1f} s"
    line = f"trial {row.trial_id} {row.status.lower()}"
    if metric in row.values:
        line += f": {metric}={_short(row.values[metric])} after {row.iter} reports{worker_time}"
    if reason is not None:
        line += f" ({reason.kind}): {reason.text.partition(chr(10))[0]}"
    return line + (", it is tried again" if will_retry else "")


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)

