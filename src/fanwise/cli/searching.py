"""The command `fanwise tune run`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ..base.errors import ExperimentExistsError
from ..base.text import printable_line
from ..tune import StoppingCriterion, Tuner
from .console import UsageError, at_work, print_lines
from .experiments import best_line, front_lines, pool_on, run_tuner
from .objectives import load_function, split_target
from .presets import scheduling
from .showing import show_json
from .space_files import read_settings, read_space


def run_search(
    *,
    objective: str,
    space: Path,
    metric: Sequence[str],
    mode: Sequence[str] | None,
    constraint: Sequence[str] | None,
    searcher: str | None,
    scheduler: str,
    option: Sequence[str] | None,
    seconds: float | None,
    trials: int | None,
    workers: int | None,
    trial_timeout: float | None,
    max_equal_failures: int,
    seed: int | None,
    synchronous: bool,
    ray: str | None,
    listen: str | None,
    secret_file: Path | None,
    local_workers: int | None,
    json: bool,
    **tuner_options: Any,
) -> None:
    """Validate the options, run the search, and print its results.

    Args:
        tuner_options: options with the names that they have in `Tuner`.

    Raises:
        UsageError: an option, the file or the space is invalid. Nothing was started.
        ValueError: the file raises an error when it is loaded.
        SearchFailedError: the first trials failed with the same error, or no trial reported anything.
        NotInstalled, ClusterError: the cluster cannot be used.
        typer.Exit: status 130, after the results, if Ctrl-C ended the search.
    """
    split_target(objective)  # errors in the arguments are reported before missing options
    domains = read_space(space)
    modes = mode or ["min"]
    if len(modes) not in (1, len(metric)):
        raise UsageError(f"--mode must be given once, or once for each --metric, got {len(modes)} for {len(metric)}")
    if seconds is None and trials is None:
        raise UsageError("--seconds or --trials is required")
    settings = scheduling(
        searcher,
        scheduler,
        read_settings(option or [], "--option"),
        metric=metric if len(metric) > 1 else metric[0],
        mode=modes if len(modes) > 1 else modes[0],
        constraints=constraint or [],
        random_seed=seed,
    )
    with at_work(f"loading {printable_line(objective)}"):
        function = load_function(objective)
    with pool_on(ray, listen, secret_file, local_workers) as pool:
        try:
            tuner = Tuner(
                function,
                domains,
                stop=StoppingCriterion(max_wallclock_time=seconds, max_num_trials_started=trials),
                **settings,
                n_workers=workers,
                trial_timeout_s=trial_timeout,
                max_equal_failures=max_equal_failures or None,
                asynchronous=not synchronous,
                pool=pool,
                quiet=json,
                **tuner_options,
            )
        except ExperimentExistsError as error:
            raise FileExistsError(
                f"the experiment {error.name!r} exists ({error.path}). Choose another --name, resume it with "
                f"fanwise tune resume {error.name}, or delete it with fanwise tune rm {error.name}"
            ) from error
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from error
        run_and_print(tuner, json=json)


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
        print_lines(front_lines(experiment))
        typer.echo(f"details: fanwise tune show {experiment.name}")
    if status:
        raise typer.Exit(status)
