"""Searches in which something is wrong, with every searcher that has a name and with samplers of Optuna."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fanwise.base.errors import NotInstalled, SearchFailedError
from fanwise.tune import (
    ASHA,
    FIFO,
    Observation,
    Searcher,
    StoppingCriterion,
    SuggestContext,
    Tuner,
    choice,
    open_search,
    parameter,
    randint,
    uniform,
)
from fanwise.tune.searchers import SEARCHERS, resolve_searcher
from fanwise.tune.simulate import FunctionTable, SimulatedSearch, simulate

SPACE = {
    "x": uniform(-1, 1),
    "width": randint(1, 64),
    "kind": choice(["a", "b"]),
    "momentum": parameter(uniform(0, 1), when={"kind": "a"}),
    "max_epochs": 2,
}
ALL = [*SEARCHERS, "optuna:TPESampler", "optuna:NSGAIISampler", "optuna:RandomSampler"]
NUM_TRIALS = 10  # more than any of them needs before it has a model


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path))


def need(name: str) -> None:
    if name == "bayesopt":
        pytest.importorskip("torch")
    if name == "bayesopt" or name.startswith("optuna:"):
        pytest.importorskip("optuna")


def train(config: Mapping[str, Any], epoch: int) -> tuple[dict[str, float], float]:
    return {"loss": config["x"] ** 2 + 1 / epoch, "latency_ms": 50.0 + config["width"]}, 1.0


def never(x: float, width: int, kind: str, max_epochs: int, momentum: float = 0.0) -> None:
    raise AssertionError("nothing has started")


def searched(name: str, *constraints: str, metric: str | list[str] = "loss") -> SimulatedSearch:
    scheduler = FIFO(resolve_searcher(name), metric=metric, constraints=constraints)
    stop = StoppingCriterion(max_num_trials_started=NUM_TRIALS)
    return simulate(scheduler, FunctionTable(train, SPACE), stop, n_workers=3, seed=0)


TWO: Any = ["loss", "latency_ms"]


@pytest.mark.parametrize("metric", ["loss", TWO], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_a_search_in_which_nothing_is_ever_feasible_goes_on_to_its_end(name: str, metric: Any) -> None:
    need(name)
    search = searched(name, "latency_ms <= 20", "loss >= 9", metric=metric)
    assert search.num_trials_completed == NUM_TRIALS
    assert search.incumbents == [] and search.best is not None and search.best.infeasibility > 0


@pytest.mark.parametrize("name", ALL)
def test_a_report_without_what_is_constrained_ends_the_search_and_is_named(name: str) -> None:
    need(name)
    scheduler = FIFO(resolve_searcher(name), metric="loss", constraints=["watts <= 3"])
    with open_search(SPACE, scheduler, name="forgetful", random_seed=0) as search:
        trial = search.ask()
        assert trial is not None
        with pytest.raises(ValueError, match="but not 'watts' of the constraint 'watts <= 3'"):
            search.tell(trial, {"loss": 1.0})


class Broken(Searcher):
    """Raises at one of the things that a searcher is asked or told."""

    def __init__(self, where: str) -> None:
        self.where = where

    def at(self, where: str) -> None:
        if where == self.where:
            raise ArithmeticError(f"no numbers at {where}")

    def check(self, space: object) -> None:
        self.at("check")

    def begin(self, space: object, seed: int) -> None:
        self.at("begin")

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        self.at("suggest")
        return ask.space.sample(ask.random)

    def observe(self, observation: Observation) -> None:
        self.at("observe")

    def on_end(self, trial_id: int, status: str) -> None:
        self.at("on_end")


@pytest.mark.parametrize("where", ["check", "begin", "suggest", "observe", "on_end"])
def test_what_a_searcher_raises_comes_out_wherever_it_is_raised(where: str) -> None:
    def run() -> None:
        scheduler = FIFO(Broken(where), metric="loss", random_seed=0)
        with open_search(SPACE, scheduler, name="broken") as search:
            for _ in range(2):
                trial = search.ask()
                assert trial is not None
                search.tell(trial, 1.0)

    with pytest.raises((ArithmeticError, SearchFailedError), match=f"no numbers at {where}"):
        run()


EXTRAS = [
    ("bayesopt", "optuna,torch", "torch"),
    ("bayesopt", "optuna,torch", "optuna"),
    ("optuna:GPSampler", "optuna,torch", "torch"),
    ("optuna:TPESampler", "optuna", "optuna"),
]


def by_scheduler(name: str, stop: StoppingCriterion) -> Tuner:
    return Tuner(never, SPACE, ASHA(metric="loss", max_t=2, searcher=name), stop, n_workers=1)


def by_tuner(name: str, stop: StoppingCriterion) -> Tuner:
    return Tuner(never, SPACE, metric="loss", searcher=name, stop=stop, n_workers=1)


@pytest.mark.parametrize("make", [by_scheduler, by_tuner])
@pytest.mark.parametrize(("name", "extra", "library"), EXTRAS)
def test_a_searcher_whose_extra_is_not_there_names_it_before_anything_starts(
    name: str, extra: str, library: str, make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "fanwise.tune.searchers.with_optuna", raising=False)
    stop = StoppingCriterion(max_num_trials_started=3)
    with pytest.raises(NotInstalled, match=rf"pip install 'fanwise\[{extra}\]'"):
        make(name, stop)
    assert list(tmp_path.iterdir()) == []
