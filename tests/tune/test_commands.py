"""Commands for a running search: their events, the answers to the user, and which commands are refused."""

from typing import Any

import pytest
from recorded_search import RecordedSearch

from fanwise.tune.core.events import Command, Enqueued, Event, Interrupt, WorkersChanged
from fanwise.tune.record.state import SearchState
from fanwise.tune.runtime.commands import command_for
from fanwise.tune.space import Space, uniform

SPACE = Space({"x": uniform(0, 1), "y": uniform(0, 1), "epochs": 3})


def running_state() -> SearchState:
    """Return the state of a search: trial 0 runs, trial 1 is paused, trial 2 has completed."""
    state = SearchState({"name": "e", "metric": "loss", "mode": "min", "space": {"x": {}}, "n_workers": 3})
    search = RecordedSearch(state.add)
    for trial_id in range(3):
        search.start(0.0, trial_id, {"x": 0.5}, slot=trial_id)
        search.report(1.0, trial_id, 1, {"loss": 0.5}, decision="PAUSE" if trial_id == 1 else "CONTINUE")
    search.end(2.0, 1, "Paused", 1.0)
    search.end(2.0, 2, "Completed", 1.0)
    return state


def command(state: SearchState, word: str, *args: object) -> tuple[Event, str]:
    make_event, answer = command_for(word, args, state=state, space=SPACE, seed=7)
    return make_event(9.0), answer


@pytest.mark.parametrize(
    ("word", "args", "event", "answer"),
    [
        ("stop", (), Interrupt(9.0, "stopped by hand"), "the search ends: running trials are asked to stop. A second"),
        ("stop_trial", (0,), Command(9.0, "stop", 0), "trial 0 is asked to stop"),
        ("stop_trial", (1,), Command(9.0, "stop", 1), "trial 1 is asked to stop"),
        ("pause", (0,), Command(9.0, "pause", 0), "trial 0 pauses at its next report and frees its worker."),
        ("pause", (1,), Command(9.0, "pause", 1), "trial 1 is paused and stays paused until it is unpaused"),
        ("unpause", (0,), Command(9.0, "resume", 0), "trial 0 is running and will not pause"),
        ("unpause", (1,), Command(9.0, "resume", 1), "trial 1 may resume when a worker is free"),
        ("workers", (4,), WorkersChanged(9.0, 4), "at most 4 trials at a time from now on; running trials are not"),
    ],
)
def test_command_becomes_an_event_and_an_answer(word: str, args: tuple[object, ...], event: Event, answer: str) -> None:
    actual_event, actual_answer = command(running_state(), word, *args)
    assert actual_event == event
    assert actual_answer.startswith(answer)


def test_enqueued_configuration_is_completed_in_the_same_way_each_time() -> None:
    (event, answer), (second_event, _) = (command(running_state(), "enqueue", {"x": 0.5}) for _ in range(2))
    assert isinstance(event, Enqueued) and event == second_event
    assert (event.config["x"], event.config["epochs"]) == (0.5, 3) and SPACE.check(event.config) == event.config
    assert answer == f"the next new trial uses x=0.5, y={event.config['y']}, epochs=3"


@pytest.mark.parametrize(
    ("word", "args", "error", "text"),
    [
        ("enqueue", ({"x": 7.0},), ValueError, r"x = 7.0 is not in uniform\(0.0, 1.0\)"),
        ("enqueue", ({"z": 7.0},), ValueError, "'z' is not in the space"),
        ("enqueue", ("x",), TypeError, "a configuration must be a dict of hyperparameters, got 'x'"),
        ("pause", (77,), ValueError, "the search has no trial 77; its trials so far are 0 to 2"),
        ("stop_trial", (-1,), ValueError, "the search has no trial -1"),
        ("unpause", (2,), ValueError, "trial 2 is over"),
        ("pause", ("x",), TypeError, "trial_id must be an int, got 'x' of type str"),
        ("pause", (True,), TypeError, "trial_id must be an int, got True of type bool"),
        ("workers", (0,), ValueError, "n_workers must be at least 1, got 0"),
        ("workers", (True,), TypeError, "n_workers must be an int, got True of type bool"),
        ("workers", (1.5,), TypeError, "n_workers must be an int, got 1.5 of type float"),
        ("workers", (), ValueError, "unknown command 'workers' with no arguments"),
        ("explode", (), ValueError, "unknown command 'explode' with no arguments"),
        ("stop", (1, 2, 3), ValueError, "unknown command 'stop' with 3 arguments"),
    ],
)
def test_invalid_command_is_refused(word: str, args: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        command(running_state(), word, *args)


@pytest.mark.parametrize(
    ("word", "argument", "subject"),
    [("workers", 3, "the number of workers"), ("enqueue", {"x": 0.5}, "the configuration")],
)
def test_workers_and_configurations_are_refused_after_the_last_start(word: str, argument: Any, subject: str) -> None:
    state = running_state()
    RecordedSearch(state.add).stop(3.0, "enough")
    with pytest.raises(ValueError, match=f"{subject} is refused because no new trials start: enough"):
        command(state, word, argument)
    assert command(state, "stop")[1].startswith("the search is already ending (enough): ")
