"""`run(block=False)`: a program can read, stop and wait for a search that runs in the background."""

import threading
from pathlib import Path

import pytest
from program_runs import run_program

from fanwise.base.errors import ClosedError, DeadlineExceeded, NotSendableError, SearchFailedError
from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.tune import (
    FIFO,
    RunningSearch,
    StoppingCriterion,
    Tuner,
    load_experiment,
    replay_experiment,
    report,
    trial_id,
    uniform,
)
from fanwise.tune.callbacks import TrialReported
from fanwise.tune.record.event_file import read_events


def returns(x: float) -> float:
    return x


def report_forever(x: float) -> None:
    while True:
        report(loss=x)


def tuner(objective: object, pool: Pool, *, n_trials: int = 3) -> Tuner:
    assert callable(objective)
    stop = StoppingCriterion(max_num_trials_started=n_trials)
    return Tuner(
        objective, {"x": uniform(0, 1)}, FIFO(metric="loss"), stop, n_workers=2, name="b", pool=pool, quiet=True
    )


def test_wait_returns_the_experiment(pool: Pool) -> None:
    running = tuner(returns, pool).run(block=False)
    experiment = running.wait(60)
    assert running.finished and len(experiment.trials) == 3
    assert running.wait(0).path == experiment.path, "a second call of wait() returns at once"


def test_running_search_can_be_read_and_stopped(pool: Pool) -> None:
    running = tuner(report_forever, pool).run(block=False)
    within(30, lambda: len(running.experiment.results) > 10, "its trials report")
    with pytest.raises(DeadlineExceeded, match=r"the search 'b' is still running after 0 s"):
        running.wait(0)
    assert not running.finished and running.experiment.state == "running"
    assert repr(running) == "RunningSearch('b', is running)"
    running.stop("enough")
    assert running.wait(60).end_reason == "enough"
    running.stop()


def test_invalid_commands_of_the_tuner_are_refused(pool: Pool) -> None:
    background_tuner = tuner(report_forever, pool)
    running = background_tuner.run(block=False)
    within(30, lambda: len(running.experiment.trials) == 2, "two trials run")
    for command in (background_tuner.pause, background_tuner.unpause, background_tuner.stop_trial):
        with pytest.raises(ValueError, match="the search has no trial 77; its trials so far are 0 to 1"):
            command(77)
        with pytest.raises(TypeError, match="trial_id must be an int, got True of type bool"):
            command(True)
    with pytest.raises(TypeError, match="a configuration must be a dict of hyperparameters, got 'x'"):
        background_tuner.enqueue("x")  # type: ignore[arg-type]  # a wrong type
    with pytest.raises(ValueError, match="n_workers must be at least 1, got 0"):
        background_tuner.set_workers(0)
    running.stop()
    running.wait(60)
    with pytest.raises(ClosedError, match="the search 'b' is not running"):
        background_tuner.set_workers(3)


class SetsWorkers:
    """Sets the number of workers to 3 after the first report of trial 0, and to 1 after that of trial 2."""

    tuner: Tuner

    def on_report(self, event: TrialReported) -> None:
        if event.iter == 1 and event.trial_id in (0, 2):
            self.tuner.set_workers(3 if event.trial_id == 0 else 1)


def reports_until(x: float, folder: str) -> None:
    """Report until the file `folder`/trial id exists, or until the search stops the trial."""
    while not Path(folder, str(trial_id())).exists():
        report(loss=x)
        threading.Event().wait(0.01)


def num_running(running: RunningSearch) -> int:
    return list(running.experiment.trials["status"]).count("InProgress")


def test_number_of_workers_changes_during_the_search_and_is_kept_by_a_resume(pool: Pool, tmp_path: Path) -> None:
    callback = SetsWorkers()
    callback.tuner = background_tuner = Tuner(
        reports_until,
        {"x": uniform(0, 1), "folder": str(tmp_path)},
        FIFO(metric="loss"),
        StoppingCriterion(max_num_trials_started=100),
        n_workers=1,
        name="b",
        pool=pool,
        callbacks=[callback],
        quiet=True,
    )
    running = background_tuner.run(block=False)

    def numbers() -> list[int]:
        return [event.body["n_workers"] for event in read_events(running.experiment.path) if event.kind == "workers"]

    within(30, lambda: numbers() == [3, 1], "the callback has set both numbers")
    assert num_running(running) == 3, "running trials are not stopped"
    (tmp_path / "0").touch()
    within(30, lambda: num_running(running) == 2, "trial 0 has ended")
    (tmp_path / "1").touch()
    within(30, lambda: num_running(running) == 1, "trial 1 has ended")
    (tmp_path / "2").touch()
    within(30, lambda: len(running.experiment.trials) == 4, "the next trial starts")
    assert num_running(running) == 1
    running.stop()
    experiment = running.wait(60)
    utilization = experiment.utilization
    assert utilization is not None and 0 < utilization <= 1
    assert replay_experiment("b").num_differences == 0

    resumed_tuner = Tuner.resume("b", pool=pool, quiet=True)
    assert resumed_tuner.settings.n_workers == 1
    resumed = resumed_tuner.run(block=False)
    within(30, lambda: num_running(resumed) == 1, "the trial that was stopped runs again")
    resumed_tuner.set_workers(2)
    within(30, lambda: num_running(resumed) == 2, "another trial runs")
    resumed.stop()
    resumed.wait(60)
    assert Tuner.resume("b", pool=pool).settings.n_workers == 2
    assert replay_experiment("b").num_differences == 0


def test_error_before_the_start_is_raised_by_run(pool: Pool, home: Path) -> None:
    lock = open(__file__)  # an object that cannot be sent to a worker
    with lock, pytest.raises(NotSendableError):
        tuner(lambda x: lock, pool).run(block=False)
    assert not home.exists()


def fails(x: float) -> None:
    raise ValueError("wrong")


def test_error_of_the_search_is_raised_by_wait(pool: Pool) -> None:
    running = tuner(fails, pool).run(block=False)
    with pytest.raises(SearchFailedError, match="wrong"):
        running.wait(60)


PROGRAM = """
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform

def report_forever(x):
    while True:
        report(loss=x)

if __name__ == "__main__":
    stop = StoppingCriterion(max_wallclock_time=600)
    tuner = Tuner(report_forever, {"x": uniform(0, 1)}, FIFO(metric="loss"), stop, n_workers=1, name="left")
    running = tuner.run(block=False)
    while not len(running.experiment.results):
        pass
"""


def test_running_search_is_stopped_when_its_program_ends(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_program(["program.py"], folder=tmp_path)
    assert (done.status, done.err) == (0, "")
    experiment = load_experiment("left")
    assert (experiment.state, experiment.end_reason) == ("finished", "its program ended")
