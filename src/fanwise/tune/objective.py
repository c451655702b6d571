"""Functions for use inside an objective function: reports, checkpoints, and the trial's id and folder.

    report(epoch=3, loss=0.2, checkpoint=save) --> `save` writes files --> their folder is recorded with the report
    load_checkpoint() -------------------------> the folder with these files, in the process that resumes the trial

Outside a tuner, there is no checkpoint to load, and the files that `save` writes are deleted at once.
"""

import atexit
import functools
import math
import numbers
import os
import reprlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..base.errors import CheckpointError
from ..base.urls import is_url
from ..pool.current import current, in_job
from ..pool.reporting import forget_reports, has_reported, is_array, send_report
from .runtime.checkpoint_store import open_checkpoint, save_checkpoint
from .values import with_objects

# (id of the job that saved the last checkpoint, number of that checkpoint in the job). A process may run several jobs.
_last_checkpoint: tuple[int, int] = (-1, 0)


def report(*, checkpoint: Any = None, **metrics: Any) -> None:
    """Report values of this trial and block until the tuner has decided whether it continues.

    Args:
        checkpoint: a function that writes files into the folder that it receives. The function is called before the
            report is sent. The trial resumes from these files after a pause, a crash or the end of its tuner.
        metrics: reported values by name, including the scheduler's metric. Strings are kept as notes of the trial.
            Notes longer than 1,000 characters are truncated and end with "...".

    Raises:
        TrialStopped: the trial must stop or pause. Clean up if necessary, and let the exception propagate. It is a
            BaseException.
        TypeError: a value is neither a number nor a string.
        ValueError: there are no values, a name is reserved, or the metric is missing or not a number.
        CheckpointError: the checkpoint cannot be written.
        ClosedError: called in a fork of the worker, such as a DataLoader worker.

    >>> report(epoch=1, validation_error=0.25)
    """
    if checkpoint is None:
        send_report(metrics)
        return
    if not callable(checkpoint):
        raise TypeError(
            f"checkpoint= must be a function that writes files into a folder, got a {type(checkpoint).__name__}.\n"
            f"  right:  report(..., checkpoint=lambda folder: torch.save(state, folder / 'state.pt'))"
        )
    root = _context().get("checkpoints")
    if root is None:
        with tempfile.TemporaryDirectory(prefix="fanwise-checkpoint-") as folder:
            checkpoint(Path(folder))
        send_report(metrics)
        return
    name = _next_checkpoint_name()
    save_checkpoint(root, name, checkpoint, trial_folder)
    send_report(metrics, checkpoint=name)


def load_checkpoint() -> Path | None:
    """Return the read-only folder of this trial's last checkpoint, or None to start from scratch.

    The checkpoint was saved with report number `from_iter()`.

    Raises CheckpointError if the checkpoint cannot be read.

    >>> load_checkpoint() is None
    True
    """
    context = _context()
    name = context.get("checkpoint")
    if name is None:
        return None
    try:
        return open_checkpoint(context["checkpoints"], name, trial_folder)
    except CheckpointError as error:
        raise CheckpointError(
            f"trial {current().number} cannot continue: {error.message} Catch CheckpointError to begin from scratch."
        ) from error


def trial_id() -> int | None:
    """Return the id of the trial that this process runs, or None outside a tuner."""
    return current().number if in_job() else None


def from_iter() -> int:
    """Return the number of the report after which this attempt continues, or 0 if it starts from scratch."""
    return int(_context().get("from_iter", 0))


def trial_folder() -> Path:
    """Return the folder of this trial in the experiment's folder, the same in all attempts. Create it if missing.

    Outside a tuner, or on a node without access to the experiment, return a temporary folder that is deleted when the
    process ends.
    """
    experiment_folder = _experiment_folder()
    if experiment_folder is None or not experiment_folder.is_dir():
        return _scratch_folder()
    folder = experiment_folder / "trials" / str(current().number)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def run_objective(
    objective: Callable[..., Any],
    metric: str,
    objects: Mapping[str, Mapping[Any, Any]] = MappingProxyType({}),
    /,
    **config: Any,
) -> None:
    """Call the objective in a worker, and report the number or dict that it returns.

    A return value of another type, such as a trained model, is ignored if the objective has reported.

    Args:
        metric: name for a returned number.
        objects: the objects of the space, from `object_categories`. They replace their names in the configuration.

    Raises:
        TypeError: the objective reported nothing and returned a value that is not a metric.
        CheckpointError: this machine cannot access the checkpoint root.
    """
    forget_reports()
    _check_folders()
    value = objective(**with_objects(config, objects))
    if value is None:
        return
    if isinstance(value, Mapping):
        report(**value)
    elif isinstance(value, numbers.Real) or (is_array(value) and math.prod(value.shape) == 1):
        report(**{metric: value})
    elif not has_reported():
        raise TypeError(
            f"the objective reported nothing and returned {_describe(value)}, which is not a metric.\n"
            f"Return a number or a dict of numbers and notes, e.g. {{{metric!r}: 0.12}}, or call report() before."
        )


def _check_folders() -> None:
    """Raise CheckpointError on a node without access to the experiment or to the checkpoint root."""
    experiment_folder = _experiment_folder()
    if experiment_folder is None or experiment_folder.is_dir():
        return
    root = current().context["checkpoints"]
    if not is_url(root) and not os.path.isdir(root):
        raise CheckpointError(
            f"the folder of the experiment, {experiment_folder}, is not visible on {socket.gethostname()}.\n"
            f"Set FANWISE_HOME to a folder on a file system that all nodes share, or store only the checkpoints in a "
            f"shared place: Tuner(..., checkpoints='s3://...')"
        )


def _describe(value: Any) -> str:
    """Return the beginning of the value and its type, on one line."""
    if is_array(value):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    return f"{' '.join(reprlib.repr(value).split())}, a {type(value).__name__}"


def _experiment_folder() -> Path | None:
    folder = _context().get("experiment")
    return None if folder is None else Path(folder)


def _context() -> Mapping[str, Any]:
    """Return the context that `runtime.runner` passes with the job of a trial. It is empty outside a tuner."""
    return current().context if in_job() else {}


@functools.cache
def _scratch_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="fanwise-trial-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _next_checkpoint_name() -> str:
    global _last_checkpoint
    job = current()
    number = _last_checkpoint[1] + 1 if _last_checkpoint[0] == job.id else 1
    _last_checkpoint = (job.id, number)
    return f"{job.number}-{job.attempt}-{number}"
