"""Replays the record of an experiment to check that the decisions of its search are deterministic.

    meta.json, program.pickle -> initial scheduler, searcher and `SearchCore` -> apply every event -> comparison

The objective is not called, and nothing is written.
"""

import os

from .core.replay import ReplayResult, replay
from .experiment import folder_of
from .program import load_program
from .record.event_file import read_meta
from .record.restoring import recorded_versions, rows_of
from .schedulers.scheduler import Scheduler
from .search_settings import SearchSettings


def replay_experiment(name_or_path: str | os.PathLike[str], *, scheduler: Scheduler | None = None) -> ReplayResult:
    """Replay all decisions of an experiment, and compare them bit for bit with the recorded ones.

    The experiment may have been killed and resumed. If there are no differences, the scheduler and the searcher are
    deterministic, so the experiment can be resumed after any event. If a library of the searcher (`Searcher.libraries`)
    has another version than in the record, suggestions are not compared (see `version_changes` of the result).
    Suggestions may also depend on the type of CPU. A replay takes about as long as all decisions of the search.

    Args:
        scheduler: the scheduler of the experiment. None: load it from the experiment's folder.

    Raises:
        RecordError: there is no such experiment, or its program cannot be loaded.
        ValueError: the random seeds of the scheduler and the experiment differ.

    >>> result = replay_experiment("lenet-search")
    >>> result.num_differences
    0
    """
    folder = folder_of(name_or_path)
    meta = read_meta(folder)
    if scheduler is None:
        _, scheduler, _ = load_program(folder)
    settings = SearchSettings.from_json(meta, scheduler)
    scheduler = settings.copy_scheduler()
    new_versions, old_versions = settings.versions(), recorded_versions(folder, meta)
    version_changes = {
        name: (" and ".join(old_versions[name]), new_versions.get(name, "not installed"))
        for name in scheduler.searcher.libraries
        if name in old_versions and old_versions[name] != [new_versions.get(name)]
    }
    core, rows = settings.new_core(scheduler), rows_of(folder)
    result = replay(core, scheduler.searcher, rows, compares_suggestions=not version_changes)
    result.version_changes = version_changes
    return result
