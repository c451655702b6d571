"""`fanwise tune run`: a random search of a function in a file or module."""

from dataclasses import dataclass
from pathlib import Path

import typer

from ..tune import RandomSearch, StoppingCriterion, Tuner
from .experiments import check_end, run_to_its_end, shown_config
from .objectives import load_function
from .space_files import read_space


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
        typer.Exit: with 130, after all of it, when Ctrl-C ended the search.
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
    experiment = run_to_its_end(tuner)
    best = experiment.best
    if best is not None:
        typer.echo(f"best configuration: {shown_config(best.config)}")
    typer.echo(f"more of it: fanwise tune show {experiment.name}")
    check_end(experiment)
