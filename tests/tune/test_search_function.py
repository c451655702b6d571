"""`fanwise.search`: a search in one call, and its error messages for missing and unknown arguments."""

from pathlib import Path
from typing import Any

import pytest

import fanwise
import fanwise.tune
from fanwise.pool import Pool
from fanwise.tune import ASHA, report, uniform


def returns(x: float) -> float:
    return x


def reports(x: float) -> None:
    for _ in range(3):
        report(loss=x)


SPACE = {"x": uniform(0, 1)}


def test_search_uses_defaults(pool: Pool) -> None:
    experiment = fanwise.search(
        returns, SPACE, metric="score", mode="max", n_trials=5, n_workers=2, pool=pool, name="one", quiet=True
    )
    best = experiment.best
    assert best is not None and best.value == experiment.results["score"].max()
    assert len(experiment.trials) == 5
    assert experiment.metadata["scheduler"]["name"] == "FIFO"


def test_another_scheduler_brings_its_own_metric(pool: Pool) -> None:
    scheduler = ASHA(metric="loss", max_t=3, grace_period=1)
    experiment = fanwise.tune.search(
        reports, SPACE, scheduler=scheduler, n_trials=4, seconds=60, n_workers=2, pool=pool, quiet=True
    )
    assert experiment.metadata["metric"] == "loss"
    assert experiment.metadata["stop"] == {"max_num_trials_started": 4, "max_wallclock_time": 60}


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"metric": "loss"}, ValueError, "needs an end: n_trials=20"),
        ({"metric": "loss", "n_trials": 3, "workers": 2}, TypeError, "did you mean 'n_workers'"),
        ({"metric": "loss", "trials": 3}, TypeError, "search has no option 'trials'; did you mean 'n_trials'"),
    ],
)
def test_invalid_arguments_of_search_are_refused(
    options: dict[str, Any], error: type[Exception], complaint: str, home: Path
) -> None:
    with pytest.raises(error, match=complaint):
        fanwise.search(returns, SPACE, **options)
    assert not home.exists()
