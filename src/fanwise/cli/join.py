"""The command `fanwise join`."""

import signal
import socket
import sys
from pathlib import Path

import typer

from ..base.text import printable_line
from ..pool.cluster.joining import join_pool
from ..pool.devices import find_machine
from ..pool.pool import offer, secret_of
from ..pool.settings import split_address
from .console import UsageError


def join(address: str, *, secret_file: Path | None, workers: int | None, gpus: str | None, name: str | None) -> None:
    """Run trials of a search on another host until the search ends, or SIGTERM, which SLURM sends.

    Raises:
        UsageError: the address is invalid.
        FanwiseError: as `join_pool`, and SecretError.
    """
    try:
        host, port = split_address("the address", address)
    except ValueError as error:
        raise UsageError(str(error)) from error
    secret = secret_of(secret_file)
    names = None if gpus is None else [part.strip() for part in gpus.split(",") if part.strip()]
    machine = offer(find_machine(), workers, names)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def say(text: str) -> None:
        typer.echo(printable_line(text))

    say(join_pool(host, port, secret, machine, name=name or socket.gethostname(), say=say))
