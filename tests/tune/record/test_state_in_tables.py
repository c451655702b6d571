"""The state of a search while it runs: news, counts, best report and utilization."""

from typing import Any

import pytest
from recorded_search import RecordedSearch

from fanwise.tune.record.state import SearchState
from fanwise.tune.record.trials import MAX_ROWS

META = {"name": "digits", "metric": "loss", "mode": "min", "space": {"depth": {}}, "n_workers": 2}
REASON = {"kind": "exception", "text": "ValueError: wrong\nand more", "traceback": "T", "last_output": ""}


def searching(**meta: Any) -> tuple[SearchState, RecordedSearch]:  # Any: JSON
    state = SearchState({**META, **meta})
    return state, RecordedSearch(state.add)


def test_time_between_two_runs_of_a_tuner_is_not_counted() -> None:
    state, rows = searching(n_workers=1)
    rows.start(0.0, 0, {"depth": 2})
    rows.ready(1.0, 0)
    rows.report(5.0, 0, 1, {"loss": 1.0})  # the tuner is killed here; busy for 4 s of 4 s
    rows.add(5.0, "resumed", None, {"n_workers": None, "stop": None})
    rows.start(5.0, 0, {}, attempt=1)
    rows.ready(8.0, 0, attempt=1)
    rows.end(10.0, 0, "Completed", 1.0, attempt=1)
    rows.stop(12.0, "enough")  # busy for 1 s of 4 s
    assert state.utilization.share(state.last_s) == pytest.approx(5 / 8)


def test_new_number_of_workers_counts_from_its_event() -> None:
    state, rows = searching(n_workers=1)
    rows.start(0.0, 0, {"depth": 2})
    rows.ready(0.0, 0)
    rows.report(4.0, 0, 1, {"loss": 1.0})
    rows.add(4.0, "resumed", None, {"n_workers": 3, "stop": None})
    rows.start(4.0, 0, {}, attempt=1)
    rows.ready(4.0, 0, attempt=1)
    assert state.utilization.share(8.0) == pytest.approx(8 / (4 + 12))


def test_removed_worker_counts_until_its_objective_ends() -> None:
    progress, rows = searching(n_workers=1)
    rows.start(0.0, 0, {"depth": 2})
    rows.ready(0.0, 0)
    rows.add(10.0, "workers", None, {"n_workers": 3})
    for trial_id in (1, 2):
        rows.start(10.0, trial_id, {"depth": 2}, slot=trial_id)
        rows.ready(10.0, trial_id)
    rows.add(20.0, "workers", None, {"n_workers": 1})
    rows.end(30.0, 0, "Completed", 30.0)
    rows.end(40.0, 1, "Completed", 30.0)
    rows.end(45.0, 2, "Completed", 35.0)
    rows.stop(50.0, "enough")
    assert progress.utilization.windows(progress.last_s) == [
        (0.0, 10.0, 1),
        (10.0, 30.0, 3),
        (30.0, 40.0, 2),
        (40.0, 50.0, 1),
    ]
    assert progress.utilization.share(progress.last_s) == pytest.approx((30 + 30 + 35) / (10 + 60 + 20 + 10))
    assert [line for line in progress.news.take() if "at a time" in line] == [
        "3 trials at a time from now on",
        "1 trial at a time from now on",
    ]


def test_news_name_the_results_and_failures_of_trials() -> None:
    state, rows = searching()
    rows.start(0.0, 3, {"depth": 2})
    rows.ready(0.5, 3)
    rows.report(1.0, 3, 1, {"loss": 0.123456789})
    rows.end(2.0, 3, "Completed", 1.5)
    rows.start(2.0, 4, {"depth": 2})
    rows.end(3.0, 4, "Failed", None, reason=REASON, will_retry=True)
    rows.start(3.0, 4, {}, attempt=1)
    rows.stop(4.0, "enough")
    assert state.news.take() == [
        "trial 3 scheduled: depth=2",
        "trial 3 completed: loss=0.12346 after 1 report, 1.5 s",
        "trial 4 scheduled: depth=2",
        "trial 4 failed (exception): ValueError: wrong, will be retried",
        "trial 4 scheduled again, attempt 1: depth=2",
        "no more trials are started: enough",
    ]
    assert state.news.take() == []


def test_news_name_checkpoints_and_sources_of_clones() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2})
    rows.report(1.0, 0, 1, {"loss": 0.5}, decision="PAUSE", checkpoint="0-0-1")
    rows.end(2.0, 0, "Paused", 1.0)
    rows.start(3.0, 0, {}, attempt=1, from_iter=1, checkpoint="0-0-1")
    rows.start(3.0, 1, {"depth": 4}, slot=1, from_iter=1, checkpoint="0-0-1", source=0)
    assert state.news.take() == [
        "trial 0 scheduled: depth=2",
        "trial 0 paused: loss=0.5 after 1 report, 0.0 s",
        "trial 0 scheduled again, attempt 1, from its checkpoint of report 1: depth=2",
        "trial 1 scheduled, a clone of trial 0: depth=4",
    ]


def test_news_warn_once_of_clones_without_a_checkpoint() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2})
    for trial_id in (1, 2):
        rows.start(1.0, trial_id, {"depth": 4}, slot=trial_id, source=0)
    assert state.news.take()[1:] == [
        "trial 1 scheduled, a clone of trial 0: depth=4",
        "trial 0 has saved no checkpoint, so its clone, trial 1, starts from scratch; save one with "
        "report(..., checkpoint=save). This warning is shown once.",
        "trial 2 scheduled, a clone of trial 0: depth=4",
    ]


def test_news_name_a_random_configuration_of_a_slow_searcher() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2}, fallback=True)
    assert state.news.take() == ["trial 0 scheduled, drawn at random because the searcher took too long: depth=2"]


def test_control_characters_of_a_trial_are_escaped() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"layer": "\x1b[31mred\nline"})
    reason = {**REASON, "text": "ValueError: \x1b]0;title\x07"}
    rows.end(3.0, 0, "Failed", None, reason=reason)
    assert state.news.take() == [
        "trial 0 scheduled: layer=\\x1b[31mred\\nline",
        "trial 0 failed (exception): ValueError: \\x1b]0;title\\x07",
    ]


def test_news_beyond_twenty_lines_are_counted() -> None:
    state, rows = searching()
    for trial_id in range(100):
        rows.start(0.0, trial_id, {"depth": 2})
    news = state.news.take()
    assert len(news) == 21
    assert news[-1] == "(and 80 more events)"


def test_failed_trial_whose_retry_is_cancelled_counts_once() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2})
    rows.end(1.0, 0, "Failed", None, reason=REASON, will_retry=True)
    assert state.snapshot().failed == 0
    rows.end(2.0, 0, "Failed", None)
    assert state.snapshot().failed == 1


def test_best_ignores_void_reports() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2})
    rows.report(1.0, 0, 1, {"loss": 0.5}, checkpoint="0-0-1")
    rows.report(2.0, 0, 2, {"loss": 0.001})
    assert state.snapshot().best == (0.001, 0)
    rows.end(3.0, 0, "Failed", None, reason=REASON, will_retry=True)
    rows.start(3.0, 0, {}, attempt=1, from_iter=1, checkpoint="0-0-1")
    assert state.snapshot().best == (0.5, 0)


def test_checkpoint_of_a_repeated_report_does_not_keep_a_later_best_report() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2})
    rows.report(1.0, 0, 1, {"loss": 0.5})
    rows.report(2.0, 0, 2, {"loss": 0.1}, decision="PAUSE")
    rows.end(3.0, 0, "Paused", None)
    rows.start(3.0, 0, {}, attempt=1)
    rows.report(4.0, 0, 1, {"loss": 0.5}, attempt=1, repeated=True, checkpoint="0-1-1")
    assert state.snapshot().best == (0.1, 0)
    rows.end(5.0, 0, "Failed", None, attempt=1, reason=REASON, will_retry=True)
    rows.start(5.0, 0, {}, attempt=2, from_iter=1, checkpoint="0-1-1")
    assert state.snapshot().best is None
    rows.report(6.0, 0, 2, {"loss": 0.2}, attempt=2)
    assert state.snapshot().best == (0.2, 0)


def test_running_trials_of_a_dead_tuner_are_lost_and_paused_ones_are_not() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2})
    rows.start(0.0, 1, {"depth": 2}, slot=1)
    rows.report(1.0, 1, 1, {"loss": 0.5}, decision="PAUSE")
    rows.end(1.0, 1, "Paused", 1.0)
    alive, dead = state.snapshot(), state.snapshot(is_tuner_killed=True)
    assert [row.status for row in alive.rows] == ["InProgress", "Paused"]
    assert [row.status for row in dead.rows] == ["Lost", "Paused"]
    assert (alive.running, alive.paused, alive.lost) == (1, 1, 0)
    assert (dead.running, dead.paused, dead.lost) == (0, 1, 1)


def test_best_ignores_reports_that_became_void_by_a_resume() -> None:
    state, rows = searching()
    rows.start(0.0, 0, {"depth": 2})
    rows.report(1.0, 0, 1, {"loss": 0.5}, checkpoint="0-0-1")
    rows.report(2.0, 0, 2, {"loss": 0.001})
    rows.stop(3.0, "enough")
    rows.end(3.0, 0, "Stopped", None)
    rows.finish(3.0, "enough")
    rows.add(4.0, "resumed", None, {"n_workers": None, "stop": None})
    assert state.snapshot().best == (0.001, 0)
    rows.start(4.0, 0, {}, attempt=1, from_iter=1, checkpoint="0-0-1")
    assert state.snapshot().best == (0.5, 0)


def test_snapshot_of_many_trials_has_the_latest_rows_and_counts_all() -> None:
    state = SearchState({"name": "e", "metric": "loss", "mode": "min", "space": {"x": {}}, "n_workers": 1000})
    for trial_id in range(1000):
        action = {"action": "start", "trial": trial_id, "attempt": 0, "slot": trial_id, "config": {"x": 1.0}}
        state.add(0.0, "suggested", None, {"actions": [action]})
    state.add(
        1.0, "report", 3, {"attempt": 0, "iter": 1, "decision": "CONTINUE", "values": {"loss": 0.5}, "worker_time": 1.0}
    )
    table = state.snapshot()
    assert table.running == 1000
    assert [row.trial_id for row in table.rows] == [3, *range(1000 - MAX_ROWS, 1000)]
