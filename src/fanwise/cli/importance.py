"""The command `fanwise tune importance`."""

from collections.abc import Iterator

from ..base.plain_json import json_text
from ..base.text import counted, printable_line
from ..plot.importances import correlation_in_words
from ..tune import load_experiment


def importance_lines(name: str, metric: str | None) -> Iterator[str]:
    """Yield a line per hyperparameter, the most important first.

    Raises ValueError if there are too few results, or no such objective.
    """
    importances = load_experiment(name).importances(metric)
    width = max(len(printable_line(one.name)) for one in importances.hyperparameters)
    for one in importances.hyperparameters:
        yield f"{printable_line(one.name):<{width}}  {one.mean:6.3f} +- {one.deviation:.3f}"
    stopped = f", {importances.num_stopped:,} of them stopped or paused early" if importances.num_stopped else ""
    trials = f"{counted(len(importances.trials), 'trial')}{stopped}"
    model = correlation_in_words(importances.correlation)
    yield f"for {printable_line(importances.metric)}, of {trials}; predicted and observed ranks: {model}"


def importance_json(name: str, metric: str | None) -> str:
    """Return the importances as JSON. Raises ValueError like `importance_lines`."""
    importances = load_experiment(name).importances(metric)
    return json_text(
        {
            "metric": importances.metric,
            "importances": [
                {"name": o.name, "mean": o.mean, "deviation": o.deviation} for o in importances.hyperparameters
            ],
            "correlation": importances.correlation,
            "num_trials": len(importances.trials),
            "num_stopped": importances.num_stopped,
        }
    )
