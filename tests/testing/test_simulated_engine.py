"""Whatever can befall a job can be chosen, and takes virtual time; the contract is tested beside the local engine's."""

import logging
import math

import pytest
from engine_contract import Heard
from engine_jobs import climbs, play, returns, waits
from simulated_engine import Fate, SimulatedEngine, SimulatedJob
from simulated_loop import SimulatedLoop

from fanwise.base.errors import ClosedError
from fanwise.pool import Machine, Outcome
from fanwise.pool.contract import JobRequest
from fanwise.pool.functions import pack
from fanwise.pool.leases import Resources

CLIMB = JobRequest(pack(climbs), Resources(), keywords={"steps": 100})


def test_an_hour_of_training_passes_in_no_time_and_is_counted() -> None:
    engine = SimulatedEngine(play, fate=lambda job: Fate(start_s=20.0, leave_s=5.0))
    heard = Heard(engine)
    engine.submit(CLIMB, heard)
    engine.loop.run(lambda: heard.is_free)
    assert engine.loop.now_s() == 125.0
    assert heard.ready[0].started_s == 20.0
    assert [report.worker_time_s for report in heard.reports] == [float(n) for n in range(1, 101)]
    assert heard.outcomes[0].objective_s == 100.0


def test_a_job_may_die_at_a_chosen_moment_of_a_chosen_death() -> None:
    death = Outcome("out-of-memory", "ended by SIGKILL: no memory")
    engine = SimulatedEngine(play, fate=lambda job: Fate(dies_s=3.5, outcome=death))
    heard = Heard(engine)
    engine.submit(CLIMB, heard)
    engine.loop.run(lambda: heard.is_free)
    assert (len(heard.reports), heard.outcomes) == (3, [death])


def test_a_job_may_never_be_ready_and_can_be_ended_all_the_same() -> None:
    engine = SimulatedEngine(play, fate=lambda job: Fate(start_s=math.inf))
    heard = Heard(engine)
    job = engine.submit(CLIMB, heard)
    with pytest.raises(AssertionError, match="nothing happens any more"):
        engine.loop.run(lambda: bool(heard.ready))
    assert job.state == "starting"
    engine.end(job, "kill")
    engine.loop.run(lambda: heard.is_free)
    assert heard.story == ["ended", "free"]


def test_a_node_takes_its_jobs_with_it_and_another_may_join() -> None:
    first, second = Machine(2, 0), Machine(1, 0)
    engine = SimulatedEngine(play, machines=(first, second))
    all_heard = [Heard(engine) for _ in range(4)]
    for heard in all_heard:
        engine.submit(JobRequest(pack(waits), Resources(), keywords={}), heard)
    engine.loop.run(lambda: sum(len(heard.ready) for heard in all_heard) == 3)
    engine.loop.call_soon(lambda: engine.lose_node(first))
    engine.loop.run(lambda: sum(heard.is_free for heard in all_heard) == 2)
    assert [[outcome.kind for outcome in heard.outcomes] for heard in all_heard] == [["lost"], ["lost"], [], []]
    assert engine.capacity().cpus == 1 and engine.jobs[3].state == "queued"
    engine.loop.call_soon(lambda: engine.add_node(Machine(1, 0)))
    engine.loop.run(lambda: bool(all_heard[3].ready))


def test_without_a_program_nothing_happens_by_itself() -> None:
    engine = SimulatedEngine()
    heard = Heard(engine)
    job = engine.submit(CLIMB, heard)
    engine.loop.turn()
    engine.end(job, "terminate")
    engine.loop.turn()
    assert (heard.story, job.told, engine.loop.num_timers) == ([], ["terminate"], 0)
    engine.ready(job)
    report = engine.report(job, {"loss": 0.5}, checkpoint="here")
    engine.ended(job, Outcome("returned"))
    engine.free(job)
    assert heard.story == ["ready", "report", "ended", "free"]
    assert (report.checkpoint, len(report.answers)) == ("here", 1)


def test_every_job_has_a_fate_of_its_own() -> None:
    def fate(job: SimulatedJob) -> Fate:
        return Fate(start_s=float(job.number))

    engine = SimulatedEngine(play, fate=fate)
    all_heard = [Heard(engine) for _ in range(3)]
    for heard in all_heard:
        engine.submit(JobRequest(pack(returns), Resources(), keywords={"value": 1}), heard)
    engine.loop.run(lambda: all(heard.is_free for heard in all_heard))
    assert [heard.ready[0].started_s for heard in all_heard] == [0.0, 1.0, 2.0]


def test_a_turn_brings_timers_then_calls_then_hooks_and_what_they_bring_on_comes_in_the_next() -> None:
    loop, seen = SimulatedLoop(), list[str]()

    def call() -> None:
        seen.append("call")
        loop.call_soon(lambda: seen.append("next turn"))
        loop.call_at(0.0, lambda: seen.append("timer of the next turn"))

    loop.at_turn_end(lambda: seen.append("hook"))
    loop.call_soon(call)
    loop.call_at(0.0, lambda: seen.append("timer"))
    loop.turn()
    assert seen == ["timer", "call", "hook"]
    loop.turn()
    assert seen[3:] == ["timer of the next turn", "next turn", "hook"]


def test_a_closed_loop_does_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    loop, seen = SimulatedLoop(), list[int]()
    loop.call_soon(lambda: seen.append(1))
    loop.close()
    loop.call_soon(lambda: seen.append(2))
    loop.turn()
    assert seen == []
    with pytest.raises(ClosedError):
        loop.check_usable()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
