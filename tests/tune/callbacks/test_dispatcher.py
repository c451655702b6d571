"""Callbacks receive all events in order, each in its own thread. Their exceptions do not end the search."""

import logging
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from searches import quiet_tuner

from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.tune import FIFO, Objective, Space, StoppingCriterion, Tuner, report, uniform
from fanwise.tune.callbacks import SearchEnded, SearchStarted, TrialEnded, TrialReported, TrialStarted
from fanwise.tune.callbacks.dispatcher import CallbackDispatcher, checked_callbacks
from fanwise.tune.core.actions import Action, Answer, SetStatus, Start
from fanwise.tune.core.events import Event, Reported, Resumed, Tick
from fanwise.tune.record.event_codec import to_row
from fanwise.tune.record.state import SearchState
from fanwise.tune.schedulers import Decision, Status

SPACE = {"x": uniform(0, 1), "epochs": 2}


def objective(x: float, epochs: int) -> None:
    for epoch in range(epochs):
        report(loss=x / (epoch + 1))


def fails_first(x: float, epochs: int) -> None:
    if x > 0.8:
        raise ValueError("too large")
    objective(x, epochs)


def reports_often(x: float) -> None:
    for _ in range(50):
        report(loss=x)


def new_state() -> SearchState:
    return SearchState({"name": "e", "metric": "loss", "mode": "min", "space": {"x": {}}, "n_workers": 1})


class Collector:
    """A callback that keeps its events and the names of the threads that called it."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.threads: set[str] = set()

    def _collect(self, event: object) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    on_start = on_trial_start = on_report = on_trial_end = on_end = _collect


def tuner(pool: Pool, *callbacks: object, n_trials: int = 1, first: float = 0.5, name: str = "digits") -> Tuner:
    return Tuner(
        fails_first,
        SPACE,
        FIFO(metric="loss", points_to_evaluate=[{"x": first}], random_seed=0),
        StoppingCriterion(max_num_trials_started=n_trials),
        n_workers=1,
        pool=pool,
        name=name,
        callbacks=callbacks,
        quiet=True,
    )


def test_callback_receives_the_events_of_a_search_in_order(pool: Pool) -> None:
    collector = Collector()
    search = tuner(pool, collector)
    search.run()
    start, trial, first, second, end, last = collector.events
    assert isinstance(start, SearchStarted) and isinstance(trial, TrialStarted) and isinstance(last, SearchEnded)
    assert isinstance(first, TrialReported) and isinstance(second, TrialReported) and isinstance(end, TrialEnded)
    assert (start.name, start.path, start.n_workers, start.resumed) == ("digits", search.path, 1, False)
    assert (trial.trial_id, trial.attempt, trial.config, trial.from_iter) == (0, 0, {"x": 0.5, "epochs": 2}, 0)
    assert [(r.iter, r.values, r.decision) for r in (first, second)] == [
        (1, {"loss": 0.5}, Decision.CONTINUE),
        (2, {"loss": 0.25}, Decision.CONTINUE),
    ]
    assert first.config == trial.config
    assert (end.status, end.iter, end.values, end.reason, end.is_over) == (
        Status.COMPLETED,
        2,
        {"loss": 0.25},
        None,
        True,
    )
    assert (last.reason, last.error) == ("max_num_trials_started=1 reached", None)
    assert collector.threads == {"fanwise-callbacks"}


def test_command_from_a_callback_adds_no_reports_to_the_state_in_its_thread(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, threads = SearchState.add, set()

    def recording_add(self: SearchState, *row: Any) -> None:  # Any: JSON
        threads.add(threading.current_thread().name)
        add(self, *row)

    class Unpauser:
        def on_report(self, event: TrialReported) -> None:
            search.unpause(event.trial_id)
            with pytest.raises(ValueError, match="no trial 99"):
                search.stop_trial(99)

    monkeypatch.setattr(SearchState, "add", recording_add)
    search = quiet_tuner(reports_often, {"x": uniform(0, 1)}, trials=1, pool=pool, callbacks=[Unpauser()])
    search.run()
    assert threads and "fanwise-callbacks" not in threads


def test_command_from_on_start_takes_effect(pool: Pool) -> None:
    class Stopper:
        def on_start(self, event: SearchStarted) -> None:
            search.stop("enough")

    search = quiet_tuner(reports_often, {"x": uniform(0, 1)}, trials=100, pool=pool, callbacks=[Stopper()])
    assert search.run().end_reason == "enough"


def test_callback_receives_the_reason_of_a_failure(pool: Pool) -> None:
    collector = Collector()
    tuner(pool, collector, n_trials=2, first=0.9).run()
    failed, completed = (event for event in collector.events if isinstance(event, TrialEnded))
    assert failed.reason is not None
    assert (failed.status, failed.reason.kind, failed.values) == (Status.FAILED, "exception", {})
    assert "too large" in failed.reason.text
    assert completed.status is Status.COMPLETED


def test_exception_of_a_callback_is_logged_once_and_the_search_continues(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def on_report(self, event: TrialReported) -> None:
            raise ZeroDivisionError(f"report {event.iter}")

    collector = Collector()
    experiment = tuner(pool, Broken(), collector, n_trials=2).run()
    assert len(experiment.results) == 4 and len(collector.events) == 10
    first, last = (record for record in caplog.records if record.name == "fanwise.tune.callbacks.dispatcher")
    assert first.getMessage() == (
        "the callback Broken.on_report raised ZeroDivisionError: report 1. The search continues."
    )
    assert first.exc_info is not None and first.exc_info[0] is ZeroDivisionError
    assert last.getMessage() == "the callback Broken.on_report raised 4 times; the first is above"


def test_callback_that_calls_sys_exit_is_logged_and_receives_later_events(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    class Exits(Collector):
        def on_trial_start(self, event: object) -> None:
            sys.exit("done")

    collector = Exits()
    tuner(pool, collector).run()
    assert "the callback Exits.on_trial_start raised SystemExit: done. The search continues." in caplog.messages
    assert isinstance(collector.events[-1], SearchEnded)


def test_close_waits_for_the_callbacks() -> None:
    may_return, calls = threading.Event(), []

    class Slow:
        def on_end(self, event: SearchEnded) -> None:
            calls.append("called")
            may_return.wait(30)
            calls.append("returned")

    def close() -> None:
        dispatcher.close(SearchEnded(0.0, "e", Path(), "enough", None))
        calls.append("closed")

    dispatcher = CallbackDispatcher([Slow()], new_state())
    closing = threading.Thread(target=close)
    closing.start()
    within(30, lambda: "called" in calls, "the callback was called")
    may_return.set()
    closing.join()
    assert calls == ["called", "returned", "closed"]


def test_stuck_callback_receives_no_more_events_and_delays_no_other_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_return, stuck, collector = threading.Event(), Collector(), Collector()

    class Stuck:
        def on_start(self, event: SearchStarted) -> None:
            stuck.on_start(event)
            may_return.wait(30)

        on_end = stuck.on_end

    dispatcher = CallbackDispatcher([Stuck(), collector], new_state(), timeout_s=0.2)
    space = Space({"x": uniform(0, 1)})
    dispatcher.start(SearchStarted("e", Path(), space, (Objective("loss", "min"),), 0, 1, resumed=False, created_s=0.0))
    within(30, lambda: bool(stuck.events), "the callback is stuck")
    dispatcher.close(SearchEnded(0.0, "e", Path(), "enough", None))
    (message,) = [record.getMessage() for record in caplog.records if "is stuck" in record.getMessage()]
    may_return.set()
    within(30, lambda: "fanwise-callbacks" not in {thread.name for thread in threading.enumerate()}, "the thread ended")
    assert [type(event) for event in collector.events] == [SearchStarted, SearchEnded]
    assert [type(event) for event in stuck.events] == [SearchStarted]
    assert message.startswith("the callback Stuck.on_start is stuck: it has not returned for ")
    assert "Not delivered: 1 event. " in message


def test_callback_whose_on_start_raises_receives_no_more_events(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector()

    class Broken:
        def on_start(self, event: SearchStarted) -> None:
            raise OSError("no such server")

        on_report = on_end = collector.on_end

    tuner(pool, Broken()).run()
    (message,) = [record.getMessage() for record in caplog.records if record.name.endswith("dispatcher")]
    assert message == (
        "the callback Broken.on_start raised OSError: no such server. It receives no more events; the search continues."
    )
    assert collector.events == []


def test_callback_of_a_resumed_search_receives_its_new_trials(pool: Pool) -> None:
    tuner(pool).run()
    collector = Collector()
    resumed_tuner = Tuner.resume(
        "digits", stop=StoppingCriterion(max_num_trials_started=2), pool=pool, callbacks=[collector], quiet=True
    )
    resumed_tuner.run()
    start, trial = collector.events[:2]
    assert isinstance(start, SearchStarted) and start.resumed
    assert isinstance(trial, TrialStarted) and trial.trial_id == 1


def test_events_are_logged_and_failures_are_warnings(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fanwise.tune"):
        tuner(pool, n_trials=2, first=0.9).run()
    records = [(record.levelname, record.getMessage()) for record in caplog.records if "events" in record.name]
    assert records[0] == ("INFO", "trial 0 scheduled: x=0.9, epochs=2")
    assert ("WARNING", "trial 0 failed (exception): ValueError: too large") in records
    assert records[-1][0] == "INFO" and records[-1][1].startswith("trial 1 completed: loss=")


@pytest.mark.parametrize(
    ("callbacks", "problem"),
    [
        (Collector(), "callbacks must be a list"),
        ([Collector], "must be an object with methods on_start, .*, got <class "),
        ([object()], "must be an object with methods on_start, on_trial_start, on_report, on_trial_end, on_end, got"),
        ([type("Late", (), {"on_trial_complete": print})()], "has on_trial_complete, which is never called"),
        ([type("Late", (), {"on_reports": print})()], "did you mean 'on_report'"),
    ],
)
def test_object_without_callback_methods_is_refused(callbacks: object, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        checked_callbacks(callbacks)


def test_reports_after_a_checkpoint_are_void_unless_the_trial_was_paused() -> None:
    collector, state = Collector(), new_state()
    dispatcher = CallbackDispatcher([collector], state)
    start = partial(Start, config={"x": 0.0}, slot=0)

    tick = Tick(0.0)

    def apply(*actions: Action, event: Event = tick) -> None:
        dispatcher.on_event(event, list(actions))
        state.add(event.now_s, *to_row(event, list(actions)))

    for trial_id in (0, 1, 2):
        apply(start(trial_id=trial_id, attempt=0))
    apply(Answer(1, Decision.CONTINUE, 1), event=Reported(1.0, 1, 0, {"loss": 0.5}))
    apply(Answer(1, Decision.CONTINUE, 2, late=True), event=Reported(1.0, 1, 0, {"loss": 0.25}))
    apply(SetStatus(2, 0, Status.PAUSED))
    apply(event=Resumed(2.0))  # the previous tuner was killed
    apply(start(trial_id=1, attempt=1, from_iter=3), start(trial_id=2, attempt=1))
    apply(SetStatus(0, 0, Status.FAILED, will_retry=True))
    apply(start(trial_id=0, attempt=1))
    apply(SetStatus(1, 1, Status.COMPLETED))
    apply(SetStatus(1, 1, Status.COMPLETED))  # of a trial that has ended
    dispatcher.close(SearchEnded(0.0, "e", Path(), "done", None))
    started = [event for event in collector.events if isinstance(event, TrialStarted)]
    assert [(event.trial_id, event.attempt, event.void_after) for event in started[3:]] == [
        (1, 1, 3),
        (2, 1, None),
        (0, 1, 0),
    ]
    assert [event.void_after for event in started[:3]] == [None] * 3
    assert [event.iter for event in collector.events if isinstance(event, TrialReported)] == [1]
    ended = [event for event in collector.events if isinstance(event, TrialEnded)]
    assert [(event.trial_id, event.is_over) for event in ended] == [(2, False), (0, False), (1, True)]
    assert ended[-1].values == {"loss": 0.5}
