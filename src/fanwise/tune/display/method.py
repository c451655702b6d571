"""One line with the names of a search's scheduler and searcher, from their descriptions in the record.

Descriptions of foreign records or custom schedulers may lack names; these parts are left out.
"""

from collections.abc import Mapping
from typing import Any


def method_line(scheduler: Mapping[str, Any]) -> str:  # Any: JSON
    """
    >>> method_line({"name": "ASHA", "searcher": {"name": "OptunaSearcher", "sampler": "TPESampler"}})
    'searcher OptunaSearcher (TPESampler), scheduler ASHA'
    """
    searcher, name = scheduler.get("searcher"), scheduler.get("name")
    parts = [f"searcher {_searcher(searcher)}"] if isinstance(searcher, Mapping) and searcher.get("name") else []
    return ", ".join([*parts, f"scheduler {name}"] if name else parts)


def _searcher(description: Mapping[str, Any]) -> str:  # Any: JSON
    sampler = description.get("sampler")
    return str(description["name"]) + (f" ({sampler})" if sampler else "")
