"""What is shown while a search runs: its news in lines, its counts, the time of its workers."""

from typing import Any

import pytest

from fanwise.tune.orders import Reason
from fanwise.tune.progress import Progress, Running
from fanwise.tune.schedulers import Status
from fanwise.tune.stopping import Counts


def progress_of(**options: Any) -> Progress:  # Any: what a tuner takes
    return Progress("digits", "loss", ("depth",), **{"n_workers": 2, "limit_s": None, **options})


COUNTS = Counts("loss", frozenset())


def running(trial_id: int, **facts: Any) -> Running:  # Any: as it comes
    return Running(trial_id, 0, {"depth": 2}, 0, **facts)


def test_the_utilisation_is_time_in_the_objective_over_the_time_of_all_workers_until_the_stop() -> None:
    progress = progress_of()
    first, second = running(0), running(1)
    assert progress.snapshot([first], COUNTS, None, now_s=9.0).utilisation is None
    progress.ready(first, 10.0)
    progress.ready(second, 12.0)
    # 2 s and nothing, of 2 workers x 2 s.
    assert progress.snapshot([first, second], COUNTS, None, now_s=12.0).utilisation == pytest.approx(2 / 4)
    first.objective_s = 6.0
    progress.ended(first, Status.COMPLETED, None, will_retry=False, now_s=16.5, is_best=False)
    assert progress.snapshot([second], COUNTS, None, now_s=20.0).utilisation == pytest.approx((6 + 8) / 20)
    progress.stopped("enough", 20.0)
    second.objective_s = 18.0  # 10 s of it after the stop, which do not count
    progress.ended(second, Status.STOPPED, None, will_retry=False, now_s=30.0, is_best=False)
    assert progress.snapshot([], COUNTS, None, now_s=40.0).utilisation == pytest.approx((6 + 8) / 20)


def test_the_news_say_how_trials_ended_and_why() -> None:
    progress = progress_of()
    trial = running(3)
    progress.scheduled(trial)
    progress.reported(trial, {"loss": 0.123456789}, 1.0)
    trial.objective_s = 1.5
    progress.ended(trial, Status.COMPLETED, None, will_retry=False, now_s=2.0, is_best=True)
    reason = Reason("exception", "ValueError: wrong\nand more", "traceback")
    progress.ended(running(4), Status.FAILED, reason, will_retry=True, now_s=3.0, is_best=False)
    progress.stopped("enough", 4.0)
    assert progress.news() == [
        "trial 3 scheduled: depth=2",
        "trial 3 completed: loss=0.12346 after 1 report, 1.5 s",
        "trial 4 failed (exception): ValueError: wrong, it is tried again",
        "no more trials are started: enough",
    ]
    assert progress.news() == []


def test_text_of_a_trial_cannot_steer_the_terminal() -> None:
    progress = progress_of()
    progress.scheduled(Running(0, 0, {"layer": "\x1b[31mred\nline"}, 0))
    reason = Reason("exception", "ValueError: \x1b]0;title\x07")
    progress.ended(running(0), Status.FAILED, reason, will_retry=False, now_s=3.0, is_best=False)
    assert progress.news() == [
        "trial 0 scheduled: layer=\\x1b[31mred\\nline",
        "trial 0 failed (exception): ValueError: \\x1b]0;title\\x07",
    ]


def test_events_that_come_faster_than_anybody_reads_are_counted() -> None:
    progress = progress_of()
    for trial_id in range(100):
        progress.scheduled(running(trial_id))
    news = progress.news()
    assert len(news) == 21
    assert news[-1] == "(and 80 more events)"


def test_attempts_that_are_tried_again_do_not_count_as_failed() -> None:
    progress = progress_of()
    reason = Reason("exit", "gone")
    for will_retry in (True, False):
        progress.ended(running(0), Status.FAILED, reason, will_retry=will_retry, now_s=1.0, is_best=False)
    assert progress.snapshot([], COUNTS, None, now_s=1.0).failed == 1
