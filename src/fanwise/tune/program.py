"""What a search runs, kept beside its record so that it can go on in another process: objective and scheduler.

    <experiment>/program.pickle    made before the first trial; read by `Tuner.resume` and `fanwise tune replay`

Unpickling runs what the bytes say, so a file that somebody else may have written is refused.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from ..base.errors import RecordError
from .schedulers.protocol import Scheduler

FILE_NAME = "program.pickle"
ASKED = "(asked and told)"


@dataclass(frozen=True, slots=True)
class Program:
    """The user's objective and a scheduler that has not begun."""

    objective: Callable[..., Any]  # Any: the user's
    scheduler: Scheduler


def asked_and_told(**config: object) -> None:
    """In the place of an objective, for a search whose trials run in a loop of their user's."""
    raise TypeError("the trials of this search are run by the program that asks for them: open_search(..., name=...)")


def save_program(folder: Path, program: Program) -> None:
    """Write it, all at once or not at all; for the user alone. OSError: the disk refuses."""
    partial = folder / f".{FILE_NAME}.partial"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        cloudpickle.dump((program.objective, program.scheduler), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / FILE_NAME)


def load_program(folder: Path) -> Program:
    """Read it; imports what it names.

    Raises:
        RecordError: there is none; somebody else may have written it; or it cannot be loaded here, says why.
    """
    file = folder / FILE_NAME
    try:
        with file.open("rb") as opened:
            _refuse_strangers(file, os.fstat(opened.fileno()))
            objective, scheduler = cloudpickle.load(opened)
    except FileNotFoundError:
        raise RecordError(
            f"{folder} holds no {FILE_NAME}: hand in the objective and the scheduler: "
            f"Tuner.resume({folder.name!r}, objective=..., scheduler=...)."
        ) from None
    except RecordError:
        raise
    except Exception as error:  # whatever unpickling user code raises
        raise RecordError(
            f"the program of {folder.name} cannot be loaded here ({type(error).__name__}: {error}). Start where "
            f"it was started, or hand it in: Tuner.resume({folder.name!r}, objective=..., scheduler=...)."
        ) from error
    return Program(objective, scheduler)


def _refuse_strangers(file: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RecordError(
            f"{file} belongs to another user, or others may write to it; loading it would run what they wrote. Hand in "
            f"objective and scheduler yourself, or make the file yours alone (chmod 600)."
        )
