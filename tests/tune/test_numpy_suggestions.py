"""A searcher that computes with numpy suggests numpy's numbers: they are kept, and come back, as Python's."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fanwise.pool import Pool
from fanwise.testing.searches import search
from fanwise.tune import FIFO, Observation, Searcher, SuggestContext, randint, report, uniform
from fanwise.tune.record.reading import read_events


class WithNumpy(Searcher):
    """Suggests numbers of numpy."""

    suggest_timeout_s: ClassVar[float | None] = None

    def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
        return {"x": np.float64(0.25), "width": np.int64(8)}

    def observe(self, observation: Observation) -> None:
        """Learns nothing."""


class ThinksWithNumpy(WithNumpy):
    suggest_timeout_s: ClassVar[float | None] = 30.0


def objective(x: float, width: int) -> None:
    assert (type(x), type(width)) == (float, int)
    report(loss=x * width)


@pytest.mark.parametrize("searcher", [WithNumpy(), ThinksWithNumpy()])
def test_numbers_of_numpy_are_kept_as_pythons(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searcher: Searcher
) -> None:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path))
    scheduler = FIFO(searcher, metric="loss")
    experiment = search(
        objective, {"x": uniform(0, 1), "width": randint(1, 9)}, pool=pool, scheduler=scheduler, trials=2
    )
    assert list(experiment.trials["status"]) == ["Completed"] * 2
    configs = [event.body["config"] for event in read_events(experiment.path) if event.kind == "suggested"]
    assert configs[:2] == [{"x": 0.25, "width": 8}] * 2
