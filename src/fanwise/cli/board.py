"""The command `fanwise board`."""

import os
from pathlib import Path

import typer

from ..base.home import experiments_folder
from ..base.text import printable_line
from ..board.guard import is_loopback
from ..board.serving import open_board
from ..tune.runtime.board_process import check_board_is_installed


def serve_board(*, host: str, port: int, home: Path | None) -> None:
    """Print the address and serve until Ctrl-C. Raises NotInstalled, OSError, ValueError."""
    folder = experiments_folder() if home is None else home
    if home is not None and not home.is_dir():
        raise ValueError(f"--home {str(home)!r} is not a folder")
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(
            f"{folder} cannot be read by this user. Use another folder of experiments: --home FOLDER, or FANWISE_HOME."
        )
    check_board_is_installed()
    board = open_board(folder, host=host, port=port)
    typer.echo(f"board of {printable_line(str(folder))}: {board.address}")
    typer.echo("anyone with this address can read and control the searches")
    if not is_loopback(host):
        typer.echo("the connection is not encrypted")
    typer.echo("Ctrl-C ends the board, not the searches")
    board.serve()
