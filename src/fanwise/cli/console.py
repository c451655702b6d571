"""Output and errors of the commands. Imports little, for `--help` and shell completion."""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer

from ..base.text import printable_line


class UsageError(ValueError):
    """The command line is wrong, independent of this machine. The command exits with status 2."""


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def table_lines(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield rows as printable lines with aligned columns. `right`: indices of right-aligned columns."""
    cells = [[printable_line(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = (
            text.rjust(width) if index in right else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(aligned).rstrip()


@contextmanager
def at_work(activity: str) -> Iterator[None]:
    """Show the activity on standard error until the block ends, if that is a terminal. The block must not print."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{activity} ..."):
        yield
