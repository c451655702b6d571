"""Trials that are asked to stop: inside report, outside of it, and those that ignore it."""

import signal
import threading
from pathlib import Path

import pytest
from searches import quiet_tuner, search

from fanwise.pool import Pool
from fanwise.tune import (
    FIFO,
    Decision,
    StoppingCriterion,
    choice,
    report,
    uniform,
)
from fanwise.tune.schedulers import New, NextTrial, Scheduler, Status
from fanwise.tune.searchers import Observation, SuggestContext
from fanwise.tune.space import Space


def be_stopped(way: str, folder: str) -> None:
    """Begins, and does not end of its own; notes what ended it. The last one ends the search."""
    begun = Path(folder) / f"{way}.begun"
    begun.touch()
    try:
        if way == "ends all":
            while len(list(Path(folder).glob("*.begun"))) < 5:
                report(loss=1.0)
            report(loss=0.0)
        while way == "in report":
            report(loss=1.0)
        while way == "swallows exceptions":
            try:
                report(loss=1.0)
            except Exception:
                pass
        while way == "outside":
            signal.pause()
        while way == "swallows all":
            try:
                report(loss=1.0)
            except BaseException:
                pass
    except BaseException as error:
        begun.with_suffix(".ended").write_text(type(error).__name__)
        raise


def test_stop_interrupts_trials_and_kills_those_that_ignore_it(pool: Pool, tmp_path: Path) -> None:
    ways = ["in report", "swallows exceptions", "outside", "swallows all", "ends all"]
    with Pool(cpus=5) as wide:
        experiment = search(
            be_stopped,
            {"way": choice(ways), "folder": str(tmp_path)},
            points=[{"way": way} for way in ways],
            stop=StoppingCriterion(min_metric_value=0.0),
            n_workers=5,
            stop_grace_s=0.5,
            pool=wide,
        )
    assert dict(zip(experiment.trials["config_way"], experiment.trials["status"], strict=True)) == dict.fromkeys(
        ways, "Stopped"
    )
    ended = {path.stem: path.read_text() for path in tmp_path.glob("*.ended")}
    assert ended == {way: "TrialStopped" for way in ways if way != "swallows all"}


class StopsAtOnce(Scheduler):
    """A scheduler of one's own: every trial is stopped at its third report."""

    def __init__(self) -> None:
        super().__init__(metric="loss")
        random_search = FIFO(metric="loss")
        self.ended: dict[int, Status] = {}
        self.objectives, self.searcher = random_search.objectives, random_search.searcher

    def begin(self, space: Space, seed: int) -> None:
        self.ended.clear()

    def next(self, ask: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        return Decision.STOP if observation.iter == 3 else Decision.CONTINUE

    def on_end(self, trial_id: int, status: Status) -> None:
        self.ended[trial_id] = status


def report_for_ever(x: float, where: str) -> None:
    """Reports in a loop, here or in a thread."""

    def loop() -> None:
        while True:
            report(loss=x)

    if where == "here":
        loop()
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    thread.join()


@pytest.mark.parametrize("where", ["here", "in a thread"])
def test_scheduler_stops_a_trial_that_reports_from_any_thread(pool: Pool, where: str) -> None:
    space = {"x": uniform(0, 1), "where": where}
    tuner = quiet_tuner(report_for_ever, space, pool=pool, scheduler=StopsAtOnce(), trials=3)
    experiment = tuner.run()
    assert list(experiment.trials["status"]) == ["Stopped"] * 3
    assert list(experiment.trials["iter"]) == [3] * 3
    assert sorted(experiment.results["st_decision"]) == ["CONTINUE"] * 6 + ["STOP"] * 3
    assert isinstance(tuner.scheduler, StopsAtOnce)
    assert tuner.scheduler.ended == dict.fromkeys(range(3), Status.STOPPED)
