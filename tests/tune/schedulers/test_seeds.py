"""A search has one seed, whether the search or its scheduler is given it."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from searches import quiet_tuner

import fanwise.tune.schedulers
from fanwise.pool import Pool
from fanwise.tune import (
    ASHA,
    FIFO,
    Scheduler,
    StoppingCriterion,
    Tuner,
    load_experiment,
    open_search,
    replay_experiment,
    uniform,
)
from fanwise.tune.record.event_codec import to_row
from fanwise.tune.searchers import SEARCHERS
from fanwise.tune.simulate import FunctionTable, simulate

SPACE = {"x": uniform(0, 1), "y": uniform(0, 1), "max_epochs": 4}
STOP = StoppingCriterion(max_num_trials_started=8)
FEW = StoppingCriterion(max_num_trials_started=3)


def train(config: Mapping[str, Any], epoch: int) -> tuple[dict[str, object], float]:
    return {"loss": config["x"] / epoch, "size": config["y"]}, 1.0


def train_for_real(x: float, y: float, max_epochs: int) -> float:
    return x


SCHEDULERS = [
    name
    for name, scheduler_class in vars(fanwise.tune.schedulers).items()
    if inspect.isclass(scheduler_class) and issubclass(scheduler_class, Scheduler) and scheduler_class is not Scheduler
]


def scheduler_of(name: str, seed: int | None) -> Scheduler:
    make = getattr(fanwise.tune.schedulers, name)
    known = inspect.signature(make).parameters
    options = {
        "metric": ["loss", "size"] if name == "MOASHA" else "loss",
        "max_t": 4,
        "num_init": 3,
        "population_size": 4,
        "brackets": 2,
        "perturbation_interval": 1,
        "random_seed": seed,
    }
    return make(**{option: value for option, value in options.items() if option in known})  # type: ignore[no-any-return]


def searcher_of(name: str, seed: int | None) -> Scheduler:
    return FIFO(name, metric="loss", random_seed=seed)


MAKERS = [
    *((scheduler_of, name) for name in SCHEDULERS),
    *((searcher_of, name) for name in SEARCHERS),
]


def simulated(scheduler: Scheduler, seed: int | None = None) -> list[object]:
    """The record of a search: each configuration and decision."""
    rows: list[object] = []
    table = FunctionTable(train, SPACE)
    simulate(scheduler, table, STOP, n_workers=2, seed=seed, on_event=lambda *row: rows.append(to_row(*row)))
    return rows


@pytest.mark.parametrize(("make", "name"), MAKERS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_seed_of_the_scheduler_is_the_seed_of_the_search(make: Any, name: str) -> None:
    if name == "bayesopt":
        pytest.importorskip("optuna")
    of_search = simulated(make(name, None), seed=7)
    assert simulated(make(name, 7)) == of_search
    if name != "grid":
        assert simulated(make(name, None), seed=8) != of_search
    with pytest.raises(ValueError, match=r"a search has one seed, but the search was given 8 and its .* was given "):
        simulated(make(name, 7), seed=8)


def test_two_different_seeds_are_refused_before_anything_is_made(pool: Pool, home: Path) -> None:
    refused = "a search has one seed, but the search was given 5 and its FIFO was given random_seed=7"
    scheduler = FIFO(metric="loss", random_seed=7)
    with pytest.raises(ValueError, match=refused):
        Tuner(train_for_real, SPACE, scheduler, STOP, random_seed=5, pool=pool)
    with pytest.raises(ValueError, match=refused):
        open_search(SPACE, scheduler, random_seed=5)
    assert not home.exists()


def test_live_resumed_and_asked_searches_with_one_seed_try_the_same(pool: Pool) -> None:
    tried = {}
    for name, of_search, of_scheduler in (("search", 7, None), ("scheduler", None, 7)):
        scheduler = ASHA(metric="loss", max_t=4, searcher="sobol", random_seed=of_scheduler)
        options: dict[str, Any] = {"n_workers": 1, "name": f"run-{name}", "random_seed": of_search}
        quiet_tuner(train_for_real, SPACE, scheduler=scheduler, stop=FEW, pool=pool, **options).run()
        Tuner.resume(f"run-{name}", stop=STOP, pool=pool, quiet=True).run()
        for stop in (FEW, STOP):
            with open_search(SPACE, scheduler, name=f"asked-{name}", stop=stop, random_seed=of_search) as search:
                while (trial := search.ask()) is not None:
                    search.tell(trial, trial.config["x"])
        for experiment in (load_experiment(f"run-{name}"), load_experiment(f"asked-{name}")):
            assert experiment.metadata["seed"] == 7
            assert replay_experiment(experiment.name).num_differences == 0
            tried[experiment.name] = list(experiment.trials["config_x"])
    assert len(tried["run-search"]) == 8
    assert list(tried.values()) == [tried["run-search"]] * 4
    with pytest.raises(ValueError, match="random seed: was 7, is 8"):
        open_search(SPACE, ASHA(metric="loss", max_t=4, searcher="sobol"), name="asked-search", random_seed=8)
    with pytest.raises(ValueError, match="a search has one seed, but the search was given 7"):
        replay_experiment("run-search", scheduler=ASHA(metric="loss", max_t=4, searcher="sobol", random_seed=8))
