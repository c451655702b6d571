"""Searches from end to end on real workers: what the objective did is what the experiment says."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanwise
from fanwise.base.errors import ClosedError, RecordError
from fanwise.pool import Pool, current
from fanwise.testing import within
from fanwise.tune import (
    Ask,
    Decision,
    Experiment,
    FIFOScheduler,
    RandomSearch,
    Searcher,
    StoppingCriterion,
    Tuner,
    choice,
    load_experiment,
    randint,
    report,
    uniform,
)
from fanwise.tune.record import read_events
from fanwise.tune.schedulers import Status

SOURCES = Path(fanwise.__file__).parents[1]

Objective = Callable[..., Any]  # Any: objectives return what they like


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One pool for all searches here: its keeper and warm process are there before the first test begins."""
    with Pool(cpus=4, seed=0) as pool:
        pool.submit(int).result(within_s=60)
        yield pool


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def tuner_of(objective: Objective, space: dict[str, object], **options: Any) -> Tuner:  # Any: a Tuner's options
    """A quiet tuner of two workers and, if nothing else is said, four trials at random."""
    trials = options.pop("trials", 4)
    points = options.pop("points", None)
    options = {
        "scheduler": RandomSearch(metric="loss", points_to_evaluate=points),
        "stop": StoppingCriterion(max_num_trials_started=trials),
        "n_workers": 2,
        "quiet": True,
        **options,
    }
    return Tuner(objective, space, options.pop("scheduler"), options.pop("stop"), **options)


def search(objective: Objective, space: dict[str, object], **options: Any) -> Experiment:  # Any: a Tuner's options
    return tuner_of(objective, space, **options).run()


# What the objective did is what the experiment says.


def keep_a_diary(x: float, epochs: int, folder: str) -> None:
    """Writes down each report after it was acknowledged."""
    with open(Path(folder) / f"{current().number}.txt", "a") as diary:
        for epoch in range(1, epochs + 1):
            values = {"epoch": epoch, "loss": (x - 0.5) ** 2 / epoch}
            report(**values)
            print(json.dumps(values), file=diary, flush=True)


def test_results_trials_and_best_agree_with_what_the_objective_did(pool: Pool, tmp_path: Path) -> None:
    space = {"x": uniform(0, 1), "epochs": randint(1, 5), "folder": str(tmp_path)}
    experiment = search(keep_a_diary, space, pool=pool, trials=6, random_seed=3)
    diaries = {
        number: [json.loads(line) for line in (tmp_path / f"{number}.txt").read_text().splitlines()]
        for number in range(6)
    }
    results, trials = experiment.results, experiment.trials
    for number, diary in diaries.items():
        rows = results[results["trial_id"] == number]
        assert rows[["epoch", "loss"]].to_dict("records") == diary
        assert list(rows["st_worker_iter"]) == list(range(1, len(diary) + 1))
        assert set(rows["st_decision"]) == {"CONTINUE"}
        row = trials.set_index("trial_id").loc[number]
        assert (row["status"], row["iter"], row["loss"]) == ("Completed", len(diary), diary[-1]["loss"])
        assert row["config_epochs"] == len(diary)
    best = min((entry["loss"], number) for number, diary in diaries.items() for entry in diary)
    assert experiment.best is not None
    assert (experiment.best.value, experiment.best.trial_id) == best
    assert experiment.finished
    assert load_experiment(experiment.name).results.equals(results)


def report_in_every_way(way: str) -> Any:  # Any: a number or dict
    if way == "returns a number":
        return 0.25
    if way == "returns a dict":
        report(loss=9.0)
        return {"loss": 0.25, "epoch": 7}
    if way == "returns numpy":
        return np.array([0.25])
    if way == "in a helper":
        helper()
    if way == "in a thread":
        thread = threading.Thread(target=helper)
        thread.start()
        thread.join()
    if way == "numpy scalars":
        report(loss=np.float32(0.25), epoch=np.int64(7))
    return None


def helper() -> None:
    report(loss=0.25)


def test_a_report_may_come_from_anywhere_in_the_objective_and_what_it_returns_is_the_last(pool: Pool) -> None:
    ways = ["returns a number", "returns a dict", "returns numpy", "in a helper", "in a thread", "numpy scalars"]
    points = [{"way": way} for way in ways]
    experiment = search(report_in_every_way, {"way": choice(ways)}, pool=pool, points=points, trials=len(ways))
    assert list(experiment.trials["config_way"]) == ways
    assert list(experiment.trials["status"]) == ["Completed"] * len(ways)
    assert list(experiment.trials["loss"]) == [0.25] * len(ways)
    assert list(experiment.trials["iter"]) == [1, 2, 1, 1, 1, 1]
    epochs = dict(zip(ways, experiment.trials["epoch"], strict=True))
    assert epochs["returns a dict"] == epochs["numpy scalars"] == 7


def spend_time(x: float, epochs: int) -> float:
    """Some work that ends."""
    for _ in range(epochs):
        report(loss=x)
    return x


def test_the_utilisation_is_the_time_in_the_objective_over_that_of_all_workers_until_the_stop(pool: Pool) -> None:
    experiment = search(spend_time, {"x": uniform(0, 1), "epochs": 50}, pool=pool, trials=5)
    events = read_events(experiment.path)
    ready = {event.trial_id: event.t_s for event in events if event.kind == "ready"}
    stop_s = next(event.t_s for event in events if event.kind == "stop")
    ends = {event.trial_id: event.body["objective_s"] for event in events if event.kind == "end"}
    inside_s = sum(min(objective_s, max(0.0, stop_s - ready[number])) for number, objective_s in ends.items())
    utilisation = experiment.utilisation
    assert utilisation == pytest.approx(inside_s / (2 * (stop_s - min(ready.values()))), rel=1e-6)
    assert utilisation is not None and 0 < utilisation <= 1


# Which configurations are tried, and in which order.


def return_x(x: float) -> float:
    return x


def configurations(experiment: Experiment) -> list[float]:
    return list(experiment.trials["config_x"])


def test_points_to_evaluate_come_first_and_the_same_seed_gives_the_same_configurations(pool: Pool) -> None:
    points = [{"x": 0.5}, {"x": 0.125}]
    first, again, other = (
        configurations(search(return_x, {"x": uniform(0, 1)}, pool=pool, points=points, random_seed=seed))
        for seed in (11, 11, 12)
    )
    assert first[:2] == other[:2] == [0.5, 0.125]
    assert first == again
    assert first[2:] != other[2:]


class Halving(Searcher):
    """Suggests half of the best x that it has seen."""

    def __init__(self) -> None:
        self.best = (9.0, 1.0)
        self.seen: list[tuple[int, float]] = []

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        return {"x": self.best[1] / 2}

    def observe(self, trial_id: int, config: Mapping[str, object], loss: float) -> None:
        self.seen.append((trial_id, loss))
        assert isinstance(config["x"], float)
        self.best = min(self.best, (loss, config["x"]))


def minus_x(x: float) -> float:
    return -x


@pytest.mark.parametrize(("objective", "mode"), [(return_x, "min"), (minus_x, "max")])
def test_a_searcher_of_ones_own_sees_every_report_as_a_loss_before_it_suggests_again(
    pool: Pool,
    objective: Objective,
    mode: Any,  # Any: user code's
) -> None:
    searcher = Halving()
    scheduler = FIFOScheduler(searcher, metric="loss", mode=mode)
    experiment = search(objective, {"x": uniform(0, 1)}, pool=pool, scheduler=scheduler, n_workers=1)
    assert configurations(experiment) == [0.5, 0.25, 0.125, 0.0625]
    assert searcher.seen == [(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.0625)]


class Broken(Searcher):
    """Suggests twice, then fails."""

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        if ask.trial_id == 2:
            raise LookupError("no more ideas")
        return {"x": 0.5}

    def observe(self, trial_id: int, config: Mapping[str, object], loss: float) -> None:
        """Learns nothing."""


def test_what_a_searcher_raises_comes_out_of_run_in_its_own_type_and_everything_is_kept(pool: Pool) -> None:
    scheduler = FIFOScheduler(Broken(), metric="loss")
    with pytest.raises(LookupError, match="no more ideas"):
        search(return_x, {"x": uniform(0, 1)}, pool=pool, scheduler=scheduler, name="broken", n_workers=1)
    experiment = load_experiment("broken")
    assert list(experiment.trials["status"]) == ["Completed", "Completed"]
    assert experiment.finished


# Batches.


def wait_for_trial_2(x: float, folder: str) -> float:
    """Trial 0 ends only when trial 2 has begun."""
    number = current().number
    (Path(folder) / str(number)).touch()
    while number == 0 and not (Path(folder) / "2").exists():
        report(loss=1.0)
    return x


def test_asynchronous_trials_start_while_an_older_one_still_runs(pool: Pool, tmp_path: Path) -> None:
    experiment = search(wait_for_trial_2, {"x": uniform(0, 1), "folder": str(tmp_path)}, pool=pool)
    spans = {span.trial_id: span for span in experiment.search_data().spans}
    assert spans[2].started_s < (spans[0].ended_s or 0.0)


def test_a_synchronous_batch_waits_for_the_whole_last_one(pool: Pool) -> None:
    points = [{"epochs": epochs} for epochs in (1, 400, 300, 1, 1, 200)]
    space = {"x": uniform(0, 1), "epochs": randint(1, 400)}
    experiment = search(spend_time, space, pool=pool, points=points, trials=6, asynchronous=False)
    spans = {span.trial_id: span for span in experiment.search_data().spans}
    for batch in (0, 2):
        last_free_s = max(spans[number].free_s or float("inf") for number in (batch, batch + 1))
        assert last_free_s <= min(spans[number].started_s for number in (batch + 2, batch + 3))
    assert experiment.metadata["asynchronous"] is False


# Being stopped.


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


def test_a_stop_reaches_trials_inside_and_outside_of_report_and_those_that_keep_it_off_are_killed(
    pool: Pool, tmp_path: Path
) -> None:
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


class StopsAtOnce:
    """A scheduler of one's own: every trial is stopped at its third report."""

    def __init__(self) -> None:
        self._random = RandomSearch(metric="loss")
        self._seen: dict[int, int] = {}
        self.ended: dict[int, Status] = {}
        self.metric, self.mode = self._random.metric, self._random.mode
        self.start, self.suggest, self.describe = self._random.start, self._random.suggest, self._random.describe

    def on_report(self, trial_id: int, config: Mapping[str, object], values: Mapping[str, object]) -> Decision:
        self._seen[trial_id] = self._seen.get(trial_id, 0) + 1
        return Decision.STOP if self._seen[trial_id] == 3 else Decision.CONTINUE

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
def test_a_schedulers_stop_ends_the_trial_wherever_it_reports_from(pool: Pool, where: str) -> None:
    scheduler = StopsAtOnce()
    space = {"x": uniform(0, 1), "where": where}
    experiment = search(report_for_ever, space, pool=pool, scheduler=scheduler, trials=3)
    assert list(experiment.trials["status"]) == ["Stopped"] * 3
    assert list(experiment.trials["iter"]) == [3] * 3
    assert sorted(experiment.results["st_decision"]) == ["CONTINUE"] * 6 + ["STOP"] * 3
    assert scheduler.ended == dict.fromkeys(range(3), Status.STOPPED)


# Chance.


def draw(same: int) -> None:
    report(loss=random.random(), numpy=np.random.rand(), seed=current().seed % 2**32)


def test_trials_of_one_configuration_draw_different_numbers_and_a_repeated_search_the_same(pool: Pool) -> None:
    columns = ["loss", "numpy", "seed"]
    first, again = (search(draw, {"same": 1}, pool=pool, random_seed=5, trials=3) for _ in range(2))
    drawn, drawn_again = (e.results.set_index("trial_id").sort_index()[columns] for e in (first, again))
    assert drawn.equals(drawn_again)
    for column in columns:
        assert first.results[column].nunique() == 3
    seeds = {event.trial_id: event.body["seed"] % 2**32 for event in read_events(first.path) if event.kind == "start"}
    assert dict(zip(first.results["trial_id"], first.results["seed"], strict=True)) == seeds


def use_torch(same: int) -> None:
    """Torch's own chance, its scalars as metrics, and a DataLoader with processes of its own."""
    import torch

    class Numbers(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            try:
                report(loss=99.0)
            except ClosedError:
                return index
            return 99

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    total = sum(int(batch.sum()) for batch in loader)
    report(loss=torch.tensor(0.25), total=torch.tensor([total]), drawn=torch.rand(()), half=torch.tensor(1.5).half())


def test_a_trial_may_use_torch_with_a_data_loader_whose_children_send_nothing(home: Path) -> None:
    with Pool(cpus=2) as pool:
        first, again = (search(use_torch, {"same": 1}, pool=pool, random_seed=5, trials=2) for _ in range(2))
    assert list(first.results["loss"]) == [0.25, 0.25]
    assert list(first.results["total"]) == [15, 15]
    assert list(first.results["half"]) == [1.5, 1.5]
    assert first.results["drawn"].nunique() == 2
    drawn = [dict(zip(e.results["trial_id"], e.results["drawn"], strict=True)) for e in (first, again)]
    assert drawn[0] == drawn[1]


# Beside the search.


def wait_for_a_file(x: float, file: str) -> float:
    """Reports once, then waits until the other end of a pipe is opened."""
    report(loss=x)
    with open(file):
        return x / 2


def in_a_thread(run: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run it beside this thread; what it returns or raises comes into the list."""
    seen: list[object] = []

    def call() -> None:
        try:
            seen.append(run())
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, seen


def num_reports(name: str) -> int:
    try:
        return len(load_experiment(name).results)
    except RecordError:  # its folder is just being made
        return 0


def test_an_experiment_can_be_loaded_while_it_runs(pool: Pool, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    space = {"x": uniform(0, 1), "file": str(pipe)}
    tuner = tuner_of(wait_for_a_file, space, pool=pool, name="watched", trials=2)
    thread, seen = in_a_thread(tuner.run)
    within(30.0, lambda: num_reports("watched") == 2, "both trials have reported")
    watched = load_experiment("watched")
    assert not watched.finished
    assert list(watched.trials["status"]) == ["InProgress"] * 2
    assert watched.best is not None
    assert watched.best.value == watched.results["loss"].min()
    os.close(os.open(pipe, os.O_WRONLY))  # both readers go on
    thread.join(30.0)
    assert isinstance(seen[0], Experiment)
    assert watched.finished
    assert list(watched.trials["status"]) == ["Completed"] * 2
    assert watched.results.equals(seen[0].results)


def meet(x: float, mine: str, other: str, folder: str) -> float:
    """Ends only when the other search has begun as well."""
    (Path(folder) / mine).touch()
    while not (Path(folder) / other).exists():
        report(loss=x)
    return x


def test_two_searches_share_a_pool_at_the_same_time(pool: Pool, tmp_path: Path) -> None:
    names = ["left", "right"]
    tuners = [
        tuner_of(meet, {"x": uniform(0, 1), "mine": a, "other": b, "folder": str(tmp_path)}, pool=pool, name=a)
        for a, b in (names, reversed(names))
    ]
    running = [in_a_thread(tuner.run) for tuner in tuners]
    for thread, _ in running:
        thread.join(60.0)
    for (_, seen), name in zip(running, names, strict=True):
        (experiment,) = seen
        assert isinstance(experiment, Experiment)
        assert experiment.name == name
        assert list(experiment.trials["status"]) == ["Completed"] * 4
        assert set(experiment.trials["config_mine"]) == {name}


def test_a_pool_that_is_closed_under_a_search_ends_it_with_closed_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pool = Pool(cpus=2)
    tuner = tuner_of(wait_for_a_file, {"x": uniform(0, 1), "file": str(pipe)}, pool=pool, name="cut", trials=9)
    thread, seen = in_a_thread(tuner.run)
    within(30.0, lambda: num_reports("cut") == 2, "both trials have reported")
    pool.close()
    thread.join(30.0)
    assert isinstance(seen[0], ClosedError)
    assert num_reports("cut") == 2


def run_a_search_inside() -> str:
    try:
        search(return_x, {"x": uniform(0, 1)}, name="inside")
    except ClosedError as error:
        return str(error)
    return "it ran"


def test_a_search_inside_a_job_is_refused_and_leaves_nothing(pool: Pool, home: Path) -> None:
    assert pool.submit(run_a_search_inside).result(within_s=30).startswith("a search cannot be run inside a job")
    assert not home.exists()


def test_a_tuner_and_a_scheduler_serve_one_search_each(pool: Pool, home: Path) -> None:
    tuner = tuner_of(return_x, {"x": uniform(0, 1)}, pool=pool, name="once")
    tuner.run()
    with pytest.raises(ValueError, match=r"this tuner has run\. A search is run once"):
        tuner.run()
    again = tuner_of(return_x, {"x": uniform(0, 1)}, pool=pool, scheduler=tuner.scheduler, name="twice")
    with pytest.raises(ValueError, match="this scheduler has already served a search; make a new one"):
        again.run()
    assert [path.name for path in home.iterdir()] == ["once"]


# What is shown.


def test_a_quiet_search_prints_nothing_even_with_more_workers_than_cpus(capfd: pytest.CaptureFixture[str]) -> None:
    search(return_x, {"x": uniform(0, 1)}, n_workers=17, trials=1)
    assert capfd.readouterr() == ("", "")


def test_without_a_terminal_every_event_is_a_line_and_the_summary_is_that_of_the_book(
    pool: Pool, capfd: pytest.CaptureFixture[str], home: Path
) -> None:
    search(return_x, {"x": choice([0.5])}, pool=pool, trials=1, n_workers=1, quiet=False, name="shown", random_seed=7)
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[:2] == [
        "experiment shown: asynchronous search with 1 workers, master random seed 7",
        f"results are kept in {home / 'shown'}",
    ]
    assert set(lines[2:5]) >= {
        "trial 0 scheduled: x=0.5",
        "no more trials are started: max_num_trials_started=1 reached",
    }
    assert "Resource summary (last result is reported):" in lines
    assert "loss: best 0.5 for trial-id 0" in lines
    assert lines[-1] == "the search ended: max_num_trials_started=1 reached"


def test_a_search_goes_on_when_nobody_can_see_it_any_more(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w", buffering=1) as broken, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", broken)
        experiment = search(return_x, {"x": uniform(0, 1)}, pool=pool, quiet=False)
        patch.undo()
        with pytest.raises(BrokenPipeError):
            broken.close()
    assert len(experiment.results) == 4
    assert caplog.messages == ["the search goes on, but can no longer be shown: [Errno 32] Broken pipe"]


# What stays behind.


def test_500_trials_leave_no_memory_of_their_own_in_the_engine() -> None:
    with Pool(cpus=2) as pool:
        experiment = search(return_x, {"x": uniform(0, 1)}, pool=pool, trials=500, reuse=True)
        engine = pool.engine
        for table in ("_jobs", "_backlog", "_unsettled"):
            assert not getattr(engine, table), table
        assert len(engine.ledger.leases) <= 2
        assert len(pool.hub._turn_end) == 0
    assert (experiment.trials["status"] == "Completed").sum() == 500
    assert pool.stats().started_by_reuse >= 490


USERS_TEST = """
from fanwise.tune import RandomSearch, StoppingCriterion, Tuner, report, uniform

OFFSET = 1.0

class Model:
    def loss(self, x):
        return x + OFFSET

def objective(x):
    report(loss=Model().loss(x))

def test_search(tmp_path, monkeypatch):
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path))
    stop = StoppingCriterion(max_num_trials_started=2)
    tuner = Tuner(objective, {"x": uniform(0, 1)}, RandomSearch(metric="loss"), stop, n_workers=1, quiet=True)
    experiment = tuner.run()
    assert list(experiment.trials["status"]) == ["Completed"] * 2
"""


@pytest.mark.parametrize("mode", ["importlib", "prepend"])
def test_objectives_of_a_users_test_module_reach_the_workers(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "project" / "tests"
    folder.mkdir(parents=True)
    (folder / "test_mine.py").write_text(USERS_TEST)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--import-mode={mode}"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
