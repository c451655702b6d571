"""A search on an engine that the test plays: every event comes from the test, in the turn in which it says so.

    stage = Stage(tmp_path)
    stage.begin()                                        # two trials are submitted: stage.engine.jobs
    report = stage.report(stage.engine.jobs[0], loss=0.5)
    stage.turn()                                         # the loop hands it over; report.answers has the answer
    stage.end(stage.engine.jobs[0])

No process and no thread, and the clock is virtual. Close `stage.file` at the end.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from simulated_engine import Say, SimulatedEngine, SimulatedJob, SimulatedReport

from fanwise.pool import Outcome, Reply
from fanwise.pool.contract import JobRequest
from fanwise.pool.functions import pack
from fanwise.pool.leases import Resources
from fanwise.tune import FIFO, Scheduler, Space, StoppingCriterion, uniform
from fanwise.tune.core import events
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.record.event_file import read_events
from fanwise.tune.record.log import Record
from fanwise.tune.record.state import SearchState
from fanwise.tune.runtime.checkpoint_store import CheckpointStore
from fanwise.tune.runtime.runner import SearchRunner

DONE = Outcome("returned", objective_s=0.5)


class PlayedReport:
    """A report whose answer the test looks at.

    Attributes:
        answers: decisions, and what it was refused with.
        kept: what the record held when it was answered.
    """

    def __init__(self, engine: SimulatedEngine, job: SimulatedJob, values: object, folder: Path) -> None:
        self.answers: list[str | BaseException] = []
        self.kept: list[object] = []
        self._folder = folder
        report = SimulatedReport(engine, job, Say(values), self._answered)
        engine.loop.call_soon(lambda: job.events.on_report(report))

    def _answered(self, answer: Reply | BaseException) -> None:
        self.answers.append(answer.decision if isinstance(answer, Reply) else answer)
        self.kept = [event.body["values"] for event in read_events(self._folder) if event.kind == "report"]


class CountingRecord:
    """A record that counts its transactions; `error` is raised by the next commit."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.folder = record.folder
        self.transactions = 0
        self.meta: dict[str, Any] = {}  # Any: JSON; what was set last
        self.error: BaseException | None = None
        self._open = False

    @property
    def next_seq(self) -> int:
        return self._record.next_seq

    def append(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> int:  # Any: JSON
        self._open = True
        return self._record.append(t_s, kind, trial_id, body)

    def commit(self) -> None:
        if self.error is not None:
            raise self.error
        self._record.commit()
        self.transactions += self._open
        self._open = False

    def set_summary(self, summary: Mapping[str, Any]) -> None:  # Any: JSON
        self._record.set_summary(summary)
        self.meta["summary"] = summary


class Stage:
    """One search and its engine, all driven by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "e"
        self.engine = SimulatedEngine()
        self.loop = self.engine.loop
        self.meta = {"name": "e", "metric": "loss", "mode": "min", "space": {"x": {}}, "n_workers": 2}
        self.file = Record.create(self.folder, self.meta)
        self.record = CountingRecord(self.file)
        self.search: SearchRunner

    def begin(self, scheduler: Scheduler | None = None, stop: StoppingCriterion | None = None, **options: Any) -> None:
        scheduler = scheduler or FIFO(metric="loss")
        space = Space({"x": uniform(0, 1)})
        scheduler.begin(space, 0)
        root = str(self.folder / "checkpoints")
        job = JobRequest(pack(print), Resources(), seed=0)
        record = cast(Record, self.record)
        self.search = SearchRunner(self.engine, record, SearchState(self.meta), job, CheckpointStore(root))
        stop = stop or StoppingCriterion(max_num_trials_started=1_000_000)
        core = SearchCore(scheduler, space, stop, **{"n_workers": 2, **options})
        self.loop.call_soon(lambda: self.search.begin(core, scheduler.searcher, events.Begin))
        self.turn()

    def turn(self, *calls: Callable[[], None]) -> None:
        """One turn of the loop that brings all these events together."""
        for call in calls:
            self.loop.call_soon(call)
        self.loop.turn()

    def report(self, job: SimulatedJob, **values: object) -> PlayedReport:
        return self.report_raw(job, values)

    def report_raw(self, job: SimulatedJob, values: object) -> PlayedReport:
        return PlayedReport(self.engine, job, values, self.folder)

    def ready(self, job: SimulatedJob) -> None:
        self.turn(lambda: self.engine.ready(job))

    def ended(self, job: SimulatedJob, outcome: Outcome = DONE) -> None:
        self.turn(lambda: self.engine.ended(job, outcome))

    def gone(self, job: SimulatedJob) -> None:
        self.turn(lambda: self.engine.free(job))

    def end(self, job: SimulatedJob, outcome: Outcome = DONE) -> None:
        self.turn(lambda: self.engine.ended(job, outcome), lambda: self.engine.free(job))

    def actions(self, name: str) -> list[Any]:  # Any: JSON
        """The actions of this name, in the order of the record."""
        rows = [event.body.get("actions", ()) for event in read_events(self.folder)]
        return [action for row in rows for action in row if action["action"] == name]

    def events(self, kind: str) -> list[tuple[int | None, Any]]:  # Any: JSON
        return [(event.trial_id, event.body) for event in read_events(self.folder) if event.kind == kind]
