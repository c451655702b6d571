"""Wrong settings, spaces, objectives and experiments: one clear message each, and nothing half-made."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_tree import running_processes

from fanwise.base.errors import (
    ClosedError,
    ExperimentExistsError,
    LeaseError,
    NotInstalled,
    NotSendableError,
)
from fanwise.pool import Pool, backend
from fanwise.pool.backend import release
from fanwise.testing import within
from fanwise.tune import (
    FIFO,
    RandomSearcher,
    StoppingCriterion,
    Tuner,
    choice,
    load_experiment,
    parameter,
    report,
    uniform,
)

Options = dict[str, Any]  # Any: wrong on purpose


@pytest.fixture(autouse=True)
def nothing_is_made(home: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Check that each test leaves no folder, and no process even for a moment after the error."""
    before = running_processes()
    yield home
    release()  # of a tuner or pool that was made without an error
    if "pool" in request.fixturenames:  # a trial has run, or may have
        within(30.0, lambda: running_processes() <= before, "the process that was forked for a next trial has gone")
    assert running_processes() <= before
    if home.exists():
        assert [path.name for path in home.iterdir()] == ["kept"]


def train(learning_rate: float, depth: int = 3) -> None:
    report(loss=learning_rate * depth)


SPACE = {"learning_rate": uniform(0, 1)}


def tune(**changes: Any) -> None:  # Any: wrong on purpose
    """A search with everything right, but for the changes."""
    options: Options = {
        "objective": train,
        "space": SPACE,
        "scheduler": FIFO(metric="loss"),
        "stop": StoppingCriterion(max_num_trials_started=1),
        "n_workers": 1,
        "quiet": True,
    }
    Tuner(**{**options, **changes}).run()


# Spaces.


def needs_two(learning_rate: float, batch_size: int) -> None:
    report(loss=learning_rate * batch_size)


SIZE = {"size": choice(["given", "own"])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objective": needs_two},
            "needs_two(learning_rate: float, batch_size: int) does not fit the space:\n"
            "  argument 'batch_size' is not in the space: add it (a constant will do) or give it a default",
        ),
        (
            {"space": {**SPACE, "momentum": 0.9}},
            "train(learning_rate: float, depth: int = 3) does not fit the space:\n"
            "  the space has 'momentum', which is not an argument: "
            "add it to the arguments, or take it out of the space",
        ),
        (
            {"space": {"learningrate": uniform(0, 1)}},
            "train(learning_rate: float, depth: int = 3) does not fit the space:\n"
            "  argument 'learning_rate' is not in the space: add it (a constant will do) or give it a default\n"
            "  the space has 'learningrate', which is not an argument: did you mean 'learning_rate'?",
        ),
        (
            {"objective": needs_two, "space": {**SPACE, "batch_size": parameter(64, when={"size": "given"}), **SIZE}},
            "needs_two(learning_rate: float, batch_size: int) does not fit the space:\n"
            "  argument 'batch_size' does not exist in every configuration: give it a default, batch_size=None\n"
            "  the space has 'size', which is not an argument: add it to the arguments, or take it out of the space",
        ),
    ],
)
def test_error_names_missing_and_surplus_arguments(changes: Options, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        tune(**changes)
    assert str(caught.value) == message


# Settings.


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"objective": 0.3},
            TypeError,
            "the objective must be a function, got 0.3.\n  right:  Tuner(train, space, ...)",
        ),
        ({"n_worker": 2}, TypeError, "Tuner has no option 'n_worker'; did you mean 'n_workers'?"),
        (
            {"scheduler": FIFO},
            TypeError,
            "the scheduler must be an object, got the class FIFO.\n  right:  FIFO(metric=...)",
        ),
        (
            {"scheduler": RandomSearcher()},
            TypeError,
            "Pass a searcher to FIFO(searcher, metric=...).",
        ),
        (
            {"scheduler": "random", "metric": "loss"},
            TypeError,
            "got 'random'. To name a searcher, write searcher='random'.",
        ),
        (
            {"scheduler": "asha", "metric": "loss"},
            TypeError,
            "the scheduler must be a Scheduler, such as ASHA(metric='loss', max_t=81), got 'asha'.",
        ),
        ({"stop": 720}, TypeError, "stop must be a StoppingCriterion, got 720"),
        ({"n_workers": 0}, ValueError, "n_workers must be at least 1, got 0"),
        ({"n_workers": "2"}, TypeError, "n_workers must be an int, got '2' of type str"),
        ({"retries": -1}, ValueError, "retries must be at least 0, got -1"),
        (
            {"trial_timeout_s": 0},
            ValueError,
            "trial_timeout_s must be above 0; None sets no limit",
        ),
        ({"stop_grace_s": -1}, ValueError, "stop_grace_s must be finite and at least 0, got -1"),
        ({"max_equal_failures": 0}, ValueError, "max_equal_failures must be at least 1, got 0"),
        ({"print_update_interval": 0}, ValueError, "print_update_interval must be above 0 and finite, got 0"),
        ({"print_update_interval": "30"}, TypeError, "print_update_interval must be a number, got '30'"),
        ({"asynchronous": "no"}, TypeError, "asynchronous must be True or False, got 'no' of type str"),
        ({"reuse": 1}, TypeError, "reuse must be True or False, got 1 of type int"),
        ({"quiet": None}, TypeError, "quiet must be True or False, got None of type NoneType"),
        ({"trial_timeout_s": "60"}, TypeError, "trial_timeout_s must be a number, got '60' of type str"),
        ({"stop_grace_s": float("nan")}, ValueError, "stop_grace_s must be finite and at least 0, got nan"),
        ({"print_update_interval": float("nan")}, ValueError, "must be above 0 and finite, got nan"),
        ({"devices_per_trial": True}, TypeError, "devices_per_trial must be a number, got True"),
        (
            {"devices_per_trial": float("nan")},
            ValueError,
            "devices_per_trial must be finite and at least 0, got nan",
        ),
        ({"random_seed": "7"}, TypeError, "random_seed must be an int or None, got '7' of type str"),
        ({"pool": 4}, TypeError, "pool must be a Pool or None, got 4"),
        ({"name": 4}, TypeError, "name must be a str or None, got 4"),
        ({"name": "../up"}, ValueError, "'../up' is not a valid experiment name."),
        ({"space": [0, 1]}, TypeError, "a space must be a dict, got [0, 1] of type list"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_setting_is_refused_with_its_value(changes: Options, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        tune(**changes)
    assert message in str(caught.value)


def test_trial_that_needs_more_devices_than_the_pool_has_is_refused() -> None:
    with Pool(cpus=2) as pool, pytest.raises(LeaseError, match=r"^3 CPUs asked for, this pool has 2\."):
        tune(pool=pool, devices_per_trial=3)


def test_closed_pool_is_refused_and_leaves_no_folder() -> None:
    pool = Pool(cpus=1)
    pool.close()
    with pytest.raises(ClosedError, match=r"this pool is closed\. Make a new one\."):
        tune(pool=pool)


# Objectives that cannot be sent to a worker.


def test_error_names_the_unsendable_object_of_a_closure() -> None:
    state = {"guard": threading.Lock()}

    def objective(learning_rate: float) -> None:
        with state["guard"]:
            report(loss=learning_rate)

    with pytest.raises(NotSendableError) as caught:
        tune(objective=objective)
    text = str(caught.value)
    assert text.startswith(
        "objective cannot be sent to a worker: objective -> closure variable 'state' -> a _thread.lock\n"
    )
    assert "Create it inside the function" in text


def test_only_a_valid_tuner_starts_a_process_ahead() -> None:
    stop = StoppingCriterion(max_num_trials_started=1)
    with pytest.raises(ValueError, match="n_workers"):
        Tuner(train, SPACE, FIFO(metric="loss"), stop, n_workers=0)
    assert backend._cached is None
    Tuner(train, SPACE, FIFO(metric="loss"), stop, n_workers=1)
    assert backend._cached is not None


def test_generators_and_coroutines_are_refused_as_objectives() -> None:
    def steps(learning_rate: float) -> Iterator[float]:
        yield learning_rate

    async def wait(learning_rate: float) -> float:
        return learning_rate

    with pytest.raises(TypeError, match="Tuner got steps, a generator function"):
        tune(objective=steps)
    with pytest.raises(TypeError, match="Tuner got wait, a coroutine function") as caught:
        tune(objective=wait)
    right = "Tuner(lambda *args, **kwargs: asyncio.run(wait(*args, **kwargs)))"
    assert str(caught.value).endswith(f"right:  {right}"), "its arguments are passed on"
    tune(objective=lambda *args, **kwargs: asyncio.run(wait(*args, **kwargs)), name="kept")


# Metrics: only a running trial can tell. The record of what happened is kept.


def report_other_names(learning_rate: float) -> None:
    report(epoch=1, validation_loss=learning_rate)


def test_metric_that_no_trial_reports_ends_the_search_and_the_error_lists_the_reported_names() -> None:
    with pytest.raises(ValueError) as caught:
        tune(objective=report_other_names, name="kept", stop=StoppingCriterion(max_num_trials_started=99))
    assert str(caught.value) == (
        "the objective reported 'epoch', 'validation_loss', but not the scheduler's metric 'loss'; "
        "did you mean 'validation_loss'?"
    )
    experiment = load_experiment("kept")
    assert len(experiment.trials) <= 2
    assert experiment.state == "finished"


# Experiments that are none.


def test_existing_experiment_is_not_overwritten_and_the_scheduler_can_be_used_again(
    pool: Pool, nothing_is_made: Path
) -> None:
    (nothing_is_made / "kept").mkdir(parents=True)
    (nothing_is_made / "kept" / "mine.txt").write_text("mine")
    scheduler = FIFO(metric="loss")
    stop = StoppingCriterion(max_num_trials_started=1)
    with pytest.raises(FileExistsError, match=r"the experiment 'kept' exists"):
        Tuner(train, SPACE, scheduler, stop, name="kept")
    assert os.listdir(nothing_is_made / "kept") == ["mine.txt"]
    (nothing_is_made / "kept" / "mine.txt").unlink()
    (nothing_is_made / "kept").rmdir()
    tune(pool=pool, name="kept", scheduler=scheduler)


def test_run_refuses_a_name_that_was_taken_after_the_tuner_was_created(nothing_is_made: Path) -> None:
    stop = StoppingCriterion(max_num_trials_started=1)
    tuner = Tuner(train, SPACE, FIFO(metric="loss"), stop, n_workers=1, name="kept", quiet=True)
    (nothing_is_made / "kept").mkdir(parents=True)
    with pytest.raises(FileExistsError) as caught:
        tuner.run()  # says so before it makes a pool; the record would say it later, in other words
    assert isinstance(caught.value, ExperimentExistsError) and caught.value.path == str(nothing_is_made / "kept")
    assert "the experiment 'kept' exists" in str(caught.value) and "Tuner.resume('kept')" in str(caught.value)
    (nothing_is_made / "kept").rmdir()
    assert tuner.run().state == "finished"


@pytest.mark.parametrize(
    ("checkpoints", "error", "text"),
    [
        (3, TypeError, "checkpoints must be a folder or a URL, got 3 of type int"),
        ("memory://x", ValueError, "is the memory of one process"),
        ("nosuch://x", ValueError, "fsspec knows no nosuch://"),
        ("locl://x", ValueError, "fsspec knows no locl://; did you mean 'local'?"),
    ],
)
def test_checkpoint_root_that_trials_cannot_use_is_refused(
    checkpoints: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        tune(checkpoints=checkpoints)


def test_error_names_the_missing_library_of_a_checkpoint_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(NotInstalled, match=r"needs fsspec\. Install it: pip install fsspec"):
        tune(checkpoints="s3://bucket/x")
