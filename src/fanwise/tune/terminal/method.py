"""Who decides in a search, in one line: the names of its scheduler and searcher, out of what its record says of them.

A record may be foreign, and a scheduler of one's own may describe itself as it likes: what has no name is left out.
"""

from collections.abc import Mapping
from typing import Any


def method_line(scheduler: Mapping[str, Any]) -> str:  # Any: JSON
    """
    >>> method_line({"name": "ASHA", "searcher": {"name": "OptunaSearcher", "sampler": "TPESampler"}})
    'searcher OptunaSearcher (TPESampler), scheduler ASHA'
    >>> method_line({"name": "MedianStopping", "scheduler": {"name": "FIFOScheduler", "searcher": {"name": "Mine"}}})
    'searcher Mine, scheduler MedianStopping of FIFOScheduler'
    >>> method_line({"name": "ASHAScheduler", "searcher": {"name": "TPESearcher", "learn_from": None}})
    'searcher TPESearcher, which learns from last reports, scheduler ASHAScheduler'
    """
    schedulers, inner = [scheduler.get("name")], scheduler
    while isinstance(inner.get("scheduler"), Mapping):
        inner = inner["scheduler"]
        schedulers.append(inner.get("name"))
    named = " of ".join(str(name) for name in schedulers if name)
    searcher = inner.get("searcher")
    parts = [f"searcher {_searcher(searcher)}"] if isinstance(searcher, Mapping) and searcher.get("name") else []
    if schedulers != ["FIFOScheduler"] and isinstance(searcher, Mapping) and "learn_from" in searcher:
        parts.append(f"which learns {'from last reports' if searcher['learn_from'] is None else 'at one level'}")
    return ", ".join([*parts, f"scheduler {named}"] if named else parts)


def _searcher(description: Mapping[str, Any]) -> str:  # Any: JSON
    sampler = description.get("sampler")
    return str(description["name"]) + (f" ({sampler})" if sampler else "")
