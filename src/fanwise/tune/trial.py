"""What an objective can ask and tell while it runs: its trial, its folder, its reports and its checkpoints.

    report(epoch=3, loss=0.2, checkpoint=save) --> `save` writes files --> the tuner keeps the name with the report
    load_checkpoint() -------------------------> the folder of those files, in whatever process the trial goes on

Outside a tuner - an objective run by hand - there is no checkpoint to load, and what `save` writes is thrown away.
"""

import atexit
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.errors import CheckpointError
from ..pool.current import current, in_job
from ..pool.reporting import send_report
from .checkpoints import is_local, open_checkpoint, save_checkpoint

_log = logging.getLogger(__name__)

# How many checkpoints the attempt that this process runs has saved; its job, so that a reused process counts anew.
_saved: tuple[int, int] = (-1, 0)


def report(*, checkpoint: Any = None, **metrics: Any) -> None:  # Any: else **dict[str, float] would not be typed
    """Report values of this trial, wait for the tuner's decision, and keep a checkpoint to go on from.

    Args:
        checkpoint: a function that writes files into the folder that it is given; called before the report is sent.
            The trial goes on from there when it was paused, has crashed or its tuner was killed.
        metrics: names and numbers, e.g. `report(epoch=3, validation_error=0.12)`. The scheduler's metric must be in
            every report: a report without it raises here, and fails the trial if it is let pass. A string is kept as a
            note of the trial, in tables, callbacks and `fanwise tune show`; one longer than 1,000 characters is cut,
            and then ends with "...".

    Raises:
        TrialStopped: the trial is to end, or to pause. A BaseException: clean up if need be, and let it pass.
        TypeError: a value is neither a number nor a string.
        ValueError: nothing reported, a reserved name, or the metric is missing or not a number.
        CheckpointError: the checkpoint cannot be written.
        ClosedError: called in a fork of the worker, such as a DataLoader's worker.

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
    if not in_job() or "checkpoints" not in current().context:
        with tempfile.TemporaryDirectory(prefix="fanwise-checkpoint-") as folder:
            checkpoint(Path(folder))
        send_report(metrics)
        return
    name = _next_name()
    save_checkpoint(current().context["checkpoints"], name, checkpoint, trial_folder)
    send_report(metrics, checkpoint=name)


def load_checkpoint() -> Path | None:
    """The folder of this trial's last checkpoint, to be read only; None: there is none, begin from scratch.

    After `from_iter()` reports the trial was there; what it reports next is one more.

    Raises:
        CheckpointError: it cannot be read; says which and why.

    >>> load_checkpoint() is None
    True
    """
    if not in_job():
        return None
    context = current().context
    name = context.get("checkpoint")
    if name is None:
        return None
    try:
        return open_checkpoint(context["checkpoints"], name, trial_folder)
    except CheckpointError as error:
        raise CheckpointError(
            f"trial {current().number} cannot go on: {error.message} Catch CheckpointError to begin from scratch."
        ) from error


def trial_id() -> int | None:
    """The number of the trial that this process runs; None outside a tuner."""
    return current().number if in_job() else None


def trial_config() -> Mapping[str, Any]:  # Any: values of the space
    """Return the configuration of this trial, with the names of categories that are objects; empty outside a tuner."""
    return dict(current().context.get("config", {})) if in_job() else {}


def from_iter() -> int:
    """How many reports of this trial stand from earlier attempts; 0 when it begins from scratch."""
    return int(current().context.get("from_iter", 0)) if in_job() else 0


def trial_folder() -> Path:
    """A folder of this trial's own, the same in all its attempts, kept with the experiment. Made when first asked for.

    Outside a tuner, or on a node that does not see the experiment: a temporary folder, deleted when the process ends.
    """
    experiment = _experiment()
    if experiment is None or not experiment.is_dir():
        return _scratch_folder()
    folder = experiment / "trials" / str(current().number)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def check_place() -> None:
    """Raise CheckpointError on a node that sees neither the experiment nor a place for its checkpoints."""
    experiment = _experiment()
    if experiment is None or experiment.is_dir():
        return
    root = str(current().context["checkpoints"])
    if is_local(root) and not os.path.isdir(root):
        raise CheckpointError(
            f"the folder of the experiment, {experiment}, is not visible on {socket.gethostname()}.\n"
            f"Put experiments where every node sees them: set FANWISE_HOME to a folder on a file system that all "
            f"share; or the checkpoints alone: Tuner(..., checkpoints='s3://...')"
        )


def _experiment() -> Path | None:
    """The folder of the experiment; None outside a tuner."""
    context = current().context if in_job() else {}
    return Path(context["experiment"]) if "experiment" in context else None


_scratch: Path | None = None


def _scratch_folder() -> Path:
    global _scratch
    if _scratch is None:
        _scratch = Path(tempfile.mkdtemp(prefix="fanwise-trial-"))
        atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
    return _scratch


def _next_name() -> str:
    global _saved
    job = current()
    number = _saved[1] + 1 if _saved[0] == job.id else 1
    _saved = (job.id, number)
    return f"{job.number}-{job.attempt}-{number}"
