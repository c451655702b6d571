"""The whole tuner but for processes and links: 10,000 workers, up to 1,000,000 trials, in virtual time.

    Crowd, an engine without processes   --ready, report, ended, free--> the tuner's SearchRunner, SearchCore, scheduler
        hosts of 8 CPUs, and a cluster's <--submit, end, answers----           '--> record on disk, table on screen
        own placement of jobs on them

What is measured is the tuner's processor time for each event, in the first and the last tenth of a search (are they
alike?), its memory and its record after two numbers of trials. Events of ten virtual milliseconds share a turn of the
loop and so a transaction, as they do in a tuner that is busy. Each search has a process of its own.

    python benchmarks/tuner_scaling.py [--size quick | small | full]      seconds, 3 minutes, 40 minutes
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import finish, machine, peak_mib, say, scratch_folder, table

from fanwise.pool.cluster.placement import JobPlacement
from fanwise.pool.contract import Capacity, Ending, Job, JobEvents, JobRequest, JobState, Outcome, Output, Ready, Reply
from fanwise.pool.functions import pack
from fanwise.pool.leases import Machine, Resources
from fanwise.pool.specs import Packed
from fanwise.tune import FIFO, Scheduler, StoppingCriterion
from fanwise.tune.core import events
from fanwise.tune.record.log import Record
from fanwise.tune.record.state import SearchState
from fanwise.tune.runtime.runner import SearchRunner
from fanwise.tune.schedulers import ASHA
from fanwise.tune.search_settings import SearchSettings
from fanwise.tune.simulate.tables import Curve

import support_path  # noqa: F401  # isort: skip
from learning_curves import curves  # isort: skip
from simulated_loop import SimulatedLoop  # isort: skip

N_WORKERS, CPUS_A_HOST = 10_000, 8
MAX_EPOCHS = {"random": 1, "stopping": 16, "promotion": 16}
TURN_S = 0.01
LOOK_EVERY_S = 1.0  # virtual: the table is drawn from a snapshot of the search
STARTUP_S = 0.1
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """Two numbers of trials for each search."""

    trials: tuple[int, int]
    kinds: Sequence[str] = tuple(MAX_EPOCHS)


SIZES = {
    "quick": Size((1_000, 2_000), ("random", "promotion")),
    "small": Size((20_000, 60_000)),
    "full": Size((100_000, 1_000_000)),
}


class CrowdJob:
    """A trial on a worker that there is not: what it reports is looked up."""

    __slots__ = ("curve", "epoch", "events", "id", "over", "request", "seed", "worker_time_s")

    def __init__(self, id: int, request: JobRequest, events: JobEvents, curve: Curve, epoch: int) -> None:
        self.id, self.request, self.events, self.curve, self.epoch = id, request, events, curve, epoch
        self.seed, self.worker_time_s, self.over = 0, 0.0, False

    @property
    def state(self) -> JobState:
        return "over" if self.over else "running"


class JobReport:
    """What a job reports; it goes on, or ends, when it is answered."""

    __slots__ = ("checkpoint", "crowd", "job", "values", "worker_time_s")

    def __init__(self, crowd: "Crowd", job: CrowdJob, values: object, checkpoint: str) -> None:
        self.crowd, self.job, self.values, self.checkpoint = crowd, job, values, checkpoint
        self.worker_time_s = job.worker_time_s

    def answer(self, reply: Reply) -> None:
        if reply.ends:
            self.crowd.over(self.job, Outcome("stopped", objective_s=self.job.worker_time_s))
        else:
            self.crowd.train(self.job)

    def refuse(self, error: BaseException) -> None:
        raise RuntimeError("a report was refused") from error


class Crowd:
    """An engine of workers that are not there. Jobs that are over are forgotten."""

    def __init__(self, n_workers: int, curve: Callable[[JobRequest], Curve]) -> None:
        self.loop = SimulatedLoop()
        full, rest = divmod(n_workers, CPUS_A_HOST)
        sizes = [CPUS_A_HOST] * full + [rest] * (rest > 0)
        self._machines = tuple(Machine(cpus=cpus, memory_bytes=0) for cpus in sizes)
        self._placement = JobPlacement()
        for number, host in enumerate(self._machines):
            self._placement.join(f"host-{number}", host)
        self._curve = curve
        self._queue: list[CrowdJob] = []
        self._num_jobs = 0

    def capacity(self) -> Capacity:
        return Capacity(self._machines)

    def prepare(self, packed: Packed) -> None:
        pass

    def submit(self, request: JobRequest, events: JobEvents) -> CrowdJob:
        self.capacity().check(request.resources)
        self._num_jobs += 1
        context = request.context or {}
        job = CrowdJob(self._num_jobs, request, events, self._curve(request), int(str(context["from_iter"])))
        self._placement.add(job.id, request.resources)
        if not self._placement.place():
            raise RuntimeError("the search starts no more trials than there are workers")
        self._later(STARTUP_S, lambda: self._begin(job))
        return job

    def end(self, job: Job, how: Ending, *, grace_s: float | None = None) -> None:
        assert isinstance(job, CrowdJob), "a job of this engine"
        self.loop.call_soon(lambda: self.over(job, Outcome("stopped", objective_s=job.worker_time_s)))

    def output(self, job: Job) -> Output:
        return Output()

    def close(self) -> None:
        pass

    def train(self, job: CrowdJob) -> None:
        """The next epoch, or the end."""
        found = job.curve(job.epoch + 1)
        if found is None:
            self.over(job, Outcome("returned", objective_s=job.worker_time_s))
            return
        values, seconds = found
        seconds *= 0.5 + job.id * GOLDEN % 1.0  # so that they do not all report at the same moment
        job.epoch += 1
        job.worker_time_s += seconds
        self._later(seconds, lambda: self._report(job, values))

    def over(self, job: CrowdJob, outcome: Outcome) -> None:
        """It ends, and its worker is free."""
        if not job.over:
            job.over = True
            job.events.on_ended(job, outcome)
            self._placement.release(job.id)
            job.events.on_free(job)

    def _begin(self, job: CrowdJob) -> None:
        if not job.over:
            job.events.on_ready(job, Ready(1, self.loop.now_s(), "fork"))
            self.train(job)

    def _report(self, job: CrowdJob, values: object) -> None:
        if not job.over:
            checkpoint = f"{job.request.number}-{job.request.attempt}-{job.epoch}"
            job.events.on_report(JobReport(self, job, values, checkpoint))

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.loop.call_at(math.ceil((self.loop.now_s() + delay_s) / TURN_S) * TURN_S, call)


class NoFiles:
    """In the place of the store of checkpoints: there are none to delete."""

    root = "nowhere"

    def discard(self, names: list[str]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Found:
    """What one search was, in its own process."""

    num_events: int
    us_a_fact_first: float
    us_a_fact_last: float
    facts_per_s: float
    peak_mib: float
    record_mib: float


def scheduler_of(kind: str) -> Scheduler:
    if kind == "random":
        return FIFO(metric="loss")
    return ASHA(
        metric="loss",
        resource_attr="epoch",
        max_resource_attr="max_epochs",
        grace_period=1,
        reduction_factor=4,
        type=kind,  # type: ignore[arg-type]  # one of the two
    )


def search(kind: str, num_trials: int, n_workers: int, folder: Path) -> Found:
    """The measured process: one search to its end."""
    family, scheduler = curves(MAX_EPOCHS[kind]), scheduler_of(kind)
    stop = StoppingCriterion(max_num_trials_started=num_trials)
    settings = SearchSettings.create(family.space, scheduler, stop, n_workers=n_workers, random_seed=0)
    meta = settings.new_metadata("crowd", "train")
    record = Record.create(folder / "crowd", meta)
    progress = SearchState(meta)
    crowd = Crowd(n_workers, lambda request: family.curve(dict(request.keywords or {})))
    job = JobRequest(pack(print), Resources(), seed=0)
    running = SearchRunner(crowd, record, progress, job, NoFiles())  # type: ignore[arg-type]  # all that it needs
    core = settings.new_core(scheduler)
    crowd.loop.call_soon(lambda: running.begin(core, scheduler.searcher, events.Begin))

    def look() -> None:
        running.take_snapshot()
        crowd.loop.call_at(crowd.loop.now_s() + LOOK_EVERY_S, look)

    look()
    marks: list[tuple[float, int]] = []  # processor seconds and events, at each tenth of the trials

    def mark_at(trials: int) -> None:
        counts = core.counts
        crowd.loop.run(lambda: running.finished.is_set() or counts.num_trials_started >= trials, within_s=math.inf)
        marks.append((time.process_time(), record.next_seq))
        if len(marks) > 1:
            say(f"    {kind}, {trials:,} trials: {us_a_fact(*marks[-2:]):.1f} us a event, {peak_mib():.0f} MiB")

    for tenth in range(11):
        mark_at(n_workers + (num_trials - n_workers) * tenth // 10)
    crowd.loop.run(running.finished.is_set, within_s=math.inf)
    if running.failure is not None:
        raise running.failure
    ended_s, num_events = time.process_time(), record.next_seq - 1
    record.close()
    each = list(itertools.starmap(us_a_fact, itertools.pairwise(marks)))
    rate = (num_events - marks[0][1]) / (ended_s - marks[0][0])
    size_mib = (record.folder / "events.jsonl").stat().st_size / 2**20
    return Found(num_events, each[0], each[-1], rate, peak_mib(), size_mib)


def us_a_fact(before: tuple[float, int], after: tuple[float, int]) -> float:
    """Between two marks: processor seconds and numbers of events."""
    return 1e6 * (after[0] - before[0]) / max(1, after[1] - before[1])


def measured(kind: str, num_trials: int, n_workers: int) -> Found:
    """One search in a process of its own."""
    with scratch_folder() as folder:
        command = [sys.executable, __file__, "--search", str(folder), "--kind", kind, "--trials", str(num_trials)]
        command += ["--workers", str(n_workers)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Found(**json.loads(printed))


def shown(found: dict[tuple[str, int], Found]) -> str:
    """The table."""
    rows = [
        [
            kind,
            f"{trials:,}",
            f"{one.num_events:,}",
            f"{one.facts_per_s:,.0f}",
            f"{one.us_a_fact_first:.0f}",
            f"{one.us_a_fact_last:.0f}",
            f"{one.peak_mib:.0f}",
            f"{one.record_mib:,.0f}",
        ]
        for (kind, trials), one in found.items()
    ]
    header = [
        "scheduler",
        "trials",
        "events",
        "events/s",
        "us a event, first tenth",
        "last tenth",
        "peak MiB",
        "record MiB",
    ]
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="the tuner with many workers and trials, without processes")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--workers", type=int, default=N_WORKERS)
    parser.add_argument("--kind", choices=list(MAX_EPOCHS), help="only this one")
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search is not None:
        print(json.dumps(asdict(search(args.kind, args.trials, args.workers, args.search))))
        return
    hardware, size = machine(), SIZES[args.size]
    found: dict[tuple[str, int], Found] = {}
    for kind in size.kinds if args.kind is None else [args.kind]:
        for trials in size.trials:
            workers = min(args.workers, trials // 2)
            found[kind, trials] = measured(kind, trials, workers)
            say(f"  {kind}, {trials:,} trials, {workers:,} workers: {found[kind, trials]}")
    payload = {f"{kind}, {trials} trials": asdict(one) for (kind, trials), one in found.items()}
    finish("tuner_scaling", [shown(found)], payload, facts=hardware)


if __name__ == "__main__":
    main()
