"""`fanwise tune ls`: one line an experiment, from the summaries that tuners keep in their records.

A record may be foreign, so every text that comes from one goes through `base.text` before it is printed.
"""

import os
from collections.abc import Iterator

from ..base.errors import RecordError
from ..base.home import experiments_folder, list_experiments
from ..base.plain_json import json_text
from ..base.text import printable_line
from ..tune.record.overview import Overview, overview_of


def list_lines() -> Iterator[str]:
    """One line an experiment, also for one that cannot be read."""
    found = list(_found())
    if not found:
        yield f"no experiments in {printable_line(str(experiments_folder()))}; start one with fanwise tune run"
        return
    width = max(len(printable_line(name)) for name, _ in found)
    yield f"{'name':<{width}}  state       trials  best"
    for name, overview in found:
        yield f"{printable_line(name):<{width}}  {_rest_of_line(overview)}"


def list_json() -> str:
    """The same for programs: a list of objects; one that cannot be read has an `error`."""
    return json_text([as_json(name, overview) for name, overview in _found()])


def as_json(name: str, overview: Overview | RecordError) -> dict[str, object]:
    """An overview as JSON values."""
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


def _found() -> Iterator[tuple[str, Overview | RecordError]]:
    folder = experiments_folder()
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"{folder} must be the folder of experiments, and is none; FANWISE_HOME names another one")
    for name in list_experiments():
        try:
            yield name, overview_of(experiments_folder() / name)
        except RecordError as error:
            yield name, error


def _rest_of_line(overview: Overview | RecordError) -> str:
    if isinstance(overview, RecordError):
        return f"unreadable: {printable_line(overview.message.partition(chr(10))[0])}"
    best = "-"
    if overview.best is not None:
        best = f"{printable_line(overview.metric)}={overview.best[0]:.5g} (trial {overview.best[1]})"
        best = f"none feasible; nearest {best}" if overview.violated else best
    return f"{overview.state:<10}  {overview.num_trials:>6}  {best}"
