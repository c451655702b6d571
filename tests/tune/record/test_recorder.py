"""The recorder adds reports to the state in batches, which does not change the state or the news that callers read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played_search import PlayedSearch

from fanwise.tune.core.events import Reported
from fanwise.tune.record.event_codec import to_row
from fanwise.tune.record.event_file import read_events
from fanwise.tune.record.log import Record, Recorder
from fanwise.tune.record.state import SearchState
from fanwise.tune.schedulers import ASHA
from fanwise.tune.space import Space, space_to_json, uniform

SPACE = Space({"x": uniform(0, 1)})
META = {"name": "toy", "metric": "loss", "mode": "min", "space": space_to_json(SPACE), "n_workers": 4, "stop": None}


def train(state: Any, config: Mapping[str, object]) -> tuple[Any, Mapping[str, object]]:
    epoch = (state or 0) + 1
    return epoch, {"epoch": epoch, "loss": float(str(config["x"])) / epoch}


@pytest.fixture
def search() -> PlayedSearch:
    scheduler = ASHA(metric="loss", resource_attr="epoch", max_t=9)
    played = PlayedSearch(scheduler, SPACE, train, saves=False, num_trials=60)
    played.play()
    return played


@pytest.mark.parametrize("reads_every", [1, 7, 10**9])
def test_the_state_has_all_recorded_events(tmp_path: Path, search: PlayedSearch, reads_every: int) -> None:
    one_by_one = SearchState(META)
    with Record.create(tmp_path / "e", META) as record:
        recorder = Recorder(record, SearchState(META))
        for number, (event, actions) in enumerate(zip(search.events, search.actions, strict=True)):
            recorder.write(event, actions)
            one_by_one.add(event.now_s, *to_row(event, actions))
            if number % reads_every == 0:
                assert recorder.state.snapshot() == one_by_one.snapshot()
        assert recorder.state.summary() == one_by_one.summary()
        assert recorder.state.news.take() == one_by_one.news.take()
    assert sum(event.kind == "report" for event in read_events(tmp_path / "e")) > 100, "more than can be pending"


def test_up_to_a_hundred_reports_are_pending_and_other_events_are_added_at_once(
    tmp_path: Path, search: PlayedSearch
) -> None:
    lines, expected = list[str](), list[str]()
    state, one_by_one = SearchState(META), SearchState(META)
    state.news.on_line = lambda line, _: lines.append(line)
    one_by_one.news.on_line = lambda line, _: expected.append(line)
    with Record.create(tmp_path / "e", META) as record:
        recorder = Recorder(record, state)
        for event, actions in zip(search.events, search.actions, strict=True):
            recorder.write(event, actions)
            one_by_one.add(event.now_s, *to_row(event, actions))
            assert lines == expected
        assert len(expected) > 10
        report, answer = next(
            (event, actions)
            for event, actions in zip(search.events, search.actions, strict=True)
            if isinstance(event, Reported) and len(actions) == 1
        )
        behind = set()
        for now_s in range(1000, 1300):
            recorder.write(replace(report, now_s=float(now_s)), answer)
            behind.add(now_s - max(999.0, state.last_s))
        assert behind == set(range(101))
