"""Searches from end to end on real workers: the experiment agrees with the log of the objective."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searches import quiet_tuner, search

from fanwise.pool import Pool, current
from fanwise.tune import (
    FIFO,
    Experiment,
    Searcher,
    StoppingCriterion,
    SuggestContext,
    Tuner,
    choice,
    load_experiment,
    ordinal,
    randint,
    report,
    uniform,
)
from fanwise.tune.searchers import Observation

Objective = Callable[..., Any]  # Any: the return type of an objective is open


def call_its_hyperparameters(act: Callable[[float], float], sizes: list[int], kernel: tuple[int, int]) -> float:
    sizes.append(1)
    assert isinstance(kernel, tuple)
    return act(0.0) + len(sizes)


def test_objectives_receive_the_objects_of_a_choice_and_cannot_change_them(pool: Pool) -> None:
    acts = choice([lambda x: x, lambda x: x + 1])
    space = {"act": acts, "sizes": choice([[64], [64, 64]]), "kernel": ordinal([(3, 3)])}
    points: list[dict[str, Any]] = [
        {"act": f"<lambda>#{number}", "sizes": [64]} for number in (1, 1, 0)
    ]  # Any: values of a choice
    scheduler = FIFO(metric="loss", points_to_evaluate=points)
    stop = StoppingCriterion(max_num_trials_started=3)
    experiment = Tuner(
        call_its_hyperparameters, space, scheduler, stop, pool=pool, n_workers=1, name="objects", quiet=True
    ).run()
    trials = experiment.trials
    assert list(trials["loss"]) == [3.0, 3.0, 2.0]
    assert list(trials["config_sizes"]) == ["[64]"] * 3 and list(trials["config_kernel"]) == ["(3, 3)"] * 3
    resumed = Tuner.resume("objects", stop=StoppingCriterion(max_num_trials_started=4), pool=pool, quiet=True).run()
    assert len(resumed.trials) == 4 and set(resumed.trials["status"]) == {"Completed"}
    with pytest.raises(ValueError, match="was restored from a record, which has only the names of its objects"):
        Tuner.resume("objects", objective=call_its_hyperparameters, scheduler=scheduler, pool=pool)


def keep_a_diary(x: float, epochs: int, folder: str) -> None:
    """Writes down each report after it was acknowledged."""
    with open(Path(folder) / f"{current().number}.txt", "a") as diary:
        for epoch in range(1, epochs + 1):
            values = {"epoch": epoch, "loss": (x - 0.5) ** 2 / epoch}
            report(**values)
            print(json.dumps(values), file=diary, flush=True)


def test_results_trials_and_best_have_the_reports_of_the_objective(pool: Pool, tmp_path: Path) -> None:
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
    assert experiment.state == "finished"
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


def test_functions_and_threads_of_the_objective_can_report_and_its_return_value_is_the_last_report(pool: Pool) -> None:
    ways = ["returns a number", "returns a dict", "returns numpy", "in a helper", "in a thread", "numpy scalars"]
    points = [{"way": way} for way in ways]
    experiment = search(report_in_every_way, {"way": choice(ways)}, pool=pool, points=points, trials=len(ways))
    assert list(experiment.trials["config_way"]) == ways
    assert list(experiment.trials["status"]) == ["Completed"] * len(ways)
    assert list(experiment.trials["loss"]) == [0.25] * len(ways)
    assert list(experiment.trials["iter"]) == [1, 2, 1, 1, 1, 1]
    epochs = dict(zip(ways, experiment.trials["epoch"], strict=True))
    assert epochs["returns a dict"] == epochs["numpy scalars"] == 7


def return_x(x: float) -> float:
    return x


def configurations(experiment: Experiment) -> list[float]:
    return list(experiment.trials["config_x"])


class Halving(Searcher):
    """Suggests half of the best x that it has seen."""

    def __init__(self) -> None:
        self.best = (9.0, 1.0)
        self.seen: list[tuple[int, float]] = []

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        return {"x": self.best[1] / 2}

    def observe(self, observation: Observation) -> None:
        self.seen.append((observation.trial_id, observation.loss))
        x = observation.config["x"]
        assert isinstance(x, float)
        self.best = min(self.best, (observation.loss, x))


def test_tuner_runs_only_once(pool: Pool, home: Path) -> None:
    tuner = quiet_tuner(return_x, {"x": uniform(0, 1)}, pool=pool, name="once")
    tuner.run()
    with pytest.raises(ValueError, match=r"this tuner has already run\. Create another Tuner"):
        tuner.run()
    assert [path.name for path in home.iterdir()] == ["once"]


def test_several_tuners_run_copies_of_one_scheduler(pool: Pool) -> None:
    scheduler = FIFO(Halving(), metric="loss")
    first = quiet_tuner(return_x, {"x": uniform(0, 1)}, pool=pool, scheduler=scheduler, n_workers=1)
    second = quiet_tuner(return_x, {"x": uniform(0, 2)}, pool=pool, scheduler=scheduler, n_workers=1)
    assert configurations(first.run()) == configurations(second.run()) == [0.5, 0.25, 0.125, 0.0625]
    assert isinstance(scheduler.searcher, Halving)
    assert scheduler.searcher.seen == []


def test_scheduler_that_cannot_be_copied_is_refused_with_a_remedy(pool: Pool) -> None:
    searcher = Halving()
    searcher.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"copy of its scheduler, and FIFO cannot be copied .* begin\(\)"):
        quiet_tuner(return_x, {"x": uniform(0, 1)}, pool=pool, scheduler=FIFO(searcher, metric="loss"))
