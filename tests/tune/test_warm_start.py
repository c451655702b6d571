"""Searches with a warm start: the trials that they use, the remarks on others, and errors."""

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from fanwise.base.errors import RecordError
from fanwise.pool import Pool
from fanwise.tune import (
    ASHA,
    FIFO,
    Experiment,
    Observation,
    OpenSearch,
    OptunaSearcher,
    Searcher,
    Space,
    StoppingCriterion,
    SuggestContext,
    TPESearcher,
    Tuner,
    choice,
    load_experiment,
    open_search,
    parameter,
    replay_experiment,
    report,
    uniform,
)
from fanwise.tune.simulate import FunctionTable, simulate

LINE = {"x": uniform(-1, 1), "max_epochs": 3}


class RecordingSearcher(Searcher):
    """Samples at random, and records its calls."""

    calls: ClassVar[list[tuple[Any, ...]]] = []  # of the last search, because tuners run copies

    def begin(self, space: Space, seed: int) -> None:
        RecordingSearcher.calls = []

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        self.calls.append(("suggest", ask.number))
        return ask.space.sample(ask.random)

    def observe(self, observation: Observation) -> None:
        o = observation
        self.calls.append((o.trial_id, dict(o.config), o.iter, o.resource, o.losses, o.violations, o.infeasibility))

    def on_end(self, trial_id: int, status: str) -> None:
        self.calls.append((trial_id, status))


def earlier(name: str, space: Any = LINE, xs: tuple[float, ...] = (0.5, -0.25), **options: Any) -> Experiment:
    """An experiment of these configurations, with two reports each."""
    scheduler = FIFO(metric="loss", points_to_evaluate=[{"x": x} for x in xs], **options)
    with open_search(space, scheduler, name=name, random_seed=0) as search:
        for x in xs:
            trial = search.ask()
            assert trial is not None
            search.report(trial, loss=x, epoch=10, size=2.0)
            search.tell(trial, {"loss": x / 2, "epoch": 20, "size": 4.0})
    return load_experiment(name)


def begun(warm_start: Any, space: Any = LINE, **options: Any) -> OpenSearch:
    scheduler = FIFO(RecordingSearcher(), **{"metric": "loss", **options})
    return open_search(space, scheduler, name="new", random_seed=0, warm_start=warm_start)


def summary(search: OpenSearch) -> Any:
    return search.experiment.metadata["warm_start"]


@pytest.mark.parametrize("how", ["name", "path", "experiment", "results"])
def test_searcher_observes_earlier_reports_before_the_first_suggestion(how: str) -> None:
    old = earlier("old")
    source: Any = {"name": "old", "path": old.path, "experiment": old, "results": old.results}[how]
    with begun(source, resource_attr="epoch", mode="min", constraints=["size <= 3"]) as search:
        search.ask()
    first, second = {"x": 0.5, "max_epochs": 3}, {"x": -0.25, "max_epochs": 3}
    assert RecordingSearcher.calls == [
        (-2, first, 1, 10.0, (0.5,), (-1.0,), 0.0),
        (-2, first, 2, 20.0, (0.25,), (1.0,), 1 / 3),
        (-2, "Completed"),
        (-1, second, 1, 10.0, (-0.25,), (-1.0,), 0.0),
        (-1, second, 2, 20.0, (-0.125,), (1.0,), 1 / 3),
        (-1, "Completed"),
        ("suggest", 0),
    ]
    name = "the data frame warm_start[0]" if how == "results" else "the experiment 'old'"
    assert summary(search) == [{"source": name, "num_trials": 2, "num_reports": 4, "remarks": []}]


def test_trials_of_several_sources_have_ids_up_to_minus_one() -> None:
    earlier("a", xs=(0.1, 0.2))
    earlier("b", xs=(0.3,))
    with begun(["b", Path(load_experiment("a").path)]) as search:
        pass
    ended = [call[0] for call in RecordingSearcher.calls if len(call) == 2]
    assert ended == [-3, -2, -1]
    assert [call[1]["x"] for call in RecordingSearcher.calls if len(call) > 2][::2] == [0.3, 0.1, 0.2]
    assert [one["source"] for one in summary(search)] == ["the experiment 'b'", "the experiment 'a'"]


def test_earlier_trials_are_not_trials_of_this_search() -> None:
    earlier("old", xs=(-1.0,))
    with begun("old") as search:
        trial = search.ask()
        assert trial is not None and trial.trial_id == 0
        search.tell(trial, 5.0)
        best = search.experiment.best
        assert best is not None and best.value == 5.0
        assert len(search.experiment.trials) == len(search.experiment.results) == 1


def test_data_frame_has_a_row_for_each_trial() -> None:
    frame = pd.DataFrame({"x": [0.5, 0.25], "loss": [1.0, math.inf], "note": ["good", "bad"]})
    with begun(frame):
        pass
    assert [call[4] for call in RecordingSearcher.calls if len(call) > 2] == [(1.0,), (math.inf,)]


def test_searcher_receives_the_ends_of_earlier_trials() -> None:
    frame = pd.DataFrame({"x": [0.1, 0.2, 0.3], "loss": [1.0] * 3, "st_status": ["Failed", "Paused", "InProgress"]})
    with begun(frame):
        pass
    assert [call[1] for call in RecordingSearcher.calls if len(call) == 2] == ["Failed", "Stopped", "Stopped"]


TREE = {
    "optimizer": choice(["sgd", "adam", None]),
    "momentum": parameter(uniform(0, 1), when={"optimizer": "sgd"}),
}


def test_empty_cell_is_none_or_an_inactive_hyperparameter() -> None:
    frame = pd.DataFrame({
        "config_optimizer": ["sgd", "adam", None],
        "config_momentum": [0.5, math.nan, math.nan],
        "loss": [1.0, 2.0, 3.0],
    })  # fmt: skip
    with begun(frame, TREE):
        pass
    configs = [call[1] for call in RecordingSearcher.calls if len(call) > 2]
    assert configs == [{"optimizer": "sgd", "momentum": 0.5}, {"optimizer": "adam"}, {"optimizer": None}]


def test_trials_that_do_not_fit_are_skipped_with_a_remark() -> None:
    frame = pd.DataFrame({
        "config_x": [0.5, 3.0, 4.0, math.nan, 0.25],
        "config_layers": [2, 2, 2, 2, 2],
        "config_max_epochs": [9] * 5,
        "loss": [1.0, 2.0, 3.0, 4.0, math.nan],
    })  # fmt: skip
    with begun(frame) as search:
        pass
    assert [call[1] for call in RecordingSearcher.calls if len(call) > 2] == [{"x": 0.5, "max_epochs": 3}]
    (old,) = summary(search)
    assert (old["num_trials"], old["num_reports"]) == (1, 1)
    assert old["remarks"] == [
        "3 trials skipped: x = 3.0 is not in uniform(-1.0, 1.0); x = 4.0 is not in uniform(-1.0, 1.0); 'x' is missing",
        "1 report skipped: a required value is missing",
        "not in this space: layers",
        "max_epochs was 9 and is 3 in this search",
    ]


def test_tuner_prints_the_warm_start(capsys: pytest.CaptureFixture[str], pool: Pool) -> None:
    earlier("old", {"x": uniform(-1, 1), "layers": choice([1, 2])})
    scheduler = FIFO(TPESearcher(), metric="loss", random_seed=1)
    stop = StoppingCriterion(max_num_trials_started=2)
    Tuner(train, LINE, scheduler, stop, name="new", warm_start="old", n_workers=1, pool=pool).run()
    line = "warm start from the experiment 'old': 2 trials, 4 reports; not in this space: layers"
    assert line in capsys.readouterr().out


def train(x: float, max_epochs: int) -> None:
    report(loss=x * x)


@pytest.mark.parametrize("make", [lambda: OptunaSearcher("TPESampler"), TPESearcher], ids=["Optuna", "TPE"])
def test_searcher_learns_from_earlier_trials(make: Callable[[], Searcher]) -> None:
    pytest.importorskip("optuna")
    frame = pd.DataFrame({"x": [k / 50 - 1 for k in range(100)]})
    frame["loss"] = (frame["x"] - 0.3) ** 2

    def near(warm_start: Any, name: str) -> int:
        scheduler = FIFO(make(), metric="loss")
        with open_search(LINE, scheduler, name=name, random_seed=0, warm_start=warm_start) as search:
            trials = [search.ask() for _ in range(10)]
        return sum(abs(trial.config["x"] - 0.3) < 0.2 for trial in trials if trial is not None)

    assert near(frame, "warm") >= 8
    assert near(None, "cold") <= 5


def test_earlier_trials_do_not_enter_rungs() -> None:
    """The earlier trials are much better; a scheduler that heard of them would stop the first trial."""
    frame = pd.DataFrame({"trial_id": [0, 1, 2], "x": [0.1, 0.2, 0.3], "epoch": [1, 1, 1], "loss": [-9.0] * 3})
    scheduler = ASHA(metric="loss", resource_attr="epoch", max_t=9, searcher=RecordingSearcher())
    with open_search(LINE, scheduler, name="new", random_seed=0, warm_start=frame) as search:
        trial = search.ask()
        assert trial is not None
        assert str(search.report(trial, loss=1.0, epoch=1)) == "CONTINUE"


def test_search_is_resumed_and_replayed_after_its_source_is_deleted(pool: Pool) -> None:
    old = earlier("old")
    scheduler = FIFO(TPESearcher(num_init=2), metric="loss", random_seed=1)
    run: dict[str, Any] = {"n_workers": 1, "pool": pool, "quiet": True}
    for name, trials, warm_start in (("whole", 6, "old"), ("parts", 3, "old"), ("cold", 6, None)):
        stop = StoppingCriterion(max_num_trials_started=trials)
        Tuner(train, LINE, scheduler, stop, name=name, warm_start=warm_start, **run).run()
    shutil.rmtree(old.path)
    parts = Tuner.resume("parts", stop=StoppingCriterion(max_num_trials_started=6), pool=pool, quiet=True).run()
    whole, cold = load_experiment("whole"), load_experiment("cold")
    assert list(parts.trials["config_x"]) == list(whole.trials["config_x"]) != list(cold.trials["config_x"])
    replayed = replay_experiment("parts")
    assert replayed.num_differences == 0 and replayed.num_suggestions > 5


def curve(config: Mapping[str, Any], epoch: int) -> tuple[dict[str, float], float]:
    return {"loss": abs(config["x"] - 0.3)}, 1.0


TABLE = FunctionTable(curve, LINE)


def test_simulated_search_uses_a_warm_start() -> None:
    earlier("old")
    stop = StoppingCriterion(max_num_trials_started=2)
    search = simulate(FIFO(RecordingSearcher(), metric="loss"), TABLE, stop, n_workers=1, seed=0, warm_start="old")
    assert search.num_trials_started == 2
    assert [call[:2] for call in RecordingSearcher.calls if len(call) == 2] == [
        (-2, "Completed"),
        (-1, "Completed"),
        ("suggest", 0),
        (0, "Completed"),
        ("suggest", 1),
        (1, "Completed"),
    ]
    assert [call[4] for call in RecordingSearcher.calls if call[0] in (-2, -1) and len(call) > 2] == [
        (0.5,),
        (0.25,),
        (-0.25,),
        (-0.125,),
    ]


def test_another_mode_is_an_error() -> None:
    earlier("old", mode="max")
    with pytest.raises(
        ValueError, match=r"the experiment 'old' optimized 'loss' with mode 'max', but this search has mode 'min'"
    ):
        begun("old")


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({"metric": "error"}, "no report of 'error', which is required; it has 'loss', 'epoch', 'size'"),
        (
            {"metric": "loss", "resource_attr": "step"},
            "'step', which is the resource_attr of the scheduler",
        ),
        ({"metric": "loss", "constraints": ["watts <= 3"]}, "no report of 'watts', which is required"),
    ],
)
def test_missing_metric_is_an_error(options: Any, subject: str) -> None:
    earlier("old")
    with pytest.raises(ValueError, match=subject):
        begun("old", **options)
    assert not (load_experiment("old").path.parent / "new").exists(), "a folder was left behind"


def test_space_without_common_hyperparameters_is_an_error() -> None:
    earlier("old")
    with pytest.raises(ValueError, match=r"no trial of the experiment 'old' fits this space:\n  2 trials: 'y' is"):
        begun("old", {"y": uniform(0, 1)})


def test_invalid_sources_are_refused() -> None:
    with pytest.raises(TypeError, match=r"cannot be read from 17 of type int\n  right:  warm_start="):
        begun(17)
    with pytest.raises(RecordError, match="There is no experiment 'nowhere'"):
        begun("nowhere")


def test_exception_of_the_searcher_at_an_earlier_trial_ends_the_search() -> None:
    class Refusing(RecordingSearcher):
        def observe(self, observation: Observation) -> None:
            raise ArithmeticError("not this one")

    earlier("old")
    with open_search(LINE, FIFO(Refusing(), metric="loss"), name="new", warm_start="old") as search:
        with pytest.raises(ArithmeticError, match="not this one"):
            search.ask()
        assert search.finished


def test_void_reports_are_not_used() -> None:
    scheduler = FIFO(metric="loss", points_to_evaluate=[{"x": 0.5}])
    for value in (-7.0, 3.0):
        with open_search(LINE, scheduler, name="old", random_seed=0) as search:
            trial = search.ask()
            assert trial is not None and trial.trial_id == 0
            search.report(trial, loss=value)  # without a checkpoint: it starts again when the search is opened next
    with begun("old"):
        pass
    assert [call[4] for call in RecordingSearcher.calls if len(call) > 2] == [(3.0,)]


def test_reopened_search_uses_its_warm_start_once() -> None:
    old = earlier("old")
    with begun("old") as search:
        search.ask()
    shutil.rmtree(old.path)
    before = list(RecordingSearcher.calls)
    with begun("old") as search:
        search.ask()
    assert RecordingSearcher.calls == before
    assert summary(search)[0]["num_trials"] == 2
