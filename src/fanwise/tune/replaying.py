"""Whether an experiment would decide the same again, from its record alone.

    record's meta and program.pickle -> scheduler, searcher, `Tuning` as they began -> every fact once more -> compared

Runs nothing of the objective and writes nothing.
"""

import os

from .decisions.replay import Replayed
from .experiment import folder_of
from .opening import check_scheduler, copied, libraries_of, versions_of
from .program import load_program
from .record.reading import read_meta
from .record.restoring import fresh_tuning, recorded_versions, rehearse
from .schedulers.base import Scheduler


def replay_experiment(name_or_path: str | os.PathLike[str], *, scheduler: Scheduler | None = None) -> Replayed:
    """Decide every step of an experiment again, also of one that was killed and resumed, and compare bit for bit.

    A scheduler or searcher is deterministic when nothing differs: then an experiment can be resumed at any moment, and
    a result can be explained. Blocks for about as long as the search took to decide.

    Suggestions that depend on libraries (`Searcher.libraries`) are compared where these have the versions of then;
    elsewhere those of the record are taken, and the result's `other_versions` says why. Their bits may depend on the
    kind of CPU besides.

    Args:
        name_or_path: of the experiment.
        scheduler: what it ran with; None takes what is kept beside the record.

    Raises:
        RecordError: there is no such experiment, or its program cannot be loaded here.
        ValueError: the scheduler has another random seed than the experiment.

    >>> replayed = replay_experiment("lenet-search")
    >>> replayed.num_different
    0
    """
    folder = folder_of(name_or_path)
    meta = read_meta(folder)
    if scheduler is None:
        scheduler = load_program(folder).scheduler
    check_scheduler(scheduler)
    fresh = copied(scheduler)
    here, recorded = versions_of(fresh), recorded_versions(folder, meta)
    others = {
        name: (" and ".join(recorded[name]), here.get(name, "not there"))
        for name in libraries_of(fresh)
        if name in recorded and recorded[name] != [here.get(name)]
    }
    replayed = rehearse(folder, fresh_tuning(meta, fresh), fresh.searcher, asks_anew=not others)
    replayed.other_versions = others
    return replayed
