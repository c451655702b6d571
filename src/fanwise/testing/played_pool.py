"""A search on a pool that the test plays: every fact comes from the test, in the turn of the hub in which it says so.

    stage = Stage(tmp_path)
    stage.begin()                                        # two trials are submitted: stage.engine.jobs
    report = stage.report(stage.engine.jobs[0], loss=0.5)
    stage.turn()                                         # the hub hands it over; report.answers has the answer
    stage.end(stage.engine.jobs[0])

No process, no thread and no clock but the hub's. Close `stage.hub` and `stage.file` at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..links import Hub
from ..pool import Need
from ..pool import Outcome as JobOutcome
from ..pool.engine import Engine, Job
from ..pool.functions import pack
from ..tune import RandomSearch, Space, StoppingCriterion, uniform
from ..tune.record import Record, read_events
from ..tune.schedulers import Scheduler
from ..tune.search import Plan, Search
from ..tune.tuning import Tuning

DONE = JobOutcome("returned", objective_s=0.5)


@dataclass(eq=False)
class FakeJob:
    """A job of the fake engine; `told` is what it was sent."""

    id: int
    number: int
    attempt: int
    output: str
    told: list[str] = field(default_factory=list)


class FakeReport:
    """A report whose answer the test looks at. `kept`: what the record held when it came."""

    def __init__(self, job: FakeJob, values: object, folder: Path) -> None:
        self.job = job
        self.values = values
        self.worker_time_s = 0.25
        self.answers: list[str | BaseException] = []
        self.kept: list[object] = []
        self._folder = folder

    def answer(self, decision: str) -> None:
        self.answers.append(decision)
        self.kept = [event.body["values"] for event in read_events(self._folder) if event.kind == "report"]

    def refuse(self, error: BaseException) -> None:
        self.answers.append(error)


class FakeEngine:
    """Takes jobs and does nothing with them; `error` is raised by the next submit."""

    def __init__(self) -> None:
        self.jobs: list[FakeJob] = []
        self.error: BaseException | None = None
        self.crew = self

    def warm_up(self, packed: object) -> None:
        """Nothing to warm."""

    def submit(self, packed: object, arguments: bytes, need: object, events: object, **options: Any) -> FakeJob:
        if self.error is not None:
            raise self.error
        job = FakeJob(len(self.jobs) + 100, options["number"], options["attempt"], options["output"])
        self.jobs.append(job)
        return job

    def terminate(self, job: FakeJob) -> None:
        job.told.append("terminate")

    def kill(self, job: FakeJob) -> None:
        job.told.append("kill")


class CountingRecord:
    """A record that counts its transactions; `error` is raised by the next commit."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.transactions = 0
        self.error: BaseException | None = None
        self._open = False

    def append(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> int:  # Any: JSON
        self._open = True
        return self._record.append(t_s, kind, trial_id, body)

    def commit(self) -> None:
        if self.error is not None:
            raise self.error
        self._record.commit()
        self.transactions += self._open
        self._open = False


class Stage:
    """One search, its pool and its hub, all driven by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "e"
        self.hub = Hub(name="test")
        self.engine = FakeEngine()
        self.file = Record.create(self.folder, {"name": "e"})
        self.record = CountingRecord(self.file)
        self.search: Search

    def begin(self, scheduler: Scheduler | None = None, stop: StoppingCriterion | None = None, **options: Any) -> None:
        scheduler = scheduler or RandomSearch(metric="loss")
        scheduler.start(Space({"x": uniform(0, 1)}), 0)
        options = {"n_workers": 2, **options}
        tuning = Tuning(scheduler, stop or StoppingCriterion(max_num_trials_started=1_000_000), **options)
        plan = Plan("e", pack(print), Need(), 0, options["n_workers"], False, self.folder, "loss", ("x",), None)
        engine, record = cast(Engine, self.engine), cast(Record, self.record)
        self.search = Search(engine, self.hub, record, tuning, plan)
        self.hub.call_soon(self.search.begin)
        self.turn()

    def turn(self, *calls: Callable[[], None]) -> None:
        """One turn of the hub that brings all these facts together."""
        for call in calls:
            self.hub.call_soon(call)
        self.hub.turn()

    def report(self, job: FakeJob, **values: object) -> FakeReport:
        return self.report_raw(job, values)

    def report_raw(self, job: FakeJob, values: object) -> FakeReport:
        report = FakeReport(job, values, self.folder)
        self.hub.call_soon(lambda: self.search.on_report(cast(Any, report)))  # Any: a stand-in
        return report

    def ready(self, job: FakeJob) -> None:
        self.turn(lambda: self.search.on_ready(cast(Job, job), 4711, 1.0, "fork"))

    def end(self, job: FakeJob, outcome: JobOutcome = DONE) -> None:
        self.turn(lambda: self.search.on_outcome(cast(Job, job), outcome), lambda: self.gone(job))

    def gone(self, job: FakeJob) -> None:
        self.search.on_finished(cast(Job, job))

    def events(self, kind: str) -> list[tuple[int | None, Any]]:  # Any: JSON
        return [(event.trial_id, event.body) for event in read_events(self.folder) if event.kind == kind]
