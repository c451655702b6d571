"""An experiment's decisions as they stood when its process ended: its rows are handed in again."""

from pathlib import Path

from ..decisions.replay import replay
from ..decisions.tuning import Tuning
from ..searchers.base import Searcher
from .progress import Progress
from .reading import iter_events, read_meta
from .rows import fact_of


def restore(folder: Path, tuning: Tuning, searcher: Searcher | None) -> Progress:
    """Bring fresh decisions to where the record ends, and return its progress, whose news are taken.

    Args:
        folder: the experiment's.
        tuning, searcher: made from the settings that the experiment began with; the scheduler has begun.
    """
    progress, suggestions, rows = Progress(read_meta(folder)), {}, []
    for events in iter_events(folder):
        for event in events:
            progress.fold(event.t_s, event.kind, event.trial_id, event.body)
            if event.kind == "suggested":
                suggestions[event.body["number"]] = event.body["config"]
            rows.append(event)
    progress.news()
    replay(tuning, searcher, ((e.seq, fact_of(e.kind, e.t_s, e.trial_id, e.body), []) for e in rows), suggestions)
    return progress
