"""This machine's processes and a simulation keep the contract of engines; broken engines do not."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import engine_contract as contract
import pytest
from engine_contract import CHECKS, Check, EngineCase
from engine_jobs import play
from simulated_engine import Fate, SimulatedEngine

from fanwise.base.errors import TrialStopped
from fanwise.pool import Machine, Outcome, Pool, Reply
from fanwise.pool.contract import (
    Capacity,
    Ending,
    Engine,
    Job,
    JobEvents,
    JobRequest,
    Loop,
    Output,
    Ready,
    Report,
    Timer,
)
from fanwise.pool.leases import Resources
from fanwise.pool.processes import stat_of
from fanwise.pool.specs import Packed
from fanwise.testing import within


def local(pool: Pool) -> EngineCase:
    def lose(job: Job, ready: Ready) -> None:
        assert ready.pid is not None, "it has a process"
        os.kill(stat_of(ready.pid).parent, signal.SIGKILL)  # the warm process, without which no job lives

    return EngineCase(pool._engine, lambda fact, text: void(within(30, fact, text)), lose)


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


# After these the engine is no more, or starts its processes anew. To the others it is as good as one of their own.
WEARING = (contract.a_lost_node_is_an_outcome, contract.closing_tells_every_submitter)


@pytest.mark.parametrize("check", [each for each in CHECKS if each not in WEARING], ids=lambda check: check.__name__)
def test_the_local_engine_keeps_the_contract(check: Check, pool: Pool) -> None:
    check(local(pool))


@pytest.mark.parametrize("check", WEARING, ids=lambda check: check.__name__)
def test_the_local_engine_keeps_the_contract_to_its_end(check: Check) -> None:
    with Pool(cpus=2, seed=3) as pool:
        check(local(pool))


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
        if self.way == "tells on a thread of its own":
            other = threading.Thread(target=self.true.on_ready, args=(job, ready))
            other.start()
            other.join()
        elif self.way != "says nothing of ready":
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
        if self.way == "reports after the end":
            self.true.on_report(LateReport(job))
        if self.way == "ends twice":
            self.true.on_ended(job, outcome)

    def on_free(self, job: Job) -> None:
        if self.way not in ("never free", "free before the end"):
            self.true.on_free(job)


@dataclass
class LateReport:
    """A report of such an engine when its job has ended."""

    job: Job
    values: Any = None
    worker_time_s: float = 0.0
    checkpoint: str | None = None

    def answer(self, reply: Reply) -> None:
        """Nobody waits."""

    def refuse(self, error: BaseException) -> None:
        """Nobody waits."""


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


@dataclass
class BrokenLoop:
    """The loop of such an engine."""

    true: Loop
    way: str

    def now_s(self) -> float:
        return self.true.now_s()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.true.call_soon(call)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        if self.way == "fires early":
            when_s -= 0.06
        timer = self.true.call_at(when_s, call)
        return NeverCancelled(timer.when_s) if self.way == "never cancels" else timer

    def at_turn_end(self, hook: Callable[[], None]) -> None:
        if self.way != "has no hooks":
            self.true.at_turn_end(hook)

    def not_at_turn_end(self, hook: Callable[[], None]) -> None:
        if self.way != "keeps hooks":
            self.true.not_at_turn_end(hook)

    def check_usable(self) -> None:
        self.true.check_usable()


@dataclass
class NeverCancelled:
    """A timer of such a loop."""

    when_s: float

    def cancel(self) -> None:
        """Nothing."""


class BrokenEngine:
    """A simulated engine that is broken in one way."""

    def __init__(self, true: Engine, way: str) -> None:
        self._true = true
        self._way = way
        self._ended: set[Job] = set()

    @property
    def loop(self) -> Loop:
        return BrokenLoop(self._true.loop, self._way)

    def capacity(self) -> Capacity:
        return Capacity((Machine(3, 0),)) if self._way == "boasts" else self._true.capacity()

    def prepare(self, packed: Packed) -> None:
        self._true.prepare(packed)

    def submit(self, request: JobRequest, events: JobEvents) -> Job:
        if self._way == "loses the context":
            request = replace(request, context=None)
        if self._way == "takes what can never run":
            request = replace(request, resources=Resources())
        job = self._true.submit(request, BrokenEvents(events, self._way))
        if self._way == "tells while submit is at work":
            events.on_ready(job, Ready(None, 0.0, "simulated"))
        return job

    def end(self, job: Job, how: Ending, *, grace_s: float | None = None) -> None:
        if self._way == "cannot kill" and how == "kill":
            return
        if self._way == "ends only what has begun" and job.state in ("queued", "starting"):
            return
        if self._way == "falls over a second end":
            assert job not in self._ended, "it was ended before"
            self._ended.add(job)
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
        ("tells on a thread of its own", contract.everything_is_heard_on_the_thread_of_the_loop),
        ("has no hooks", contract.what_a_turn_brought_may_be_answered_at_its_end),
        ("keeps hooks", contract.what_a_turn_brought_may_be_answered_at_its_end),
        ("fires early", contract.the_loop_keeps_time),
        ("never cancels", contract.the_loop_keeps_time),
        ("ends only what has begun", contract.a_job_that_has_not_begun_never_does_when_it_is_ended),
        ("falls over a second end", contract.to_end_it_twice_or_late_does_no_harm),
        ("takes what can never run", contract.what_can_never_run_is_refused),
        ("reports after the end", contract.nothing_is_reported_after_the_end),
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
