"""Checks that an experiment is deterministic, by replaying its record.

    meta.json, program.pickle -> initial scheduler, searcher and `SearchCore` -> every event again -> comparison

The objective is not called, and nothing is written.
"""

import os

from .core.replay import Replayed, replay
from .experiment import folder_of
from .program import load_program
from .record.reading import read_meta
from .record.restoring import recorded_versions, rows_of
from .schedulers.scheduler import Scheduler
from .search_settings import SearchSettings


def replay_experiment(name_or_path: str | os.PathLike[str], *, scheduler: Scheduler | None = None) -> Replayed:
    """Replay all decisions of an experiment, even of one that was killed and resumed, and compare them bit for bit.

    Without differences, the scheduler and the searcher are deterministic, so the experiment can be resumed at any
    point. If a library of the searcher (`Searcher.libraries`) has another version than in the record, suggestions are
    taken from the record and not compared; see `other_versions` of the result. Suggestions may also depend on the type
    of CPU. Blocks for about the total decision time of the search.

    Args:
        scheduler: the scheduler of the experiment. None: load it from the experiment's folder.

    Raises:
        RecordError: there is no such experiment, or its program cannot be loaded.
        ValueError: the random seeds of the scheduler and the experiment differ.

    >>> replayed = replay_experiment("lenet-search")
    >>> replayed.num_different
    0
    """
    folder = folder_of(name_or_path)
    meta = read_meta(folder)
    if scheduler is None:
        _, scheduler, _ = load_program(folder)
    settings = SearchSettings.from_json(meta, scheduler)
    scheduler = settings.copy_scheduler()
    installed, recorded = settings.versions(), recorded_versions(folder, meta)
    changed = {
        name: (" and ".join(recorded[name]), installed.get(name, "not installed"))
        for name in scheduler.searcher.libraries
        if name in recorded and recorded[name] != [installed.get(name)]
    }
    replayed = replay(
        settings.new_core(scheduler), scheduler.searcher, rows_of(folder), compares_suggestions=not changed
    )
    replayed.other_versions = changed
    return replayed
