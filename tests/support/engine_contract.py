"""What every engine promises, as checks that any implementation can run. Loads no pytest.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_engine_keeps_the_contract(check: Check) -> None:
        with my_engine() as case:
            check(case)

The jobs are the functions of `engine_jobs`; an engine without processes plays `engine_jobs.play`. Each check needs an
engine of its own that nobody else uses, with room for two jobs of `resources`, and raises `AssertionError` when a
promise is broken. It waits by `case.wait` only, so that a broken engine fails and does not hang.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import engine_jobs as jobs

from fanwise.base.errors import ClosedError, LeaseError
from fanwise.pool.contract import Ending, Engine, Job, JobRequest, Outcome, Output, Ready, Reply, Report
from fanwise.pool.functions import pack
from fanwise.pool.leases import Resources
from fanwise.pool.outcomes import value_of
from fanwise.pool.seeds import job_seed

T = TypeVar("T")

_ONE_CPU = Resources()
_BOTH: tuple[Ending, ...] = ("terminate", "kill")


@dataclass(frozen=True, slots=True)
class EngineCase:
    """An engine under test.

    Attributes:
        wait: `wait(fact, text)` lets the loop run until `fact()` holds, and fails when it does not.
        lose: takes away the node of a running job, or whatever its process cannot live without.
        resources: of one job; two of them fit, and no third.
    """

    engine: Engine
    wait: Callable[[Callable[[], object], str], None]
    lose: Callable[[Job, Ready], None]
    resources: Resources = _ONE_CPU


@dataclass(eq=False)
class Heard:
    """What the submitter of one job heard; `reply` answers its reports, also by an error, or leaves it for later."""

    engine: Engine
    reply: Callable[[Report], Reply | BaseException | None] = lambda report: Reply()
    story: list[str] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    printed: list[Output] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def on_ready(self, job: Job, ready: Ready) -> None:
        self._note("ready", job)
        self.ready.append(ready)

    def on_report(self, report: Report) -> None:
        self._note("report", report.job)
        self.reports.append(report)
        answer = self.reply(report)
        if isinstance(answer, Reply):
            report.answer(answer)
        elif answer is not None:
            report.refuse(answer)

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self._note("ended", job)
        self.outcomes.append(outcome)
        self.printed.append(self.engine.output(job))

    def on_free(self, job: Job) -> None:
        self._note("free", job)
        self.printed.append(self.engine.output(job))

    def _note(self, what: str, job: Job) -> None:
        self.story.append(what)
        self.jobs.append(job)
        self.threads.add(threading.get_ident())

    @property
    def values(self) -> list[Any]:  # Any: whatever was reported
        return [report.values for report in self.reports]

    @property
    def is_free(self) -> bool:
        return "free" in self.story


Check = Callable[[EngineCase], None]


# -- the life of a job -------------------------------------------------------------------------------------------------


def a_job_is_ready_then_ended_then_free(case: EngineCase) -> None:
    job, heard = _submitted(case, jobs.returns, value={"loss": 0.5})
    _wait_free(case, heard)
    assert heard.story == ["ready", "ended", "free"], heard.story
    assert all(each is job for each in heard.jobs)
    assert job.state == "over"
    (outcome,) = heard.outcomes
    assert outcome.kind == "returned" and value_of(outcome) == {"loss": 0.5}
    assert outcome.objective_s is not None and outcome.objective_s >= 0
    assert heard.ready[0].started_s <= case.engine.loop.now_s()


def nothing_is_heard_before_submit_has_returned(case: EngineCase) -> None:
    heard = Heard(case.engine)

    def submit() -> list[str]:
        case.engine.submit(_request(case, jobs.returns, value=1), heard)
        return list(heard.story)

    assert _on_loop(case, submit) == []
    _wait_free(case, heard)


def everything_is_heard_on_the_thread_of_the_loop(case: EngineCase) -> None:
    here = _on_loop(case, threading.get_ident)
    _, heard = _submitted(case, jobs.climbs, steps=2)
    _wait_free(case, heard)
    assert heard.threads == {here}


def what_a_turn_brought_may_be_answered_at_its_end(case: EngineCase) -> None:
    heard = Heard(case.engine, lambda report: None)
    answered: list[Report] = []

    def answer() -> None:
        for report in heard.reports[len(answered) :]:
            answered.append(report)
            report.answer(Reply())

    _on_loop(case, lambda: case.engine.loop.at_turn_end(answer))
    _on_loop(case, lambda: case.engine.submit(_request(case, jobs.climbs, steps=3), heard))
    _wait_free(case, heard)
    _on_loop(case, lambda: case.engine.loop.not_at_turn_end(answer))
    assert len(answered) == 3
    _raises(ValueError, lambda: _on_loop(case, lambda: case.engine.loop.not_at_turn_end(answer)))


def the_submitters_failures_are_its_own(case: EngineCase) -> None:
    class Bad:
        """Fails whenever it is told anything."""

        def on_ready(self, job: Job, ready: Ready) -> None:
            raise RuntimeError("ready")

        def on_report(self, report: Report) -> None:
            raise RuntimeError("report")

        def on_ended(self, job: Job, outcome: Outcome) -> None:
            raise SystemExit(3)

        def on_free(self, job: Job) -> None:
            raise KeyboardInterrupt

    bad = _on_loop(case, lambda: case.engine.submit(_request(case, jobs.returns, value=1), Bad()))
    case.wait(lambda: bad.state == "over", "the job of the failing submitter is over")
    _, heard = _submitted(case, jobs.returns, value=2)
    _wait_free(case, heard)


# -- reports -----------------------------------------------------------------------------------------------------------


def reports_come_in_order_with_values_time_and_checkpoint(case: EngineCase) -> None:
    _, heard = _submitted(case, jobs.climbs, steps=3)
    _wait_free(case, heard)
    assert heard.story == ["ready", "report", "report", "report", "ended", "free"]
    assert [values["step"] for values in heard.values] == [0, 1, 2]
    assert [report.checkpoint for report in heard.reports] == [f"checkpoint-{step}" for step in range(3)]
    times = [report.worker_time_s for report in heard.reports]
    assert times == sorted(times) and times[0] >= 0


def a_reply_reaches_the_job_with_its_body(case: EngineCase) -> None:
    body = {"config": {"rate": 0.5, "layers": [1, 2]}, "from": None}
    _, heard = _submitted(case, jobs.climbs, reply=lambda report: Reply("CONTINUE", body), steps=2)
    _wait_free(case, heard)
    assert heard.values[1]["heard"] == ["CONTINUE", body]


def a_reply_may_come_later(case: EngineCase) -> None:
    _, heard = _submitted(case, jobs.climbs, reply=lambda report: None, steps=2)
    case.wait(lambda: len(heard.reports) == 1, "the first report is there")
    _on_loop(case, lambda: heard.reports[0].answer(Reply()))
    case.wait(lambda: len(heard.reports) == 2, "the second report is there")
    assert not heard.outcomes
    _on_loop(case, lambda: heard.reports[1].answer(Reply()))
    _wait_free(case, heard)


def a_job_that_is_told_to_stop_or_pause_ends_as_stopped(case: EngineCase) -> None:
    _, stopped = _submitted(case, jobs.climbs, reply=lambda report: Reply("STOP"), steps=5)
    _, paused = _submitted(case, jobs.climbs, reply=lambda report: Reply("PAUSE"), steps=5)
    for heard in (stopped, paused):
        _wait_free(case, heard)
        assert len(heard.reports) == 1
        assert heard.outcomes[0].kind == "stopped"


def a_refused_report_raises_in_the_job(case: EngineCase) -> None:
    def reply(report: Report) -> Reply | BaseException:
        return ValueError("no such metric") if "first" in report.values else Reply()

    _, heard = _submitted(case, jobs.insists, reply=reply)
    _wait_free(case, heard)
    assert heard.values == [{"first": True}, {"refused": "no such metric"}]


def nothing_is_reported_after_the_end(case: EngineCase) -> None:
    _, heard = _submitted(case, jobs.talks_on)
    _wait_free(case, heard)
    assert heard.outcomes[0].kind == "returned"
    assert "report" not in heard.story[heard.story.index("ended") :]


def a_job_knows_what_its_submitter_gave_it(case: EngineCase) -> None:
    context = {"trial_id": 7, "folder": "/somewhere/7", "checkpoint": None}
    heard = Heard(case.engine)
    wanted = JobRequest(
        pack(jobs.tells_of_itself), case.resources, keywords={}, number=7, attempt=2, seed=11, context=context
    )
    job = _on_loop(case, lambda: case.engine.submit(wanted, heard))
    _wait_free(case, heard)
    seed = job_seed(11, 7, 2)
    assert job.seed == seed and job.request is wanted
    assert heard.values == [{"number": 7, "attempt": 2, "seed": seed, "context": context}]


# -- ends --------------------------------------------------------------------------------------------------------------


def an_exception_is_an_outcome(case: EngineCase) -> None:
    _, heard = _submitted(case, jobs.raises, text="wrong rate")
    _wait_free(case, heard)
    (outcome,) = heard.outcomes
    assert outcome.kind == "exception" and "wrong rate" in outcome.text
    assert "ValueError" in outcome.traceback and "ValueError: wrong rate" in outcome.last_output


def a_death_is_an_outcome(case: EngineCase) -> None:
    _, heard = _submitted(case, jobs.dies)
    _wait_free(case, heard)
    assert heard.story == ["ready", "ended", "free"]
    assert heard.outcomes[0].kind == "exit" and "3" in heard.outcomes[0].text


def a_lost_node_is_an_outcome(case: EngineCase) -> None:
    job, heard = _submitted(case, jobs.waits)
    _wait_ready(case, heard)
    case.lose(job, heard.ready[0])
    _wait_free(case, heard)
    assert [outcome.kind for outcome in heard.outcomes] == ["lost"], heard.outcomes
    assert heard.outcomes[0].text


def what_a_job_printed_is_there_when_it_has_ended(case: EngineCase) -> None:
    _, heard = _submitted(case, jobs.prints, out="on its way", err="in trouble")
    _wait_free(case, heard)
    for printed in heard.printed:  # when it has ended, and once more when it is free
        assert printed.out.strip() == "on its way"
        assert printed.err.startswith("in trouble")


def a_waiting_job_ends_when_it_is_told_to(case: EngineCase) -> None:
    job, heard = _submitted(case, jobs.waits)
    _wait_ready(case, heard)
    assert job.state == "running"
    assert _heard_while_ended(case, job, "terminate", heard) == ["ready"], "nothing is heard while `end` is at work"
    _wait_free(case, heard)
    assert heard.story == ["ready", "ended", "free"]
    assert heard.outcomes[0].kind == "stopped"


def a_deaf_job_ends_when_it_is_killed(case: EngineCase) -> None:
    job, heard = _submitted(case, jobs.is_deaf)
    _wait_for_reports(case, heard, 1)
    _end(case, job, "terminate")
    _wait_for_reports(case, heard, 2)
    assert not heard.outcomes
    _end(case, job, "kill")
    _wait_free(case, heard)
    assert heard.outcomes[0].kind == "signal"


def a_deaf_job_is_killed_when_its_grace_is_over(case: EngineCase) -> None:
    job, heard = _submitted(case, jobs.is_deaf)
    _wait_for_reports(case, heard, 1)
    _end(case, job, "terminate", grace_s=0.5)
    _wait_free(case, heard)
    assert heard.story == ["ready", "report", "report", "ended", "free"]
    assert heard.outcomes[0].kind == "signal"


def to_end_it_twice_or_late_does_no_harm(case: EngineCase) -> None:
    job, heard = _submitted(case, jobs.waits)
    _wait_ready(case, heard)
    for how in _BOTH * 2:
        _end(case, job, how)
    _wait_free(case, heard)
    for how in _BOTH:
        _end(case, job, how, grace_s=0.0)
    _, other = _submitted(case, jobs.returns, value=1)
    _wait_free(case, other)
    assert heard.story == ["ready", "ended", "free"]


def a_job_that_has_not_begun_never_does_when_it_is_ended(case: EngineCase) -> None:
    running = [_submitted(case, jobs.waits) for _ in range(2)]
    _wait_ready(case, *(heard for _, heard in running))
    for how in _BOTH:
        job, heard = _submitted(case, jobs.returns, value=1)
        assert job.state == "queued"
        assert _heard_while_ended(case, job, how, heard) == []
        _wait_free(case, heard)
        assert heard.story == ["ended", "free"]
        assert heard.outcomes[0].kind == "stopped"
    _kill(case, running)


# -- capacity, time, the end -------------------------------------------------------------------------------------------


def no_more_run_than_there_is_room_for(case: EngineCase) -> None:
    assert case.engine.capacity().fits(case.resources) == 2
    submitted = [_submitted(case, jobs.waits) for _ in range(4)]
    first, later = submitted[:2], submitted[2:]
    _wait_ready(case, *(heard for _, heard in first))
    assert [job.state for job, _ in later] == ["queued", "queued"]
    _kill(case, first)
    _wait_ready(case, *(heard for _, heard in later))
    _kill(case, later)


def what_can_never_run_is_refused(case: EngineCase) -> None:
    heard = Heard(case.engine)
    too_much = Resources(cpus=case.engine.capacity().cpus + 1)
    assert case.engine.capacity().fits(too_much) == 0
    wanted = JobRequest(pack(jobs.returns), too_much, keywords={"value": 1})
    _raises(LeaseError, lambda: _on_loop(case, lambda: case.engine.submit(wanted, heard)))
    _, other = _submitted(case, jobs.returns, value=1)
    _wait_free(case, other)
    assert heard.story == []


def what_was_prepared_runs(case: EngineCase) -> None:
    _on_loop(case, lambda: case.engine.prepare(pack(jobs.returns)))
    _, heard = _submitted(case, jobs.returns, value=1)
    _wait_free(case, heard)


def the_loop_keeps_time(case: EngineCase) -> None:
    loop, seen = case.engine.loop, list[tuple[str, float]]()

    def note(what: str) -> None:
        seen.append((what, loop.now_s()))

    def begin() -> float:
        now_s = loop.now_s()
        loop.call_at(now_s + 0.2, lambda: note("later"))
        loop.call_at(now_s + 0.1, lambda: note("sooner"))
        loop.call_at(now_s + 0.15, lambda: note("never")).cancel()
        return now_s

    began_s = _on_loop(case, begin)
    case.wait(lambda: len(seen) == 2, "both timers have fired")
    assert [what for what, _ in seen] == ["sooner", "later"]
    assert seen[0][1] >= began_s + 0.1 and seen[1][1] >= began_s + 0.2


def a_broken_callback_does_not_stop_the_loop(case: EngineCase) -> None:
    def fail() -> None:
        raise RuntimeError("a callback failed")

    _on_loop(case, lambda: case.engine.loop.call_soon(fail))
    assert _on_loop(case, lambda: 3) == 3


def closing_tells_every_submitter(case: EngineCase) -> None:
    running, heard = _submitted(case, jobs.waits)
    _wait_ready(case, heard)
    others = [_submitted(case, jobs.waits) for _ in range(3)]
    told: list[bool] = []

    def close() -> None:
        case.engine.close()
        told.extend(each.is_free for _, each in [(running, heard), *others])
        case.engine.close()  # a second time nothing happens

    _on_loop(case, close)
    assert told == [True] * 4
    for _, each in [(running, heard), *others]:
        assert each.story[-2:] == ["ended", "free"] and each.outcomes[0].kind == "stopped"
    _raises(ClosedError, lambda: _submitted(case, jobs.returns, value=1))


CHECKS: tuple[Check, ...] = (
    a_job_is_ready_then_ended_then_free,
    nothing_is_heard_before_submit_has_returned,
    everything_is_heard_on_the_thread_of_the_loop,
    what_a_turn_brought_may_be_answered_at_its_end,
    the_submitters_failures_are_its_own,
    reports_come_in_order_with_values_time_and_checkpoint,
    a_reply_reaches_the_job_with_its_body,
    a_reply_may_come_later,
    a_job_that_is_told_to_stop_or_pause_ends_as_stopped,
    a_refused_report_raises_in_the_job,
    nothing_is_reported_after_the_end,
    a_job_knows_what_its_submitter_gave_it,
    an_exception_is_an_outcome,
    a_death_is_an_outcome,
    a_lost_node_is_an_outcome,
    what_a_job_printed_is_there_when_it_has_ended,
    a_waiting_job_ends_when_it_is_told_to,
    a_deaf_job_ends_when_it_is_killed,
    a_deaf_job_is_killed_when_its_grace_is_over,
    to_end_it_twice_or_late_does_no_harm,
    a_job_that_has_not_begun_never_does_when_it_is_ended,
    no_more_run_than_there_is_room_for,
    what_can_never_run_is_refused,
    what_was_prepared_runs,
    the_loop_keeps_time,
    a_broken_callback_does_not_stop_the_loop,
    closing_tells_every_submitter,
)


# -- tools -------------------------------------------------------------------------------------------------------------


def _request(case: EngineCase, function: Callable[..., object], **keywords: object) -> JobRequest:
    return JobRequest(pack(function), case.resources, keywords=keywords)


def _submitted(
    case: EngineCase,
    function: Callable[..., object],
    *,
    reply: Callable[[Report], Reply | BaseException | None] = lambda report: Reply(),
    **keywords: object,
) -> tuple[Job, Heard]:
    heard = Heard(case.engine, reply)
    return _on_loop(case, lambda: case.engine.submit(_request(case, function, **keywords), heard)), heard


def _end(case: EngineCase, job: Job, how: Ending, *, grace_s: float | None = None) -> None:
    _on_loop(case, lambda: case.engine.end(job, how, grace_s=grace_s))


def _heard_while_ended(case: EngineCase, job: Job, how: Ending, heard: Heard) -> list[str]:
    def end() -> list[str]:
        case.engine.end(job, how)
        return list(heard.story)

    return _on_loop(case, end)


def _kill(case: EngineCase, submitted: Sequence[tuple[Job, Heard]]) -> None:
    for job, _ in submitted:
        _end(case, job, "kill")
    for _, heard in submitted:
        _wait_free(case, heard)


def _wait_ready(case: EngineCase, *all_heard: Heard) -> None:
    case.wait(lambda: all(heard.ready for heard in all_heard), "the jobs run")


def _wait_for_reports(case: EngineCase, heard: Heard, count: int) -> None:
    case.wait(lambda: len(heard.reports) >= count, f"{count} reports are there")


def _wait_free(case: EngineCase, heard: Heard) -> None:
    case.wait(lambda: heard.is_free, "the job is free")
    _on_loop(case, lambda: None)  # what may come too often would come now
    assert heard.story.count("ended") == heard.story.count("free") == 1, heard.story
    assert heard.story[-2:] == ["ended", "free"], heard.story


def _on_loop(case: EngineCase, call: Callable[[], T]) -> T:
    """Call it on the loop's thread; what it returns or raises."""
    done: list[T] = []
    failed: list[BaseException] = []

    def do() -> None:
        try:
            done.append(call())
        except BaseException as error:
            failed.append(error)

    case.engine.loop.call_soon(do)
    case.wait(lambda: done or failed, "the loop has run a call")
    if failed:
        raise failed[0]
    return done[0]


def _raises(kind: type[BaseException], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"it should have raised {kind.__name__}")
