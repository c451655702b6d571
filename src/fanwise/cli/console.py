"""Output and errors of the commands. Imports little, for `--help` and shell completion."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import typer


class UsageError(ValueError):
    """The command line is wrong, independent of this machine. The command exits with status 2."""


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


@contextmanager
def at_work(activity: str) -> Iterator[None]:
    """Show the activity on standard error until the block ends, if that is a terminal. The block must not print."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{activity} ..."):
        yield
