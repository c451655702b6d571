"""The default searcher: the rule, the line that reports it, its record, and that it is chosen once."""

from pathlib import Path
from typing import Any

import pytest

import fanwise
from fanwise.pool import Pool
from fanwise.tune import (
    ASHA,
    FIFO,
    GPSearcher,
    RandomSearcher,
    StoppingCriterion,
    TPESearcher,
    Tuner,
    choice,
    open_search,
    parameter,
    replay_experiment,
    uniform,
)
from fanwise.tune.ask_tell import OpenSearch
from fanwise.tune.default_searcher import choose_searcher
from fanwise.tune.searchers import SEARCHERS

SPACE = {"x": uniform(0, 1)}


def returns(x: float) -> float:
    return abs(x - 0.3)


def takes_more(x: float, y: float = 0.0) -> float:
    return abs(x - 0.3) + y


@pytest.mark.parametrize(
    ("events", "name"),
    [
        ({}, "gp"),
        ({"max_trials": 6}, "gp"),
        ({"max_trials": 5}, "sobol"),
        ({"max_trials": 16, "n_workers": 16}, "sobol"),
        ({"max_trials": 17, "n_workers": 16}, "gp"),
        ({"num_objectives": 2}, "tpe"),
        ({"has_conditions": True}, "tpe"),
        ({"num_objectives": 2, "max_trials": 5}, "tpe"),
    ],
)
def test_default_searcher_depends_on_objectives_conditions_and_trials(events: dict[str, Any], name: str) -> None:
    chosen = choose_searcher(
        **{"num_objectives": 1, "has_conditions": False, "max_trials": None, "n_workers": 4, **events}
    )
    assert chosen.name == name
    SEARCHERS[name]()  # needs no extra


def test_chosen_searcher_is_printed_and_recorded(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = fanwise.search(returns, SPACE, metric="loss", n_trials=7, n_workers=2, pool=pool, name="said")
    method = "searcher GPSearcher, scheduler FIFO"
    line = f"{method}, chosen because there is one objective (searcher='gp'; fanwise explain searchers)\n"
    assert capsys.readouterr().out.count(line) == 1
    assert experiment.metadata["chosen"] == {"searcher": "gp", "because": "there is one objective"}
    assert experiment.metadata["scheduler"]["searcher"] == GPSearcher().describe()


def test_given_searcher_is_used(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    for searcher in ("random", RandomSearcher()):
        experiment = fanwise.search(
            returns, SPACE, metric="loss", searcher=searcher, n_trials=2, n_workers=2, pool=pool
        )
        assert experiment.metadata["chosen"] is None
        assert experiment.metadata["scheduler"]["searcher"]["name"] == "RandomSearcher"
    assert "chosen" not in capsys.readouterr().out


def test_a_tuner_without_a_scheduler_chooses_for_its_metrics(pool: Pool) -> None:
    stop = StoppingCriterion(max_num_trials_completed=30)
    tuner = Tuner(returns, SPACE, metric="score", mode="max", stop=stop, n_workers=2, pool=pool)
    assert isinstance(tuner.scheduler, FIFO)
    assert isinstance(tuner.scheduler.searcher, GPSearcher)
    assert [(objective.metric, objective.mode) for objective in tuner.scheduler.objectives] == [("score", "max")]
    tuner = Tuner(returns, SPACE, metric=["loss", "size"], mode=["min", "max"], stop=stop, n_workers=2, pool=pool)
    assert isinstance(tuner.scheduler.searcher, TPESearcher)
    conditional = {"x": choice([0.1, 0.9]), "y": parameter(uniform(0, 1), when={"x": 0.1})}
    tuner = Tuner(takes_more, conditional, metric="loss", stop=stop, n_workers=2, pool=pool)
    assert isinstance(tuner.scheduler.searcher, TPESearcher)


def test_resumed_search_keeps_its_searcher(pool: Pool) -> None:
    stop = StoppingCriterion(max_num_trials_started=8)
    Tuner(returns, SPACE, metric="loss", stop=stop, n_workers=1, pool=pool, name="on", quiet=True).run()
    assert choose_searcher(num_objectives=1, has_conditions=False, max_trials=10, n_workers=16).name == "sobol"
    second_stop = StoppingCriterion(max_num_trials_started=10)
    resumed = Tuner.resume("on", stop=second_stop, n_workers=16, pool=pool, quiet=True)
    assert len(resumed.run().trials) == 10
    assert isinstance(resumed.scheduler.searcher, GPSearcher)
    assert replay_experiment("on").num_differences == 0


def test_reopened_search_keeps_its_searcher() -> None:
    with open_search(SPACE, "loss", name="asked", stop=StoppingCriterion(max_num_trials_started=5)) as search:
        tell_some(search, 3)
        assert search.experiment.metadata["chosen"]["searcher"] == "sobol"
    with open_search(SPACE, "loss", name="asked", stop=StoppingCriterion(max_num_trials_started=50)) as search:
        tell_some(search, 6)
        assert search.experiment.metadata["scheduler"]["searcher"] == {"name": "SobolSearcher"}
    assert replay_experiment("asked").num_differences == 0
    with pytest.raises(ValueError, match=r"optimizes 'loss' \(min\), so it cannot be resumed with 'loss' \(max\)"):
        open_search(SPACE, "loss", mode="max", name="asked")


def tell_some(search: OpenSearch, count: int) -> None:
    for _ in range(count):
        trial = search.ask()
        assert trial is not None
        search.tell(trial, returns(**trial.config))


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        ({}, TypeError, "needs the name of the value to optimize"),
        ({"metric": "loss", "searcher": "forrest"}, ValueError, "did you mean 'forest'"),
        ({"metric": "loss", "scheduler": ASHA(metric="loss", max_t=3)}, TypeError, "pass metric="),
        ({"searcher": "tpe", "scheduler": ASHA(metric="loss", max_t=3)}, TypeError, "pass metric="),
        ({"metric": "loss", "stop": None}, ValueError, "needs an end"),
    ],
)
def test_contradictory_arguments_are_refused_before_anything_starts(
    arguments: dict[str, Any], error: type[Exception], complaint: str, home: Path
) -> None:
    with pytest.raises(error, match=complaint):
        Tuner(returns, SPACE, **{"stop": StoppingCriterion(max_num_trials_started=9), **arguments})
    assert not home.exists()
