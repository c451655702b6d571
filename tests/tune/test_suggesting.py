"""The thread of a slow searcher: the search continues meanwhile, and waits for the thread when it ends."""

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from searches import quiet_tuner, search

from fanwise.pool import Pool
from fanwise.testing.within import within
from fanwise.tune import FIFO, Searcher, SuggestContext, report, uniform
from fanwise.tune.searchers import Observation

PROGRAM = """
import os, threading, time
from fanwise.tune import SuggestContext, Searcher, Space, uniform
from fanwise.tune.core.actions import Suggest
from fanwise.tune.runtime.suggester import Suggester

has_begun = threading.Event()

class SlowSearcher(Searcher):
    def suggest(self, ask):
        has_begun.set()
        time.sleep(0.5)
        os.write(1, b"suggested")
        return {"x": 0.5}
    def observe(self, observation): ...

thread = Suggester(SlowSearcher(), lambda answer: None)
thread.ask(Suggest(0, SuggestContext(0, 0, Space({"x": uniform(0, 1)}))), last_seen_seq=0)
has_begun.wait()
"""


def test_program_waits_for_a_running_suggestion_at_exit() -> None:
    """Otherwise a thread that returns from C++ while Python is finalizing would end the process by SIGABRT."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "suggested", "")


class WaitsForReport(Searcher):
    """Returns its second suggestion only after the report of the first trial was answered."""

    def __init__(self, answered_file: Path) -> None:
        self.answered_file = answered_file

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        if ask.trial_id == 1:
            within(30.0, self.answered_file.exists, "the first report was answered")
        return {"x": 0.5}

    def observe(self, observation: Observation) -> None:
        """Do nothing."""


def test_reports_are_answered_during_a_suggestion(pool: Pool, tmp_path: Path) -> None:
    answered_file = tmp_path / "answered"

    def objective(x: float) -> None:
        report(loss=x)
        answered_file.touch()

    scheduler = FIFO(WaitsForReport(answered_file), metric="loss")
    experiment = search(objective, {"x": uniform(0, 1)}, pool=pool, scheduler=scheduler, trials=2)
    assert list(experiment.trials["status"]) == ["Completed", "Completed"]


class RecordingSearcher(Searcher):
    """Keeps the numbers of its observations and their thread. Raises at report `fails_at`, or exits if `exits`."""

    def __init__(self) -> None:
        self.observed_iters: list[int] = []
        self.thread: int | None = None
        self.fails_at: int | None = None
        self.exits = False

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        if self.exits:
            raise SystemExit(3)
        return {"x": 0.5}

    def observe(self, observation: Observation) -> None:
        self.thread = threading.get_ident()
        if observation.iter == self.fails_at:
            raise LookupError("no room for more")
        self.observed_iters.append(observation.iter)


def five_reports(x: float) -> None:
    for number in range(5):
        report(loss=x + number)


def test_search_ends_after_its_searcher_has_observed_all_reports(pool: Pool) -> None:
    scheduler = FIFO(RecordingSearcher(), metric="loss")
    tuner = quiet_tuner(five_reports, {"x": uniform(0, 1)}, pool=pool, scheduler=scheduler, n_workers=1, trials=1)
    tuner.run()
    searcher = tuner.scheduler.searcher
    assert isinstance(searcher, RecordingSearcher)
    assert searcher.observed_iters == [1, 2, 3, 4, 5]
    assert searcher.thread not in [thread.ident for thread in threading.enumerate()]


def test_exception_of_the_searcher_at_the_last_report_is_raised_by_run(pool: Pool) -> None:
    searcher = RecordingSearcher()
    searcher.fails_at = 5
    scheduler = FIFO(searcher, metric="loss")
    with pytest.raises(LookupError, match="no room for more"):
        search(five_reports, {"x": uniform(0, 1)}, pool=pool, scheduler=scheduler, n_workers=1, trials=1)


def test_system_exit_in_a_searcher_ends_the_search(pool: Pool) -> None:
    searcher = RecordingSearcher()
    searcher.exits = True
    with pytest.raises(SystemExit):
        search(five_reports, {"x": uniform(0, 1)}, pool=pool, scheduler=FIFO(searcher, metric="loss"))
