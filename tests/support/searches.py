"""Small searches for tests: two workers, nothing printed, four trials at random.

    experiment = search(objective, {"x": uniform(0, 1)}, pool=pool, points=[{"x": 0.5}])

Every setting of a `Tuner` can be given and goes before what is set here. The scheduler's metric is `loss`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fanwise.tune import FIFO, Experiment, StoppingCriterion, Tuner


def quiet_tuner(
    objective: Callable[..., Any],  # Any: objectives return what they like
    space: Mapping[str, object],
    *,
    trials: int = 4,
    points: list[dict[str, Any]] | None = None,  # Any: values of hyperparameters
    **options: Any,  # Any: a Tuner's options
) -> Tuner:
    """A quiet tuner of two workers and, if no `scheduler` and `stop` are given, `trials` trials, `points` first."""
    settings: dict[str, Any] = {  # Any: a Tuner's options
        "scheduler": FIFO(metric="loss", points_to_evaluate=points),
        "stop": StoppingCriterion(max_num_trials_started=trials),
        "n_workers": 2,
        "quiet": True,
        **options,
    }
    return Tuner(objective, space, **settings)


def search(objective: Callable[..., Any], space: Mapping[str, object], **options: Any) -> Experiment:  # Any: as above
    """Run `quiet_tuner(...)`; blocks until the search is over."""
    return quiet_tuner(objective, space, **options).run()
