"""A progress line for commands that may take longer than a second."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_work(activity: str) -> Iterator[None]:
    """Show the activity on standard error until the block ends, if that is a terminal. The block must not print."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{activity} ..."):
        yield
