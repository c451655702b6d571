"""This machine's processes and a simulation keep the contract of engines; broken engines do not."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from fanwise.base.errors import TrialStopped
from fanwise.pool import Machine, Outcome, Pool, Reply
from fanwise.pool.contract import Capacity, Ending, Engine, Job, JobEvents, JobRequest, Loop, Output, Ready, Report
from fanwise.pool.processes import stat_of
from fanwise.pool.specs import Packed
from fanwise.testing import engine_contract as contract
from fanwise.testing import within
from fanwise.testing.engine_contract import CHECKS, Check, EngineCase
from fanwise.testing.engine_jobs import play
from fanwise.testing.simulated_engine import Fate, SimulatedEngine


@contextlib.contextmanager
def local() -> Iterator[EngineCase]:
    def lose(job: Job, ready: Ready) -> None:
        assert ready.pid is not None, "it has a process"
        os.kill(stat_of(ready.pid).parent, signal.SIGKILL)  # the warm process, without which no job lives

    with Pool(cpus=2, seed=3) as pool:
        yield EngineCase(pool.engine, lambda fact, text: void(within(30, fact, text)), lose)


@contextlib.contextmanager
def simulated(slow: bool = False) -> Iterator[EngineCase]:
    fate = Fate(start_s=600.0, leave_s=60.0) if slow else Fate()
    engine = SimulatedEngine(play, machines=(Machine(1, 0), Machine(1, 0)), fate=lambda job: fate, seed=3)

    def lose(job: Job, ready: Ready) -> None:
        (machine,) = [each.machine for each in engine.jobs if each is job]
        assert machine is not None, "it runs somewhere"
        engine.loop.call_soon(lambda: engine.lose_node(machine))

    yield EngineCase(engine, lambda fact, text: engine.loop.run(lambda: bool(fact())), lose)
    engine.loop.close()


def void(_: object) -> None:
    """What is returned is not needed."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_local_engine_keeps_the_contract(check: Check) -> None:
    with local() as case:
        check(case)


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_simulated_engine_keeps_the_contract(check: Check, slow: bool) -> None:
    with simulated(slow) as case:
        check(case)


# -- broken engines ----------------------------------------------------------------------------------------------------


@dataclass
class BrokenEvents:
    """What the submitter hears of an engine that is broken in one way."""

    true: JobEvents
    way: str

    def on_ready(self, job: Job, ready: Ready) -> None:
        if self.way != "says nothing of ready":
            self.true.on_ready(job, ready)
        if self.way == "ready twice":
            self.true.on_ready(job, ready)

    def on_report(self, report: Report) -> None:
        if self.way == "replies for the submitter":
            report.answer(Reply())
        self.true.on_report(BrokenReport(report, self.way))

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        if self.way == "free before the end":
            self.true.on_free(job)
        if self.way == "takes every loss for a crash" and outcome.kind == "lost":
            outcome = replace(outcome, kind="signal")
        if self.way == "forgets the traceback":
            outcome = replace(outcome, traceback="")
        self.true.on_ended(job, outcome)
        if self.way == "ends twice":
            self.true.on_ended(job, outcome)

    def on_free(self, job: Job) -> None:
        if self.way not in ("never free", "free before the end"):
            self.true.on_free(job)


class BrokenReport:
    """A report of such an engine."""

    def __init__(self, true: Report, way: str) -> None:
        self.job, self.values, self.worker_time_s = true.job, true.values, true.worker_time_s
        self.checkpoint = None if way == "loses checkpoints" else true.checkpoint
        self._true = true
        self._way = way

    def answer(self, reply: Reply) -> None:
        if self._way == "sends one word":
            reply = Reply(reply.decision)
        elif self._way == "knows no pause" and reply.decision == "PAUSE":
            reply = Reply()
        self._true.answer(reply)

    def refuse(self, error: BaseException) -> None:
        self._true.refuse(TrialStopped("told so") if self._way == "refuses by a stop" else error)


class BrokenEngine:
    """A simulated engine that is broken in one way."""

    def __init__(self, true: Engine, way: str) -> None:
        self._true = true
        self._way = way

    @property
    def loop(self) -> Loop:
        return self._true.loop

    def capacity(self) -> Capacity:
        return Capacity((Machine(3, 0),)) if self._way == "boasts" else self._true.capacity()

    def prepare(self, packed: Packed) -> None:
        self._true.prepare(packed)

    def submit(self, request: JobRequest, events: JobEvents) -> Job:
        if self._way == "loses the context":
            request = replace(request, context=None)
        job = self._true.submit(request, BrokenEvents(events, self._way))
        if self._way == "tells while submit is at work":
            events.on_ready(job, Ready(None, 0.0, "simulated"))
        return job

    def end(self, job: Job, how: Ending, *, grace_s: float | None = None) -> None:
        if self._way == "cannot kill" and how == "kill":
            return
        if self._way == "knows no grace":
            grace_s = None
        if self._way == "kills at once":
            how = "kill"
        self._true.end(job, how, grace_s=grace_s)

    def output(self, job: Job) -> Output:
        return Output() if self._way == "loses output" else self._true.output(job)

    def close(self) -> None:
        if self._way != "closes without a word":
            self._true.close()


@pytest.mark.parametrize(
    ("way", "check"),
    [
        ("says nothing of ready", contract.a_job_is_ready_then_ended_then_free),
        ("ready twice", contract.a_job_is_ready_then_ended_then_free),
        ("never free", contract.a_job_is_ready_then_ended_then_free),
        ("free before the end", contract.a_death_is_an_outcome),
        ("ends twice", contract.a_job_is_ready_then_ended_then_free),
        ("tells while submit is at work", contract.nothing_is_heard_before_submit_has_returned),
        ("replies for the submitter", contract.a_reply_reaches_the_job_with_its_body),
        ("replies for the submitter", contract.a_job_that_is_told_to_stop_or_pause_ends_as_stopped),
        ("sends one word", contract.a_reply_reaches_the_job_with_its_body),
        ("knows no pause", contract.a_job_that_is_told_to_stop_or_pause_ends_as_stopped),
        ("refuses by a stop", contract.a_refused_report_raises_in_the_job),
        ("loses checkpoints", contract.reports_come_in_order_with_values_time_and_checkpoint),
        ("loses the context", contract.a_job_knows_what_its_submitter_gave_it),
        ("forgets the traceback", contract.an_exception_is_an_outcome),
        ("takes every loss for a crash", contract.a_lost_node_is_an_outcome),
        ("loses output", contract.what_a_job_printed_is_there_when_it_has_ended),
        ("cannot kill", contract.a_deaf_job_ends_when_it_is_killed),
        ("knows no grace", contract.a_deaf_job_is_killed_when_its_grace_is_over),
        ("kills at once", contract.a_waiting_job_ends_when_it_is_told_to),
        ("boasts", contract.no_more_run_than_there_is_room_for),
        ("closes without a word", contract.closing_tells_every_submitter),
    ],
)
def test_a_broken_engine_does_not_keep_the_contract(way: str, check: Check) -> None:
    with simulated() as case, pytest.raises(AssertionError):
        check(replace(case, engine=BrokenEngine(case.engine, way)))


def test_an_engine_that_is_broken_in_no_way_keeps_the_contract() -> None:
    for check in CHECKS:
        with simulated() as case:
            check(replace(case, engine=BrokenEngine(case.engine, "none")))
