"""`run(block=False)`: a search beside the program that started it, which can wait for it, look at it and end it."""

from pathlib import Path

import pytest

from fanwise.base.errors import DeadlineExceeded, NotSendableError, SearchFailedError
from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.testing.programs import run_program
from fanwise.tune import FIFO, StoppingCriterion, Tuner, load_experiment, report, uniform


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def returns(x: float) -> float:
    return x


def for_ever(x: float) -> None:
    while True:
        report(loss=x)


def tuner(objective: object, pool: Pool, *, n_trials: int = 3) -> Tuner:
    assert callable(objective)
    stop = StoppingCriterion(max_num_trials_started=n_trials)
    return Tuner(
        objective, {"x": uniform(0, 1)}, FIFO(metric="loss"), stop, n_workers=2, name="b", pool=pool, quiet=True
    )


def test_waiting_gives_what_run_would_have_returned(pool: Pool) -> None:
    running = tuner(returns, pool).run(block=False)
    experiment = running.wait(60)
    assert running.finished and len(experiment.trials) == 3
    assert running.wait(0).path == experiment.path, "it can be waited for again"


def test_it_is_looked_at_and_stopped_from_beside(pool: Pool) -> None:
    running = tuner(for_ever, pool).run(block=False)
    within(30, lambda: len(running.experiment.results) > 10, "its trials report")
    with pytest.raises(DeadlineExceeded, match=r"the search 'b' still runs after 0 s, and goes on\."):
        running.wait(0)
    assert not running.finished and running.experiment.state == "running"
    assert repr(running) == "RunningSearch('b', is running)"
    running.stop("enough")
    assert running.wait(60).end_reason == "enough"
    running.stop()


def test_commands_about_what_is_no_trial_are_refused(pool: Pool) -> None:
    searching = tuner(for_ever, pool)
    running = searching.run(block=False)
    within(30, lambda: len(running.experiment.trials) == 2, "two trials run")
    for command in (searching.pause, searching.unpause, searching.stop_trial):
        for trial_id in (77, -1):
            with pytest.raises(ValueError, match=f"the search has no trial {trial_id}; its trials so far are 0 to 1"):
                command(trial_id)
        for wrong in ("a", None, True):
            with pytest.raises(TypeError, match=f"trial_id must be an int, got {wrong!r}"):
                command(wrong)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TypeError, match="a configuration must be a dict of hyperparameters, got 'x'"):
        searching.enqueue("x")  # type: ignore[arg-type]  # the mistake
    running.stop()
    running.wait(60)


def test_what_keeps_it_from_beginning_is_raised_at_once(pool: Pool, home: Path) -> None:
    lock = open(__file__)  # something that cannot travel to a worker
    with lock, pytest.raises(NotSendableError):
        tuner(lambda x: lock, pool).run(block=False)
    assert not home.exists()


def fails(x: float) -> None:
    raise ValueError("no luck")


def test_what_ends_it_is_raised_to_who_waits(pool: Pool) -> None:
    running = tuner(fails, pool).run(block=False)
    with pytest.raises(SearchFailedError, match="no luck"):
        running.wait(60)


PROGRAM = """
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform

def for_ever(x):
    while True:
        report(loss=x)

if __name__ == "__main__":
    stop = StoppingCriterion(max_wallclock_time=600)
    tuner = Tuner(for_ever, {"x": uniform(0, 1)}, FIFO(metric="loss"), stop, n_workers=1, name="left")
    running = tuner.run(block=False)
    while not len(running.experiment.results):
        pass
"""


def test_it_is_stopped_when_its_program_ends(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_program(["program.py"], folder=tmp_path)
    assert (done.status, done.err) == (0, "")
    left = load_experiment("left")
    assert (left.state, left.end_reason) == ("finished", "its program ended")
