"""A search and its environment: readers, other searches, the terminal, its pool, tests of users."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from job_functions import local_engine
from searches import quiet_tuner, search

import fanwise
from fanwise.base.errors import ClosedError, RecordError
from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.tune import Experiment, StoppingCriterion, Tuner, choice, load_experiment, report, uniform
from fanwise.tune.callbacks import TrialReported
from fanwise.tune.record.event_file import read_events

SOURCES = Path(fanwise.__file__).parents[1]


def return_x(x: float) -> float:
    return x


# Readers and other searches.


def wait_for_a_file(x: float, file: str) -> float:
    """Reports once, then waits until the other end of a pipe is opened."""
    report(loss=x)
    with open(file):
        return x / 2


def in_a_thread(run: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run it in another thread. Return the thread, and a list that gets its result or exception."""
    outcomes: list[object] = []

    def call() -> None:
        try:
            outcomes.append(run())
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, outcomes


def num_reports(name: str) -> int:
    try:
        return sum(event.kind == "report" for event in read_events(load_experiment(name).path))
    except RecordError:  # its folder is just being made
        return 0


def test_experiment_can_be_loaded_while_it_runs(pool: Pool, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    space = {"x": uniform(0, 1), "file": str(pipe)}
    tuner = quiet_tuner(wait_for_a_file, space, pool=pool, name="watched", trials=2)
    thread, outcomes = in_a_thread(tuner.run)
    within(30.0, lambda: num_reports("watched") == 2, "both trials have reported")
    watched = load_experiment("watched")
    assert watched.end_reason is None
    assert list(watched.trials["status"]) == ["InProgress"] * 2
    assert watched.best is not None
    assert watched.best.value == watched.results["loss"].min()
    os.close(os.open(pipe, os.O_WRONLY))  # both readers go on
    thread.join(30.0)
    assert isinstance(outcomes[0], Experiment)
    assert watched.state == "finished"
    assert list(watched.trials["status"]) == ["Completed"] * 2
    assert watched.results.equals(outcomes[0].results)


def wait_for_other(x: float, own_name: str, other_name: str, folder: str) -> float:
    """Ends only when the other search has begun as well."""
    (Path(folder) / own_name).touch()
    while not (Path(folder) / other_name).exists():
        report(loss=x)
    return x


def test_two_searches_share_a_pool_at_the_same_time(pool: Pool, tmp_path: Path) -> None:
    names = ["left", "right"]
    tuners = [
        quiet_tuner(
            wait_for_other,
            {"x": uniform(0, 1), "own_name": a, "other_name": b, "folder": str(tmp_path)},
            pool=pool,
            name=a,
        )
        for a, b in (names, reversed(names))
    ]
    running = [in_a_thread(tuner.run) for tuner in tuners]
    for thread, _ in running:
        thread.join(60.0)
    for (_, outcomes), name in zip(running, names, strict=True):
        (experiment,) = outcomes
        assert isinstance(experiment, Experiment)
        assert experiment.name == name
        assert list(experiment.trials["status"]) == ["Completed"] * 4
        assert set(experiment.trials["config_own_name"]) == {name}


def test_closing_the_pool_ends_the_search_with_closed_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pool = Pool(cpus=2)
    tuner = quiet_tuner(wait_for_a_file, {"x": uniform(0, 1), "file": str(pipe)}, pool=pool, name="cut", trials=9)
    thread, outcomes = in_a_thread(tuner.run)
    within(30.0, lambda: num_reports("cut") == 2, "both trials have reported")
    pool.close()
    thread.join(30.0)
    assert isinstance(outcomes[0], ClosedError)
    assert num_reports("cut") == 2


def run_a_search_inside() -> str:
    try:
        search(return_x, {"x": uniform(0, 1)}, name="inside")
    except ClosedError as error:
        return str(error)
    return "it ran"


def test_search_inside_a_job_is_refused_and_leaves_no_folder(pool: Pool, home: Path) -> None:
    assert pool.submit(run_a_search_inside).result(within_s=30).startswith("a search cannot run inside a job")
    assert not home.exists()


# Output.


def test_search_without_a_terminal_prints_a_line_per_event_and_the_summary(
    pool: Pool, capfd: pytest.CaptureFixture[str], home: Path
) -> None:
    search(return_x, {"x": choice([0.5])}, pool=pool, trials=1, n_workers=1, quiet=False, name="shown", random_seed=7)
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[:3] == [
        "experiment shown: asynchronous search with 1 worker, master random seed 7",
        "searcher RandomSearcher, scheduler FIFO",
        f"results are kept in {home / 'shown'}",
    ]
    assert set(lines[3:6]) >= {
        "trial 0 scheduled: x=0.5",
        "no more trials are started: max_num_trials_started=1 reached",
    }
    assert "Resource summary (last result is reported):" in lines
    assert "loss: best 0.5 for trial-id 0" in lines
    assert lines[-1] == "the search ended: max_num_trials_started=1 reached"


# Leftovers.


def test_finished_trials_leave_nothing_in_the_engine() -> None:
    with Pool(cpus=2) as pool:
        experiment = search(return_x, {"x": uniform(0, 1)}, pool=pool, trials=50, reuse=True)
        engine = local_engine(pool)
        assert not (engine._jobs or engine._backlog._queues or engine._unsettled)
        assert len(engine.ledger.leases) <= 2
        assert len(pool._hub._turn_end) == 0
    assert (experiment.trials["status"] == "Completed").sum() == 50
    started = [event.body["start_method"] for event in read_events(experiment.path) if event.kind == "ready"]
    assert started.count("reuse") >= 40


USERS_TEST = """
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform

OFFSET = 1.0

class Model:
    def loss(self, x):
        return x + OFFSET

def objective(x):
    report(loss=Model().loss(x))

def test_search(tmp_path, monkeypatch):
    stop = StoppingCriterion(max_num_trials_started=2)
    tuner = Tuner(objective, {"x": uniform(0, 1)}, FIFO(metric="loss"), stop, n_workers=1, quiet=True)
    experiment = tuner.run()
    assert experiment.reason(0) is experiment.reason(1) is None  # no table, so that pandas is not loaded
    assert OFFSET <= experiment.best.value <= OFFSET + 1
"""


@pytest.mark.parametrize("mode", ["importlib", "prepend"])
def test_objectives_of_a_users_test_module_reach_the_workers(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "project" / "tests"
    folder.mkdir(parents=True)
    (folder / "test_mine.py").write_text(USERS_TEST)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--import-mode={mode}"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_search_and_resume_divide_the_machine_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_CPUS", "4")

    def num_threads(x: float) -> float:
        return float(os.environ["OMP_NUM_THREADS"])

    stop = StoppingCriterion(max_num_trials_started=1)
    tuner = Tuner(num_threads, {"x": uniform(0, 1)}, stop=stop, metric="n", n_workers=1, name="divided", quiet=True)
    assert list(tuner.run().results["n"]) == [4.0]
    stop = StoppingCriterion(max_num_trials_started=2)
    Tuner.resume("divided", stop=stop, quiet=True).run()
    stop = StoppingCriterion(max_num_trials_started=3)
    resumed = Tuner.resume("divided", stop=stop, n_workers=2, quiet=True).run()
    assert list(resumed.results["n"]) == [4.0, 4.0, 2.0]


def test_new_trials_get_their_share_after_a_change_of_workers(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("FANWISE_CPUS", "4")

    class ChangesWorkers:
        def on_report(self, event: TrialReported) -> None:
            if event.trial_id == 0:
                tuner.set_workers(4)
                home.with_name("changed").touch()

    def num_threads(place: str) -> None:
        report(n=float(os.environ["OMP_NUM_THREADS"]))
        within(30, Path(place, "changed").exists, "the number of workers has changed")

    tuner = Tuner(
        num_threads,
        {"place": str(home.parent)},
        stop=StoppingCriterion(max_num_trials_started=4),
        metric="n",
        searcher="random",
        n_workers=2,
        callbacks=[ChangesWorkers()],
        quiet=True,
    )
    trials = tuner.run().trials.sort_values("trial_id")
    assert list(trials["n"]) == [2.0, 2.0, 1.0, 1.0]
