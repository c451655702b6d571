"""A search on a simulated pool: reports are committed before answers are sent, and every error ends the search."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from played_pool import Stage

from fanwise.base.errors import ClosedError, FanwiseError, RecordError
from fanwise.pool import Outcome
from fanwise.pool.contract import Output
from fanwise.tune import FIFO, Searcher, StoppingCriterion
from fanwise.tune.core import events
from fanwise.tune.record.event_codec import event_of
from fanwise.tune.record.event_file import read_events
from fanwise.tune.record.trials import MAX_ROWS
from fanwise.tune.schedulers import Decision, New, NextTrial, Scheduler
from fanwise.tune.searchers import Observation, SuggestContext


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    try:
        stage.file.close()
    except FanwiseError:
        pass


def test_answer_is_sent_after_its_report_is_committed(stage: Stage) -> None:
    stage.begin()
    first = stage.engine.jobs[0]
    stage.ready(first)
    report = stage.report(first, loss=0.5)
    assert report.answers == []
    stage.turn()
    assert report.answers == ["CONTINUE"]
    assert report.kept == [{"loss": 0.5}]


def test_reports_of_one_turn_share_one_commit(stage: Stage) -> None:
    stage.begin()
    before = stage.record.transactions
    reports = [stage.report(job, loss=number) for number, job in enumerate(stage.engine.jobs * 5)]
    stage.turn()
    assert stage.record.transactions == before + 1
    assert [report.answers for report in reports] == [["CONTINUE"]] * 10
    assert all(len(report.kept) == 10 for report in reports)


def test_record_has_the_events_of_a_trial_in_order(stage: Stage) -> None:
    stage.begin(stop=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    (job,) = stage.engine.jobs
    stage.ready(job)
    stage.report(job, loss=0.5)
    stage.turn()
    stage.end(job)
    assert [event.kind for event in read_events(stage.folder)] == [
        *("begin", "suggested", "ready", "report", "ended", "free"),
    ]
    actions = [action["action"] for event in read_events(stage.folder) for action in event.body.get("actions", ())]
    assert actions == ["start", "stop", "judged", "finish"]
    assert stage.search.finished.is_set()
    assert stage.search.failure is None
    assert stage.search.finish is not None
    assert stage.search.finish.kind == "limit"


def test_report_after_the_end_of_its_trial_is_answered_and_recorded_as_late(stage: Stage) -> None:
    stage.begin(stop=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    (job,) = stage.engine.jobs
    stage.ended(job)
    ended = stage.report(job, loss=0.5)
    stage.turn()
    stage.gone(job)
    assert stage.search.finished.is_set()
    late_report = stage.report(job, loss=0.25)
    stage.turn()
    assert ended.answers == late_report.answers == ["STOP"]
    assert [body["late"] for _, body in stage.events("report")] == [True]


def test_interrupts_terminate_and_kill_trials_that_are_starting(stage: Stage) -> None:
    stage.begin()
    stage.turn(lambda: stage.search.apply_command(events.Interrupt))
    assert [job.told for job in stage.engine.jobs] == [["terminate"], ["terminate"]]
    stage.turn(lambda: stage.search.apply_command(events.Interrupt))
    assert [job.told for job in stage.engine.jobs] == [["terminate", "kill"], ["terminate", "kill"]]
    for job in stage.engine.jobs:
        stage.end(job, Outcome("signal", "ended by SIGKILL"))
    assert stage.search.finished.is_set()
    assert [action["status"] for action in stage.actions("judged")] == ["Stopped", "Stopped"]


def test_each_attempt_has_its_own_output_files_and_seed(stage: Stage) -> None:
    stage.begin(n_workers=1, retries=1)
    stage.end(stage.engine.jobs[0], Outcome("exit", "gone"))
    first, second_job = stage.engine.jobs
    assert (second_job.number, second_job.request.attempt) == (0, 1)
    assert [Path(job.request.output or "").name for job in (first, second_job)] == ["0", "0-1"]
    assert first.seed != second_job.seed


def test_added_workers_get_jobs_in_the_same_turn(stage: Stage) -> None:
    stage.begin(n_workers=1, max_equal_failures=None)
    stage.turn(lambda: stage.search.apply_command(lambda now_s: events.WorkersChanged(now_s, 3)))
    assert [job.number for job in stage.engine.jobs] == [0, 1, 2]
    stage.turn(lambda: stage.search.apply_command(lambda now_s: events.WorkersChanged(now_s, 1)))
    assert [job.told for job in stage.engine.jobs] == [[], [], []], "running trials are not stopped"
    for job in stage.engine.jobs[:2]:
        stage.end(job)
    assert len(stage.engine.jobs) == 3
    stage.end(stage.engine.jobs[2])
    assert len(stage.engine.jobs) == 4
    assert [body["n_workers"] for _, body in stage.events("workers")] == [3, 1]


def test_threads_that_a_trial_left_running_are_in_the_news_and_the_record(stage: Stage) -> None:
    stage.begin(n_workers=1)
    (job,) = stage.engine.jobs
    stage.report(job, loss=0.5)
    stage.ended(job, Outcome("returned", threads=("'saver' in save, train.py:7",)))
    news = stage.search.take_news()
    assert any(
        "trial 0 left a thread running ('saver' in save, train.py:7), which keeps its worker busy" in line
        for line in news
    )
    ((_, body),) = stage.events("ended")
    assert body["outcome"]["threads"] == ["'saver' in save, train.py:7"]
    (event,) = (event for event in read_events(stage.folder) if event.kind == "ended")
    decoded = event_of("ended", event.t_s, event.trial_id, event.body)
    assert isinstance(decoded, events.Ended) and decoded.outcome.threads == ("'saver' in save, train.py:7",)
    stage.gone(job)


def test_summary_is_written_every_five_seconds(stage: Stage) -> None:
    stage.begin(n_workers=1)
    stage.turn()
    (job,) = stage.engine.jobs
    assert stage.record.meta["summary"]["num_running"] == 1
    stage.loop.clock.advance(4.0)
    stage.report(job, loss=0.5)
    stage.turn()
    assert stage.record.meta["summary"]["best"] is None, "the next summary is not due yet"
    stage.loop.clock.advance(1.5)
    stage.turn()
    summary = stage.record.meta["summary"]
    assert (summary["best"], summary["finished"], summary["last_s"]) == ([0.5, 0], False, 5.5)


def test_command_is_answered_after_it_is_committed(stage: Stage) -> None:
    stage.begin()
    num_recorded: list[int] = []
    stage.search.apply_command(
        lambda now_s: events.Command(now_s, "pause", 0), lambda: num_recorded.append(len(stage.events("command")))
    )
    assert num_recorded == []
    stage.turn()
    assert num_recorded == [1]


def test_command_before_begin_is_applied_after_begin(stage: Stage) -> None:
    stage.loop.call_soon(lambda: stage.search.apply_command(lambda now_s: events.Interrupt(now_s, "enough")))
    stage.begin()
    assert stage.search.failure is None
    assert [event.kind for event in read_events(stage.folder)] == ["begin", "suggested", "suggested", "interrupt"]


# Errors end the search, and nothing waits forever.


def check_killed_and_finished(stage: Stage) -> None:
    """Check that all jobs are killed, and let their processes exit. Then the search has ended."""
    assert not stage.search.finished.is_set()
    for job in stage.engine.jobs:
        assert job.told[-1:] == ["kill"]
        stage.gone(job)
    assert stage.search.finished.is_set()


def test_failed_commit_refuses_the_reports_and_ends_the_search(stage: Stage) -> None:
    stage.begin()
    stage.record.error = RecordError("the disk is full.")
    reports = [stage.report(job, loss=0.5) for job in stage.engine.jobs]
    stage.turn()
    for report in reports:
        (answer,) = report.answers
        assert isinstance(answer, RecordError)
        assert answer.message.startswith("this report was not kept: the disk is full.")
    late = stage.report(stage.engine.jobs[0], loss=0.5)
    stage.turn()
    assert isinstance(late.answers[0], RecordError)
    check_killed_and_finished(stage)
    assert stage.search.failure is stage.record.error


@pytest.mark.parametrize("error", [MemoryError("no memory"), SystemExit(3), KeyboardInterrupt()])
def test_any_exception_of_a_commit_ends_the_search(stage: Stage, error: BaseException) -> None:
    stage.begin()
    stage.record.error = error
    stage.ready(stage.engine.jobs[0])
    check_killed_and_finished(stage)
    assert stage.search.failure is error


@pytest.mark.parametrize("error", [OSError("no process"), SystemExit(3)])
def test_job_that_cannot_be_submitted_ends_the_search(stage: Stage, error: BaseException) -> None:
    stage.begin(n_workers=1)
    stage.engine.error = error
    stage.ended(stage.engine.jobs[0])
    stage.gone(stage.engine.jobs[0])
    assert stage.search.finished.is_set()
    assert stage.search.failure is error


def test_first_job_that_cannot_be_submitted_ends_the_search_at_once(stage: Stage) -> None:
    stage.engine.error = error = OSError("no process")
    stage.begin()
    assert stage.search.finished.is_set()
    assert stage.search.failure is error


class ExitingSearcher(Searcher):
    """Suggests twice, then raises SystemExit, which `except Exception` does not catch."""

    runs_inline = True

    def __init__(self) -> None:
        self.num_calls = 0

    def suggest(self, ask: object) -> Mapping[str, object]:
        self.num_calls += 1
        if self.num_calls > 2:
            raise SystemExit(3)
        return {"x": 0.5}

    def observe(self, observation: Observation) -> None:
        """Do nothing."""


def test_system_exit_in_a_searcher_ends_the_search_and_not_the_thread_of_the_hub(stage: Stage) -> None:
    stage.begin(FIFO(ExitingSearcher(), metric="loss"))
    first, second = stage.engine.jobs
    stage.end(first)
    assert second.told == ["kill"]
    stage.gone(second)
    assert stage.search.finished.is_set()
    assert isinstance(stage.search.failure, SystemExit)


class InvalidScheduler(Scheduler):
    """Returns a configuration that is not in the space and cannot be encoded as JSON."""

    def __init__(self) -> None:
        super().__init__(metric="loss")

    def next(self, ask: SuggestContext) -> NextTrial:
        return New({"x": object()})

    def on_report(self, observation: Observation) -> Decision:
        return Decision.CONTINUE


def test_configuration_outside_the_space_ends_the_search_with_an_error(
    stage: Stage,
) -> None:
    stage.begin(InvalidScheduler())
    assert stage.search.finished.is_set()
    finish = stage.search.finish
    assert finish is not None and finish.kind == "scheduler"
    assert isinstance(finish.cause, ValueError)
    assert "InvalidScheduler.next() for trial 0 gave" in str(finish.cause) and "is not in uniform(0.0, 1.0)" in str(
        finish.cause
    )


@pytest.mark.parametrize(
    "values", [[0.5], None, {"loss": 0.5, "note": "x" * 1001}, {1: 0.5}, {"loss": 0.5, "model": object()}]
)
def test_invalid_values_of_a_report_are_refused_and_not_counted(stage: Stage, values: object) -> None:
    stage.begin()
    job = stage.engine.jobs[0]
    bad = stage.report_raw(job, values)
    good = stage.report(job, loss=0.5)
    stage.turn()
    (refusal,) = bad.answers
    assert isinstance(refusal, TypeError)
    assert str(refusal).startswith("a report must ")
    assert good.answers == ["CONTINUE"]
    assert stage.events("report")[0][1]["iter"] == 1


def test_abandoned_search_kills_its_jobs_and_writes_no_more_events(stage: Stage) -> None:
    stage.begin()
    report = stage.report(stage.engine.jobs[0], loss=0.5)
    stage.turn(stage.search.abandon)
    assert stage.search.finished.is_set()
    assert isinstance(stage.search.failure, ClosedError)
    assert isinstance(report.answers[0], RecordError)
    assert [job.told for job in stage.engine.jobs] == [["kill"], ["kill"]]
    stage.file.close()
    before = read_events(stage.folder)
    for job in stage.engine.jobs:
        stage.end(job)
    assert read_events(stage.folder) == before
    assert stage.events("ended") == []


def test_search_can_be_abandoned_after_its_hub_has_ended(stage: Stage) -> None:
    stage.begin()
    stage.search.abandon()
    assert stage.search.finished.is_set()


def test_finished_search_ignores_abandon_and_interrupt(stage: Stage) -> None:
    stage.begin(stop=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    stage.end(stage.engine.jobs[0])
    stage.turn(stage.search.abandon, lambda: stage.search.apply_command(events.Interrupt))
    stage.gone(stage.engine.jobs[0])
    assert stage.search.failure is None
    assert len(stage.actions("finish")) == 1


# Memory and rows after many trials.


def test_finished_trials_leave_only_counts_and_the_latest_rows(stage: Stage) -> None:
    stage.begin(stop=StoppingCriterion(max_num_trials_started=100), trial_timeout_s=3600.0)
    jobs = iter(stage.engine.jobs)
    for job in jobs:
        stage.ready(job)
        stage.report(job, loss=1.0 / job.id)
        stage.end(job)
    assert stage.search.finished.is_set()
    assert len(stage.engine.jobs) == 100
    for table in ("_attempts", "_job_ids", "_answers"):
        assert len(getattr(stage.search, table)) == 0, table
    assert stage.loop.num_timers <= 1
    stage.turn()
    assert not stage.loop.hooks
    news, snapshot = stage.search.take_news(), stage.search.take_snapshot()
    assert len(news) == 21 and news[-1] == "(and 181 more events)"
    assert len(snapshot.rows) == MAX_ROWS
    assert (snapshot.finished, snapshot.completed, snapshot.running) == (100, 100, 0)


def test_table_keeps_the_row_of_an_old_best_trial(stage: Stage) -> None:
    stage.begin(n_workers=1, stop=StoppingCriterion(max_num_trials_started=2 * MAX_ROWS))
    for job in iter(stage.engine.jobs):
        stage.report(job, loss=float(job.number) + 1)
        stage.end(job)
    snapshot = stage.search.take_snapshot()
    assert snapshot.best == (1.0, 0)
    assert [row.trial_id for row in snapshot.rows] == [0, *range(MAX_ROWS, 2 * MAX_ROWS)]


# Last output of failed trials.


def test_failure_without_output_gets_the_last_output_of_its_job(stage: Stage) -> None:
    stage.begin(n_workers=1, max_equal_failures=None)
    (silent,) = stage.engine.jobs
    silent.printed = Output("printed")
    stage.end(silent)
    crashed = stage.engine.jobs[1]
    crashed.printed = Output("not used")
    stage.end(crashed, Outcome("exception", "ValueError: wrong", "the traceback", "its last output"))
    (_, first), (_, second) = stage.events("ended")
    assert first["outcome"]["last_output"] == "printed"
    reason = {"kind": "exception", "text": "ValueError: wrong", "traceback": "the traceback"}
    assert second["outcome"] == {**reason, "last_output": "its last output"}
    judged = stage.actions("judged")
    assert [action["status"] for action in judged] == ["Failed", "Failed"]
    assert [action["reason"][0] for action in judged] == ["no-report", "exception"]
