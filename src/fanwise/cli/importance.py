"""`fanwise tune importance`: how much each hyperparameter matters, to people and to programs."""

from collections.abc import Iterator

from ..base.plain_json import json_text
from ..base.text import counted, printable_line
from ..plot.importances import correlation_in_words
from ..tune import load_experiment


def importance_lines(name: str, metric: str | None) -> Iterator[str]:
    """A line a hyperparameter, the most important first. ValueError: too few results, or no such objective."""
    found = load_experiment(name).importances(metric)
    width = max(len(printable_line(one.name)) for one in found.hyperparameters)
    for one in found.hyperparameters:
        yield f"{printable_line(one.name):<{width}}  {one.mean:6.3f} +- {one.deviation:.3f}"
    stopped = f", {found.num_stopped:,} of them stopped or paused early" if found.num_stopped else ""
    whose = f"for {printable_line(found.metric)}, of {counted(len(found.trials), 'trial')}{stopped}"
    yield f"{whose}; predicted against seen: {correlation_in_words(found.correlation)}"


def importance_json(name: str, metric: str | None) -> str:
    """The same for programs. ValueError: as above."""
    found = load_experiment(name).importances(metric)
    return json_text(
        {
            "metric": found.metric,
            "importances": [{"name": o.name, "mean": o.mean, "deviation": o.deviation} for o in found.hyperparameters],
            "correlation": found.correlation,
            "num_trials": len(found.trials),
            "num_stopped": found.num_stopped,
        }
    )
