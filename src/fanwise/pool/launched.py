"""Which process this is of those that somebody else has started: what `launchers` reads, of this process."""

import os
import socket

from .current import in_job
from .launchers import LaunchedProcess, launched_by


def from_environment() -> LaunchedProcess:
    """This process among those that torchrun, srun or mpirun have started together; a world of one without them.

    `fanwise.run` asks it by itself. It is for what a program does by rank, and for a group of `fanwise.rpc`. A job of a
    pool is alone: it may have inherited these variables from who made the pool. Starts and opens nothing.

    Raises:
        ValueError: a variable of the launcher is missing, is no number, or contradicts another.

    >>> from_environment().world_size
    1
    """
    host = socket.gethostname()
    return launched_by({} if in_job() else os.environ, host)
