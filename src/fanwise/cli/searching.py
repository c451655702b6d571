"""`fanwise tune run`: a random search of a function in a file."""

import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ..base.errors import SearchFailedError
from ..tune import RandomSearch, StoppingCriterion, Tuner
from ..tune.nearest import did_you_mean
from .experiments import shown_config
from .space_files import read_space

# The file's module name: not importable, so that its functions travel by value and its main block does not run.
_RUN_NAME = "fanwise_objective_file"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command."""

    objective: str
    space: Path
    metric: str
    mode: str
    seconds: float | None
    trials: int | None
    workers: int | None
    devices_per_trial: float
    trial_timeout_s: float | None
    retries: int
    seed: int | None
    name: str | None
    asynchronous: bool
    reuse: bool


def run_search(settings: Settings) -> None:
    """Check everything, search, and print where the results are.

    Raises:
        ValueError, TypeError: an option, the file, or the space is wrong; nothing was started.
        SearchFailedError: the first trials all failed in the same way, or no trial got as far as a report.
    """
    if settings.mode not in ("min", "max"):
        raise ValueError(f"--mode must be min or max, got {settings.mode!r}")
    if settings.seconds is None and settings.trials is None:
        raise ValueError("say when the search ends: --seconds or --trials")
    devices = settings.devices_per_trial
    tuner = Tuner(
        load_function(settings.objective),
        read_space(settings.space),
        RandomSearch(
            metric=settings.metric, mode="min" if settings.mode == "min" else "max", random_seed=settings.seed
        ),
        StoppingCriterion(max_wallclock_time=settings.seconds, max_num_trials_started=settings.trials),
        n_workers=settings.workers,
        devices_per_trial=int(devices) if devices == int(devices) else devices,
        trial_timeout_s=settings.trial_timeout_s,
        retries=settings.retries,
        name=settings.name,
        asynchronous=settings.asynchronous,
        reuse=settings.reuse,
    )
    experiment = tuner.run()
    best = experiment.best
    if best is not None:
        typer.echo(f"best configuration: {shown_config(best.config)}")
    typer.echo(f"more of it: fanwise tune show {experiment.name}")
    if best is None and "Failed" in set(experiment.trials["status"]):
        raise SearchFailedError("every trial that ended failed; no value was reported. The lines above say why.")


def load_function(target: str) -> Callable[..., Any]:  # Any: the user's function
    """The function that FILE:FUNCTION names.

    Raises:
        ValueError: no such file or function (says which there are), or the file fails when it is loaded (says where).
    """
    file, separator, name = target.rpartition(":")
    if not separator or not file or not name:
        raise ValueError(f"the objective must be FILE:FUNCTION, e.g. train.py:train, got {target!r}")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"there is no file {file!r} (from {target!r})")
    names = _names_in(path)
    function = names.get(name)
    if not callable(function):
        own = [key for key, value in names.items() if getattr(value, "__module__", "") == _RUN_NAME]
        raise ValueError(f"{file} has no function {name!r}{did_you_mean(name, own)}")
    return function  # type: ignore[no-any-return]  # callable was just checked


def _names_in(path: Path) -> dict[str, Any]:  # Any: whatever the file defines
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours, here and in the workers
    try:
        return runpy.run_path(str(path), run_name=_RUN_NAME)
    except SystemExit as error:
        raise ValueError(
            f"{path} ended with exit code {error.code!r} while it was loaded. "
            f"Put what it does as a program below `if __name__ == '__main__':`."
        ) from error
    except Exception as error:
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}{_line_in(path, error)}") from error


def _line_in(path: Path, error: Exception) -> str:
    """Where in the file an error arose: the last of its lines in the traceback."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return f" (in line {lines[-1]})" if lines else ""
