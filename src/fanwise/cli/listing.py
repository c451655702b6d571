"""The command `fanwise tune ls`.

A record may come from someone else, so all its texts are made printable by `base.text`.
"""

import os
from collections.abc import Iterator

from ..base.errors import RecordError
from ..base.home import experiments_folder, list_experiments
from ..base.plain_json import json_text
from ..base.text import printable_line
from ..tune.record.overview import Overview, overview_of


def list_lines() -> Iterator[str]:
    """Yield a line per experiment, including those that cannot be read."""
    overviews = list(_overviews())
    if not overviews:
        yield f"no experiments in {printable_line(str(experiments_folder()))}; start one with fanwise tune run"
        return
    width = max(len(printable_line(name)) for name, _ in overviews)
    yield f"{'name':<{width}}  state       trials  best"
    for name, overview in overviews:
        yield f"{printable_line(name):<{width}}  {_columns_of(overview)}"


def list_json() -> str:
    """Return the experiments as JSON. Those that cannot be read have an `error`."""
    return json_text([as_json(name, overview) for name, overview in _overviews()])


def as_json(name: str, overview: Overview | RecordError) -> dict[str, object]:
    """Return an overview as a JSON object."""
    if isinstance(overview, RecordError):
        return {"name": name, "path": str(experiments_folder() / name), "state": "unreadable", "error": str(overview)}
    best = None
    if overview.best is not None:
        best = {"value": overview.best[0], "trial_id": overview.best[1], "feasible": not overview.violated}
    return {
        "name": name,
        "path": str(overview.path),
        "state": overview.state,
        "reason": overview.reason,
        "metric": overview.metric,
        "mode": overview.mode,
        "num_trials": overview.num_trials,
        "num_running": overview.num_running,
        "num_paused": overview.num_paused,
        "num_lost": overview.num_lost,
        **{f"num_{status.lower()}": number for status, number in overview.num_ended.items()},
        "best": best,
        "elapsed_s": overview.elapsed_s,
    }


def _overviews() -> Iterator[tuple[str, Overview | RecordError]]:
    folder = experiments_folder()
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of experiments. Set FANWISE_HOME to another folder")
    for name in list_experiments():
        try:
            yield name, overview_of(experiments_folder() / name)
        except RecordError as error:
            yield name, error


def _columns_of(overview: Overview | RecordError) -> str:
    if isinstance(overview, RecordError):
        return f"unreadable: {printable_line(overview.message.partition(chr(10))[0])}"
    best = "-"
    if overview.best is not None:
        best = f"{printable_line(overview.metric)}={overview.best[0]:.5g} (trial {overview.best[1]})"
        best = f"none feasible; closest {best}" if overview.violated else best
    return f"{overview.state:<10}  {overview.num_trials:>6}  {best}"
