"""Saves the objective, scheduler and space of a search (its program), and its cluster settings, for resuming it.

    <experiment>/program.pickle    objective, scheduler and space, written before the first trial
    <experiment>/cluster.json      the arguments of the pool, if the pool is on a cluster

`Tuner.resume` reads both files. `open_search` and `replay_experiment` read the first. Unpickling can execute code, and
cluster settings may contain commands, so files that another user may have written are refused.
"""

import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..base.atomic_file import atomic_file
from ..base.errors import RecordError
from ..links.codec import dumps_in_band, loads
from .schedulers.scheduler import Scheduler
from .space import Space

PROGRAM_FILE_NAME = "program.pickle"
CLUSTER_FILE_NAME = "cluster.json"
# Ask-and-tell searches have no objective. They record this text in place of its name.
ASK_AND_TELL = "(asked and told)"


def save_program(folder: Path, objective: Callable[..., Any] | None, scheduler: Scheduler, space: Space) -> None:
    """Write the program atomically, readable by this user only. Raises OSError if the file cannot be written.

    `scheduler.begin` must not have been called.
    """
    _write(folder / PROGRAM_FILE_NAME, dumps_in_band((objective, scheduler, space)))


def load_program(folder: Path) -> tuple[Any, Scheduler, Space]:
    """Return the objective, the scheduler and the space, and import the modules that they refer to.

    The objective of an ask-and-tell search is None. Raises RecordError if the file is missing, cannot be loaded, or may
    have been written by another user.
    """
    content = _read(folder / PROGRAM_FILE_NAME)
    if content is None:
        raise RecordError(
            f"{folder} contains no {PROGRAM_FILE_NAME}: pass the objective and the scheduler to "
            f"Tuner.resume({folder.name!r}, objective=..., scheduler=...)."
        )
    try:
        objective, scheduler, space = loads(content)
    except Exception as error:  # unpickling user code may raise any exception
        raise RecordError(
            f"{PROGRAM_FILE_NAME} of {folder.name} cannot be loaded ({type(error).__name__}: {error}). Resume from the "
            f"working directory in which the search was started, or pass the objective and the scheduler: "
            f"Tuner.resume({folder.name!r}, objective=..., scheduler=...)."
        ) from error
    return objective, scheduler, space


def save_cluster(folder: Path, arguments: Mapping[str, object]) -> None:
    """Atomically write the arguments of a cluster pool. If they are empty, delete the file of an earlier pool."""
    if arguments:
        _write(folder / CLUSTER_FILE_NAME, json.dumps(dict(arguments)).encode())
    else:
        (folder / CLUSTER_FILE_NAME).unlink(missing_ok=True)


def load_cluster(folder: Path) -> dict[str, Any]:
    """Return the arguments of the last pool. The dict is empty if the pool was not on a cluster.

    Raises RecordError if the file cannot be read, is damaged, or may have been written by another user.
    """
    file = folder / CLUSTER_FILE_NAME
    content = _read(file)
    try:
        return {} if content is None else dict(json.loads(content))
    except ValueError as error:
        raise RecordError(f"{file} is damaged ({error}). Pass the pool: Tuner.resume(..., pool=...).") from error


def _write(file: Path, content: bytes) -> None:
    with atomic_file(file, sync=True, mode=0o600) as partial_file:
        partial_file.write_bytes(content)


def _read(file: Path) -> bytes | None:
    """Return the content, or None without a file. Raises RecordError if it is unreadable or others could write it."""
    try:
        stream = file.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}.") from error
    with stream:
        status = os.fstat(stream.fileno())
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RecordError(
                f"{file} belongs to another user, or others may write to it. Loading it could execute their code. "
                f"If the file is yours, run chmod 600 on it. Otherwise pass objective, scheduler and pool."
            )
        return stream.read()
