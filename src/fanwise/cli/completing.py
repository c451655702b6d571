"""What a shell may complete on a line of `fanwise`: names of experiments, and of searchers, schedulers and kinds.

Called by the shell at each press of the key, so it loads as little as it can. What goes wrong completes nothing: a
traceback would land in the line that somebody is typing.
"""

from collections.abc import Iterable
from contextlib import suppress

from ..base.home import list_experiments


def experiments(incomplete: str) -> list[str]:
    """Those in the folder of experiments whose names begin so."""
    with suppress(OSError, RuntimeError, ValueError):
        return _beginning(list_experiments(), incomplete)
    return []


def searchers(incomplete: str) -> list[str]:
    """What `--searcher` takes by name."""
    from ..tune.searchers import SEARCHERS

    return _beginning(SEARCHERS, incomplete)


def schedulers(incomplete: str) -> list[str]:
    """What `--scheduler` takes."""
    from .presets import SCHEDULERS

    return _beginning(SCHEDULERS, incomplete)


def modes(incomplete: str) -> list[str]:
    """What `--mode` takes."""
    return _beginning(("min", "max"), incomplete)


def kinds_of_picture(incomplete: str) -> list[str]:
    """What `--format` takes."""
    from ..plot.canvas import FORMATS

    return _beginning(FORMATS, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
