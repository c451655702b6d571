"""Replays: every decision of a search is reproduced bit for bit from its record, and differences are reported."""

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from record_edits import edit_events, edit_meta
from simulated_record import record_simulated

from fanwise.base.errors import RecordError
from fanwise.cli import main
from fanwise.pool import Pool
from fanwise.tune import (
    ASHA,
    BOHB,
    FIFO,
    MOASHA,
    PBT,
    Decision,
    ForestSearcher,
    GridSearcher,
    Hyperband,
    MedianStopping,
    New,
    NextTrial,
    Observation,
    Scheduler,
    Searcher,
    SuccessiveHalving,
    SuggestContext,
    TPESearcher,
    Tuner,
    choice,
    finrange,
    lograndint,
    loguniform,
    open_search,
    ordinal,
    qloguniform,
    randint,
    report,
    reverseloguniform,
    uniform,
)
from fanwise.tune.experiment import replay_experiment
from fanwise.tune.record.event_file import read_meta
from fanwise.tune.simulate import Faults, FunctionTable
from fanwise.tune.stopping import StoppingCriterion

MAX_EPOCHS = 9
SPACE = {
    "learning_rate": loguniform(1e-4, 1),
    "momentum": reverseloguniform(0.5, 0.999),
    "dropout": uniform(0, 1),
    "depth": randint(2, 8),
    "width": lograndint(8, 512),
    "decay": qloguniform(0.001, 1, 0.001),
    "size": ordinal([16, 32, 64]),
    "warm": finrange(0.0, 1.0, 5),
    "optimizer": choice(["sgd", "adam"]),
    "max_epochs": MAX_EPOCHS,
}


def train(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
    chance = random.Random(f"{sorted(config.items(), key=str)} {epoch}")
    return {"loss": chance.random() / epoch, "size": chance.random()}, 0.5 + chance.random()


TABLE = FunctionTable(train, SPACE)
BUDGET: dict[str, Any] = {"resource_attr": "epoch", "max_resource_attr": "max_epochs"}

SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {
    "random": lambda: FIFO(metric="loss", random_seed=7, points_to_evaluate=[{"learning_rate": 0.1}]),
    "grid": lambda: FIFO(GridSearcher(2), metric="loss"),
    "sobol": lambda: FIFO("sobol", metric="loss"),
    "asha": lambda: ASHA(metric="loss", **BUDGET, brackets=2),
    "asha-promotion": lambda: ASHA(metric="loss", **BUDGET, type="promotion"),
    "halving": lambda: SuccessiveHalving(metric="loss", **BUDGET),
    "hyperband": lambda: Hyperband(metric="loss", **BUDGET),
    "median": lambda: MedianStopping(metric="loss", resource_attr="epoch"),
    "pbt": lambda: PBT(metric="loss", **BUDGET, population_size=4, perturbation_interval=2),
    "moasha": lambda: MOASHA(metric=["loss", "size"], mode=["min", "max"], **BUDGET),
}


def recorded(folder: Path, scheduler: Scheduler, trials: int = 60, **settings: Any) -> Path:
    stop = StoppingCriterion(max_num_trials_started=trials, max_wallclock_time=500)
    record_simulated(folder, scheduler, TABLE, stop, n_workers=4, seed=3, **settings)
    return folder


@pytest.mark.parametrize("name", SCHEDULERS)
def test_replay_repeats_every_decision(tmp_path: Path, name: str) -> None:
    replayed = replay_experiment(
        recorded(
            tmp_path / name,
            SCHEDULERS[name](),
            faults=Faults(crashes_per_hour=100.0),
            retries=2,
            max_equal_failures=None,
        )
    )
    assert replayed.differences == []
    assert replayed.num_actions > 50
    assert replayed.num_suggestions >= 4


class Thinks(Searcher):
    """Learns, and takes its time: it is asked ahead, and some answers come too late."""

    suggest_timeout_s = 1.0

    def __init__(self) -> None:
        self.num_observed = 0

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        config = ask.space.sample(ask.random)
        return config | {"learning_rate": 1 / (1 + self.num_observed)}

    def observe(self, observation: Observation) -> None:
        self.num_observed += 1


@pytest.mark.parametrize("suggest_s", [0.5, 3.0])
def test_replay_repeats_suggestions_of_a_slow_searcher(tmp_path: Path, suggest_s: float) -> None:
    folder = recorded(tmp_path / "thinks", FIFO(Thinks(), metric="loss"), suggest_s=suggest_s)
    replayed = replay_experiment(folder)
    assert replayed.differences == []
    assert replayed.num_suggestions > 10


class Forgetful(Searcher):
    """RandomSource from chance of its own."""

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        return ask.space.sample(random.Random())

    def observe(self, observation: Observation) -> None: ...


def test_replay_detects_an_unseeded_searcher(tmp_path: Path) -> None:
    replayed = replay_experiment(recorded(tmp_path / "own", FIFO(Forgetful(), metric="loss"), trials=5))
    assert replayed.num_differences == replayed.num_suggestions == 5
    assert replayed.differences[0].seq == 2
    assert replayed.differences[0].recorded != replayed.differences[0].replayed


def test_replay_detects_another_scheduler(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "asha", SCHEDULERS["asha"]())
    replayed = replay_experiment(folder, scheduler=ASHA(metric="loss", **BUDGET, brackets=2, reduction_factor=2))
    assert replayed.num_differences > 0


class StopsAt(Scheduler):
    """Stops every trial at this report, which its description leaves out: so its code may change unseen."""

    def __init__(self, at: int) -> None:
        super().__init__(metric="loss")
        self.at = at

    def next(self, ask: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        return Decision.STOP if observation.iter == self.at else Decision.CONTINUE


def test_resume_refuses_a_scheduler_with_other_decisions(tmp_path: Path, pool: Pool) -> None:
    folder = recorded(tmp_path / "changed", StopsAt(3), objective=train_for_real)
    with pytest.raises(RecordError, match=r"changed cannot be resumed: from event \d+ on, the scheduler"):
        Tuner.resume(folder, scheduler=StopsAt(2), pool=pool, quiet=True).run()


def test_command_prints_the_numbers_of_compared_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path / "grid", SCHEDULERS["grid"](), trials=5)
    assert command("tune", "replay", str(folder)) == 0
    assert re.fullmatch(r"\d+ events, \d+ actions and 5 suggestions of .*grid: all the same\n", capsys.readouterr().out)


def test_command_fails_and_prints_the_first_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path / "own", FIFO(Forgetful(), metric="loss"), trials=7)
    assert command("tune", "replay", str(folder)) == 1
    output = capsys.readouterr().out
    assert "7 events differ\nevent 2, Suggested at 0.000 s\n  recorded  {" in output
    assert output.endswith("(and 2 more, which may be caused by these)\n")


LEARNERS: Mapping[str, Callable[[], Scheduler]] = {
    "bohb": lambda: BOHB(metric="loss", **BUDGET, num_init=4),
    "asha-forest": lambda: ASHA(metric="loss", **BUDGET, searcher=ForestSearcher(4, num_trees=3)),
    "moasha-tpe": lambda: MOASHA(metric=["loss", "size"], mode=["min", "max"], **BUDGET, searcher=TPESearcher(4)),
}


@pytest.mark.parametrize(
    ("name", "suggest_s"),
    [("bohb", 1.5), ("asha-forest", 0.0), ("moasha-tpe", 1.5)],
)
def test_replay_repeats_suggestions_of_a_model(tmp_path: Path, name: str, suggest_s: float) -> None:
    faults = Faults(crashes_per_hour=100.0)
    more: dict[str, Any] = {"faults": faults, "retries": 2, "max_equal_failures": None, "suggest_s": suggest_s}
    replayed = replay_experiment(recorded(tmp_path / name, LEARNERS[name](), trials=25, **more))
    assert (replayed.differences, replayed.version_changes) == ([], {})
    assert replayed.num_suggestions >= 21


def test_replay_uses_recorded_suggestions_with_another_library_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path / "bohb", LEARNERS["bohb"](), trials=25)
    installed = rewrite_version(folder, "numpy", "1.0")
    replayed = replay_experiment(folder)
    assert replayed.version_changes == {"numpy": ("1.0", installed)}
    assert (replayed.num_suggestions, replayed.differences) == (0, [])
    assert replayed.num_actions > 20
    assert command("tune", "replay", str(folder)) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].endswith(": all the same")
    assert output[1:] == [f"suggestions were taken from the record: numpy was 1.0 and is {installed}"]


def test_resume_with_another_library_version_is_recorded(home: Path) -> None:
    for _ in range(2):
        with open_search({"x": uniform(0, 1)}, scheduler=FIFO("sobol", metric="loss"), name="twice") as opened:
            trial = opened.ask()
            assert trial is not None
            opened.tell(trial, 0.5)
    assert replay_experiment("twice").version_changes == {}
    installed = read_meta(home / "twice")["versions"]["scipy"]

    def run_beside_another(event: dict[str, Any]) -> None:  # Any: JSON
        if event["kind"] == "resumed":
            event["body"]["versions"]["scipy"] = "0.1"

    edit_events(home / "twice", run_beside_another)
    assert replay_experiment("twice").version_changes == {"scipy": (f"{installed} and 0.1", installed)}


def test_search_without_a_model_is_replayed_with_any_library_version(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "random", SCHEDULERS["random"](), trials=5)
    rewrite_version(folder, "numpy", "1.0")
    replayed = replay_experiment(folder)
    assert (replayed.version_changes, replayed.num_suggestions) == ({}, 5)


def rewrite_version(folder: Path, library: str, version: str) -> str:
    """As if the search had run beside this version; returns the one that there is."""
    versions = read_meta(folder)["versions"]
    edit_meta(folder, versions={**versions, library: version})
    return str(versions[library])


def command(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fanwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def train_for_real(max_epochs: int, **config: object) -> None:
    for epoch in range(1, max_epochs + 1):
        report(epoch=epoch, **train({**config, "max_epochs": max_epochs}, epoch)[0])
