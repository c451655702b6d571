"""The command `fanwise tune run`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ..base.errors import ExperimentExistsError, FanwiseError
from ..base.text import printable_line
from ..pool import Pool
from ..tune import Space, StoppingCriterion, Tuner
from ..tune.record.names import check_name
from .experiments import best_line, front_lines, pool_on, run_tuner
from .objectives import load_function, split_target
from .presets import refuse_command_options, scheduler_of
from .progress import at_work
from .reading_values import read_settings
from .showing import show_json
from .space_files import read_space
from .usage import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command, by the names of its parameters."""

    objective: str
    space: Path
    metric: Sequence[str]
    mode: Sequence[str] | None
    constraint: Sequence[str] | None
    searcher: str | None
    scheduler: str
    option: Sequence[str] | None
    seconds: float | None
    trials: int | None
    workers: int | None
    devices_per_trial: float | None
    trial_timeout: float | None
    retries: int
    seed: int | None
    name: str | None
    synchronous: bool
    reuse: bool
    ray: str | None
    json: bool


def run_search(settings: Settings) -> None:
    """Validate the options, run the search, and print its results.

    Raises:
        UsageError: an option, the file or the space is invalid. Nothing was started.
        ValueError: the file raises an error when it is loaded.
        SearchFailedError: the first trials failed with the same error, or no trial reported anything.
        NotInstalled, ClusterError: the cluster cannot be used.
        typer.Exit: status 130, after the results, if Ctrl-C ended the search.
    """
    split_target(settings.objective)  # errors in the arguments are reported before missing options
    space = read_space(settings.space)
    modes = [str(mode) for mode in settings.mode or ["min"]]
    if len(modes) not in (1, len(settings.metric)):
        counts = f"{len(modes)} for {len(settings.metric)}"
        raise UsageError(f"--mode must be given once, or once for each --metric, got {counts}")
    if settings.seconds is None and settings.trials is None:
        raise UsageError("--seconds or --trials is required")
    for option, seconds in (("--seconds", settings.seconds), ("--trial-timeout", settings.trial_timeout)):
        if seconds is not None and not seconds > 0:
            raise UsageError(f"{option} must be above 0, got {seconds:g}")
    devices = settings.devices_per_trial
    if devices is not None and not 0 < devices < math.inf:
        raise UsageError(f"--devices-per-trial must be a number above 0, got {devices:g}")
    if settings.name is not None:
        _check_name(settings.name)
    scheduling = _scheduling(settings)
    with at_work(f"loading {printable_line(settings.objective)}"):
        function = load_function(settings.objective)
    with pool_on(settings.ray) as pool:
        run_and_print(_tuner(settings, function, space, scheduling, pool), json=settings.json)


def _tuner(
    settings: Settings,
    function: Callable[..., Any],  # Any: the user's objective
    space: Space,
    scheduling: Mapping[str, Any],  # Any: arguments of the Tuner
    pool: Pool | None,
) -> Tuner:
    devices = settings.devices_per_trial
    try:
        return Tuner(
            function,
            space,
            stop=StoppingCriterion(max_wallclock_time=settings.seconds, max_num_trials_started=settings.trials),
            **scheduling,
            n_workers=settings.workers,
            devices_per_trial=devices if devices is None or devices != int(devices) else int(devices),
            trial_timeout_s=settings.trial_timeout,
            retries=settings.retries,
            name=settings.name,
            asynchronous=not settings.synchronous,
            reuse=settings.reuse,
            pool=pool,
            quiet=settings.json,
        )
    except ExperimentExistsError as error:
        name = error.name
        raise FileExistsError(
            f"the experiment {name!r} exists ({error.path}). Choose another --name, resume it with "
            f"fanwise tune resume {name}, or delete it with fanwise tune rm {name}"
        ) from error
    except FanwiseError:  # for example a missing library
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _check_name(name: str) -> None:
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(f"--name: {error}") from None


def _scheduling(settings: Settings) -> dict[str, Any]:  # Any: arguments of the Tuner
    """Return the scheduler argument of the Tuner, or the arguments with which the Tuner chooses a scheduler."""
    options = read_settings(settings.option or [], "--option")
    metric = settings.metric if len(settings.metric) > 1 else settings.metric[0]
    modes = [str(mode) for mode in settings.mode or ["min"]]
    mode = modes if len(modes) > 1 else modes[0]
    if settings.searcher is None and settings.scheduler == "fifo":
        refuse_command_options(options)
        if options:
            raise UsageError(f"--option {min(options)} needs --searcher or --scheduler, to which it belongs")
        return {
            "metric": metric,
            "mode": mode,
            "constraints": settings.constraint or [],
            "random_seed": settings.seed,
        }
    scheduler = scheduler_of(
        settings.searcher,
        settings.scheduler,
        options,
        metric=metric,
        mode=mode,
        constraints=settings.constraint or [],
        seed=settings.seed,
    )
    return {"scheduler": scheduler}


def run_and_print(tuner: Tuner, *, json: bool) -> None:
    """Run a search and print its results, as text or like `fanwise tune show --json`. Raises like `run_search`."""
    if json:
        with at_work("searching"):
            experiment, status = run_tuner(tuner)
        typer.echo(show_json(str(experiment.path)))
    else:
        experiment, status = run_tuner(tuner)
        if experiment.best is not None and len(experiment.metadata["objectives"]) == 1:
            typer.echo(best_line(experiment.best))
        for line in front_lines(experiment):
            typer.echo(line)
        typer.echo(f"details: fanwise tune show {experiment.name}")
    if status:
        raise typer.Exit(status)
