"""Saves the program and the cluster settings of a search, so that another process can resume it.

    <experiment>/program.pickle    objective, scheduler and space, written before the first trial
    <experiment>/cluster.json      the arguments of its pool, if that is on a cluster

`Tuner.resume` reads both files, and `fanwise tune replay` the first. Unpickling can execute code, and cluster settings
may contain commands, so files that another user may have written are refused.
"""

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import RecordError
from ..links.codec import dumps_whole, loads
from .schedulers.scheduler import Scheduler
from .space import Space

FILE_NAME = "program.pickle"
CLUSTER_FILE_NAME = "cluster.json"
ASKED = "(asked and told)"


@dataclass(frozen=True, slots=True)
class Program:
    """The user's objective, the unused scheduler, and the space with the objects that the record only names."""

    objective: Callable[..., Any]  # Any: the user's
    scheduler: Scheduler
    space: Space


def asked_and_told(**config: object) -> None:
    """Placeholder for the objective of an ask-and-tell search. Raise TypeError."""
    raise TypeError("the trials of this search are run by the program that asks for them: open_search(..., name=...)")


def save_program(folder: Path, program: Program) -> None:
    """Write the program atomically, readable by this user only. Raise OSError if it cannot be written."""
    _write(folder / FILE_NAME, dumps_whole((program.objective, program.scheduler, program.space)))


def load_program(folder: Path) -> Program:
    """Load the program. Imports the modules that it refers to.

    Raises:
        RecordError: the file is missing, another user may have written it, or it cannot be loaded.
    """
    file = folder / FILE_NAME
    try:
        with file.open("rb") as opened:
            _refuse_strangers(file, os.fstat(opened.fileno()))
            objective, scheduler, space = loads(opened.read())
    except FileNotFoundError:
        raise RecordError(
            f"{folder} holds no {FILE_NAME}: hand in the objective and the scheduler: "
            f"Tuner.resume({folder.name!r}, objective=..., scheduler=...)."
        ) from None
    except RecordError:
        raise
    except Exception as error:  # unpickling user code may raise any exception
        raise RecordError(
            f"the program of {folder.name} cannot be loaded here ({type(error).__name__}: {error}). Start where "
            f"it was started, or hand it in: Tuner.resume({folder.name!r}, objective=..., scheduler=...)."
        ) from error
    return Program(objective, scheduler, space)


def save_cluster(folder: Path, arguments: Mapping[str, object]) -> None:
    """Write the arguments of the pool, as `save_program`. Delete the file if they are empty, meaning this machine."""
    if arguments:
        _write(folder / CLUSTER_FILE_NAME, json.dumps(dict(arguments)).encode())
    else:
        (folder / CLUSTER_FILE_NAME).unlink(missing_ok=True)


def load_cluster(folder: Path) -> dict[str, Any]:  # Any: JSON
    """Return the arguments of the last pool. Empty means this machine.

    Raises:
        RecordError: another user may have written the file, or it is damaged.
    """
    file = folder / CLUSTER_FILE_NAME
    try:
        with file.open("rb") as opened:
            _refuse_strangers(file, os.fstat(opened.fileno()))
            arguments: dict[str, Any] = json.load(opened)
            return arguments
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RecordError(f"{file} is damaged ({error}). Hand in the pool: Tuner.resume(..., pool=...).") from error


def _write(file: Path, content: bytes) -> None:
    """Write the file atomically, readable by this user only."""
    partial = file.with_name(f".{file.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(partial, file)


def _refuse_strangers(file: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RecordError(
            f"{file} belongs to another user, or others may write to it. Loading it could execute their code. Pass "
            f"objective, scheduler and pool, or make the file writable by you alone (chmod 600)."
        )
