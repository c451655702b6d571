"""Searches in which something is wrong, with every searcher that has a name and with samplers of Optuna."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fanwise.base.errors import NotInstalled
from fanwise.tune import (
    ASHA,
    FIFO,
    StoppingCriterion,
    Tuner,
    choice,
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
def test_search_without_a_feasible_trial_runs_to_its_end(name: str, metric: Any) -> None:
    need(name)
    search = searched(name, "latency_ms <= 20", "loss >= 9", metric=metric)
    assert search.num_trials_completed == NUM_TRIALS
    assert search.incumbents == [] and search.best is not None and search.best.infeasibility > 0


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
def test_missing_library_of_a_searcher_is_reported_before_anything_starts(
    name: str, extra: str, library: str, make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "fanwise.tune.searchers.with_optuna", raising=False)
    stop = StoppingCriterion(max_num_trials_started=3)
    with pytest.raises(NotInstalled, match=rf"pip install 'fanwise\[{extra}\]'"):
        make(name, stop)
    assert list(tmp_path.iterdir()) == []
