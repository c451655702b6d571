"""Each row of the state table of `SuggestionSource`, and its deadlines and random configurations."""

from collections.abc import Callable

import numpy as np
import pytest
from search_core_driver import SPACE, CountingSearcher, SlowSearcher

from fanwise.tune.core.actions import Action, Suggest
from fanwise.tune.core.events import Suggested
from fanwise.tune.core.suggestions import SuggestionSource
from fanwise.tune.core.validation import InvalidAnswer


def new_source(searcher: CountingSearcher | None = None) -> tuple[SuggestionSource, list[Action]]:
    actions: list[Action] = []
    return SuggestionSource(searcher or SlowSearcher(), SPACE, 7, actions), actions


def in_state(state: str) -> tuple[SuggestionSource, list[Action]]:
    source, actions = new_source()
    if state != "idle":
        source.wait(4, {}, 1.0)
    if state == "ready":
        source.receive(Suggested(1.0, 0, {"x": 3}), 4)
    if state == "exhausted":
        source.receive(Suggested(1.0, 0, None), 4)
    assert source.state == state
    actions.clear()
    return source, actions


STATES = ("idle", "requested", "ready", "exhausted")
TABLE: dict[str, tuple[Callable[[SuggestionSource], object], dict[str, str]]] = {
    "request": (lambda source: source.request(4, {}, 1.0), {"idle": "requested"}),
    "receive a configuration": (lambda source: source.receive(Suggested(1.0, 0, {"x": 3}), 4), {"requested": "ready"}),
    "receive None": (lambda source: source.receive(Suggested(1.0, 0, None), 4), {"requested": "exhausted"}),
    "receive an error": (lambda source: source.receive(Suggested(1.0, 0, None, error="x"), 4), {"requested": "idle"}),
    "fall_back": (lambda source: source.fall_back(), {"requested": "idle"}),
    "take_suggestion": (lambda source: source.take_suggestion(), {"ready": "idle"}),
    "refresh": (lambda source: source.refresh(), {"exhausted": "idle"}),
    "enqueue": (lambda source: source.enqueue({"x": 1}), {"exhausted": "idle"}),
    "reset": (lambda source: source.reset(), {"requested": "idle", "exhausted": "idle"}),
}
ANYWHERE = {"request", "refresh", "enqueue", "reset"}  # the others are called only in the states of their rows
CASES = [(state, event) for event in TABLE for state in STATES if event in ANYWHERE or state in TABLE[event][1]]


@pytest.mark.parametrize(("state", "event"), CASES)
def test_next_state_is_that_of_the_table(state: str, event: str) -> None:
    apply, next_states = TABLE[event]
    source, actions = in_state(state)
    apply(source)
    assert source.state == next_states.get(state, state)
    assert [type(action) for action in actions] == [Suggest] * (source.state == "requested" and state == "idle")


def test_only_the_pending_request_can_be_answered() -> None:
    source, _ = in_state("requested")
    assert source.is_requested(0) and not source.is_requested(1)
    source.fall_back()
    assert not source.is_requested(0)
    source.request(4, {}, 1.0)
    assert source.is_requested(1) and not source.is_requested(0)


def test_deadline_counts_from_the_first_wait() -> None:
    source, _ = new_source()
    source.request(4, {}, 0.0)
    assert source.deadline_s is None
    source.wait(4, {}, 1.0)
    source.wait(4, {}, 2.0)
    assert source.deadline_s == 3.0
    assert not source.take_deadline(2.9) and source.take_deadline(3.0) and not source.take_deadline(3.0)


def test_searcher_without_a_time_limit_has_no_deadline() -> None:
    source, _ = new_source(CountingSearcher())
    source.wait(4, {}, 0.0)
    assert source.deadline_s is None and source.is_requested(0)


def test_random_configuration_depends_on_the_seed_and_the_request() -> None:
    configs = [in_state("requested")[0].fall_back() for _ in range(2)]
    source, _ = in_state("requested")
    source.fall_back()
    source.request(4, {}, 1.0)
    assert configs[0] == configs[1] != source.fall_back()


def test_numpy_numbers_of_a_suggestion_become_plain() -> None:
    source, _ = in_state("requested")
    source.receive(Suggested(1.0, 0, {"x": np.int64(3)}), 4)
    config = source.take_suggestion()
    assert config == {"x": 3} and type(config["x"]) is int


def test_invalid_suggestion_is_refused() -> None:
    source, _ = in_state("requested")
    with pytest.raises(InvalidAnswer, match=r"SlowSearcher.suggest\(\) for trial 4 gave \{'x': -1\}"):
        source.receive(Suggested(1.0, 0, {"x": -1}), 4)
    assert source.state == "idle"


def test_enqueued_configurations_are_taken_in_order_and_end_the_wait() -> None:
    source, _ = in_state("requested")
    source.enqueue({"x": 1})
    source.enqueue({"x": 2})
    assert [source.take_enqueued(), source.take_enqueued()] == [{"x": 1}, {"x": 2}]
    assert source.state == "requested" and not source.is_awaited
