"""Shell completions of names.

The shell calls these functions at each press of the tab key, so they import little. Errors give no completions,
because a traceback would appear in the command line that the user types.
"""

from collections.abc import Iterable
from contextlib import suppress

from ..base.home import list_experiments


def experiments(incomplete: str) -> list[str]:
    """Return the experiments whose names begin with `incomplete`."""
    with suppress(OSError, RuntimeError, ValueError):
        return _matches(list_experiments(), incomplete)
    return []


def searchers(incomplete: str) -> list[str]:
    """Return completions of `--searcher`."""
    from ..tune.searchers import SEARCHERS

    return _matches(SEARCHERS, incomplete)


def schedulers(incomplete: str) -> list[str]:
    """Return completions of `--scheduler`."""
    from .presets import SCHEDULERS

    return _matches(SCHEDULERS, incomplete)


def _matches(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
