"""What the news of a search say of clones: of which trial, and, once, that there was no checkpoint to start from."""

from collections.abc import Mapping
from typing import Any

import pytest

from fanwise.testing.played_search import PlayedSearch
from fanwise.tune.record.event_codec import to_row
from fanwise.tune.record.state import SearchState
from fanwise.tune.schedulers import PBT
from fanwise.tune.space import Space, uniform

SPACE = Space({"x": uniform(0, 1)})


def train(state: Any, config: Mapping[str, object]) -> tuple[Any, Mapping[str, object]]:
    epoch = (state or 0) + 1
    return epoch, {"epoch": epoch, "loss": float(str(config["x"])) / epoch}


def news_of(*, saves: bool) -> list[str]:
    scheduler = PBT(metric="loss", resource_attr="epoch", max_t=20, perturbation_interval=2)
    search = PlayedSearch(scheduler, SPACE, train, saves=saves)
    search.play()
    meta = {"name": "toy", "metric": "loss", "mode": "min", "space": SPACE.to_json(), "n_workers": 4, "stop": None}
    state = SearchState(meta)
    lines: list[str] = []
    for event, actions in zip(search.events, search.actions, strict=True):
        kind, trial_id, body = to_row(event, actions)
        state.add(event.now_s, kind, trial_id, body)
        lines += state.news.take()
    return lines


@pytest.mark.parametrize("saves", [True, False])
def test_a_clone_without_a_checkpoint_starts_from_scratch_which_is_said_once(saves: bool) -> None:
    lines = news_of(saves=saves)
    clones = [line for line in lines if "a clone of trial" in line]
    said = [line for line in lines if "has saved no checkpoint" in line]
    assert len(clones) > 1
    assert len(said) == (0 if saves else 1)
    if said:
        clone = next(place for place, line in enumerate(lines) if "a clone of trial" in line)
        trial_id, source = clones[0].split()[1], clones[0].partition("a clone of trial ")[2].partition(":")[0]
        assert lines[clone + 1] == (
            f"trial {source} has saved no checkpoint, so its clone, trial {trial_id}, starts from scratch; "
            f"save one with report(..., checkpoint=save). Shown once."
        )
